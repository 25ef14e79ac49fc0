"""Read volumes with everything that may need them, and delete those that nothing needs.

Order: read all → decide → the operator agrees → read all again → decide again → one guarded patch for each. A volume
that has changed since the operator agreed is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orlop.admin.drives.drive_changes import OperatedDrives, list_orlop
from orlop.admin.drives.volume_cleaning_rules import (
    Claimants,
    CleaningDecision,
    DeletePersistentVolume,
    EraseVolume,
    KeepVolume,
    decide_cleaning,
)
from orlop.admin.drives.volume_list_rules import VolumeRow, volume_rows
from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.api_errors import Conflict, NotFound, PatchRefused
from orlop.kube.client import KubeClient, Selection
from orlop.kube.kinds import LEASE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, Kind
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.provision_journal import ANNOTATION, DRIVER_LABEL, UnreadablePage, decode_page
from orlop.records.volume import VOLUME


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    row: VolumeRow
    decision: CleaningDecision

    @property
    def is_kept(self) -> bool:
        return isinstance(self.decision, KeepVolume)


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """`why` is why the volume was kept after all; empty if its deletion has begun."""

    row: VolumeRow
    why: str = ""


class OperatedVolumes:
    def __init__(self, kube: KubeClient, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def rows(self) -> Sequence[VolumeRow]:
        drives = await OperatedDrives(self._kube).rows()
        return volume_rows(await list_orlop(self._kube, VOLUME), drives)

    async def plans(self) -> Sequence[CleaningPlan]:
        """Decide about every volume."""
        # The volumes first: what is made for a volume between the reads is then seen.
        rows = await self.rows()
        claimants = await self._claimants()
        return [CleaningPlan(row, decide_cleaning(row, claimants)) for row in rows]

    async def clean(self, agreed: Iterable[VolumeRow]) -> Sequence[CleaningResult]:
        """Delete those of the agreed volumes that are still the same, and still needed by nothing."""
        current = {objects.uid(plan.row.obj): plan for plan in await self.plans()}
        return [await self._clean_one(row, current.get(objects.uid(row.obj))) for row in agreed]

    async def _clean_one(self, row: VolumeRow, plan: CleaningPlan | None) -> CleaningResult:
        match plan.decision if plan is not None else KeepVolume("it does not exist any more"):
            case KeepVolume(why):
                return CleaningResult(row, why)
            case EraseVolume(patch):
                return await self._patched(row, VOLUME, row.name, patch)
            case DeletePersistentVolume(name, patch):
                return await self._patched(row, PERSISTENT_VOLUME, name, patch)

    async def _patched(self, row: VolumeRow, kind: Kind, name: str, patch: JsonPatch) -> CleaningResult:
        try:
            await self._kube.patch(kind, ObjectName(None, name), patch)
        except (PatchRefused, Conflict, NotFound):
            return CleaningResult(row, f"its {kind.kind} changed meanwhile: repeat the command")
        return CleaningResult(row)

    async def _claimants(self) -> Claimants:
        ordered, is_known = await self._ordered()
        # The claims last: a claim is older than everything that is made for it.
        volumes = (await self._kube.list(PERSISTENT_VOLUME)).items
        claims = (await self._kube.list(PERSISTENT_VOLUME_CLAIM)).items
        return Claimants.of(volumes, claims, ordered, is_journal_known=is_known, now=self._clock.now())

    async def _ordered(self) -> tuple[set[str], bool]:
        """Return the volumes that a provisioner has open requests for, and whether all of them could be read."""
        names: set[str] = set()
        for page in (await self._kube.list(LEASE, Selection(labels=DRIVER_LABEL))).items:
            content = objects.annotations(page).get(ANNOTATION)
            try:
                entries = decode_page(content) if content else ()
            except UnreadablePage:
                return names, False
            names |= {entry.order.volume_name for entry in entries}
        return names, True
