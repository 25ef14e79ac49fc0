"""Complaints that are not repeated: what stays wrong is said once, and once more when it is over.

It must not decide what is wrong, nor when to look again.
"""

from __future__ import annotations

from orlop.foundation.structured_log import Log


class SaidOnce:
    """One complaint at a time; repetitions go to the debug log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._last: tuple[str, str] | None = None

    def complain(self, message: str, error: str, /, **fields: object) -> None:
        if (message, error) == self._last:
            self._log.debug(message, error=error, **fields)
        else:
            self._log.warning(message, error=error, **fields)
        self._last = (message, error)

    def over(self, message: str, /, **fields: object) -> None:
        """Says so where there was something to complain about."""
        if self._last is not None:
            self._log.info(message, **fields)
        self._last = None
