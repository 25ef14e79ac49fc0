"""A request about objects, made out: the kind, the place, the verb, and the options that its query holds.

`resource_request` refuses what cannot be: a resource or subresource that is not there, a method it does not know, a
name that is none. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orlop.embedded.apiserver.name_rules import path_segment
from orlop.embedded.apiserver.object_store.versions import Key
from orlop.embedded.apiserver.request_paths import ResourcePath
from orlop.embedded.apiserver.status_answers import bad_name, method_not_allowed, no_such_resource
from orlop.embedded.apiserver.stored_objects import KindInStore
from orlop.kube.http_messages import HttpRequest
from orlop.kube.kinds import Subresource

PROXY: Final = "proxy"
Served = Mapping[tuple[str, str, str], KindInStore]


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


def resource_request(served: Served, http: HttpRequest, path: ResourcePath, verb: str | None) -> ResourceRequest:
    kind = served.get((path.group, path.version, path.resource))
    if kind is None or (path.rest and path.subresource != PROXY) or not _has_place(kind, path):
        raise no_such_resource()
    part = kind.kind.subresource(path.subresource) if path.subresource else None
    if path.subresource and part is None:
        raise no_such_resource()
    if verb is None or not _is_known(verb, kind, path, part):
        raise method_not_allowed()
    if path.name and (wrong := path_segment(path.name)):
        raise bad_name(path.name, wrong[0])
    return ResourceRequest(http, verb, kind, path.namespace, path.name, part, path.rest)


def _has_place(kind: KindInStore, path: ResourcePath) -> bool:
    """Objects in namespaces are found in one; they can be listed in all of them."""
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
