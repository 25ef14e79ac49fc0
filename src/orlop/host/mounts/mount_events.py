"""Report that something was mounted or unmounted in our mount namespace.

The kernel marks /proc/self/mountinfo as changed; each descriptor of it gets every change once, so nothing is read. An
event only means "read the table again".
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

TABLE: Final = "/proc/self/mountinfo"


class MountEvents:
    def __init__(self) -> None:
        self._table = os.open(TABLE, os.O_RDONLY | os.O_CLOEXEC)
        # The table itself is always readable, so an event loop would call us without end. The epoll descriptor is
        # readable only after a change.
        self._changes = select.epoll()
        self._changes.register(self._table, select.EPOLLPRI | select.EPOLLERR | select.EPOLLET)
        self.drain()

    def close(self) -> None:
        self._changes.close()
        os.close(self._table)

    @contextmanager
    def waking(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` on every event in this context."""

        def on_event() -> None:
            if self.drain():
                wake()

        loop.add_reader(self._changes.fileno(), on_event)
        try:
            yield
        finally:
            loop.remove_reader(self._changes.fileno())

    def drain(self) -> bool:
        """Return whether something has changed since the last call."""
        return bool(self._changes.poll(0))
