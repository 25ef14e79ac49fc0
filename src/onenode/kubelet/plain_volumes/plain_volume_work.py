"""What is done to one plain volume: made, brought up to date, and, with all others of its pod, removed.

What it refers to is read → its files are decided → they are written.

Where something is missing nothing is touched: a volume that is there stays as it is. Files that are as they were
written last are not looked at again.

Removal blocks. What is left of a pod's volumes is found by its folders alone: those of an earlier process are no
different. Order: parts of volumes (subPaths) are unmounted → each volume is unmounted and erased → the folders, where
they are empty. Volumes of drivers and what is mounted of them are not touched: their folders say which they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Mapping
from functools import partial
from typing import Final

from onenode.host.payload_files import HostPath, Origin, Payload
from onenode.host.volume_host import PlainVolumeHost, VolumeHost
from onenode.kubelet.plain_volumes import plain_volumes_rules
from onenode.kubelet.plain_volumes.payload_rules import NoPayload, payload_of, references_of
from onenode.kubelet.plain_volumes.plain_volumes_rules import (
    FOLDERS,
    HostPathStep,
    PlainKind,
    PlainVolume,
    PlainVolumeRefused,
    memory_limit,
)
from onenode.kubelet.plain_volumes.references import ReferenceReader
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.outcome_rules import StepFailed
from onenode.kubelet.volumes.steps.subpaths import clean_subpaths
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_seams import KubeletDisk
from onenode.kubelet.volumes.volume_values import ApiObject
from orlop.foundation.clock import Clock
from orlop.host.host_errors import HostError
from orlop.kube import objects

STAMP_FORM: Final = "%Y_%m_%d_%H_%M_%S"


HOST_PATHS_AT_ONCE: Final = 4


def host_path_limit() -> asyncio.Semaphore:
    """Return the limit on inspections of hostPaths at once, which the work of all pods shares.

    A hostPath may be on a disk that hangs. The limit leaves threads for all other work.
    """
    return asyncio.Semaphore(HOST_PATHS_AT_ONCE)


class PlainVolumeWork:
    """The work on one pod's volumes. `allocatable` is what the node has for pods, as quantities by resource."""

    def __init__(
        self,
        disk: KubeletDisk,
        host: PlainVolumeHost,
        host_paths: asyncio.Semaphore,
        references: ReferenceReader,
        allocatable: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._disk = disk
        self._host = host
        self._in_thread = disk.in_thread
        self._host_paths = host_paths
        self._references = references
        self._allocatable = allocatable
        self._clock = clock
        self._written: dict[str, bytes] = {}

    async def remove_all(self, pod_uid: str, stop: threading.Event) -> list[str]:
        """Remove all volumes of the pod that are found; return a sentence for each that is left."""
        return await self._in_thread(partial(_remove_volumes, self._disk.host, self._host, pod_uid, stop))

    async def set_up(self, pod: ApiObject, volume: PlainVolume) -> Origin:
        """Make the volume, or bring it up to date; raise StepFailed."""
        try:
            if volume.kind is PlainKind.HOST_PATH:
                async with self._host_paths:
                    return await self._host_path(volume)
            _refuse_unfit(pod, volume)
            if volume.has_files:
                await self._files(pod, volume)
            else:
                await self._in_thread(partial(self._make, pod, volume))
        except (HostError, PlainVolumeRefused, NoPayload) as error:
            raise StepFailed(texts.SET_UP, str(error)) from None
        return plain_volumes_rules.folder_of(objects.uid(pod), volume)

    async def _files(self, pod: ApiObject, volume: PlainVolume) -> None:
        found = await self._references.read(pod, references_of(volume))
        payload = payload_of(pod, volume, found)
        digest = _digest(payload)
        if self._written.get(volume.name) != digest:
            stamp = self._clock.now().strftime(STAMP_FORM)
            await self._in_thread(partial(self._write, pod, volume, payload, stamp))
            self._written[volume.name] = digest

    async def _host_path(self, volume: PlainVolume) -> HostPath:
        wanted = HostPath(str(volume.source.get("path") or ""))
        expected = str(volume.source.get("type") or "")
        plain_volumes_rules.host_path_step(wanted.path, "", None)  # an invalid path is refused before it is opened
        found = await self._in_thread(partial(self._host.kind_at, wanted))
        match plain_volumes_rules.host_path_step(wanted.path, expected, found):
            case HostPathStep.MAKE_FOLDER:
                await self._in_thread(partial(self._host.make_host_folder, wanted))
            case HostPathStep.MAKE_FILE:
                await self._in_thread(partial(self._host.make_host_file, wanted))
            case HostPathStep.NOTHING:
                pass
        return wanted

    # ---- in a thread ---------------------------------------------------------------------------------------------

    def _make(self, pod: ApiObject, volume: PlainVolume) -> None:
        if (why := plain_volumes_rules.unknown_medium(volume)) is not None:
            raise PlainVolumeRefused(why)
        folder = plain_volumes_rules.folder_of(objects.uid(pod), volume)
        access = plain_volumes_rules.access_of(pod, volume)
        if volume.is_in_memory:
            self._host.make_in_memory(folder, access, memory_limit(pod, volume, self._allocatable))
        else:
            self._host.make_on_disk(folder, access)

    def _write(self, pod: ApiObject, volume: PlainVolume, payload: Payload, stamp: str) -> None:
        self._make(pod, volume)
        folder = plain_volumes_rules.folder_of(objects.uid(pod), volume)
        self._host.make_nested_folders(folder, plain_volumes_rules.nested_mount_points(pod, volume.name))
        self._host.write_payload(folder, payload, stamp, plain_volumes_rules.group_of(pod))


def _refuse_unfit(pod: ApiObject, volume: PlainVolume) -> None:
    """Refuse names that cannot be names of folders. Our API server accepts none of them, but another one may."""
    for name in (objects.uid(pod), volume.name):
        if not volume_paths.is_fit_name(name) or name.startswith("."):
            raise PlainVolumeRefused(f"{name!r} cannot be the name of a folder: the pod or the volume needs another")


def _digest(payload: Payload) -> bytes:
    """Return a digest of the payload, so that secrets need not be kept in memory to compare them."""
    found = hashlib.sha256()
    for names, file in sorted(payload.items()):
        for part in ("/".join(names).encode("utf-8", "surrogateescape"), file.content):
            found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _remove_volumes(host: VolumeHost, plain: PlainVolumeHost, pod_uid: str, stop: threading.Event) -> list[str]:
    """Remove the volumes of a pod; return a sentence for each that is left. One that fails does not stop the others."""
    left: list[str] = []
    for volume in sorted(_with_subpaths(host, pod_uid)):
        try:
            clean_subpaths(host, pod_uid, volume)
        except HostError as error:
            left.append(str(error))
    _remove_if_empty(host, volume_paths.all_subpaths(pod_uid))
    if not left:
        for folder in FOLDERS:
            left += _remove_all_in(host, plain, (*volume_paths.pod_volumes(pod_uid), folder), stop)
    _remove_if_empty(host, volume_paths.pod_volumes(pod_uid))
    _remove_if_empty(host, volume_paths.pod_folder(pod_uid))
    return left


def _with_subpaths(host: VolumeHost, pod_uid: str) -> frozenset[str]:
    """A driver's volume has its folder for as long as parts of it are mounted."""
    of_drivers = host.names_in(volume_paths.pod_csi_volumes(pod_uid)) or frozenset()
    return (host.names_in(volume_paths.all_subpaths(pod_uid)) or frozenset()) - of_drivers


def _remove_all_in(host: VolumeHost, plain: PlainVolumeHost, folder: Names, stop: threading.Event) -> list[str]:
    left = []
    for name in sorted(plain.volumes_in(folder)):
        try:
            plain.remove((*folder, name), stop)
        except HostError as error:
            left.append(str(error))
    _remove_if_empty(host, folder)
    return left


def _remove_if_empty(host: VolumeHost, folder: Names) -> None:
    """What somebody puts there meanwhile stays, with the folder."""
    try:
        if host.names_in(folder) == frozenset():
            host.remove_folder(folder)
    except HostError:
        return
