"""Give up drives whose disks are gone for good: remove the objects of each and of its volumes.

Order: `forgotten_drive_rules`. Everything is read again before each write, and a drive that its node has found
meanwhile is left alone: its data can be used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orlop.admin.drives.adoption import ENDED_PODS, write_step
from orlop.admin.drives.drive_changes import OperatedDrives, list_orlop
from orlop.admin.drives.drive_list_rules import DriveRow, find_drive, read_drive_row
from orlop.admin.drives.forgotten_drive_rules import (
    Dependents,
    DriveForgotten,
    ForgottenDrive,
    drive_without_object,
    lost_volumes,
    next_forgetting_step,
    why_not_forgotten,
)
from orlop.admin.drives.volume_list_rules import VolumeRow, volume_rows
from orlop.admin.refusals import ChangeRefused, UnknownObject
from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.client import KubeClient
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.records.drive import DRIVE
from orlop.records.volume import VOLUME

MOST_WRITES: Final = 20
"""More writes than one object needs, including those that failed because it changed."""
MOST_LISTS: Final = 10


class DriveForgetting:
    """`force`: also a drive that its node reports as there."""

    def __init__(self, kube: KubeClient, *, force: bool = False) -> None:
        self._kube = kube
        self._force = force

    async def plans(self, words: Sequence[str]) -> Sequence[ForgottenDrive]:
        """Return what is lost with each of the named drives, and why one of them is refused."""
        drives = await OperatedDrives(self._kube).rows()
        rows = await self._volumes()
        named = {row.name: row for row in (self._named(drives, rows, word) for word in words)}
        dependents = await self._dependents()
        return [
            ForgottenDrive(row, lost_volumes(row, rows, dependents), await self._why_not(row)) for row in named.values()
        ]

    async def forget(self, drive: DriveRow) -> int:
        """Remove the objects of a drive; return how many Volume objects were on it."""
        removed: set[str] = set()
        for _ in range(MOST_LISTS):
            names = [row.name for row in await self._volumes() if row.spec.drive == drive.name]
            if not names:
                await self._remove(drive, None)
                return len(removed)
            for name in names:
                await self._remove(drive, name)
            removed.update(names)
        raise ChangeRefused(f"The drive {drive.title} gets new volumes all the time: try again.")

    async def _remove(self, drive: DriveRow, name: str | None) -> None:
        """Write until a Volume object is gone; without `name`, until the drive has no object."""
        for _ in range(MOST_WRITES):
            volume = await self._read(VOLUME, name) if name is not None else None
            if name is not None and (volume is None or volume["spec"]["drive"] != drive.name):
                return
            obj = await self._current(drive, is_needed=name is not None)
            step = next_forgetting_step(obj, volume)
            if isinstance(step, DriveForgotten):
                return
            await write_step(self._kube, step.step)
        raise ChangeRefused(f"The objects of the drive {drive.title} keep being changed by other programs: try again.")

    async def _current(self, drive: DriveRow, *, is_needed: bool) -> Object | None:
        """Return the object of the drive, if it is still the one that was agreed on, and may still be forgotten."""
        obj = await self._read(DRIVE, drive.name)
        if obj is None or (objects.uid(obj) != objects.uid(drive.obj) and not is_needed):
            return None
        if objects.uid(obj) != objects.uid(drive.obj):
            raise ChangeRefused(f"The drive {drive.title} is back: its node has made its object again.")
        if why_not := await self._why_not(read_drive_row(obj)):
            raise ChangeRefused(f"The drive {drive.title} {why_not}.")
        return obj

    @staticmethod
    def _named(drives: Sequence[DriveRow], rows: Sequence[VolumeRow], word: str) -> DriveRow:
        try:
            return find_drive(drives, word)
        except UnknownObject:
            if (row := drive_without_object(rows, word)) is not None:
                return row
            raise

    async def _why_not(self, drive: DriveRow) -> str:
        if self._force or not (why_not := why_not_forgotten(drive, node_exists=True)):
            return ""
        return (
            why_not if await self._read(NODE, drive.node) is not None else why_not_forgotten(drive, node_exists=False)
        )

    async def _read(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self._kube.get(kind, ObjectName(None, name))
        except NotFound:
            return None

    async def _volumes(self) -> Sequence[VolumeRow]:
        return volume_rows(await list_orlop(self._kube, VOLUME), [])

    async def _dependents(self) -> Dependents:
        pods = (await self._kube.list(POD)).items
        return Dependents(
            persistent_volumes=(await self._kube.list(PERSISTENT_VOLUME)).items,
            claims=(await self._kube.list(PERSISTENT_VOLUME_CLAIM)).items,
            pods=[pod for pod in pods if state.phase(pod) not in ENDED_PODS],
        )
