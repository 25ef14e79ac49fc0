"""Read the Events about an object: its last failures, and how often they happened. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from orlop.admin.explanation import ApiObject, ago, moment

MOST_FAILURES: Final = 3
WARNING: Final = "Warning"
BINDER: Final = "persistentvolume-controller"
"""The component whose events have some of a provisioner's reasons, and do not show that a provisioner runs."""
_BEFORE_ALL: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PastEvent:
    reason: str
    message: str
    is_warning: bool
    last: str | None
    """When it happened last."""
    count: int
    component: str = ""
    """The program that recorded it."""

    def sentence(self, now: datetime) -> str:
        often = f", {self.count} times" if self.count > 1 else ""
        return f"{self.reason}{ago(self.last, now)}{often}: {self.message or 'without a message'}"

    def fields(self) -> dict[str, Any]:
        return {"reason": self.reason, "message": self.message, "time": self.last, "count": self.count}


def events_about(events: Iterable[ApiObject], uid: str) -> tuple[PastEvent, ...]:
    """Return the events about the object with this uid, newest first, without those of former objects of its name."""
    about = [
        _past_event(event) for event in events if (event.get("involvedObject") or {}).get("uid") in {None, "", uid}
    ]
    return tuple(sorted(about, key=lambda event: moment(event.last) or _BEFORE_ALL, reverse=True))


def failures(events: Iterable[PastEvent], *reasons: str) -> tuple[PastEvent, ...]:
    """Return the newest warnings, each reason and message once; without `reasons`, of every reason."""
    newest: dict[tuple[str, str], PastEvent] = {}
    for event in events:
        if event.is_warning and (not reasons or event.reason in reasons):
            newest.setdefault((event.reason, event.message), event)
    return tuple(newest.values())[:MOST_FAILURES]


def failures_of_provisioner(events: Iterable[PastEvent], reason: str) -> tuple[PastEvent, ...]:
    """Return the warnings of a provisioner with this reason, in the order of the events."""
    return tuple(event for event in events if event.is_warning and event.reason == reason and event.component != BINDER)


def _past_event(event: ApiObject) -> PastEvent:
    # A series counts repetitions in events.k8s.io/v1; `count` and `lastTimestamp` do in core/v1.
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return PastEvent(
        reason=event.get("reason") or "",
        message=event.get("message") or "",
        is_warning=event.get("type") == WARNING,
        last=last or event.get("firstTimestamp"),
        count=series.get("count") or event.get("count") or 1,
        component=(event.get("source") or {}).get("component") or event.get("reportingComponent") or "",
    )
