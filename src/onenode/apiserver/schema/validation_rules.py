"""What the API server makes of an object it is given: the object to store, and why it may not be stored.

`decode_object` reads it (400 when it is none of its kind), `prepare_create` and `prepare_update` complete and judge it
(422 with causes). `old` is what is stored. What is random, dated or found in other objects comes in as an argument. The
caller checks the rest: that the name and namespace are those of the URL, that the version is the stored one, who may do
what, and admission that refuses (volume_claim_rules.resize_refusal).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from onenode.apiserver.kinds.kind_rules import KindRules, part_causes, rules_of
from onenode.apiserver.schema.creation_rules import (
    CreationContext,
    with_data_sources,
    with_plain_secrets,
    with_tolerations,
)
from onenode.apiserver.schema.decoding_rules import Decoded, decode
from onenode.apiserver.schema.default_rules import DEFAULTS, METADATA_NAME_LABEL
from onenode.apiserver.schema.field_errors import Cause
from onenode.apiserver.schema.field_rules import without
from onenode.apiserver.schema.metadata_rules import (
    after_update,
    at_creation,
    creation_causes,
    missing_version,
    update_causes,
    with_old_fields,
)
from onenode.apiserver.schema.schemas import Schemas

Object = dict[str, Any]

MAIN: Final = ""
STATUS: Final = "status"
FINALIZE: Final = "finalize"
# Kinds that are answered and never stored: their metadata is the client's.
NEVER_STORED_KINDS: Final = frozenset(
    {
        *("Binding", "Eviction", "DeleteOptions", "Status", "TokenRequest", "TokenReview"),
        *("SelfSubjectReview", "SelfSubjectAccessReview", "SubjectAccessReview"),
        *("LocalSubjectAccessReview", "SelfSubjectRulesReview"),
    }
)


class Prepared(NamedTuple):
    """The object to store if there are no causes."""

    object: Object
    causes: tuple[Cause, ...]


class CustomObjects(Protocol):
    """The same three functions for the objects of a custom resource, whose schema a CustomResourceDefinition has."""

    def decode(self, value: Any) -> Decoded: ...

    def create(self, given: Object, around: CreationContext) -> Prepared: ...

    def update(self, old: Object, given: Object, subresource: str) -> Prepared: ...


def _custom(schemas: Schemas, api_version: str, kind: str) -> CustomObjects | None:
    custom: CustomObjects | None = schemas.custom.get((api_version, kind))
    return custom


def decode_object(schemas: Schemas, api_version: str, kind: str, value: Any) -> Decoded:
    """The object with its defaults, and the fields nobody knows; raises Undecodable."""
    if (custom := _custom(schemas, api_version, kind)) is not None:
        return custom.decode(value)
    decoded = decode(schemas, schemas.kind(api_version, kind), value, DEFAULTS)
    return Decoded({"apiVersion": api_version, "kind": kind, **without(decoded.object, _TYPE)}, decoded.unknown)


_TYPE: Final = ("apiVersion", "kind")


def prepare_create(schemas: Schemas, api_version: str, kind: str, given: Object, around: CreationContext) -> Prepared:
    """`given` was decoded by decode_object."""
    if (custom := _custom(schemas, api_version, kind)) is not None:
        return custom.create(given, around)
    rules = rules_of(api_version, kind)
    if kind in NEVER_STORED_KINDS:
        return Prepared(given, (*_part_causes(schemas, given), *rules.causes(given)))
    made = rules.make(_created(given, rules, around), around)
    if kind == "Namespace":
        made = _labelled_namespace(made)
    causes = (*_creation_metadata_causes(made, rules, around), *_part_causes(schemas, made), *rules.causes(made))
    return Prepared(made, causes)


def _created(given: Object, rules: KindRules, around: CreationContext) -> Object:
    metadata = at_creation(
        given.get("metadata", {}),
        uid=around.uid,
        now=around.now,
        namespace=around.namespace,
        name_suffix=around.name_suffix,
    )
    if rules.first_generation is not None:
        metadata["generation"] = rules.first_generation
    return {**given, "metadata": metadata}


def _labelled_namespace(namespace: Object) -> Object:
    """A name that was generated is known only now."""
    metadata = namespace["metadata"]
    labels = {**metadata.get("labels", {}), METADATA_NAME_LABEL: metadata.get("name", "")}
    return {**namespace, "metadata": {**metadata, "labels": labels}}


def _creation_metadata_causes(made: Object, rules: KindRules, around: CreationContext) -> Iterator[Cause]:
    return creation_causes(
        made["metadata"],
        namespaced=around.namespace is not None,
        check=rules.name_check,
        qualified_finalizers=rules.qualified_finalizers,
    )


def _part_causes(schemas: Schemas, made: Object) -> list[Cause]:
    definition = schemas.kind(made["apiVersion"], made["kind"])
    return part_causes(schemas, definition, _body(rules_of(made["apiVersion"], made["kind"]).parts(made)))


def _body(made: Object) -> Object:
    return without(made, ("metadata", STATUS))


def prepare_update(schemas: Schemas, old: Object, given: Object, *, now: str, subresource: str = MAIN) -> Prepared:
    """`given` was decoded by decode_object, after a patch was applied to the old object or as a client sent it."""
    if (custom := _custom(schemas, old["apiVersion"], old["kind"])) is not None:
        return custom.update(old, given, subresource)
    rules = rules_of(old["apiVersion"], old["kind"])
    if not given.get("metadata", {}).get("resourceVersion"):
        if not rules.replaced_without_version:
            return Prepared(given, (missing_version(),))
        given = _with_version_of(old, given)
    if subresource == STATUS:
        made = _status_update(old, given, rules, now)
        causes = [*_update_metadata_causes(old, made, rules), *rules.status_causes(old, made)]
    else:
        made = _main_update(old, given, rules, subresource)
        causes = [
            *_update_metadata_causes(old, made, rules),
            # What was stored is valid: most updates change metadata alone.
            *(_part_causes(schemas, made) if _body(old) != _body(made) else ()),
            *rules.causes(_as_validated(made)),
            *rules.update_causes(old, made),
        ]
    return Prepared(made, tuple(dict.fromkeys(causes)))


def _with_version_of(old: Object, given: Object) -> Object:
    version = old.get("metadata", {}).get("resourceVersion")
    return {**given, "metadata": {**given.get("metadata", {}), **({"resourceVersion": version} if version else {})}}


def _update_metadata_causes(old: Object, made: Object, rules: KindRules) -> Iterator[Cause]:
    yield from update_causes(old["metadata"], made["metadata"], qualified_finalizers=rules.qualified_finalizers)


def _as_validated(made: Object) -> Object:
    """What may only not be there when a pod is made is no matter afterwards."""
    if made["kind"] != "Pod":
        return made
    return {**made, "spec": without(made.get("spec", {}), ["ephemeralContainers"])}


def _main_update(old: Object, given: Object, rules: KindRules, subresource: str) -> Object:
    made = {**given, "metadata": after_update(old["metadata"], given.get("metadata", {}))}
    if rules.has_status:
        made = _with_old(old, made, STATUS)
    made = _as_kept_by_server(old, made, subresource)
    if rules.generation_of is not None and old.get(rules.generation_of) != made.get(rules.generation_of):
        made["metadata"] = {**made["metadata"], "generation": old["metadata"].get("generation", 0) + 1}
    return made


def _with_old(old: Object, made: Object, field: str) -> Object:
    kept = {field: old[field]} if field in old else {}
    return {**without(made, [field]), **kept}


def _as_kept_by_server(old: Object, made: Object, subresource: str) -> Object:
    """What the server sees to at every update of some kinds."""
    match made["kind"]:
        case "Namespace" if subresource != FINALIZE:
            return {**made, "spec": _with_old(old.get("spec", {}), made.get("spec", {}), "finalizers")}
        case "Pod":
            return {**made, "spec": _pod_spec(old.get("spec", {}), made.get("spec", {}))}
        case "PersistentVolumeClaim":
            return {**made, "spec": with_data_sources(made.get("spec", {}))}
        case "ServiceAccount":
            return with_plain_secrets(made)
        case _:
            return made


def _pod_spec(old: Mapping[str, Any], new: Object) -> Object:
    kept = {field: old[field] for field in ("priority", "preemptionPolicy") if field in old and field not in new}
    return {**with_tolerations(new), **kept}


def _status_update(old: Object, given: Object, rules: KindRules, now: str) -> Object:
    metadata = with_old_fields(old["metadata"], given.get("metadata", {}), rules.status_keeps)
    made = {**old, "metadata": after_update(old["metadata"], metadata)}
    made = {**without(made, [STATUS]), **({STATUS: given[STATUS]} if STATUS in given else {})}
    match made["kind"]:
        case "PersistentVolume":
            return {**made, STATUS: _volume_status(old.get(STATUS, {}), made.get(STATUS, {}), now)}
        case "Pod":
            return {**made, STATUS: _pod_status(old.get(STATUS, {}), made.get(STATUS, {}))}
        case _:
            return made


def _volume_status(old: Mapping[str, Any], new: Object, now: str) -> Object:
    """The time of the last change of phase is the server's to keep, unless the client keeps it."""
    before, after = old.get("lastPhaseTransitionTime"), new.get("lastPhaseTransitionTime")
    kept = before if old.get("phase") == new.get("phase") else now
    moment = after if after and after != before else kept
    return {**new, "lastPhaseTransitionTime": moment} if moment else new


def _pod_status(old: Mapping[str, Any], new: Object) -> Object:
    kept = {field: old[field] for field in ("qosClass", "observedGeneration") if field in old and not new.get(field)}
    return {**new, **kept}
