"""Decide which drives were moved to another node, and how the objects of the former node are removed. Pure.

The node in the object of a drive cannot be changed, and two nodes that mount one disk destroy it. So the former objects
are removed before the new node takes the drive over, and only if the former node cannot use the disk any more: it
reports the drive as Lost, or it is no node of the cluster any more. Order: set the policy Retain on every
PersistentVolume → remove the Volumes → remove the Drive. The records on the drive describe its volumes, and the
PersistentVolumes stay until they are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orlop.admin.drives.adopted_object_rules import RETAIN
from orlop.admin.drives.adoption_rules import PatchObject, RequestDeletion, discard_step, retain_patch
from orlop.admin.drives.device_list_rules import DeviceRow
from orlop.admin.drives.drive_list_rules import DriveRow
from orlop.admin.drives.volume_list_rules import VolumeRow
from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.records.drive import DRIVE
from orlop.records.drive_record import DriveState
from orlop.records.volume import VOLUME

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MovedDrive:
    """A drive whose object is of another node than the one that has its disk."""

    drive: DriveRow
    node: str
    """The node that has it now."""
    why_not: str = ""
    """Why it cannot be taken over now; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerObjects:
    """The objects of the former node."""

    drive: ApiObject
    volumes: Sequence[VolumeRow]
    persistent_volumes: Sequence[ApiObject]
    """Those that name these volumes."""


@dataclass(frozen=True, slots=True)
class FormerObjectsGone:
    """Nothing names the former node any more, except PersistentVolumes."""


def moved_drives(
    drives: Iterable[DriveRow], devices: Iterable[DeviceRow], named: Mapping[str, str], nodes: Iterable[str]
) -> list[MovedDrive]:
    """Return the drives that another node has. `named`: the node of each drive that the operator names."""
    places = {row.device.drive: row.node for row in devices if row.device.drive}
    known = set(nodes)
    moved = []
    for drive in drives:
        node = named.get(drive.name) or places.get(drive.name, drive.node)
        if node != drive.node:
            moved.append(MovedDrive(drive, node, _why_not(drive, node_exists=drive.node in known)))
    return sorted(moved, key=lambda each: (each.node, each.drive.name))


def _why_not(drive: DriveRow, *, node_exists: bool) -> str:
    if drive.status.state is DriveState.LOST or not node_exists:
        return ""
    return (
        f"the node {drive.node} reports it as {drive.base_state}, and may use it: two nodes that use one disk destroy "
        f"it. Remove the disk there; if that node is switched off for good, delete it: kubectl delete node {drive.node}"
    )


def next_removal_step(former: FormerObjects) -> PatchObject | RequestDeletion | FormerObjectsGone:
    for each in former.persistent_volumes:
        if (each.get("spec") or {}).get("persistentVolumeReclaimPolicy") != RETAIN:
            return PatchObject(PERSISTENT_VOLUME, objects.name(each), retain_patch(each))
    for row in former.volumes:
        return discard_step(VOLUME, row.obj)
    if former.drive:
        return discard_step(DRIVE, former.drive)
    return FormerObjectsGone()
