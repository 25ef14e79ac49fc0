"""A CustomResourceDefinition for tests, in a group of its own, and the kinds that it declares."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from orlop.kube import kinds
from orlop.kube.kinds import ALL_VERBS, STATUS, Kind
from support.api.api_under_test import Api
from support.waiting import eventually_answered

Object = dict[str, Any]

ALLOCATIONS: Object = {
    "type": "array",
    "default": [],
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["volume"],
    "items": {
        "type": "object",
        "required": ["volume"],
        "properties": {"volume": {"type": "string"}, "bytes": {"type": "integer", "format": "int64", "default": 1}},
    },
}
SPEC: Object = {
    "type": "object",
    "required": ["node"],
    "properties": {
        "node": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9-]*$"},
        "tier": {"type": "string", "enum": ["hot", "cold"], "default": "cold"},
        "weight": {"type": "integer", "minimum": 0, "maximum": 100},
        "port": {"x-kubernetes-int-or-string": True},
        "parameters": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "reset": {"type": "string", "nullable": True},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "allocations": ALLOCATIONS,
    },
}
STATUS_SCHEMA: Object = {
    "type": "object",
    "properties": {"state": {"type": "string"}, "used": {"type": "integer"}, "since": {"type": "string"}},
}
SCHEMA: Object = {"type": "object", "properties": {"spec": SPEC, "status": STATUS_SCHEMA}}
COLUMNS: list[Object] = [
    {"name": "Node", "type": "string", "jsonPath": ".spec.node"},
    {"name": "Weight", "type": "integer", "jsonPath": ".spec.weight", "priority": 1},
    {"name": "State", "type": "string", "jsonPath": ".status.state"},
    {"name": "Since", "type": "date", "jsonPath": ".status.since"},
]


def version(name: str = "v1", **parts: Any) -> Object:
    made: Object = {
        "name": name,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": deepcopy(SCHEMA)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": deepcopy(COLUMNS),
        "selectableFields": [{"jsonPath": ".spec.node"}, {"jsonPath": ".spec.weight"}],
    }
    return {name: part for name, part in {**made, **parts}.items() if part is not None}


def definition(group: str, *versions: Object, scope: str = "Namespaced", **names: Any) -> Object:
    """Return the definition of disks in a group; `names` replace those of spec.names."""
    plural = names.get("plural", "disks")
    own = {"plural": plural, "kind": "Disk", "shortNames": ["dk"], "categories": ["all"], **names}
    spec = {"group": group, "scope": scope, "names": own, "versions": list(versions) or [version()]}
    return {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}


def disk_kind(group: str, version: str = "v1", *, namespaced: bool = True) -> Kind:
    return Kind(group, version, "Disk", "disks", namespaced=namespaced, verbs=ALL_VERBS, subresources=(STATUS,))


def disk(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"node": "n1", **spec}}


async def defined(api: Api, *versions: Object, **rest: Any) -> Kind:
    """Create a definition in a group of this test; return the kind of its first version."""
    group = f"{api.namespace}.example.com"
    made = await api.make(kinds.CUSTOM_RESOURCE_DEFINITION, definition(group, *versions, **rest))
    kind = disk_kind(group, made["spec"]["versions"][0]["name"], namespaced=made["spec"]["scope"] == "Namespaced")
    await served(api, kind)
    return kind


async def served(api: Api, kind: Kind) -> None:
    """A real server serves a kind some time after its definition, in OpenAPI a second later; this one at once."""
    if api.can.is_orlops:
        return
    name = kind.group_path.removeprefix("/")

    async def is_served() -> bool:
        is_listed = (await api.ask("GET", kind.collection_path())).status == 200
        return is_listed and name in (await api.ask("GET", "/openapi/v3")).json["paths"]

    await eventually_answered(is_served)
