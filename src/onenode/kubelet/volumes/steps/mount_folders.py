"""Folders and files of a mount: made before the driver is asked, removed after nothing is mounted any more.

A removal looks first whether something is mounted; if so it does nothing, and says so. It goes in this order: the
target, vol_data.json, the folder of both. Killed in between, what is left is either found by its file, or empty.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import partial
from typing import Final

from onenode.host.volume_host import VolumeHost
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps import volume_data
from onenode.kubelet.volumes.steps.outcome_rules import StepFailed
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_seams import KubeletDisk
from orlop.foundation.structured_log import Log
from orlop.host.host_errors import HostError

OWN_FILES: Final = frozenset({volume_paths.DATA_FILE, f"{volume_paths.DATA_FILE}.new"})


class StillMounted(Exception):
    """Nothing was removed."""


class MountFolders:
    """`target` is the last name of a mount: what the file stands beside."""

    def __init__(self, disk: KubeletDisk, log: Log) -> None:
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._log = log

    async def make(self, folder: Names, prefix: str, doing: str) -> None:
        """`doing` is how kubelet calls the step."""
        try:
            await self._in_thread(partial(self._host.make_folders, folder))
        except HostError as error:
            raise StepFailed(prefix, texts.no_folder(doing, self._host.path_of(folder), str(error))) from None

    async def write_data(self, folder: Names, data: Mapping[str, str], prefix: str, doing: str) -> None:
        file = volume_paths.data_file(folder)
        try:
            await self._in_thread(partial(self._host.write_file, file, volume_data.encoded(data)))
        except HostError as error:
            raise StepFailed(prefix, f"{texts.PLUGIN}{doing}failed to save volume info data: {error}") from None

    async def read_data(self, folder: Names) -> Mapping[str, str] | None:
        file = volume_paths.data_file(folder)
        content = await self._in_thread(partial(self._host.read_file, file, volume_data.LARGEST_FILE + 1))
        return volume_data.decoded(content)

    async def is_there(self, target: Names) -> bool:
        return await self._in_thread(partial(self._host.is_there, target))

    async def is_mounted(self, target: Names) -> bool:
        """What cannot be looked at, such as the mount of a server that is gone, is taken for mounted."""
        try:
            return await self._in_thread(partial(self._host.is_mounted, target))
        except HostError as error:
            self._log.warning("mount state of target unknown; treating it as mounted", error=str(error))
            return True

    async def remove(self, target: Names) -> None:
        """StillMounted, or a HostError: something of it is left."""
        if await self.is_mounted(target):
            raise StillMounted(f"{self._host.path_of(target)} is still mounted")
        await self._in_thread(partial(remove_mount, self._host, target))

    async def try_remove(self, target: Names) -> None:
        """What cannot be removed now is found by the next sweep."""
        try:
            await self.remove(target)
        except (StillMounted, HostError) as error:
            self._log.warning("volume folder not removed", folder=self._host.path_of(target[:-1]), error=str(error))


def remove_mount(host: VolumeHost, target: Names) -> None:
    """The file stays while anything else is there: without it nobody could ask the driver again."""
    host.remove_folder(target)
    folder = target[:-1]
    strays = (host.names_in(folder) or frozenset()) - OWN_FILES
    if strays:
        what = f"{host.path_of(folder)} holds {min(strays)!r}, which is none of kubelet's"
        raise HostError(errno.ENOTEMPTY, f"{what}: move it elsewhere.")
    host.remove_file(volume_paths.data_file(folder))
    host.remove_folder(folder)
