"""The schema of a custom resource as a tree of nodes, built once from `openAPIV3Schema`, so that no object reads JSON.

A node holds what pruning, defaulting and validation need. The clauses of allOf, anyOf, oneOf and not are nodes, too:
they restrict values and declare nothing. Nothing here decides whether a schema is structural: structural_rules does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from onenode.apiserver.custom_resources.leaf_rules import LeafCheck, leaf_checks
from onenode.apiserver.custom_resources.schema_patterns import SchemaPattern

JsonSchema = Mapping[str, Any]

PRESERVES: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
LIST_TYPE: Final = "x-kubernetes-list-type"
LIST_KEYS: Final = "x-kubernetes-list-map-keys"
MAP_TYPE: Final = "x-kubernetes-map-type"
VALIDATIONS: Final = "x-kubernetes-validations"
METADATA: Final = ("apiVersion", "kind", "metadata")


@dataclass(frozen=True, slots=True)
class Clauses:
    """The logic of a node."""

    all_of: tuple[SchemaNode, ...] = ()
    any_of: tuple[SchemaNode, ...] = ()
    one_of: tuple[SchemaNode, ...] = ()
    negated: SchemaNode | None = None

    def nodes(self) -> tuple[SchemaNode, ...]:
        return (*self.all_of, *self.any_of, *self.one_of, *(() if self.negated is None else (self.negated,)))


NO_CLAUSES: Final = Clauses()


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """One node of a schema.

    `types` is empty where any type is allowed. `takes_any_key` is set by additionalProperties; `other` is the schema of
    such values, None for `additionalProperties: true`. `default` is None where there is none.
    """

    types: tuple[str, ...] = ()
    properties: Mapping[str, SchemaNode] = field(default_factory=dict)
    takes_any_key: bool = False
    other: SchemaNode | None = None
    items: SchemaNode | None = None
    required: tuple[str, ...] = ()
    nullable: bool = False
    preserves: bool = False
    embedded: bool = False
    default: Any = None
    list_type: str = "atomic"
    list_keys: tuple[str, ...] = ()
    map_type: str = "granular"
    checks: tuple[LeafCheck, ...] = ()
    pattern: SchemaPattern | None = None
    enum: Sequence[Any] | None = None
    clauses: Clauses = NO_CLAUSES
    defaulted: tuple[str, ...] = ()
    """The properties that have a default."""
    schema: JsonSchema = field(default_factory=dict)
    has_embedded: bool = field(init=False, default=False)
    """Whether this node or one below it is an embedded object: the objects of most schemas need not be searched."""
    has_list_types: bool = field(init=False, default=False)
    """Whether items of a list here or below must not be repeated."""
    has_patterns: bool = field(init=False, default=False)
    """Whether texts here or below are searched for a pattern."""

    def __post_init__(self) -> None:
        below = [*self.properties.values(), *(each for each in (self.other, self.items) if each is not None)]
        object.__setattr__(self, "has_embedded", self.embedded or any(each.has_embedded for each in below))
        listed = self.list_type != "atomic" or any(each.has_list_types for each in below)
        object.__setattr__(self, "has_list_types", listed)
        searched = self.pattern is not None or any(each.has_patterns for each in (*below, *self.clauses.nodes()))
        object.__setattr__(self, "has_patterns", searched)

    def child(self, key: str) -> SchemaNode | None:
        return self.properties.get(key, self.other)


def node_of(schema: JsonSchema) -> SchemaNode:
    """Build the node of a schema. `pattern` and all else must have been validated."""
    properties = {name: node_of(inner) for name, inner in schema.get("properties", {}).items()}
    additional = schema.get("additionalProperties", False)
    items = schema.get("items")
    return SchemaNode(
        types=_types(schema),
        properties=properties,
        takes_any_key=additional is not False,
        other=node_of(additional) if isinstance(additional, dict) else None,
        items=None if items is None else node_of(items),
        required=tuple(schema.get("required", ())),
        nullable=bool(schema.get("nullable")),
        preserves=bool(schema.get(PRESERVES)),
        embedded=bool(schema.get(EMBEDDED)),
        default=schema.get("default"),
        list_type=schema.get(LIST_TYPE, "atomic"),
        list_keys=tuple(schema.get(LIST_KEYS, ())),
        map_type=schema.get(MAP_TYPE, "granular"),
        checks=leaf_checks(schema),
        pattern=SchemaPattern(schema["pattern"]) if schema.get("pattern") else None,
        enum=schema.get("enum"),
        clauses=_clauses(schema),
        defaulted=tuple(name for name, inner in properties.items() if inner.default is not None),
        schema=schema,
    )


def _types(schema: JsonSchema) -> tuple[str, ...]:
    if schema.get(INT_OR_STRING):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def _clauses(schema: JsonSchema) -> Clauses:
    if not any(schema.get(name) for name in ("allOf", "anyOf", "oneOf", "not")):
        return NO_CLAUSES
    all_of, any_of, one_of = (tuple(map(node_of, schema.get(name, ()))) for name in ("allOf", "anyOf", "oneOf"))
    negated = schema.get("not")
    return Clauses(all_of, any_of, one_of, None if negated is None else node_of(negated))
