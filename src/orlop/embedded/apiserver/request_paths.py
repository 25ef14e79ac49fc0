"""What a request is about, told from its method and path alone: an object, a collection of them, or another path.

As in Kubernetes the path is unquoted first and split then, so a quoted slash separates like any other. Whether the
group, the resource or the subresource exists is not known here. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

CORE_PREFIX: Final = "api"
GROUPS_PREFIX: Final = "apis"
NAMESPACES: Final = "namespaces"
NAMESPACE_PARTS: Final = frozenset({"status", "finalize"})
VERBS: Final[Mapping[str, tuple[str, str]]] = {
    # On one object, and on a collection.
    "GET": ("get", "list"),
    "HEAD": ("get", "list"),
    "POST": ("create", "create"),
    "PUT": ("update", "update"),
    "PATCH": ("patch", "patch"),
    "DELETE": ("delete", "deletecollection"),
}


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """`namespace` is empty where the path has none. `rest` is what stands behind a subresource."""

    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: tuple[str, ...] = ()

    @property
    def scope(self) -> str:
        """The namespace that access is decided in: a namespace's own for the object that is one."""
        return self.name if not self.group and self.resource == NAMESPACES else self.namespace


@dataclass(frozen=True, slots=True)
class PlainPath:
    """A path that leads to no object, without a slash at its end."""

    path: str


def read_path(path: str) -> ResourcePath | PlainPath:
    text = unquote(path, errors="replace")
    parts = text.strip("/").split("/")
    if "" in parts:
        return PlainPath(text)  # no path of ours has an empty part, so it is nobody's
    match parts:
        case ["api", version, _, *_]:
            return _resource("", version, parts[2:])
        case ["apis", group, version, _, *_]:
            return _resource(group, version, parts[3:])
        case _:
            return PlainPath("/" + "/".join(parts))


def _resource(group: str, version: str, parts: list[str]) -> ResourcePath:
    match parts:
        case ["namespaces", namespace, resource, *rest] if resource not in NAMESPACE_PARTS:
            return _object(ResourcePath(group, version, resource, namespace), rest)
        case [resource, *rest]:
            return _object(ResourcePath(group, version, resource), rest)
        case _:
            raise ValueError("a path of a resource has at least one part")


def _object(collection: ResourcePath, parts: list[str]) -> ResourcePath:
    name, subresource, *rest = (*parts, "", "")[: max(2, len(parts))]
    return ResourcePath(
        collection.group,
        collection.version,
        collection.resource,
        collection.namespace,
        name,
        subresource,
        tuple(rest),
    )


def verb_of(method: str, path: ResourcePath, *, watch: bool) -> str | None:
    """Kubernetes' verb; None for a method that no object knows."""
    if method not in VERBS:
        return None
    on_object, on_collection = VERBS[method]
    verb = on_object if path.name else on_collection
    return "watch" if verb == "list" and watch else verb
