"""Bring a custom resource into the shape of its schema: prune, drop nulls, set defaults. Pure.

Order, as in Kubernetes: what no schema declares is pruned → null where null is no value is dropped → metadata of
embedded objects is reduced to what metadata has → defaults are set. The result shares nothing with what was passed.
The same steps run for the body of a request, for the result of a patch, and for an object that was stored under an
older schema; they change nothing in an object that went through them before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onenode.apiserver.custom_resources.schema_nodes import METADATA, SchemaNode
from onenode.apiserver.schema.json_values import copied

Object = dict[str, Any]
ReadMetadata = Callable[[Any, str], Object]
"""Decodes the metadata of an embedded object at a path."""


def shaped(body: Mapping[str, Any], root: SchemaNode, unknown: list[str], read_metadata: ReadMetadata) -> Object:
    """Return the body, which has no type and no metadata; the paths of what was pruned are added to `unknown`."""
    made: Object = _pruned_object(body, root, "", unknown)
    made = _without_nulls(made, root)
    if root.has_embedded:
        _read_embedded(made, root, "", read_metadata)
    _set_defaults(made, root)
    return made


# ---- pruning ---------------------------------------------------------------------------------------------------------


def _pruned(value: Any, node: SchemaNode | None, path: str, unknown: list[str]) -> Any:
    """Without a schema an object keeps nothing, and scalars stay: `additionalProperties: true` declares no fields."""
    if isinstance(value, dict):
        return _pruned_object(value, node, path, unknown)
    if isinstance(value, list):
        items = None if node is None else node.items
        if node is not None and node.preserves:
            return [_kept(item, items, f"{path}[{place}]", unknown) for place, item in enumerate(value)]
        return [_pruned(item, items, f"{path}[{place}]", unknown) for place, item in enumerate(value)]
    return value


def _pruned_object(value: Mapping[str, Any], node: SchemaNode | None, path: str, unknown: list[str]) -> Object:
    made: Object = {}
    for key, inner in value.items():
        inner_path = f"{path}.{key}" if path else key
        if node is not None and node.embedded and key in METADATA:
            made[key] = copied(inner)
        elif node is not None and key in node.properties:
            made[key] = _pruned(inner, node.properties[key], inner_path, unknown)
        elif node is not None and node.takes_any_key:
            made[key] = _pruned(inner, node.other, inner_path, unknown)
        elif node is not None and node.preserves:
            made[key] = copied(inner)
        else:
            unknown.append(inner_path)
    return made


def _kept(value: Any, node: SchemaNode | None, path: str, unknown: list[str]) -> Any:
    """A value whose list preserves unknown fields: only what is declared below it is pruned."""
    if node is None:
        return copied(value)
    if isinstance(value, dict):
        declared = {key: inner for key, inner in value.items() if node.child(key) is not None}
        pruned = _pruned_object(declared, node, path, unknown)
        return {key: pruned[key] if key in pruned else copied(inner) for key, inner in value.items()}
    return [_kept(item, node.items, path, unknown) for item in value] if isinstance(value, list) else value


# ---- nulls, embedded metadata, defaults ------------------------------------------------------------------------------


def _without_nulls(value: Any, node: SchemaNode | None) -> Any:
    if isinstance(value, list):
        items = None if node is None else node.items
        return [_without_nulls(item, items) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_nulls(inner, child)
        for key, inner in value.items()
        if not ((child := None if node is None else node.child(key)) and inner is None and _is_no_value(child))
    }


def _is_no_value(node: SchemaNode) -> bool:
    return not node.nullable and node.default is None


def _read_embedded(value: Any, node: SchemaNode | None, path: str, read_metadata: ReadMetadata) -> None:
    if node is None:
        return
    if isinstance(value, list):
        for place, item in enumerate(value):
            _read_embedded(item, node.items, f"{path}[{place}]", read_metadata)
    elif isinstance(value, dict):
        if node.embedded and "metadata" in value:
            value["metadata"] = read_metadata(value["metadata"], f"{path}.metadata")
        for key, inner in value.items():
            _read_embedded(inner, node.child(key), f"{path}.{key}" if path else key, read_metadata)


def _set_defaults(value: Any, node: SchemaNode | None) -> Any:
    """The value itself is changed: it is the caller's own by now."""
    if node is None:
        return value
    if isinstance(value, dict):
        for name in node.defaulted:
            child = node.properties[name]
            if name not in value or (value[name] is None and not child.nullable):
                value[name] = copied(child.default)
        for key, inner in value.items():
            value[key] = _defaulted(inner, node.child(key))
    elif isinstance(value, list) and node.items is not None:
        value[:] = [_defaulted(item, node.items) for item in value]
    return value


def _defaulted(value: Any, node: SchemaNode | None) -> Any:
    if value is None and node is not None and not node.nullable and node.default is not None:
        value = copied(node.default)
    return _set_defaults(value, node)
