"""Validate the schemas in a CustomResourceDefinition: structural, with the causes and texts of Kubernetes. Pure.

Order, as in Kubernetes: whether the schema is structural → whether its defaults hold against it → what any schema may
say. A schema that passes can be made into nodes (schema_nodes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from onenode.apiserver.custom_resources.expression_rules import expression_causes, rule_tree, rules_causes
from onenode.apiserver.custom_resources.expressions import InvalidExpression
from onenode.apiserver.custom_resources.schema_nodes import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    METADATA,
    PRESERVES,
    VALIDATIONS,
    JsonSchema,
    SchemaNode,
    node_of,
)
from onenode.apiserver.custom_resources.schema_patterns import InvalidSchemaPattern, SchemaPattern
from onenode.apiserver.custom_resources.shaping_rules import shaped
from onenode.apiserver.custom_resources.value_rules import value_causes
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, not_supported, required

TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
CLAUSES: Final = ("allOf", "anyOf", "oneOf")
AT_ROOT_WITH_STATUS: Final = frozenset(
    {
        *("description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "multipleOf", "required"),
        *("items", "properties", "externalDocs", "example", PRESERVES, VALIDATIONS),
    }
)
NOT_SUPPORTED: Final = "is not supported"
UNSUPPORTED: Final = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
EMPTY_TYPES: Final = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
# What a clause may not hold, and how its absence is called.
NOT_IN_CLAUSES: Final = {
    "type": "empty",
    "additionalProperties": "undefined",
    "default": "undefined",
    "title": "empty",
    "description": "empty",
    "nullable": "false",
    PRESERVES: "false",
    EMBEDDED: "false",
    INT_OR_STRING: "false",
    LIST_KEYS: "empty",
    LIST_TYPE: "undefined",
    MAP_TYPE: "undefined",
    VALIDATIONS: "empty",
}
INT_OR_STRING_CLAUSE: Final = ({"type": "integer"}, {"type": "string"})
OF_LIST_KEYS: Final = "this property is in x-kubernetes-list-map-keys, so it"


def schema_causes(schema: JsonSchema, path: str, *, has_status: bool) -> list[Cause]:
    """Return the causes of the whole schema of one version."""
    causes = [*_root_causes(schema, path, has_status=has_status)]
    general = [*_general(schema, path, root=True)]
    structural: list[Cause] = []
    # What is not supported at all cannot be examined for its structure.
    if not any(cause.message.endswith(NOT_SUPPORTED) for cause in general):
        structural += sorted((*_invariants(schema, "root", path), *_completeness(schema, schema, path, path)), key=str)
    # Only a schema that is sound can be made into nodes, against which its defaults are validated.
    if not structural and not general:
        structural += _default_causes(schema, path, embedded=True)
        general += rules_causes({**schema, EMBEDDED: True}, path)  # its rules see the type and the name
    return [*causes, *structural, *general]


def _root_causes(schema: JsonSchema, path: str, *, has_status: bool) -> Iterator[Cause]:
    if has_status and schema.get("type") != "object":
        why = 'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
        yield invalid(f"{path}.type", schema.get("type", ""), why)
    elif has_status and (others := [name for name in schema if name not in AT_ROOT_WITH_STATUS]):
        allowed = "only the fields of a plain object are"
        yield invalid(path, others, f"{allowed} allowed at the root of the schema if the status subresource is enabled")
    if schema.get("nullable"):
        yield forbidden(f"{path}.nullable", "nullable cannot be true at the root")


# ---- structure -------------------------------------------------------------------------------------------------------


def _invariants(schema: JsonSchema, level: str, path: str) -> Iterator[Cause]:
    items, additional = schema.get("items"), schema.get("additionalProperties")
    if schema.get("type") == "array" and items is None:
        yield required(f"{path}.items", "must be specified")
    if items is not None:
        yield from _invariants(items, "item", f"{path}.items")
    for name, inner in schema.get("properties", {}).items():
        yield from _invariants(inner, "field", f"{path}.properties[{name}]")
    if additional is not None and level == "root":
        yield forbidden(f"{path}.additionalProperties", "must not be used at the root")
    if isinstance(additional, dict):
        yield from _invariants(additional, "field", f"{path}.additionalProperties")
    if schema.get(INT_OR_STRING):
        for name in (PRESERVES, EMBEDDED):
            if schema.get(name):
                yield invalid(f"{path}.{name}", True, f"must be false if {INT_OR_STRING} is true")
    yield from _clause_invariants(schema, path)
    yield from _type_invariants(schema, level, path)
    yield from _metadata_invariants(schema, level, path)


def _type_invariants(schema: JsonSchema, level: str, path: str) -> Iterator[Cause]:
    type_ = schema.get("type", "")
    if schema.get(EMBEDDED) and type_ != "object":
        why = f"must be object if {EMBEDDED} is true"
        yield invalid(f"{path}.type", type_, why) if type_ else required(f"{path}.type", why)
    elif not type_ and not schema.get(INT_OR_STRING) and not schema.get(PRESERVES):
        yield required(f"{path}.type", EMPTY_TYPES[level])
    if schema.get(EMBEDDED):
        if schema.get("additionalProperties") is not None:
            yield forbidden(f"{path}.additionalProperties", f"must not be used if {EMBEDDED} is set")
        if not schema.get(PRESERVES) and not schema.get("properties"):
            why = f"must not be empty if {EMBEDDED} is true without {PRESERVES}"
            yield required(f"{path}.properties", why)
    if level == "root" and type_ not in {"", "object"}:
        yield invalid(f"{path}.type", type_, "must be object at the root")


def _metadata_invariants(schema: JsonSchema, level: str, path: str) -> Iterator[Cause]:
    if level != "root" and not schema.get(EMBEDDED):
        return
    properties = schema.get("properties", {})
    for name in ("kind", "apiVersion"):
        if name in properties and properties[name].get("type") != "string":
            yield invalid(f"{path}.properties[{name}].type", properties[name].get("type", ""), "must be string")
    metadata = properties.get("metadata")
    if metadata is None:
        return
    if metadata.get("type") != "object":
        yield invalid(f"{path}.properties[metadata].type", metadata.get("type", ""), "must be object")
    beside = set(metadata) - {"type", "properties", "default"}
    if level == "root" and (beside or set(metadata.get("properties", {})) - {"name", "generateName"}):
        why = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield forbidden(f"{path}.properties[metadata]", why)


def _clause_invariants(schema: JsonSchema, path: str) -> Iterator[Cause]:
    if pattern := schema.get("pattern"):
        try:
            SchemaPattern.of(pattern)
        except InvalidSchemaPattern as error:
            why = f"must be a valid regular expression, but isn't: error parsing regexp: {error}"
            yield invalid(f"{path}.pattern", pattern, why)
    for inner, inner_path in _clauses(schema, path):
        yield from _nested(inner, inner_path)


def _clauses(schema: JsonSchema, path: str) -> Iterator[tuple[JsonSchema, str]]:
    """The schemas of all clauses, but for the one that says that a value is an int-or-string."""
    for name in CLAUSES:
        inner = schema.get(name, [])
        if name == "anyOf" and tuple(inner) == INT_OR_STRING_CLAUSE and schema.get(INT_OR_STRING):
            continue
        for place, each in enumerate(inner):
            is_type = name == "allOf" and place == 0 and tuple(each.get("anyOf", ())) == INT_OR_STRING_CLAUSE
            yield {**each, "anyOf": []} if is_type and schema.get(INT_OR_STRING) else each, f"{path}.{name}[{place}]"
    if schema.get("not") is not None:
        yield schema["not"], f"{path}.not"


def _nested(schema: JsonSchema, path: str) -> Iterator[Cause]:
    yield from _clause_invariants(schema, path)
    if isinstance(schema.get("items"), dict):
        yield from _nested(schema["items"], f"{path}.items")
    for name, inner in schema.get("properties", {}).items():
        yield from _nested(inner, f"{path}.properties[{name}]")
    for name, absence in NOT_IN_CLAUSES.items():
        if schema.get(name) not in (None, "", False, []):
            yield forbidden(f"{path}.{name}", f"must be {absence} to be structural")
    if "metadata" in schema.get("properties", {}):
        yield forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context")


def _completeness(schema: JsonSchema, declared: JsonSchema | None, path: str, clause_path: str) -> Iterator[Cause]:
    """Yield a cause for each field that a clause of `schema` names and `declared` does not."""
    for inner, inner_path in _clauses(schema, clause_path):
        yield from _nested_completeness(inner, declared, path, inner_path)
    if schema is declared:
        for name, inner in schema.get("properties", {}).items():
            yield from _completeness(inner, inner, f"{path}.properties[{name}]", f"{clause_path}.properties[{name}]")
        for name in ("items", "additionalProperties"):
            if isinstance(schema.get(name), dict):
                inner = schema[name]
                yield from _completeness(inner, inner, f"{path}.{name}", f"{clause_path}.{name}")


def _nested_completeness(
    clause: JsonSchema, declared: JsonSchema | None, path: str, clause_path: str
) -> Iterator[Cause]:
    if declared is None:
        yield required(path, f"because it is defined in {clause_path}")
        return
    yield from _completeness(clause, declared, path, clause_path)
    if isinstance(clause.get("items"), dict):
        items = declared.get("items")
        yield from _nested_completeness(clause["items"], items, f"{path}.items", f"{clause_path}.items")
    for name, inner in clause.get("properties", {}).items():
        there, here = f"{path}.properties[{name}]", f"{clause_path}.properties[{name}]"
        yield from _nested_completeness(inner, declared.get("properties", {}).get(name), there, here)


# ---- defaults --------------------------------------------------------------------------------------------------------


def _default_causes(schema: JsonSchema, path: str, *, embedded: bool = False) -> Iterator[Cause]:
    default = schema.get("default")
    if default is not None:
        node, unknown = node_of(schema), list[str]()
        if isinstance(default, dict):
            shaped(default, node, unknown, lambda given, _path: dict(given))
        if unknown:
            yield invalid(f"{path}.default", default, "must not have unknown fields")
        causes = [*value_causes(default, node, f"{path}.default")]
        yield from causes or _broken_rules(node, default, f"{path}.default")
    if isinstance(schema.get("items"), dict):
        yield from _default_causes(schema["items"], f"{path}.items")
    for name, inner in schema.get("properties", {}).items():
        if not (embedded and name in METADATA):
            yield from _default_causes(inner, f"{path}.properties[{name}]", embedded=bool(inner.get(EMBEDDED)))


def _broken_rules(node: SchemaNode, default: Any, path: str) -> list[Cause]:
    """The rules that a default breaks, as a value that stays as it was and as a new one."""
    try:
        rules = rule_tree(node)
    except InvalidExpression:
        return []  # the rule itself is refused
    if rules is None:
        return []
    return expression_causes(rules, default, default, path) or expression_causes(rules, default, path=path)


# ---- what any schema may say -----------------------------------------------------------------------------------------


def _general(schema: JsonSchema, path: str, *, root: bool = False, no_defaults: str = "") -> Iterator[Cause]:
    yield from _standard(schema, path, no_defaults)
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(f"{path}.uniqueItems", why)
    additional, properties = schema.get("additionalProperties"), schema.get("properties", {})
    if properties and additional is not None and additional is not True:
        yield forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
    if isinstance(additional, dict):
        yield from _general(additional, f"{path}.additionalProperties", no_defaults=no_defaults)
    for name, inner in properties.items():
        reason = f"in top-level {name}" if root and name in METADATA else no_defaults
        yield from _general(inner, f"{path}.properties[{name}]", no_defaults=reason)
    for inner, inner_path in _clauses(schema, path):
        yield from _general(inner, inner_path, no_defaults=no_defaults)
    if isinstance(schema.get("items"), dict):
        yield from _general(schema["items"], f"{path}.items", no_defaults=no_defaults)
    if schema.get(PRESERVES) is False:
        yield invalid(f"{path}.{PRESERVES}", False, "must be true or undefined")
    yield from _of_kind(schema, path, MAP_TYPE, "object", ("atomic", "granular"))
    yield from _of_kind(schema, path, LIST_TYPE, "array", ("atomic", "set", "map"))
    yield from _list_causes(schema, path)


def _standard(schema: JsonSchema, path: str, no_defaults: str) -> Iterator[Cause]:
    type_ = schema.get("type", "")
    if type_ and type_ not in TYPES:
        yield not_supported(f"{path}.type", type_, TYPES)
    if schema.get("default") is not None and no_defaults:
        yield forbidden(f"{path}.default", f"must not be set {no_defaults}")
    for name in UNSUPPORTED:
        if schema.get(name) not in (None, "", {}):
            yield forbidden(f"{path}.{name}", f"{name} {NOT_SUPPORTED}")
    if type_ == "null":
        yield forbidden(f"{path}.type", "type cannot be set to null, use nullable as an alternative")


def _of_kind(schema: JsonSchema, path: str, name: str, type_: str, values: Sequence[str]) -> Iterator[Cause]:
    """An extension that only schemas of one type may have, with the values that Kubernetes knows."""
    if (value := schema.get(name)) is None:
        return
    found, why = schema.get("type", ""), f"must be {type_} if {name} is specified"
    if found != type_:
        yield invalid(f"{path}.type", found, why) if found else required(f"{path}.type", why)
    if value not in values:
        yield not_supported(f"{path}.{name}", value, values)


def _list_causes(schema: JsonSchema, path: str) -> Iterator[Cause]:
    list_type, keys, items = schema.get(LIST_TYPE), schema.get(LIST_KEYS, []), schema.get("items")
    if keys and list_type != "map":
        why = f"must be map if {LIST_KEYS} is non-empty"
        yield invalid(f"{path}.{LIST_TYPE}", list_type, why) if list_type else required(f"{path}.{LIST_TYPE}", why)
    if list_type not in {"set", "map"} or items is None:
        return
    if items.get("nullable"):
        yield forbidden(f"{path}.items.nullable", f"cannot be nullable when {LIST_TYPE} is {list_type}")
    if list_type == "set":
        yield from _set_causes(items, f"{path}.items")
    else:
        yield from _map_causes(keys, items, path)


def _set_causes(items: JsonSchema, path: str) -> Iterator[Cause]:
    why = f"must be atomic as item of a list with {LIST_TYPE}=set"
    if items.get("type") == "array" and items.get(LIST_TYPE, "atomic") != "atomic":
        yield invalid(f"{path}.{LIST_TYPE}", items[LIST_TYPE], why)
    if items.get("type") == "object" and items.get(MAP_TYPE) != "atomic":
        yield invalid(f"{path}.{MAP_TYPE}", items.get(MAP_TYPE), why)


def _map_causes(keys: Sequence[str], items: JsonSchema, path: str) -> Iterator[Cause]:
    if not keys:
        yield required(f"{path}.{LIST_KEYS}", f"must not be empty if {LIST_TYPE} is map")
    if items.get("type") != "object":
        why = f"must be object if parent array's {LIST_TYPE} is map"
        yield invalid(f"{path}.items.type", items.get("type", ""), why)
        return
    for place, key in enumerate(keys):
        if key in keys[:place]:
            yield invalid(f"{path}.{LIST_KEYS}", list(keys), "must not contain duplicate entries")
        yield from _key_causes(key, items, list(keys), path)


def _key_causes(key: str, items: JsonSchema, keys: list[str], path: str) -> Iterator[Cause]:
    declared, key_path = items.get("properties", {}).get(key), f"{path}.items.properties[{key}]"
    if declared is None:
        yield invalid(f"{path}.{LIST_KEYS}", keys, "entries must all be names of item properties")
        return
    if declared.get("type") in {"array", "object"}:
        yield invalid(f"{key_path}.type", "object", f"must be a scalar type if parent array's {LIST_TYPE} is map")
    if key not in items.get("required", []) and declared.get("default") is None:
        yield required(f"{key_path}.default", f"{OF_LIST_KEYS} must have a default or be a required property")
    if declared.get("nullable"):
        yield forbidden(f"{key_path}.nullable", f"{OF_LIST_KEYS} cannot be nullable")
