"""Which fields of a kind can be selected by, and what each of them is compared with. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from orlop.embedded.apiserver.go_text import quoted
from orlop.kube.kinds import Kind
from orlop.kube.selectors import FieldSelector, field_text

Object = Mapping[str, Any]
Reader = Callable[[Object], str]

BY_KEY: Final = frozenset({"metadata.name", "metadata.namespace"})
_ABOUT: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _at(path: str) -> Reader:
    return lambda obj: field_text(obj, path)


def _flag(path: str) -> Reader:
    """A flag that is not set is false."""
    return lambda obj: field_text(obj, path) or "false"


def _event_source(event: Object) -> str:
    return field_text(event, "source.component") or field_text(event, "reportingComponent")


def _pod_addresses(pod: Object) -> str:
    addresses = (pod.get("status") or {}).get("podIPs") or []
    return ",".join(str(one.get("ip", "")) for one in addresses)


def _plain(*paths: str) -> dict[str, Reader]:
    return {path: _at(path) for path in paths}


FIELDS: Final[Mapping[str, Mapping[str, Reader]]] = {
    "pods": {
        **_plain("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        **_plain("status.phase", "status.podIP", "status.nominatedNodeName"),
        "spec.hostNetwork": _flag("spec.hostNetwork"),
        "status.podIPs": _pod_addresses,
    },
    "nodes": {"spec.unschedulable": _flag("spec.unschedulable")},
    "namespaces": _plain("status.phase"),
    "secrets": _plain("type"),
    "events": {
        **_plain(*(f"involvedObject.{part}" for part in _ABOUT), "reason", "reportingComponent", "type"),
        "source": _event_source,
    },
    "events.events.k8s.io": _plain(*(f"regarding.{part}" for part in _ABOUT), "reason", "reportingController", "type"),
}


def unsupported_fields(kind: Kind, selector: FieldSelector) -> list[str]:
    known = FIELDS.get(kind.resource, {})
    return sorted(field for field in selector.fields if field not in BY_KEY and field not in known)


def why_unsupported(kind: Kind, field: str) -> str:
    """Kinds with fields of their own say it in other words than those without."""
    if kind.resource in FIELDS:
        return f"field label not supported: {field}"
    return f'{quoted(field)} is not a known field selector: only "metadata.name", "metadata.namespace"'


def matches_fields(kind: Kind, selector: FieldSelector, obj: Object) -> bool:
    """Of the fields that the key does not hold already."""
    known = FIELDS.get(kind.resource, {})
    return all(term.matches(known[term.field](obj)) for term in selector.terms if term.field not in BY_KEY)
