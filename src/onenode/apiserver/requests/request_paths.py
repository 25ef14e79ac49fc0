"""Find out from its method and path alone what a request is about: an object, a collection of them, or another path.

As in Kubernetes the path is unquoted first and split then, so a quoted slash separates like any other. Whether the
group, the resource or the subresource exists is not known here. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from onenode.apiserver.answers.status_answers import bad_name, method_not_allowed, no_such_resource, not_found
from onenode.apiserver.schema.name_rules import path_segment
from onenode.apiserver.store.versions import Key
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import CREATE, Subresource

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


# ---- the request for a resource --------------------------------------------------------------------------------------

# A request about objects, made out: the kind, the place, the verb, and the options that its query holds.
#
# `resource_request` refuses what cannot be: a resource or subresource that is not there, a method it does not know, a
# name that is none. Pure.


PROXY: Final = "proxy"
ServedKinds = Mapping[tuple[str, str, str], KindInStore]


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """`namespace` is empty for kinds that have none, and where all namespaces are meant."""

    http: HttpRequest
    verb: str
    kind: KindInStore
    namespace: str
    name: str
    subresource: Subresource | None
    rest: tuple[str, ...] = ()
    """What stands behind a subresource that leads on."""

    @property
    def key(self) -> Key:
        return self.kind.key(self.namespace, self.name)

    @property
    def accept(self) -> str:
        return self.http.headers.get("accept", "")

    def option(self, name: str) -> str:
        return next((value for key, value in self.http.query if key == name), "")


def resource_request(served: ServedKinds, http: HttpRequest, path: ResourcePath, verb: str | None) -> ResourceRequest:
    kind = served.get((path.group, path.version, path.resource))
    if kind is None or (path.rest and path.subresource != PROXY) or not _has_place(kind, path):
        raise no_such_resource()
    part = kind.kind.subresource(path.subresource) if path.subresource else None
    if path.subresource and part is None:
        raise not_found(kind.kind, path.name) if kind.is_custom else no_such_resource()
    # Kubernetes authorizes HEAD as a GET, and has no HEAD for objects and lists.
    if verb is None or http.method == "HEAD" or not _is_known(verb, kind, path, part):
        raise method_not_allowed()
    if path.name and (wrong := path_segment(path.name)):
        raise bad_name(path.name, wrong[0])
    return ResourceRequest(http, verb, kind, path.namespace, path.name, part, path.rest)


def _has_place(kind: KindInStore, path: ResourcePath) -> bool:
    """Objects in namespaces are found in one; they can be listed in all of them. What is never stored has no name."""
    if kind.kind.verbs == CREATE:
        return bool(path.namespace) == kind.kind.namespaced and not path.name
    if not kind.kind.namespaced:
        return not path.namespace
    return bool(path.namespace) or not path.name


def _is_known(verb: str, kind: KindInStore, path: ResourcePath, part: Subresource | None) -> bool:
    if part is not None:
        return verb in part.verbs
    everywhere = kind.kind.namespaced and not path.namespace
    if everywhere and verb not in {"list", "watch"}:
        return False
    needs_name = verb in {"get", "update", "patch", "delete"}
    return verb in kind.kind.verbs and needs_name == bool(path.name)
