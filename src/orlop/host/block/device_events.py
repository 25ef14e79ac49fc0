"""Report that a block device, or an entry of a watched folder, was added or removed.

The kernel announces devices on a netlink socket, with and without udev; it needs no permission. Where the socket cannot
be opened (a seccomp filter of the container), names that appear in /dev or disappear from it are events too. An event
only means "survey again": events that are lost in an overflow do no harm, because the overflow is an event itself.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from orlop.host.kernel.system_calls import inotify_add_watch, inotify_init

if TYPE_CHECKING:
    import asyncio

KERNEL_EVENTS: Final = 15
FROM_THE_KERNEL: Final = 1
BUFFER_BYTES: Final = 1 << 20
LONGEST_EVENT: Final = 1 << 16
OF_A_BLOCK_DEVICE: Final = b"SUBSYSTEM=block"
CREATED_OR_GONE: Final = 0x100 | 0x200 | 0x40 | 0x80
"""IN_CREATE, IN_DELETE, IN_MOVED_FROM, IN_MOVED_TO."""
WRITTEN: Final = 0x8
"""IN_CLOSE_WRITE."""
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
MOST_READS: Final = 1000


class DeviceEvents:
    """`folders` are watched for entries that come and go; one that does not exist is not watched."""

    def __init__(self, folders: Sequence[str] = ("/dev",)) -> None:
        with ExitStack() as opened:
            self._netlink = _netlink()
            if self._netlink is not None:
                opened.callback(self._netlink.close)
            self._inotify = inotify_init()
            opened.callback(os.close, self._inotify)
            for folder in folders:
                self.watch(folder)
            self._opened = opened.pop_all()

    def watch(self, folder: str, *, contents: bool = False) -> bool:
        """Watch one more folder, with `contents` also for files that are written; return whether it exists.

        Watching a watched path again changes nothing, unless another folder has that path now.
        """
        with suppress(OSError), _handle(folder) as handle:
            inotify_add_watch(self._inotify, handle, CREATED_OR_GONE | (WRITTEN if contents else 0))
            return True
        return False

    def close(self) -> None:
        self._opened.close()

    @contextmanager
    def waking(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` on every event in this context."""

        def on_event() -> None:
            if self.drain():
                wake()

        descriptors = [self._inotify, *([self._netlink.fileno()] if self._netlink is not None else [])]
        for each in descriptors:
            loop.add_reader(each, on_event)
        try:
            yield
        finally:
            for each in descriptors:
                loop.remove_reader(each)

    def drain(self) -> bool:
        """Read all pending events; return whether one is about a device or a folder."""
        is_news = False
        for _ in range(MOST_READS):
            if (event := self._next_event()) is None:
                break
            is_news = is_news or event
        with suppress(BlockingIOError):
            while os.read(self._inotify, LONGEST_EVENT):
                is_news = True
        return is_news

    def _next_event(self) -> bool | None:
        """Read one event of the kernel; return whether it is about a block device; None if no event is pending."""
        if self._netlink is None:
            return None
        try:
            event = self._netlink.recv(LONGEST_EVENT)
        except BlockingIOError:
            return None
        except OSError as error:
            return error.errno == errno.ENOBUFS or None  # events were lost
        return OF_A_BLOCK_DEVICE in event.split(b"\0")


@contextmanager
def _handle(folder: str) -> Iterator[int]:
    handle = os.open(folder, _FOLDER)
    try:
        yield handle
    finally:
        os.close(handle)


def _netlink() -> socket.socket | None:
    events = None
    try:
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, KERNEL_EVENTS)
        events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        events.bind((0, FROM_THE_KERNEL))
        events.setblocking(False)
    except OSError:
        if events is not None:
            events.close()
        return None
    return events
