"""Validate the values of a custom resource by its schema, with the causes and texts of Kubernetes. Pure.

Ratcheting: in an update a value that equals its old counterpart is not validated again, so that an object stored under
an older schema can still be changed elsewhere. Items of atomic lists and sets have no counterpart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from onenode.apiserver.custom_resources.leaf_rules import NO_FIELD, type_invalid
from onenode.apiserver.custom_resources.schema_nodes import SchemaNode
from onenode.apiserver.schema.field_errors import Cause, duplicate, invalid, not_supported, required
from onenode.go_text import as_json

NO_OLD: Final = object()
"""Stands for the old value where there is none: null is a value."""


def json_type(value: Any) -> str:
    """Return the JSON type of a value as messages name it."""
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def value_causes(value: Any, node: SchemaNode, path: str, old: Any = NO_OLD) -> list[Cause]:
    """Return why a value is invalid, in the order in which Kubernetes reports it."""
    if old is not NO_OLD and value == old:
        return []
    causes: list[Cause] = []
    if not _has_type(value, node):
        causes.append(_of_other_type(value, node, path))
    if value is not None:
        causes += _clause_causes(value, node, path)
        for check in node.checks:
            causes += check(value, path)
    if isinstance(value, list) and node.items is not None:
        causes += _item_causes(value, node, node.items, path, old)
    if node.enum is not None and not _is_among(value, node.enum) and (value is not None or not node.nullable):
        causes.append(not_supported(path, value, [_enum_text(each) for each in node.enum]))
    if isinstance(value, dict):
        causes += _field_causes(value, node, path, old)
    return causes


def searches_cost(value: Any, node: SchemaNode, old: Any = NO_OLD) -> int:
    """Return about how many nanoseconds the patterns of a schema are searched for in a value, at most."""
    if not node.has_patterns or (old is not NO_OLD and value == old):
        return 0
    cost = node.pattern.cost_in(value) if node.pattern is not None and isinstance(value, str) else 0
    cost += sum(searches_cost(value, each) for each in node.clauses.nodes())
    if isinstance(value, list) and node.items is not None:
        cost += sum(searches_cost(item, node.items, before) for _, item, before in _items(value, node, old))
    if isinstance(value, dict):
        before = old if isinstance(old, dict) and node.map_type != "atomic" else {}
        for key, inner in value.items():
            child = node.child(key)
            cost += 0 if child is None else searches_cost(inner, child, before.get(key, NO_OLD))
    return cost


def _has_type(value: Any, node: SchemaNode) -> bool:
    if not node.types:
        return True
    if value is None:
        return node.nullable
    found = json_type(value)
    if found in node.types or (found == "integer" and "number" in node.types):
        return True
    return found == "number" and "integer" in node.types and float(value).is_integer()


def _of_other_type(value: Any, node: SchemaNode, path: str) -> Cause:
    found = json_type(value)
    return type_invalid(path, found, ",".join(node.types), found)


def _is_among(value: Any, enum: Sequence[Any]) -> bool:
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in enum)


def _enum_text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def _item_causes(value: list[Any], node: SchemaNode, items: SchemaNode, path: str, old: Any) -> Iterator[Cause]:
    for place, item, before in _items(value, node, old):
        yield from value_causes(item, items, f"{path}[{place}]", before)


def _items(value: list[Any], node: SchemaNode, old: Any) -> Iterator[tuple[int, Any, Any]]:
    """Yield each item with its place and its old counterpart."""
    counterparts: Mapping[Hashable, Any] = {}
    if node.list_type == "map" and isinstance(old, list):
        counterparts = {key: item for item in old if (key := item_key(item, node)) is not None}
    for place, item in enumerate(value):
        yield place, item, counterparts.get(item_key(item, node), NO_OLD) if counterparts else NO_OLD


def _field_causes(value: Mapping[str, Any], node: SchemaNode, path: str, old: Any) -> Iterator[Cause]:
    before = old if isinstance(old, dict) and node.map_type != "atomic" else {}
    for key, inner in value.items():
        child = node.properties.get(key, node.other)
        if child is not None:
            yield from value_causes(inner, child, f"{path}.{key}" if path else key, before.get(key, NO_OLD))
    for name in node.required:
        if name not in value:
            yield required(f"{path}.{name}" if path else name)


# ---- clauses ---------------------------------------------------------------------------------------------------------


def _clause_causes(value: Any, node: SchemaNode, path: str) -> Iterator[Cause]:
    clauses = node.clauses
    if clauses.any_of:
        results = [value_causes(value, each, path) for each in clauses.any_of]
        if all(results):
            yield _of_clauses(path, "must validate at least one schema (anyOf)")
            yield from min(results, key=len)
    if clauses.one_of:
        yield from _one_of_causes(value, clauses.one_of, path)
    if clauses.all_of:
        results = [value_causes(value, each, path) for each in clauses.all_of]
        yield from (cause for causes in results for cause in causes)
        if any(results):
            none = ". None validated" if all(results) else ""
            yield _of_clauses(path, f"must validate all the schemas (allOf){none}")
    if clauses.negated is not None and not value_causes(value, clauses.negated, path):
        yield _of_clauses(path, "must not validate the schema (not)")


def _one_of_causes(value: Any, schemas: Sequence[SchemaNode], path: str) -> Iterator[Cause]:
    results = [value_causes(value, each, path) for each in schemas]
    valid = sum(not causes for causes in results)
    if valid == 1:
        return
    found = f"Found {valid} valid alternatives" if valid else "Found none valid"
    yield _of_clauses(path, f"must validate one and only one schema (oneOf). {found}")
    if not valid:
        yield from min(results, key=len)


def _of_clauses(path: str, text: str) -> Cause:
    return invalid(NO_FIELD, "", f'"{path}" {text}')


# ---- list types ------------------------------------------------------------------------------------------------------


def item_key(item: Any, node: SchemaNode) -> Hashable | None:
    """Return what identifies an item of a list of type map, None where it is no object."""
    if not isinstance(item, dict):
        return None
    return tuple(as_json(item.get(name)) for name in node.list_keys)


def list_causes(value: Any, node: SchemaNode | None, path: str = "") -> Iterator[Cause]:
    """Yield a cause for each item of a set or list map that repeats another one."""
    if node is None or not node.has_list_types:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from list_causes(inner, node.child(key), f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        if node.list_type == "set":
            yield from _repeated(value, [as_json(item) for item in value], path)
        elif node.list_type == "map":
            shown = [{name: item[name] for name in node.list_keys if name in item} for item in _objects(value)]
            yield from _repeated(shown, [as_json(each) for each in shown], path)
        for place, item in enumerate(value):
            yield from list_causes(item, node.items, f"{path}[{place}]")


def _objects(items: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [item if isinstance(item, dict) else {} for item in items]


def _repeated(shown: Sequence[Any], keys: Sequence[str], path: str) -> Iterator[Cause]:
    """Each repeated item is reported once, at its second place."""
    times: dict[str, int] = {}
    for place, key in enumerate(keys):
        times[key] = times.get(key, 0) + 1
        if times[key] == 2:  # noqa: PLR2004 - the second of its kind
            yield duplicate(f"{path}[{place}]", shown[place])


# ---- embedded objects ------------------------------------------------------------------------------------------------


def embedded_causes(value: Any, node: SchemaNode | None, path: str = "") -> Iterator[Cause]:
    """Yield the causes of embedded objects without a type; `node` is the root, which is no embedded object."""
    if node is None:
        return
    if isinstance(value, dict):
        if node.embedded:
            for name in ("apiVersion", "kind"):
                if not value.get(name):
                    yield required(f"{path}.{name}")
        for key, inner in value.items():
            yield from embedded_causes(inner, node.child(key), f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from embedded_causes(item, node.items, f"{path}[{place}]")
