"""Which stored objects a client has selected, by labels and by the fields that a kind can be selected by. Pure.

Objects are decoded only where a selector needs their content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.answers.status_answers import bad_request
from onenode.apiserver.store.versions import DecodedObjects, Key, Stored
from onenode.apiserver.verbs.stored_objects import KindInStore, labels_of
from onenode.go_text import quoted
from orlop.kube.selectors import FieldSelector, LabelSelector, field_text

# ---- fields ----------------------------------------------------------------------------------------------------------


Object = Mapping[str, Any]
FieldReader = Callable[[Object], str]

BY_KEY: Final = frozenset({"metadata.name", "metadata.namespace"})
_ABOUT: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _at(path: str) -> FieldReader:
    return lambda obj: field_text(obj, path)


def _flag(path: str) -> FieldReader:
    """A flag that is not set is false."""
    return lambda obj: field_text(obj, path) or "false"


def _event_source(event: Object) -> str:
    return field_text(event, "source.component") or field_text(event, "reportingComponent")


def _number(path: str) -> FieldReader:
    """A number that is not set is 0."""
    return lambda obj: field_text(obj, path) or "0"


def _pod_addresses(pod: Object) -> str:
    addresses = (pod.get("status") or {}).get("podIPs") or []
    return ",".join(str(one.get("ip", "")) for one in addresses)


def _plain(*paths: str) -> dict[str, FieldReader]:
    return {path: _at(path) for path in paths}


FIELDS: Final[Mapping[str, Mapping[str, FieldReader]]] = {
    "pods": {
        **_plain("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        **_plain("status.phase", "status.podIP", "status.nominatedNodeName"),
        "spec.hostNetwork": _flag("spec.hostNetwork"),
        "status.podIPs": _pod_addresses,
    },
    "nodes": {"spec.unschedulable": _flag("spec.unschedulable")},
    "namespaces": _plain("status.phase"),
    "secrets": _plain("type"),
    # kubelet watches the services that have an address, and starts no container before it has read them.
    "services": _plain("spec.clusterIP", "spec.type"),
    "replicationcontrollers": {"status.replicas": _number("status.replicas")},
    "jobs.batch": {"status.successful": _number("status.succeeded")},
    "certificatesigningrequests.certificates.k8s.io": _plain("spec.signerName"),
    "podcertificaterequests.certificates.k8s.io": _plain("spec.signerName", "spec.podName", "spec.nodeName"),
    "resourceslices.resource.k8s.io": _plain("spec.nodeName", "spec.driver", "spec.pool.name"),
    "events": {
        **_plain(*(f"involvedObject.{part}" for part in _ABOUT), "reason", "reportingComponent", "type"),
        "source": _event_source,
    },
    "events.events.k8s.io": _plain(*(f"regarding.{part}" for part in _ABOUT), "reason", "reportingController", "type"),
}


def _readers(kind: KindInStore) -> Mapping[str, FieldReader]:
    return FIELDS.get(kind.kind.resource, {}) if kind.selectable is None else kind.selectable


def unsupported_fields(kind: KindInStore, selector: FieldSelector) -> list[str]:
    known = _readers(kind)
    return sorted(field for field in selector.fields if field not in BY_KEY and field not in known)


def why_unsupported(kind: KindInStore, field: str) -> str:
    """Kinds with fields of their own say it in other words than those without."""
    match kind.kind.resource:
        case "jobs.batch":
            return f"field label {quoted(field)} not supported for Job"
        case "resourceslices.resource.k8s.io":
            return f"field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: {field}"
    if kind.kind.resource in FIELDS or kind.selectable is not None:
        return f"field label not supported: {field}"
    return f'{quoted(field)} is not a known field selector: only "metadata.name", "metadata.namespace"'


def matches_fields(kind: KindInStore, selector: FieldSelector, obj: Object) -> bool:
    """Of the fields that the key does not hold already."""
    known = _readers(kind)
    return all(term.matches(known[term.field](obj)) for term in selector.terms if term.field not in BY_KEY)


@dataclass(frozen=True, slots=True)
class Selection:
    """`namespace` is None where objects of all namespaces are meant."""

    kind: KindInStore
    namespace: str | None
    labels: LabelSelector
    fields: FieldSelector

    def __post_init__(self) -> None:
        for field in unsupported_fields(self.kind, self.fields):
            raise bad_request(why_unsupported(self.kind, field))

    @property
    def takes_everything(self) -> bool:
        """Of the namespace."""
        return not self.labels and not self.fields

    @property
    def only_key(self) -> Key | None:
        """The key of the one object that can be meant, if that is known."""
        name = self.fields.exact_value("metadata.name")
        namespace = self.namespace if self.kind.kind.namespaced else ""
        return self.kind.key(namespace, name) if name and namespace is not None else None

    def takes(self, stored: Stored, decoded: DecodedObjects | None = None) -> bool:
        """`decoded` remembers what was looked into; without it nothing is remembered."""
        return (
            self._takes_key(stored.key)
            and (not self.labels or self.labels.matches(labels_of(stored)))
            and self._takes_fields(stored, decoded)
        )

    def _takes_key(self, key: Key) -> bool:
        values = {"metadata.name": key.name, "metadata.namespace": key.namespace}
        return all(term.matches(values[term.field]) for term in self.fields.terms if term.field in BY_KEY)

    def _takes_fields(self, stored: Stored, decoded: DecodedObjects | None) -> bool:
        if self.fields.fields <= BY_KEY:
            return True
        if decoded is not None and self.kind.is_kept_as_shown(stored):
            return matches_fields(self.kind, self.fields, decoded.of(stored))
        return matches_fields(self.kind, self.fields, self.kind.object(stored))
