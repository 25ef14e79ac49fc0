"""Says what goes wrong once in a while: a disk that dies gives a thousand reasons a minute, and one line is enough.

What is not said goes to the debug log and is counted in the next line. Must not decide what is wrong.
"""

from __future__ import annotations

from typing import Final

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log

SECONDS_BETWEEN_LINES: Final = 30.0


class Complaints:
    """One kind of complaint."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._said_at: float | None = None
        self._unsaid = 0

    def tell(self, message: str, /, **fields: object) -> None:
        now = self._clock.elapsed()
        if self._said_at is not None and now - self._said_at < SECONDS_BETWEEN_LINES:
            self._unsaid += 1
            self._log.debug(message, **fields)
            return
        more = {"others_meanwhile": self._unsaid} if self._unsaid else {}
        self._log.warning(message, **fields, **more)
        self._said_at, self._unsaid = now, 0
