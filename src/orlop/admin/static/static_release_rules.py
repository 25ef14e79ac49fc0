"""Decide what an operator may do with a static volume: release it, forget it, hand it back. Pure.

The master does the work: an annotation names how the disk comes back, and the PersistentVolume is deleted. What is
refused here is what would lose or leak data by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orlop.admin.static.static_list_rules import StaticRow
from orlop.kube.patches import JsonPatch
from orlop.static_pv.node_disks_rules import ERROR, DiskReport
from orlop.static_pv.static_volume_rules import (
    AS_IS,
    RELEASE,
    WIPE,
    StaticVolume,
    guarded_patch,
    release_note,
)

NODE_EXISTS: Final = "the node exists: only a node that was deleted from the cluster is forgotten"


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """What happens to one volume. `why_not`: why nothing does."""

    row: StaticRow
    how: str
    why_not: str = ""

    @property
    def is_done(self) -> bool:
        """Whether nothing has to be written any more."""
        volume = self.row.volume
        return volume is not None and volume.is_being_deleted and volume.release == self.how


def release_plan(row: StaticRow, how: str) -> ReleasePlan:
    return ReleasePlan(row, how, _why_not(row, how))


def _why_not(row: StaticRow, how: str) -> str:
    volume = row.volume
    if volume is None:
        return "it has no PersistentVolume: there is nothing to release"
    if volume.is_bound:
        return f"the claim {volume.claim} has it: delete the claim first"
    if not volume.was_ever_bound and not volume.is_being_deleted:
        return "no claim has had it: it is offered"
    has_failed = row.status is not None and row.status.state == ERROR
    if how == AS_IS and volume.is_wipe_decided and not has_failed:
        return "its disk is being wiped, and what is left on it is of no use"
    return "it is being released as it is" if how == WIPE and volume.release == AS_IS else ""


def release_patch(volume: StaticVolume, version: str, how: str) -> JsonPatch:
    """Name how the disk of a volume that is being deleted comes back."""
    note = release_note(how, volume.deleted_at)
    return guarded_patch(volume, version).add("metadata", "annotations", RELEASE, value=note)


@dataclass(frozen=True, slots=True)
class HandBackPlan:
    """The volumes of one node that another product takes over. `why_not`: why they stay ours."""

    node: str
    volumes: tuple[StaticRow, ...]
    why_not: str = ""


def hand_back_plan(node: str, rows: tuple[StaticRow, ...], report: DiskReport | None) -> HandBackPlan:
    """Without our finalizer a volume that is being deleted is gone at once: none of them may have a dirty disk."""
    if report is not None and report.operations:
        return HandBackPlan(node, rows, f"the disk of {report.operations[0].persistent_volume} is being wiped")
    for row in rows:
        volume = row.volume
        if volume is not None and is_kept_until_wiped(volume):
            return HandBackPlan(node, rows, f"{row.name} is being deleted, and its disk is not wiped")
    return HandBackPlan(node, tuple(row for row in rows if row.volume is not None and row.volume.has_finalizer))


def is_kept_until_wiped(volume: StaticVolume) -> bool:
    """Return whether a volume would vanish without our finalizer, and its disk may be dirty."""
    return volume.is_being_deleted and volume.was_ever_bound


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """The volumes of a node that is gone for good. `why_not`: why they are kept."""

    node: str
    volumes: tuple[StaticRow, ...]
    why_not: str = ""

    @property
    def claims(self) -> tuple[str, ...]:
        """Claims whose data are given up."""
        return tuple(row.claim for row in self.volumes if row.volume is not None and row.volume.is_bound)


def forget_plan(node: str, rows: tuple[StaticRow, ...], *, node_exists: bool) -> ForgetPlan:
    if node_exists:
        return ForgetPlan(node, rows, NODE_EXISTS)
    return ForgetPlan(node, tuple(row for row in rows if row.volume is not None))
