"""Planned errors: the next calls of a function fail, before or after they take effect.

Calls are counted as well: how often a program calls a failing machine is part of its behaviour.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

from orlop.host.host_errors import HostError
from orlop.testing.kill_points import KillMoment


class Faults:
    """Planned errors, by the name of the function, such as `bind` or `write_record`."""

    def __init__(self) -> None:
        self._due: defaultdict[tuple[str, KillMoment], deque[int]] = defaultdict(deque)
        self._calls: Counter[str] = Counter()

    def fail(self, function: str, number: int, *, times: int = 1, moment: KillMoment = KillMoment.BEFORE) -> None:
        """Plan an error. AFTER: the call takes effect and still raises, as when only the fsync failed."""
        self._due[function, moment].extend([number] * times)

    def next(self, function: str, moment: KillMoment = KillMoment.BEFORE) -> int | None:
        """Return the error of the next call; None: it succeeds."""
        due = self._due.get((function, moment))
        return due[0] if due else None

    def forget(self) -> None:
        """Remove all planned errors."""
        self._due.clear()

    def calls(self, function: str) -> int:
        return self._calls[function]

    def all_calls(self) -> Counter[str]:
        """Return how often each function was called, so that a test can fail every one that a program calls."""
        return Counter(self._calls)

    @contextmanager
    def around(self, function: str) -> Iterator[None]:
        self._calls[function] += 1
        self._raise_if_due(function, KillMoment.BEFORE)
        yield
        self._raise_if_due(function, KillMoment.AFTER)

    def _raise_if_due(self, function: str, moment: KillMoment) -> None:
        due = self._due[function, moment]
        if due:
            number = due.popleft()
            raise HostError(number, f"The fake {function} fails as requested: {os.strerror(number)}.")
