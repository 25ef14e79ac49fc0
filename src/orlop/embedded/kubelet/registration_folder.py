"""The seam between the plugin watcher and the folder in which plugins announce themselves; the real one, on inotify.

Nothing here connects to a socket, or makes a folder: kubelet's are made 0750 by whoever starts it.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from orlop.host.socket_folder import SocketFolder


class RegistrationFolder(Protocol):
    def sockets(self) -> Mapping[str, Hashable]:
        """Paths, and what tells a socket from the one that was there before."""

    async def changed(self) -> None:
        """Returns when `sockets` may have something new to say, and at once if it had before."""

    def is_socket(self, path: str) -> bool:
        """Of any path; for drivers that nobody announced."""


class WatchedFolder:
    def __init__(self, folder: SocketFolder) -> None:
        self._folder = folder

    def sockets(self) -> Mapping[str, Hashable]:
        return self._folder.sockets()

    async def changed(self) -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._folder.descriptor, told.set)
        try:
            await told.wait()
        finally:
            loop.remove_reader(self._folder.descriptor)

    def is_socket(self, path: str) -> bool:
        try:
            return stat.S_ISSOCK(Path(path).stat().st_mode)
        except OSError:
            return False


@contextmanager
def watched_folder(path: Path) -> Iterator[WatchedFolder]:
    """`HostError` where there is no such folder."""
    with SocketFolder(path) as folder:
        yield WatchedFolder(folder)
