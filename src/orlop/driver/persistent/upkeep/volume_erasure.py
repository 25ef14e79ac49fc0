"""Delete volumes: mark the record, move the folder to the trash when nothing uses it, report when the data is gone.

A Volume object with `erase` is the order, and exists until the data is gone. A volume whose record is marked is deleted
without an order too: the process, or the API server, may have died since. Each step is taken under the volume's key, so
that no call of kubelet stages the volume meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from orlop.driver.persistent.drive_errors import DriveErrorListener, errors_of_drive
from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.driver.persistent.upkeep.trash_erasure import TrashErasure, is_in_trash
from orlop.driver.persistent.upkeep.volume_erasure_rules import (
    ErasureSighting,
    ErasureStep,
    ErasureWaits,
    KeepData,
    MarkDeleted,
    MoveToTrash,
    next_erasure_step,
)
from orlop.driver.persistent.volume_index import VolumeIndex
from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import wait_until_set
from orlop.foundation.runtime import Runtime
from orlop.host.drive_volumes import DriveVolumes
from orlop.host.host_errors import HostError
from orlop.host.threads import Threads
from orlop.records.record_format import UnreadableRecord
from orlop.records.volume import DriveVolumeSpec
from orlop.records.volume_context import is_volume_id
from orlop.records.volume_record import VolumeRecord, decode_volume, encode_volume

SWEEP: Final = Backoff(initial=1.0, factor=2.0, cap=30.0)
"""When a marked volume that is still mounted is tried again: the kernel does not report an unmount.

Soon at first: the mount namespace of a pod that was killed ends a moment after kubelet has unstaged its volume.
"""
MOST_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class _VolumeFacts:
    record: VolumeRecord | None
    has_folder: bool
    is_in_use: bool
    is_in_trash: bool


class VolumeErasure:
    """`threads` runs each call in a thread that may hang. `drive_failed` gets a drive and an error of a step there."""

    def __init__(
        self,
        table: DriveTable,
        index: VolumeIndex,
        trash: TrashErasure,
        *,
        threads: Threads,
        runtime: Runtime,
        drive_failed: DriveErrorListener,
    ) -> None:
        self._table = table
        self._drive_failed = drive_failed
        self._index = index
        self._trash = trash
        self._threads = threads
        self._clock, self._random, self._log = runtime.clock, runtime.random, runtime.log
        self._woken = asyncio.Event()

    async def delete(self, volume_id: str, order: DriveVolumeSpec | None) -> ErasureStep:
        """Take every step that is possible now; return the last one: the volume waits, is kept, or is gone."""
        if not is_volume_id(volume_id):
            return KeepData("its name is no name of a volume")
        async with self._index.keys.hold(volume_id, why="deleting it"):
            step: ErasureStep = ErasureWaits("it changes all the time")
            for _ in range(MOST_STEPS):
                drive, why = self._drive_of(volume_id, order)
                if drive is None:
                    return next_erasure_step(ErasureSighting(order=order, why_no_drive=why))
                try:
                    with self._table.using_open(drive), errors_of_drive():
                        step = await self._step(drive, volume_id, order)
                except HostError as error:
                    self._drive_failed(drive.drive_id, error)
                    raise
                if not isinstance(step, MarkDeleted | MoveToTrash):
                    break
            return step

    async def _step(self, drive: OpenDrive, volume_id: str, order: DriveVolumeSpec | None) -> ErasureStep:
        """Take one step on an open drive, and return it."""
        facts = await self._threads(lambda: _read_facts(drive.volumes, volume_id))
        step = next_erasure_step(_sighting(order, facts))
        match step:
            case MarkDeleted() if facts.record is not None:
                marked = replace(facts.record, deleted=True)
                await self._threads(lambda: drive.volumes.write_record(volume_id, encode_volume(marked)))
                if self._is_indexed(volume_id, drive):
                    self._index.put(marked)
                self._log.info("volume marked as deleted", volume=volume_id, drive=drive.drive_id)
            case MoveToTrash():
                await self._threads(lambda: drive.volumes.discard(volume_id))
                self._log.info("volume moved to the trash", volume=volume_id, drive=drive.drive_id)
                self._trash.wake()
        # An earlier attempt may have moved the folder and failed in its fsync: then it is only forgotten here.
        if (isinstance(step, MoveToTrash) or not facts.has_folder) and self._is_indexed(volume_id, drive):
            self._index.discard(volume_id)
        return step

    async def run(self) -> None:
        """Delete volumes whose record is marked, until cancelled."""
        stop = self._index.listen(self._note)
        attempts, waiting = 0, frozenset[str]()
        try:
            while True:
                self._woken.clear()
                before, waiting = waiting, frozenset(each.volume_id for each in self._marked())
                attempts = attempts + 1 if waiting <= before else 1
                for volume_id in sorted(waiting):
                    await self._delete_marked(volume_id)
                await wait_until_set(self._clock, self._woken, SWEEP.delay(attempts, self._random))
        finally:
            stop()

    def _marked(self) -> list[VolumeRecord]:
        """Return the records of volumes that can be deleted as soon as nothing has them mounted."""
        return [each for each in self._index.all_records() if each.deleted and not each.staged and not each.published]

    def _note(self, volume_id: str) -> None:
        record = self._index.get(volume_id)
        if record is not None and record.deleted:
            self._woken.set()

    async def _delete_marked(self, volume_id: str) -> None:
        try:
            await self.delete(volume_id, None)
        except HostError as error:
            self._log.warning("volume not deleted yet", volume=volume_id, error=error)

    def _drive_of(self, volume_id: str, order: DriveVolumeSpec | None) -> tuple[OpenDrive | None, str]:
        """Return the drive, or why it cannot be used."""
        record = self._index.get(volume_id)
        drive_id = order.drive if order is not None else record.drive if record is not None else ""
        drive = self._table.open_drive(drive_id)
        if drive is not None:
            return drive, ""
        standing = self._table.standings().get(drive_id)
        return (
            None,
            f"its drive cannot be used: {standing.why}" if standing is not None else "this node has no such drive",
        )

    def _is_indexed(self, volume_id: str, drive: OpenDrive) -> bool:
        known = self._index.get(volume_id)
        return known is not None and known.drive == drive.drive_id


def _sighting(order: DriveVolumeSpec | None, facts: _VolumeFacts) -> ErasureSighting:
    return ErasureSighting(
        order=order,
        record=facts.record,
        has_folder=facts.has_folder,
        is_in_use=facts.is_in_use,
        is_in_trash=facts.is_in_trash,
    )


def _read_facts(volumes: DriveVolumes, volume_id: str) -> _VolumeFacts:
    record, has_folder = None, True
    try:
        record = decode_volume(volumes.read_record(volume_id))
    except UnreadableRecord:
        pass
    except HostError as error:
        if error.errno == errno.ENOENT:
            has_folder = False
        elif error.errno != errno.ENODATA:
            raise
    in_use = has_folder and volumes.is_in_use(volume_id)
    return _VolumeFacts(record, has_folder, in_use, not has_folder and is_in_trash(volumes, volume_id))
