"""The record of a scripted driver's calls: requests, times, results, and which calls overlapped.

Secrets stay in the request object: no repr and no JSON made here contains them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orlop.csi import interceptor, redacted_messages
from orlop.foundation.structured_log import hide

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from google.protobuf.message import Message

    from orlop.csi.error_codes import Code
    from orlop.csi.rpc_type import Rpc
    from orlop.foundation.clock import Clock

VOLUME_FIELDS: Final = ("volume_id", "source_volume_id")


@dataclass(slots=True)
class RecordedCall:
    """One call. `started` and `ended` are seconds of the clock's `elapsed()`; None: it has not ended."""

    method: str  # such as "CreateVolume"
    request: Any = field(repr=False)
    at: datetime
    started: float
    ended: float | None = None
    code: Code | None = None
    message: str = ""
    # Another call that changes the same volume was under way at the same time.
    overlapping: bool = False
    # It never reached the driver's services: another call held its key, or it was no valid request.
    refused: bool = False

    @property
    def volume(self) -> str | None:
        """Return the id of the volume that the request names, if any."""
        for name in VOLUME_FIELDS:
            if getattr(self.request, name, ""):
                return str(getattr(self.request, name))
        return f"named {self.request.name}" if self.method == "CreateVolume" else None

    def as_json(self) -> dict[str, Any]:
        shown = {
            "at": self.at.isoformat(),
            "method": self.method,
            "request": redacted_messages.printable(self.request),
            "code": None if self.code is None else self.code.name,
            "message": hide(self.message, redacted_messages.secret_values(self.request)),
            "seconds": None if self.ended is None else round(self.ended - self.started, 6),
            "overlapping": self.overlapping,
            "refused": self.refused,
        }
        return {key: value for key, value in shown.items() if value not in ("", False)}

    def __repr__(self) -> str:
        return f"Call({', '.join(f'{key}={value!r}' for key, value in self.as_json().items())})"


class CallRecord:
    """All calls, in the order of their arrival."""

    def __init__(self, clock: Clock, when_ended: Callable[[RecordedCall], object]) -> None:
        self.calls: list[RecordedCall] = []
        self._under_way: dict[int, RecordedCall] = {}
        self._clock = clock
        self._when_ended = when_ended

    def begin(self, rpc: Rpc[Any, Any], request: Message) -> RecordedCall:
        call = RecordedCall(rpc.name, request, self._clock.now(), self._clock.elapsed())
        if interceptor.changes_something(rpc) and call.volume is not None:
            self._mark_overlapping(call)
        self.calls.append(call)
        self._under_way[id(call)] = call
        return call

    def end(self, call: RecordedCall, code: Code, message: str = "") -> None:
        call.ended = self._clock.elapsed()
        call.code = code
        call.message = message
        del self._under_way[id(call)]
        self._when_ended(call)

    def under_way(self) -> list[RecordedCall]:
        return list(self._under_way.values())

    def _mark_overlapping(self, call: RecordedCall) -> None:
        for running in self.under_way():
            if running.volume == call.volume and running.method in interceptor.KEY_FIELDS:
                running.overlapping = call.overlapping = True
