"""Watch the sockets below a folder with inotify: which exist, and which are new.

The rules are those of kubelet's plugin watcher:
- Every folder below is watched too.
- A socket that is created or moved in is new, even if another one had the same path before.
- A socket that is moved away still counts as present.
- A symbolic link to a socket counts as a socket.
- Names that begin with a dot are skipped, except folders that exist when the watch of their parent begins.

A folder is watched before it is listed, so that nothing is missed in between. A socket that is reported by both counts
as new twice, and after an overflow of the kernel's event queue every socket counts as new. This module opens no socket
and connects to none.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from orlop.host.host_errors import HostError
from orlop.host.kernel.system_calls import (
    WATCH_CREATED,
    WATCH_DELETED,
    WATCH_ENDED,
    WATCH_FOLDERS_ONLY,
    WATCH_MOVED_IN,
    WATCH_OVERFLOWED,
    inotify_add_watch,
    inotify_init,
)

CHANGES: Final = WATCH_CREATED | WATCH_DELETED | WATCH_MOVED_IN | WATCH_FOLDERS_ONLY
FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
BUFFER_BYTES: Final = 64 * 1024
_HEAD: Final = struct.Struct("=iIII")  # watch, changes, cookie, length of the name


@dataclass(frozen=True, slots=True)
class _Watched:
    descriptor: int
    path: str


@dataclass(frozen=True, slots=True)
class _InotifyEvent:
    watch: int
    changes: int
    name: str


class SocketFolder:
    """The sockets below one folder. `descriptor` is readable when there are changes, which `sockets` processes."""

    def __init__(self, path: Path) -> None:
        self._root = str(path)
        self._folders: dict[int, _Watched] = {}
        self._sockets: dict[str, int] = {}
        self._last_number = 0
        self.descriptor = inotify_init()
        try:
            self._enter(os.open(path, FOLDER_FLAGS), self._root)
        except OSError as error:
            self.close()
            raise HostError.because(error, f"The folder {path} cannot be watched for sockets") from None

    def sockets(self) -> dict[str, int]:
        """Process pending events; return the paths of all sockets, each with a number no other socket ever had."""
        while events := self._read():
            for event in _parsed(events):
                self._apply(event)
        return dict(self._sockets)

    def close(self) -> None:
        os.close(self.descriptor)
        for folder in self._folders.values():
            os.close(folder.descriptor)
        self._folders.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- events of the kernel ----------------------------------------------------------------------------------------

    def _read(self) -> bytes:
        try:
            return os.read(self.descriptor, BUFFER_BYTES)
        except BlockingIOError:
            return b""

    def _apply(self, event: _InotifyEvent) -> None:
        if event.changes & WATCH_OVERFLOWED:
            self._list_again()
        elif event.changes & WATCH_ENDED:
            self._leave(event.watch)
        elif (folder := self._folders.get(event.watch)) is None:
            return
        elif event.changes & WATCH_DELETED:
            self._sockets.pop(f"{folder.path}/{event.name}", None)
        elif not event.name.startswith("."):
            self._add(folder, event.name)

    def _list_again(self) -> None:
        """List everything again, as new: events were lost, and a socket may have been replaced at the same path."""
        self._sockets.clear()
        for folder in list(self._folders.values()):
            self._walk(folder)

    # ---- listing -----------------------------------------------------------------------------------------------------

    def _enter(self, descriptor: int, path: str) -> None:
        """Watch a folder, then list it. The descriptor is ours from now on."""
        try:
            watch = inotify_add_watch(self.descriptor, descriptor, CHANGES)
        except OSError:
            os.close(descriptor)
            raise
        if (before := self._folders.get(watch)) is not None:
            os.close(before.descriptor)
        folder = self._folders[watch] = _Watched(descriptor, path)
        self._walk(folder)

    def _walk(self, folder: _Watched) -> None:
        with suppress(OSError):  # the folder is gone, with everything in it
            for name in sorted(os.listdir(folder.descriptor)):
                self._add(folder, name)

    def _add(self, folder: _Watched, name: str) -> None:
        """Add an entry that appeared: enter a folder, number a socket. Skip one that is gone, or a broken link."""
        with suppress(OSError):
            if stat.S_ISDIR(os.lstat(name, dir_fd=folder.descriptor).st_mode):
                inner = os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder.descriptor)
                self._enter(inner, f"{folder.path}/{name}")
            elif not name.startswith(".") and _is_socket(folder, name):
                self._last_number += 1
                self._sockets[f"{folder.path}/{name}"] = self._last_number

    def _leave(self, watch: int) -> None:
        if (folder := self._folders.pop(watch, None)) is not None:
            os.close(folder.descriptor)


def _is_socket(folder: _Watched, name: str) -> bool:
    return stat.S_ISSOCK(os.stat(name, dir_fd=folder.descriptor).st_mode)


def _parsed(records: bytes) -> Iterator[_InotifyEvent]:
    at = 0
    while at < len(records):
        watch, changes, _, length = _HEAD.unpack_from(records, at)
        begin = at + _HEAD.size
        at = begin + length
        yield _InotifyEvent(watch, changes, os.fsdecode(records[begin:at].rstrip(b"\0")))
