"""One volume is made, or brought up to date: what it refers to is read → its files are decided → they are written.

Where something is missing nothing is touched: a volume that is there stays as it is. Files that are as they were
written last are not looked at again.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Final

from orlop.embedded.kubelet.plain_volumes import host_path_rules, plain_volumes_rules
from orlop.embedded.kubelet.plain_volumes.host_path_rules import NotAsExpected, Step
from orlop.embedded.kubelet.plain_volumes.memory_size_rules import most_bytes
from orlop.embedded.kubelet.plain_volumes.payload_rules import NoPayload, payload_of, references_of
from orlop.embedded.kubelet.plain_volumes.plain_tools import PlainTools
from orlop.embedded.kubelet.plain_volumes.plain_volumes_rules import PlainKind, PlainVolume
from orlop.embedded.kubelet.plain_volumes.references import ReferenceReader
from orlop.embedded.kubelet.volumes import event_texts as texts
from orlop.embedded.kubelet.volumes import volume_paths
from orlop.embedded.kubelet.volumes.step_failures import StepFailed
from orlop.embedded.kubelet.volumes.volume_values import Seen
from orlop.host.errors import HostError
from orlop.host.payload_files import HostPath, Origin, Payload
from orlop.kube import objects

STAMP_FORM: Final = "%Y_%m_%d_%H_%M_%S"


class VolumeSetUp:
    """Of one pod; everything raises StepFailed."""

    def __init__(self, tools: PlainTools, references: ReferenceReader) -> None:
        self._tools = tools
        self._host = tools.host
        self._in_thread = tools.volumes.in_thread
        self._references = references
        self._written: dict[str, bytes] = {}

    async def set_up(self, pod: Seen, volume: PlainVolume) -> Origin:
        try:
            if volume.kind is PlainKind.HOST_PATH:
                async with self._tools.host_paths:
                    return await self._host_path(volume)
            _refuse_unfit(pod, volume)
            if volume.has_files:
                await self._files(pod, volume)
            else:
                await self._in_thread(partial(self._make, pod, volume))
        except (HostError, NotAsExpected, NoPayload) as error:
            raise StepFailed(texts.SET_UP, str(error)) from None
        return plain_volumes_rules.folder_of(objects.uid(pod), volume)

    async def _files(self, pod: Seen, volume: PlainVolume) -> None:
        found = await self._references.read(pod, references_of(volume))
        payload = payload_of(pod, volume, found)
        digest = _digest(payload)
        if self._written.get(volume.name) != digest:
            stamp = self._tools.volumes.clock.now().strftime(STAMP_FORM)
            await self._in_thread(partial(self._write, pod, volume, payload, stamp))
            self._written[volume.name] = digest

    async def _host_path(self, volume: PlainVolume) -> HostPath:
        wanted = HostPath(str(volume.source.get("path") or ""))
        expected = str(volume.source.get("type") or "")
        host_path_rules.next_step(wanted.path, "", None)  # nothing is looked at that is no path
        found = await self._in_thread(partial(self._host.kind_at, wanted))
        match host_path_rules.next_step(wanted.path, expected, found):
            case Step.MAKE_FOLDER:
                await self._in_thread(partial(self._host.make_host_folder, wanted))
            case Step.MAKE_FILE:
                await self._in_thread(partial(self._host.make_host_file, wanted))
            case Step.NOTHING:
                pass
        return wanted

    # ---- in a thread ---------------------------------------------------------------------------------------------

    def _make(self, pod: Seen, volume: PlainVolume) -> None:
        if (why := plain_volumes_rules.unknown_medium(volume)) is not None:
            raise NotAsExpected(why)
        folder = plain_volumes_rules.folder_of(objects.uid(pod), volume)
        access = plain_volumes_rules.access_of(pod, volume)
        if volume.is_in_memory:
            self._host.make_in_memory(folder, access, most_bytes(pod, volume, self._tools.allocatable))
        else:
            self._host.make_on_disk(folder, access)

    def _write(self, pod: Seen, volume: PlainVolume, payload: Payload, stamp: str) -> None:
        self._make(pod, volume)
        folder = plain_volumes_rules.folder_of(objects.uid(pod), volume)
        self._host.make_nested_folders(folder, plain_volumes_rules.nested_mount_points(pod, volume.name))
        self._host.write_payload(folder, payload, stamp, plain_volumes_rules.group_of(pod))


def _refuse_unfit(pod: Seen, volume: PlainVolume) -> None:
    """Both become names of folders; the API server lets no such name pass, but it may not be ours."""
    for name in (objects.uid(pod), volume.name):
        if not volume_paths.is_fit_name(name) or name.startswith("."):
            raise NotAsExpected(f"{name!r} cannot be the name of a folder: the pod or the volume needs another")


def _digest(payload: Payload) -> bytes:
    """Of no use to whoever wants to know what is in it."""
    found = hashlib.sha256()
    for names, file in sorted(payload.items()):
        for part in ("/".join(names).encode("utf-8", "surrogateescape"), file.content):
            found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()
