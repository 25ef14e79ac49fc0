"""The volumes on the drives of this node, in memory: their records, their faults, and the keys to change them.

Everything on the node that touches volumes shares one index. The records on the drives are the truth; the index follows
them, and is what status and metrics read.

    async with index.keys.hold(volume_id, why="erasing it"):
        record = index.get(volume_id)                    # under the key: no other call changes the volume
        with table.using(record.drive) as drive:
            await threads(lambda: drive.volumes.discard(volume_id))
        index.discard(volume_id)                         # after the disk, under the same key

- Every change of a volume's folder, record, image, devices or mounts holds the volume's key, from reading its record to
  `put` or `discard`. NodeStageVolume and the other calls of the node service do so.
- To delete a volume: hold its key → write its record with `deleted`, so that it cannot be staged any more → wait until
  it is neither staged nor published, and `is_in_use` is false → move it to the trash → `discard`. `listen` reports when
  a volume was unstaged.
- The volumes of a drive are known once it was read (`is_read`). While a drive is lost its volumes stay in the index, so
  that they can be unpublished; when it is opened again, they are read again.

Call all methods on the event loop, unless their docstring allows other threads.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.structured_log import Log
from orlop.host.drive_volumes import DriveVolumes
from orlop.host.folders.folder_records import ShelfListing
from orlop.host.host_errors import HostError
from orlop.host.node_host import Names
from orlop.host.threads import Threads
from orlop.records.record_format import UnreadableRecord
from orlop.records.volume_record import VolumeRecord, decode_volume

VolumeListener: TypeAlias = Callable[[str], None]
"""Gets the id of a volume that changed, and reads the index itself. Must not block."""


class VolumeIndex:
    def __init__(self, table: DriveTable, *, threads: Threads, log: Log) -> None:
        """Create an empty index of the drives in `table`."""
        self.keys: Final = KeyedLock()
        """By volume id. Every change of a volume holds its key."""
        self._table = table
        self._threads = threads
        self._log = log
        self._records: dict[str, VolumeRecord] = {}
        self._troubles: dict[str, str] = {}
        self._unusable_entries: dict[str, Mapping[str, str]] = {}
        self._read: dict[str, OpenDrive] = {}
        """The opening of each drive whose volumes were read."""
        self._reading: Final = KeyedLock()
        self._listeners: list[VolumeListener] = []

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get(self, volume_id: str) -> VolumeRecord | None:
        return self._records.get(volume_id)

    def on_drive(self, drive_id: str) -> tuple[VolumeRecord, ...]:
        """Return the volumes of a drive. May be called from any thread."""
        return tuple(record for record in list(self._records.values()) if record.drive == drive_id)

    def all_records(self) -> tuple[VolumeRecord, ...]:
        return tuple(self._records.values())

    def promised(self, drive_id: str) -> int:
        """Return the bytes of all volumes on a drive together, by listing them."""
        return sum(record.bytes for record in self.on_drive(drive_id))

    def trouble_of(self, volume_id: str) -> str:
        """Return what is wrong with a volume, as a sentence; empty if nothing is known."""
        return self._troubles.get(volume_id, "")

    def unusable_entries(self, drive_id: str) -> Mapping[str, str]:
        """Return the entries among the volumes of a drive that are no volume which can be used: the reason, by name."""
        return self._unusable_entries.get(drive_id, {})

    def is_read(self, drive: OpenDrive) -> bool:
        return self._read.get(drive.drive_id) is drive

    def listen(self, listener: VolumeListener) -> Callable[[], None]:
        """Call `listener` for every volume, then on each change. Return a function that ends it."""
        self._listeners.append(listener)
        for volume_id in tuple(self._records):
            listener(volume_id)
        return lambda: self._listeners.remove(listener)

    # ---- changing: the caller holds the volume's key -----------------------------------------------------------------

    def put(self, record: VolumeRecord) -> None:
        """Follow a change of a volume on its drive."""
        if self._records.get(record.volume_id) != record:
            self._records[record.volume_id] = record
            self._notify(record.volume_id)

    def discard(self, volume_id: str) -> None:
        """Forget a volume that was moved to the trash."""
        self._troubles.pop(volume_id, None)
        if self._records.pop(volume_id, None) is not None:
            self._notify(volume_id)

    def set_trouble(self, volume_id: str, sentence: str) -> None:
        """Keep what is wrong with a volume; an empty sentence: nothing."""
        if self.trouble_of(volume_id) == sentence:
            return
        if sentence:
            self._troubles[volume_id] = sentence
        else:
            del self._troubles[volume_id]
        self._notify(volume_id)

    def _notify(self, volume_id: str) -> None:
        for listener in tuple(self._listeners):
            listener(volume_id)

    # ---- drives ------------------------------------------------------------------------------------------------------

    async def read_all(self) -> None:
        """Read the volumes of every open drive that was not read yet. A drive that fails is left out, and logged."""
        await asyncio.gather(*(self._try(drive) for drive in self._table.open_drives() if not self.is_read(drive)))

    async def _try(self, drive: OpenDrive) -> None:
        with self._table.using_open(drive):
            try:
                await self.read(drive)
            except HostError as error:
                self._log.warning("volumes of drive cannot be read", drive=drive.drive_id, error=str(error))

    async def read(self, drive: OpenDrive) -> None:
        """Read the volumes of a drive, unless that was done since it was opened.

        The caller uses the drive, and holds the key of no volume: this takes them one after the other.
        """
        async with self._reading.hold(drive.drive_id, why="reading the volumes of the drive"):
            if self.is_read(drive):
                return
            listing = await self._threads(lambda: _listed(drive.volumes))
            unusable = {stranger.name: stranger.why for stranger in listing.strangers}
            for folder in listing.folders:
                if why := await self._read_volume(drive, folder.name):
                    unusable[folder.name] = why
            await self._forget_missing(drive, {folder.name for folder in listing.folders})
            self._unusable_entries[drive.drive_id] = unusable
            self._read[drive.drive_id] = drive
        for name, why in unusable.items():
            self._log.warning("left alone among the volumes", drive=drive.drive_id, name=name, why=why)
        self._log.info("volumes of drive read", drive=drive.drive_id, volumes=len(self.on_drive(drive.drive_id)))

    async def _read_volume(self, drive: OpenDrive, name: str) -> str:
        """Read one volume; return why it cannot be used, or an empty text."""
        other = self._records.get(name)
        if other is not None and other.drive != drive.drive_id:
            return f"the drive {other.drive} has a volume of this name too"
        async with self.keys.hold(name, why="reading the volumes of its drive"):
            try:
                record = await self._threads(lambda: read_volume(drive.volumes, drive.drive_id, name))
            except UnreadableRecord as error:
                return str(error)
            except HostError as error:
                if error.errno != errno.ENOENT:
                    raise
                self.discard(name)  # moved to the trash since the drive was listed
                return ""
            self.put(await self._threads(lambda: without_old_paths(drive.volumes, record)))
        return ""

    async def _forget_missing(self, drive: OpenDrive, names: set[str]) -> None:
        for record in self.on_drive(drive.drive_id):
            if record.volume_id not in names:
                async with self.keys.hold(record.volume_id, why="reading the volumes of its drive"):
                    self.discard(record.volume_id)


def _listed(volumes: DriveVolumes) -> ShelfListing:
    listing = volumes.listing()
    for name in listing.half_made:
        volumes.remove_half_made(name)
    return listing


def read_volume(volumes: DriveVolumes, drive_id: str, name: str) -> VolumeRecord:
    """Read the record of a volume. Raises UnreadableRecord if it is damaged, or another volume's."""
    record = decode_volume(volumes.read_record(name))
    if record.volume_id != name or record.drive != drive_id:
        raise UnreadableRecord(f"its record is of the volume {record.volume_id} on the drive {record.drive}")
    return record


def without_old_paths(volumes: DriveVolumes, record: VolumeRecord) -> VolumeRecord:
    """Return a record without the paths where nothing is mounted any more: after a reboot, none is."""
    published = tuple(target for target in record.published if is_mounted(volumes, target.path))
    staged = bool(volumes.devices(record.volume_id)) if record.is_block else is_mounted(volumes, record.staged)
    return replace(record, staged=record.staged if staged else "", published=published)


def is_mounted(volumes: DriveVolumes, path: str) -> bool:
    return bool(path) and volumes.kubelet_dir.mounted_at(names_of(path)) is not None


def names_of(path: str) -> Names:
    return tuple(path.split("/"))
