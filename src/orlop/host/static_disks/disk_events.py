"""Report that a disk, a mount or an entry of a watched folder came or went.

The kernel marks /proc/self/mountinfo as changed; each descriptor of it gets every change once, so nothing is read. An
event only means "read the table again".
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from orlop.host.block.device_events import DeviceEvents

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
        """Call `wake` on every event in this context, from the loop's next turn on: read the state once after that."""

        def on_event() -> None:
            # Whatever `drain` returns: the event loop's own poll of our descriptor may have consumed the event.
            self.drain()
            wake()

        loop.add_reader(self._changes.fileno(), on_event)
        try:
            yield
        finally:
            loop.remove_reader(self._changes.fileno())

    def drain(self) -> bool:
        """Return whether something has changed since the last call."""
        return bool(self._changes.poll(0))


class DiskEvents:
    """Events of devices, folders and mounts, while the context is open."""

    def __init__(self) -> None:
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._devices = DeviceEvents()
            opened.callback(self._devices.close)
            self._mounts = MountEvents()
            opened.callback(self._mounts.close)
            self._ends = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def watch(self, folder: str) -> None:
        """Watch a folder, also for files that are written. While it does not exist, its parent is watched."""
        if not self._devices.watch(folder, contents=True):
            self._devices.watch(str(Path(folder).parent))

    @contextmanager
    def waking(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` on every event in this context."""
        with self._devices.waking(loop, wake), self._mounts.waking(loop, wake):
            yield
