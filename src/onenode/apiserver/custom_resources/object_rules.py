"""What the API server makes of a custom resource: decoded, completed and validated, new or changed. Pure.

`CustomKind` has the functions that validation_rules has for built-in kinds. The order of validation is Kubernetes': the
type, then metadata, the schema, scale, embedded objects, list types, and the rules of `x-kubernetes-validations`, which
are not evaluated while a cause of another kind says that values are missing or of the wrong type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from onenode.apiserver.custom_resources.expression_rules import RuleTree, expression_causes, rule_tree
from onenode.apiserver.custom_resources.expression_value_rules import BUDGET
from onenode.apiserver.custom_resources.leaf_rules import NO_FIELD, TYPE_INVALID
from onenode.apiserver.custom_resources.schema_nodes import METADATA, SchemaNode
from onenode.apiserver.custom_resources.shaping_rules import shaped
from onenode.apiserver.custom_resources.value_rules import (
    NO_OLD,
    embedded_causes,
    list_causes,
    searches_cost,
    value_causes,
)
from onenode.apiserver.kinds.scale_rules import ScalePaths, scale_causes
from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.creation_rules import CreationContext
from onenode.apiserver.schema.decoding_rules import Decoded, Undecodable, decode
from onenode.apiserver.schema.field_errors import Cause, invalid
from onenode.apiserver.schema.field_rules import without
from onenode.apiserver.schema.metadata_rules import (
    after_update,
    at_creation,
    creation_causes,
    missing_version,
    update_causes,
)
from onenode.apiserver.schema.scalar_rules import json_name
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.schema.validation_rules import STATUS, Prepared
from orlop.kube.kinds import Kind

Object = dict[str, Any]

OBJECT_META: Final = "meta.v1.ObjectMeta"
NOT_CHECKED: Final = Cause(
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation",
    NO_FIELD,
)
TOO_MANY_SEARCHES: Final = Cause(
    "FieldValueTooLong",
    "Too long: to search all texts for the schema's patterns would take more than a second; make the object smaller",
    NO_FIELD,
)
# Causes with which no rule can be evaluated: a value is missing, of another type, or too large.
BLOCKING: Final = frozenset(
    {"FieldValueRequired", "FieldValueNotSupported", "FieldValueTooLong", "FieldValueTooMany", TYPE_INVALID}
)


@dataclass(frozen=True)
class CustomKind:
    """One served version of a definition."""

    kind: Kind
    node: SchemaNode
    schemas: Schemas = field(repr=False)
    scale: ScalePaths | None = None

    # ---- decoding ----------------------------------------------------------------------------------------------------

    def decode(self, value: Any) -> Decoded:
        """Return the object in its shape, with the paths of unknown fields; raise Undecodable."""
        if not isinstance(value, dict):
            raise Undecodable(
                f"json: cannot unmarshal {json_name(value)} into Go value of type map[string]interface {{}}"
            )
        unknown: list[str] = []
        kind, version = value.get("kind") or self.kind.kind, value.get("apiVersion") or self.kind.api_version
        metadata = self._metadata(value.get("metadata"), "metadata", unknown)
        body = shaped(
            without(value, METADATA), self.node, unknown, lambda metadata, path: self._metadata(metadata, path, [])
        )
        return Decoded({"apiVersion": version, "kind": kind, "metadata": metadata, **body}, tuple(unknown))

    def _metadata(self, value: Any, path: str, unknown: list[str]) -> Object:
        decoded = decode(self.schemas, self.schemas.definition(OBJECT_META), {} if value is None else value)
        unknown.extend(f"{path}.{each}" for each in decoded.unknown)
        return decoded.object

    # ---- writing -----------------------------------------------------------------------------------------------------

    def create(self, obj: Object, around: CreationContext) -> Prepared:
        metadata = at_creation(
            obj.get("metadata", {}),
            uid=around.uid,
            now=around.now,
            namespace=around.namespace,
            name_suffix=around.name_suffix,
        )
        new = {**obj, "metadata": {**metadata, "generation": 1}}
        if self.kind.has_status:
            new.pop(STATUS, None)
        if causes := tuple(self._type_causes(new)):
            return Prepared(new, causes)
        of_metadata = creation_causes(
            new["metadata"],
            namespaced=around.namespace is not None,
            check=name_rules.dns_subdomain,
            qualified_finalizers=False,
        )
        of_values = (*_value_causes(new, self.node, NO_OLD), *self._scale_causes(new))
        causes = (*of_metadata, *of_values, *self._structure_causes(new))
        return Prepared(new, (*causes, *self._rule_causes(causes, new, NO_OLD)))

    def update(self, old: Object, obj: Object, subresource: str) -> Prepared:
        if not obj.get("metadata", {}).get("resourceVersion"):
            return Prepared(obj, (missing_version(),))
        new = self._new_status(old, obj) if subresource == STATUS else self._new_object(old, obj)
        if causes := tuple(self._type_causes(new)):
            return Prepared(new, causes)
        of_metadata = update_causes(old["metadata"], new["metadata"], qualified_finalizers=False)
        causes = (*of_metadata, *self._changed_causes(old, new, subresource))
        # A list that was invalid before keeps nobody from changing something else.
        repeated = tuple(list_causes(new, self.node))
        if repeated and not any(list_causes(old, self.node)):
            causes = (*causes, *repeated)
        return Prepared(new, (*causes, *self._rule_causes(causes, new, old)))

    def _new_object(self, old: Object, obj: Object) -> Object:
        new = {**obj, "metadata": after_update(old["metadata"], obj.get("metadata", {}))}
        if self.kind.has_status:
            new = {**without(new, [STATUS]), **({STATUS: old[STATUS]} if STATUS in old else {})}
        if without(new, ["metadata"]) != without(old, ["metadata"]):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return new

    def _new_status(self, old: Object, obj: Object) -> Object:
        """Of a status write, all but the status is as it was."""
        version = obj["metadata"]["resourceVersion"]
        new = {**without(old, [STATUS]), "metadata": {**old["metadata"], "resourceVersion": version}}
        return {**new, **({STATUS: obj[STATUS]} if STATUS in obj else {})}

    # ---- causes ------------------------------------------------------------------------------------------------------

    def _type_causes(self, new: Object) -> Iterator[Cause]:
        for name, expected in (("kind", self.kind.kind), ("apiVersion", self.kind.api_version)):
            if new[name] != expected:
                yield invalid(name, new[name], f"must be {expected}")

    def _changed_causes(self, old: Object, new: Object, subresource: str) -> Iterator[Cause]:
        if subresource == STATUS:
            node = self.node.child(STATUS)
            if node is not None and STATUS in new:
                for cause in _value_causes(new[STATUS], node, old.get(STATUS, NO_OLD)):
                    # As in Kubernetes, the field has the whole path and the text the one inside the status.
                    of_field = cause.field != NO_FIELD
                    yield replace(cause, field=f"{STATUS}.{cause.field}".rstrip(".")) if of_field else cause
            yield from self._scale_causes(new, of_status=True)
            return
        yield from _value_causes(new, self.node, old)
        yield from self._scale_causes(new)
        if self.node.has_embedded:
            yield from embedded_causes(new, self.node)

    def _structure_causes(self, new: Object) -> Iterator[Cause]:
        if self.node.has_embedded:
            yield from embedded_causes(new, self.node)
        yield from list_causes(new, self.node)

    def _scale_causes(self, new: Object, *, of_status: bool = False) -> Iterator[Cause]:
        if self.scale is not None:
            yield from scale_causes(new, self.scale, of_status=of_status)

    @cached_property
    def _rules(self) -> RuleTree | None:
        return rule_tree(self.node)

    def _rule_causes(self, causes: tuple[Cause, ...], new: Mapping[str, Any], old: Any) -> list[Cause]:
        if self._rules is None:
            return []
        if any(cause.reason in BLOCKING for cause in causes):
            return [NOT_CHECKED]
        return expression_causes(self._rules, new, old)


def _value_causes(value: Any, node: SchemaNode, old: Any) -> list[Cause]:
    if searches_cost(value, node, old) > BUDGET:
        return [TOO_MANY_SEARCHES]
    return value_causes(value, node, "", old)
