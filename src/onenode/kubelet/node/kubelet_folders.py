"""The folders that every kubelet has below its own: made with kubelet's mode, and the one of plugins' sockets watched.

The watcher of plugins sees that folder through `PluginSockets`; the real one is on inotify. Nothing here connects
to a socket.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from orlop.csi import endpoint
from orlop.host.kernel.confined_paths import make_folder, opened_root
from orlop.host.kernel.socket_folder import SocketFolder

PLUGINS: Final = endpoint.PLUGINS
PLUGINS_REGISTRY: Final = endpoint.PLUGINS_REGISTRY
PODS: Final = "pods"
FOLDER_MODE: Final = 0o750


def make_kubelet_folders(folder: str) -> None:
    """`folder` is there; HostError where something else is in the way."""
    with opened_root(folder) as root:
        for name in (PLUGINS, PLUGINS_REGISTRY, PODS):
            make_folder(root, name, FOLDER_MODE)


class PluginSockets(Protocol):
    def sockets(self) -> Mapping[str, Hashable]:
        """Return paths, and what distinguishes each socket from an earlier one of its path."""

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
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._folder.descriptor, readable.set)
        try:
            await readable.wait()
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
