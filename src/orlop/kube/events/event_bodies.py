"""Build Event objects in both forms: events.k8s.io/v1, and core/v1 where RBAC allows only that. Pure.

Texts longer than Kubernetes allows are cut: an Event that the API server refuses is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from orlop.kube import objects
from orlop.kube.objects import Object, micro_time_text, time_text

LONGEST_NOTE: Final = 1024
LONGEST_WORD: Final = 128
LONGEST_NAME: Final = 253
WITHOUT_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    field_path: str = ""
    """The part of the object that is meant, such as `spec.containers{main}`."""

    @classmethod
    def to(cls, obj: Mapping[str, Any], field_path: str = "") -> Self:
        namespace = objects.namespace(obj) or ""
        return cls(
            str(obj.get("apiVersion", "")),
            str(obj.get("kind", "")),
            objects.name(obj),
            namespace,
            objects.uid(obj),
            field_path,
        )

    def body(self) -> Object:
        named = {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "namespace": self.namespace}
        exactly = {"uid": self.uid, "fieldPath": self.field_path}
        return {field: value for field, value in {**named, **exactly}.items() if value}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What happened to an object. The same again is a repetition, and only counted."""

    regarding: ObjectReference
    warning: bool
    reason: str
    note: str
    action: str
    related: ObjectReference | None = None

    @property
    def type(self) -> str:
        return "Warning" if self.warning else "Normal"

    @property
    def namespace(self) -> str:
        return self.regarding.namespace or WITHOUT_NAMESPACE


@dataclass(frozen=True, slots=True)
class Reporter:
    """The controller that reports, such as `orlop.dev/provisioner`, and its instance, such as its pod's name."""

    controller: str
    instance: str
    in_core: bool = False
    """Whether events take the older form, which has the `source` and `lastTimestamp` that people sort and filter by."""


@dataclass(frozen=True, slots=True)
class Repetitions:
    """How often something has happened, with the first and last time."""

    count: int
    first: datetime
    last: datetime


def make_occurrence(
    regarding: ObjectReference, *, warning: bool, reason: str, note: str, action: str, related: ObjectReference | None
) -> Occurrence:
    short_reason = shortened(reason, LONGEST_WORD) or "Unknown"
    short_action = shortened(action, LONGEST_WORD) or short_reason
    return Occurrence(regarding, warning, short_reason, shortened(note, LONGEST_NOTE), short_action, related)


def event_name(occurrence: Occurrence, nanoseconds: int) -> str:
    """Return an Event's name as client-go builds it: the object's name and the time in hexadecimal digits."""
    ending = f".{nanoseconds:x}"
    return f"{occurrence.regarding.name[: LONGEST_NAME - len(ending)]}{ending}"


def new_form(name: str, occurrence: Occurrence, reporter: Reporter, seen: Repetitions) -> Object:
    body: Object = {
        "metadata": {"name": name, "namespace": occurrence.namespace},
        "eventTime": micro_time_text(seen.first),
        "type": occurrence.type,
        "reason": occurrence.reason,
        "action": occurrence.action,
        "note": occurrence.note,
        "regarding": occurrence.regarding.body(),
        "reportingController": reporter.controller,
        "reportingInstance": shortened(reporter.instance, LONGEST_WORD),
    }
    if occurrence.related is not None:
        body["related"] = occurrence.related.body()
    return {**body, **new_form_repeated(seen)} if seen.count > 1 else body


def new_form_repeated(seen: Repetitions) -> Object:
    return {"series": {"count": seen.count, "lastObservedTime": micro_time_text(seen.last)}}


def core_form(name: str, occurrence: Occurrence, reporter: Reporter, seen: Repetitions) -> Object:
    """Build a core/v1 Event in its older form, without an eventTime: it has fewer rules and every client reads it."""
    source = {"component": reporter.controller, "host": reporter.instance}
    return {
        "metadata": {"name": name, "namespace": occurrence.namespace},
        "type": occurrence.type,
        "reason": occurrence.reason,
        "message": occurrence.note,
        "involvedObject": occurrence.regarding.body(),
        "source": {field: value for field, value in source.items() if value},
        "reportingComponent": reporter.controller,
        "reportingInstance": shortened(reporter.instance, LONGEST_WORD),
        "firstTimestamp": time_text(seen.first),
        **core_form_repeated(seen),
    }


def core_form_repeated(seen: Repetitions) -> Object:
    return {"count": seen.count, "lastTimestamp": time_text(seen.last)}


def shortened(text: str, longest: int) -> str:
    """Cut a text to `longest` bytes; Kubernetes counts bytes, not characters."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= longest:
        return encoded.decode()
    dots = "…" if longest >= LONGEST_WORD else ""
    return encoded[: longest - len(dots.encode())].decode(errors="ignore") + dots
