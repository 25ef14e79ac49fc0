"""Events as the API has them, in both forms: events.k8s.io/v1, and core/v1 for those who may write nothing else. Pure.

What is longer than Kubernetes takes is cut off: an event that is refused tells nobody anything.
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
class Reference:
    """The object an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @classmethod
    def to(cls, obj: Mapping[str, Any]) -> Self:
        namespace = objects.namespace(obj) or ""
        return cls(
            str(obj.get("apiVersion", "")), str(obj.get("kind", "")), objects.name(obj), namespace, objects.uid(obj)
        )

    def body(self) -> Object:
        named = {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {field: value for field, value in {**named, "uid": self.uid}.items() if value}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What happened. The same again is a repetition, and told as a number."""

    regarding: Reference
    warning: bool
    reason: str
    note: str
    action: str
    related: Reference | None = None

    @property
    def type(self) -> str:
        return "Warning" if self.warning else "Normal"

    @property
    def namespace(self) -> str:
        return self.regarding.namespace or WITHOUT_NAMESPACE


@dataclass(frozen=True, slots=True)
class Reporter:
    """Who tells: the controller, such as `orlop.dev/provisioner`, and which of its instances, such as its pod."""

    controller: str
    instance: str


@dataclass(frozen=True, slots=True)
class Repetitions:
    """How often something has happened, from when to when."""

    count: int
    first: datetime
    last: datetime


def occurrence(
    regarding: Reference, *, warning: bool, reason: str, note: str, action: str, related: Reference | None
) -> Occurrence:
    short_reason = shortened(reason, LONGEST_WORD) or "Unknown"
    short_action = shortened(action, LONGEST_WORD) or short_reason
    return Occurrence(regarding, warning, short_reason, shortened(note, LONGEST_NOTE), short_action, related)


def event_name(told: Occurrence, nanoseconds: int) -> str:
    """As client-go makes it: the object's name and the moment in hexadecimal digits."""
    ending = f".{nanoseconds:x}"
    return f"{told.regarding.name[: LONGEST_NAME - len(ending)]}{ending}"


def new_form(name: str, told: Occurrence, reporter: Reporter, seen: Repetitions) -> Object:
    body: Object = {
        "metadata": {"name": name, "namespace": told.namespace},
        "eventTime": micro_time_text(seen.first),
        "type": told.type,
        "reason": told.reason,
        "action": told.action,
        "note": told.note,
        "regarding": told.regarding.body(),
        "reportingController": reporter.controller,
        "reportingInstance": shortened(reporter.instance, LONGEST_WORD),
    }
    if told.related is not None:
        body["related"] = told.related.body()
    return {**body, **new_form_repeated(seen)} if seen.count > 1 else body


def new_form_repeated(seen: Repetitions) -> Object:
    return {"series": {"count": seen.count, "lastObservedTime": micro_time_text(seen.last)}}


def core_form(name: str, told: Occurrence, reporter: Reporter, seen: Repetitions) -> Object:
    """In the older way, without an eventTime: it has fewer rules, and everybody reads it."""
    return {
        "metadata": {"name": name, "namespace": told.namespace},
        "type": told.type,
        "reason": told.reason,
        "message": told.note,
        "involvedObject": told.regarding.body(),
        "source": {"component": reporter.controller, "host": reporter.instance},
        "reportingComponent": reporter.controller,
        "reportingInstance": shortened(reporter.instance, LONGEST_WORD),
        "firstTimestamp": time_text(seen.first),
        **core_form_repeated(seen),
    }


def core_form_repeated(seen: Repetitions) -> Object:
    return {"count": seen.count, "lastTimestamp": time_text(seen.last)}


def shortened(text: str, longest: int) -> str:
    """To so many bytes, which is what Kubernetes counts."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= longest:
        return encoded.decode()
    dots = "…" if longest >= LONGEST_WORD else ""
    return encoded[: longest - len(dots.encode())].decode(errors="ignore") + dots
