"""Read the drives of a cluster, and change their spec by guarded patches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from orlop.admin.drives.device_list_rules import StaticDisks, static_disks
from orlop.admin.drives.drive_change_rules import ChangeDrive, DecideChange, LeaveDrive, RefuseChange
from orlop.admin.drives.drive_list_rules import DriveRow, read_drive_row
from orlop.admin.refusals import ChangeRefused, UnknownObject
from orlop.kube.api_errors import Conflict, Forbidden, NotFound, PatchRefused
from orlop.kube.client import KubeClient
from orlop.kube.kinds import PERSISTENT_VOLUME, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.records.drive import DRIVE
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.records.volume import VOLUME

MOST_ATTEMPTS: Final = 10
"""The spec of a drive changes with every volume that is created or deleted."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result for one drive. `refused`: nothing was changed."""

    drive: DriveRow
    sentence: str
    changed: bool = False
    refused: bool = False


class OperatedDrives:
    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    async def rows(self) -> Sequence[DriveRow]:
        """Return all drives; those with invalid fields are left out."""
        return [row for obj in await list_orlop(self._kube, DRIVE) if (row := _readable(obj)) is not None]

    async def volumes_on(self, drive: str) -> list[str]:
        """Return the names of the Volume objects that are placed on a drive."""
        listed = await list_orlop(self._kube, VOLUME)
        return [str(obj["metadata"]["name"]) for obj in listed if (obj.get("spec") or {}).get("drive") == drive]

    async def change(self, row: DriveRow, decide: DecideChange, *, dry_run: bool = False) -> ChangeResult:
        """Decide and patch; if the drive has changed meanwhile, read it and decide again."""
        obj = row.obj
        for _ in range(MOST_ATTEMPTS):
            decision = decide(obj)
            match decision:
                case LeaveDrive(why):
                    return ChangeResult(row, why)
                case RefuseChange(why):
                    return ChangeResult(row, why, refused=True)
                case ChangeDrive(patch, done):
                    try:
                        await self._kube.patch(DRIVE, ObjectName(None, row.name), patch, dry_run=dry_run)
                    except (PatchRefused, Conflict):
                        obj = await self._again(row)
                        continue
                    return ChangeResult(row, done, changed=True)
        raise ChangeRefused(f"The drive {row.title} keeps being changed by other programs: try again.")

    async def _again(self, row: DriveRow) -> Object:
        try:
            return await self._kube.get(DRIVE, ObjectName(None, row.name))
        except NotFound:
            raise UnknownObject(f"The drive {row.title} does not exist any more.") from None


async def list_orlop(kube: KubeClient, kind: Kind) -> Sequence[Object]:
    """Return the objects of one of our kinds. Without its definition, raise an error that names what to install."""
    try:
        return (await kube.list(kind)).items
    except NotFound:
        raise ChangeRefused(
            f"This cluster does not know the kind {kind.kind}: install deploy/manifests/drives, or start `orlop up`."
        ) from None


async def list_static_disks(kube: KubeClient) -> StaticDisks:
    """Return the disks that are static volumes; none where static volumes are not installed."""
    reports: Sequence[Object] = ()
    # A user who may list drives may lack this right. The PersistentVolumes name most of the disks too.
    with suppress(NotFound, Forbidden):
        reports = (await kube.list(PROVISIONER_STATUS)).items
    volumes: Sequence[Object] = ()
    with suppress(Forbidden):
        volumes = (await kube.list(PERSISTENT_VOLUME)).items
    return static_disks(reports, volumes)


def _readable(obj: Object) -> DriveRow | None:
    try:
        return read_drive_row(obj)
    except ValueError:
        return None
