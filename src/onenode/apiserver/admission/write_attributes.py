"""What admission policies see of a write: who writes, what, where, and the object before and after it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onenode.apiserver.access.rbac_rules import User
from orlop.kube.kinds import NAMESPACE, Kind

Object = Mapping[str, Any]
Admit = Callable[[Object | None, Object | None], None]
"""Takes an object as it will be and as it is; raises a Refusal if a policy denies the write."""

CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"
DELETE: Final = "DELETE"
# What an expression may name of a request; of a field with fields, which.
_KIND: Final = ("group", "version", "kind")
_RESOURCE: Final = ("group", "version", "resource")
REQUEST_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("kind", "requestKind"), _KIND),
    **dict.fromkeys(("resource", "requestResource"), _RESOURCE),
    "userInfo": ("username", "uid", "groups", "extra"),
    **dict.fromkeys(("subResource", "requestSubResource", "name", "namespace", "operation", "dryRun", "options"), ()),
}
# What a policy sees of the namespace: neither owners nor managed fields.
_SEEN_OF_NAMESPACE: Final = frozenset(
    {
        *("name", "generateName", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp"),
        *("deletionGracePeriodSeconds", "generation", "resourceVersion", "finalizers"),
    }
)


def admit_all(_new: Object | None, _old: Object | None) -> None:
    """Admit what the server itself writes, and all of a server without policies."""


@dataclass(frozen=True, slots=True)
class WriteAttributes:
    """`kind` is that of the path and `part_kind` that of the body, where a subresource takes another kind.

    `namespace` is a Namespace's own name for the Namespace itself. `object` is None for a deletion, `old` for a create.
    """

    kind: Kind
    subresource: str
    part_kind: Kind
    namespace: str
    name: str
    user: User
    object: Object | None
    old: Object | None
    dry_run: bool = False
    options: Object = field(default_factory=dict)

    @property
    def operation(self) -> str:
        if self.object is None:
            return DELETE
        return CREATE if self.old is None else UPDATE

    @property
    def is_of_namespace(self) -> bool:
        """Whether the object is a Namespace, which is in none."""
        return self.kind is NAMESPACE

    @property
    def shown_name(self) -> str:
        """The name in a refusal."""
        metadata = (self.object or {}).get("metadata") or {}
        return self.name or metadata.get("name") or metadata.get("generateName") or "Unknown"


def request_value(write: WriteAttributes, matched: Kind) -> dict[str, Any]:
    """Return `request`. `matched` is the kind whose rule matched; another version of the same objects may be asked for.

    A field without a value is absent, so an expression checks it with `has()`.
    """
    named = {"subResource": write.subresource, "requestSubResource": write.subresource, "namespace": write.namespace}
    asked_kind, asked_resource = _kind_value(_body_kind(write, write.kind)), _resource_value(write.kind)
    return {
        "kind": _kind_value(_body_kind(write, matched)),
        "resource": _resource_value(matched),
        "requestKind": asked_kind,
        "requestResource": asked_resource,
        "name": write.name,
        "operation": write.operation,
        "userInfo": _user_value(write.user),
        "dryRun": write.dry_run,
        "options": dict(write.options),
        **{name: value for name, value in named.items() if value},
    }


def namespace_value(namespace: Object | None) -> dict[str, Any] | None:
    if namespace is None:
        return None
    metadata = {name: value for name, value in namespace["metadata"].items() if name in _SEEN_OF_NAMESPACE}
    return {"metadata": metadata, "spec": namespace.get("spec", {}), "status": namespace.get("status", {})}


def _body_kind(write: WriteAttributes, kind: Kind) -> Kind:
    return kind if write.part_kind == write.kind else write.part_kind


def _kind_value(kind: Kind) -> dict[str, str]:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _resource_value(kind: Kind) -> dict[str, str]:
    return {"group": kind.group, "version": kind.version, "resource": kind.plural}


def _user_value(user: User) -> dict[str, Any]:
    extra = {key: list(values) for key, values in (user.extra or {}).items()}
    shown = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
    return {name: value for name, value in shown.items() if value}
