"""Events in their two forms: core/v1, and events.k8s.io/v1, which is stricter and keeps all but its series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from orlop.embedded.apiserver import name_rules
from orlop.embedded.apiserver.causes import Cause, invalid, required
from orlop.embedded.apiserver.field_rules import named_well, unchanged

Object = Mapping[str, Any]

LONGEST: Final = 128
LONGEST_NOTE: Final = 1024
FEWEST_IN_SERIES: Final = 2
WRONG_NAMESPACE: Final = "does not match event.namespace"
# What an event of the new form must not carry, and how the core form names it.
OLD_FIELDS: Final = (
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("deprecatedSource", "source"),
)
# The fields of the new form that never change, and how Kubernetes names them.
FIXED: Final = (
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    *OLD_FIELDS,
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
)


def core_event(event: Object) -> Iterator[Cause]:
    about = event.get("involvedObject", {}).get("namespace", "")
    controller = event.get("reportingComponent", "")
    yield from _event(event, about, event.get("message", ""), controller, "reportingComponent")


def event(given: Object) -> Iterator[Cause]:
    about = given.get("regarding", {}).get("namespace", "")
    controller = given.get("reportingController", "")
    yield from _event(given, about, given.get("note", ""), controller, "reportingController")
    yield from _series(given)
    if not given.get("eventTime"):
        yield required("eventTime")
    if given.get("type") not in {"Normal", "Warning"}:
        yield invalid("type", "", f"has invalid value: {given.get('type', '')}")
    for field, called in OLD_FIELDS:
        if given.get(field):
            yield invalid(called, "", "needs to be unset")


def _event(event: Object, about: str, note: str, controller: str, controller_field: str) -> Iterator[Cause]:
    namespace = event.get("metadata", {}).get("namespace", "")
    if not event.get("eventTime"):
        if (about and about != namespace) or (not about and namespace not in {"", "default"}):
            yield invalid("involvedObject.namespace", about, WRONG_NAMESPACE)
        return
    if not about and namespace not in {"default", "kube-system"}:
        yield invalid("involvedObject.namespace", about, WRONG_NAMESPACE)
    if not controller:
        yield required(controller_field)
    yield from named_well(name_rules.label_key, controller, controller_field)
    for field in ("reportingInstance", "action", "reason"):
        if not event.get(field):
            yield required(field)
        yield from _at_most(event.get(field, ""), LONGEST, field)
    yield from _at_most(note, LONGEST_NOTE, "message")


def _at_most(text: str, length: int, path: str) -> Iterator[Cause]:
    if len(text.encode()) > length:
        yield invalid(path, "", f"can have at most {length} characters")


def _series(event: Object) -> Iterator[Cause]:
    series = event.get("series")
    if series is None:
        return
    if series.get("count", 0) < FEWEST_IN_SERIES:
        yield invalid("series.count", "", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield required("series.lastObservedTime")


def event_update(old: Object, new: Object) -> Iterator[Cause]:
    for field, called in FIXED:
        yield from unchanged(old.get(field), new.get(field), called)
