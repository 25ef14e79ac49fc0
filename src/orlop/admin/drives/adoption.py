"""Make the lost objects of volumes on drives again, and replace objects that name a former node.

Order for each volume: `adoption_rules`. Everything is read again before each write, and each write is safe to repeat: a
process that was killed anywhere is continued by the next. The drives come first: `drive_adoption`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from orlop.admin.drives.adopted_object_rules import TO_MAKE, ClaimTerms, name_of_persistent_volume, read_planned
from orlop.admin.drives.adoption_rules import (
    AdoptionEnded,
    AdoptionFacts,
    AdoptionRefused,
    AdoptionStep,
    AwaitBinding,
    CreateObject,
    PatchObject,
    PlannedAdoption,
    RequestDeletion,
    handle_of,
    next_adoption_step,
    planned_adoption,
)
from orlop.admin.drives.drive_changes import OperatedDrives, list_orlop
from orlop.admin.drives.drive_list_rules import DriveRow, read_drive_row
from orlop.admin.drives.volume_list_rules import VolumeRow, find_volume, volume_rows
from orlop.binding import claim_state_rules as state
from orlop.binding.storage_protection_rules import uses_claim
from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, Conflict, NotFound, PatchRefused
from orlop.kube.client import DeleteOptions, KubeClient, Selection
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, STORAGE_CLASS, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.records.cluster_objects import CLASS_NAME
from orlop.records.drive import DRIVE
from orlop.records.volume import VOLUME

ApiObject = Mapping[str, Any]
POLL_SECONDS: Final = 0.25
MOST_WRITES: Final = 60
"""More writes than the adoption of one volume needs, including those that failed because an object changed."""
ENDED_PODS: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class AdoptionTerms:
    """What the operator decides. `claim` is for one volume whose claim nothing records."""

    class_name: str | None = None
    """None: the class that comes with Orlop, if it exists."""
    claim: ObjectName | None = None
    volumes: tuple[str, ...] = ()
    """Names of volumes; empty: all volumes that lack an object."""


@dataclass(frozen=True, slots=True)
class AdoptionResult:
    volume_id: str
    sentence: str
    failed: bool = False


ReportAdoption = Callable[[AdoptionResult], None]


@dataclass(frozen=True, slots=True)
class _Listed:
    """Lists that are read once: which objects a volume may have."""

    drives: Mapping[str, DriveRow]
    volumes: Mapping[str, VolumeRow]
    by_handle: Mapping[str, tuple[Object, ...]]
    by_name: Mapping[str, Object]
    claims: Mapping[ObjectName, Object]
    class_name: str

    def drive_of(self, volume_id: str) -> DriveRow | None:
        """Return the drive that has a volume: the one whose node reports it, else that of its object."""
        for drive in self.drives.values():
            if any(each.volume == volume_id for each in drive.status.unrecorded_volumes):
                return drive
        row = self.volumes.get(volume_id)
        return self.drives.get(row.spec.drive) if row is not None else None


class Adoption:
    def __init__(self, kube: KubeClient, clock: Clock, terms: AdoptionTerms) -> None:
        self._kube = kube
        self._clock = clock
        self._terms = terms

    async def plans(self) -> Sequence[PlannedAdoption]:
        """Return what would be done for each volume that lacks something, by drive and name."""
        listed = await self._listed()
        planned = [self._planned(listed, volume_id) for volume_id in self._candidates(listed)]
        plans = [plan for plan in planned if plan is not None and self._is_wanted(plan)]
        return sorted(plans, key=lambda plan: (plan.facts.drive.node, plan.facts.drive.name, plan.facts.volume_id))

    async def adopt(self, plans: Sequence[PlannedAdoption], seconds: float, report: ReportAdoption) -> bool:
        """Carry out the plans one after the other; return whether all volumes have now what they need."""
        deadline, failed = self._clock.deadline(seconds), False
        listed = await self._listed()
        for plan in plans:
            result = await self._adopt_one(plan.facts, listed, deadline.remaining())
            failed = failed or result.failed
            report(result)
        return not failed

    # ---- reading -------------------------------------------------------------------------------------------------

    async def _listed(self) -> _Listed:
        drives = {row.name: row for row in await OperatedDrives(self._kube).rows()}
        rows = volume_rows(await list_orlop(self._kube, VOLUME), tuple(drives.values()))
        volumes = (await self._kube.list(PERSISTENT_VOLUME)).items
        claims = (await self._kube.list(PERSISTENT_VOLUME_CLAIM)).items
        by_handle: dict[str, tuple[Object, ...]] = {}
        for volume in volumes:
            by_handle[handle_of(volume)] = (*by_handle.get(handle_of(volume), ()), volume)
        return _Listed(
            drives,
            {row.name: row for row in rows},
            by_handle,
            {objects.name(volume): volume for volume in volumes},
            {objects.name_of(claim): claim for claim in claims},
            await self._class_name(),
        )

    async def _class_name(self) -> str:
        if self._terms.class_name is not None:
            return self._terms.class_name
        return CLASS_NAME if await self._read(STORAGE_CLASS, ObjectName(None, CLASS_NAME)) is not None else ""

    async def _read(self, kind: Kind, name: ObjectName) -> Object | None:
        try:
            return await self._kube.get(kind, name)
        except NotFound:
            return None

    def _candidates(self, listed: _Listed) -> list[str]:
        reported = {each.volume for drive in listed.drives.values() for each in drive.status.unrecorded_volumes}
        known = sorted(reported | set(listed.volumes))
        if not self._terms.volumes:
            return known
        rows = tuple(listed.volumes.values())
        return [word if word in known else find_volume(rows, word).name for word in self._terms.volumes]

    def _planned(self, listed: _Listed, volume_id: str) -> PlannedAdoption | None:
        drive = listed.drive_of(volume_id)
        if drive is None:
            return None
        row = listed.volumes.get(volume_id)
        facts = AdoptionFacts(
            volume_id=volume_id,
            drive=drive,
            unrecorded=next((each for each in drive.status.unrecorded_volumes if each.volume == volume_id), None),
            row=row,
            persistent_volumes=listed.by_handle.get(volume_id, ()),
        )
        facts = self._with_terms(facts, listed.class_name)
        claim = listed.claims.get(facts.terms.claim_name) if facts.terms.claim_name is not None else None
        namesake = listed.by_name.get(_name_of(facts))
        return planned_adoption(
            replace(
                facts,
                terms=replace(facts.terms, claim=claim),
                namesake=namesake if namesake is not None and handle_of(namesake) != volume_id else None,
            )
        )

    def _with_terms(self, facts: AdoptionFacts, class_name: str) -> AdoptionFacts:
        return replace(facts, terms=ClaimTerms(claim_name=self._claim_name(facts), class_name=class_name))

    def _claim_name(self, facts: AdoptionFacts) -> ObjectName | None:
        """Return the claim that a volume is for: by its PersistentVolume, else by TO_MAKE, else by the drive."""
        if self._terms.claim is not None:
            return self._terms.claim
        noted = read_planned(facts.row.obj) if facts.row is not None else None
        for each in (*facts.persistent_volumes, *([noted] if noted is not None else ())):
            if reference := state.claim_reference(each):
                return ObjectName(str(reference.get("namespace")), str(reference.get("name")))
        if facts.unrecorded is not None and facts.unrecorded.claim_name:
            return ObjectName(facts.unrecorded.claim_namespace, facts.unrecorded.claim_name)
        claim = facts.row.spec.claim if facts.row is not None else None
        return ObjectName(claim.namespace, claim.name) if claim is not None else None

    def _is_wanted(self, plan: PlannedAdoption) -> bool:
        if (plan.volume, plan.persistent_volume) == ("keep", "keep"):
            # An adoption that was killed late still has to restore the reclaim policy, and to remove TO_MAKE.
            return plan.facts.row is not None and TO_MAKE in objects.annotations(plan.facts.row.obj)
        if self._terms.volumes or plan.facts.unrecorded is not None or plan.persistent_volume == "replace":
            return True
        row, claim = plan.facts.row, plan.facts.terms.claim
        if row is None or row.spec.erase:
            return False
        # A Volume without a PersistentVolume may be new: its provisioner writes the PersistentVolume next.
        is_named_by_claim = claim is not None and state.volume_name(claim) == _name_of(plan.facts)
        return is_named_by_claim or TO_MAKE in objects.annotations(row.obj)

    # ---- one volume ----------------------------------------------------------------------------------------------

    async def _adopt_one(self, facts: AdoptionFacts, listed: _Listed, seconds: float) -> AdoptionResult:
        deadline, writes = self._clock.deadline(seconds), 0
        while writes < MOST_WRITES:
            current = await self._current(facts, listed)
            if current is None:
                return AdoptionResult(facts.volume_id, "its drive has no object any more", failed=True)
            match await self._next_step(current):
                case AdoptionEnded(sentence):
                    return AdoptionResult(facts.volume_id, sentence)
                case AdoptionRefused(why):
                    return AdoptionResult(facts.volume_id, why, failed=True)
                case AwaitBinding(sentence) if deadline.passed():
                    return AdoptionResult(facts.volume_id, f"{sentence}, which takes longer than usual", failed=True)
                case AwaitBinding():
                    await self._clock.sleep(POLL_SECONDS)
                case step:
                    await write_step(self._kube, step)
                    writes += 1
        return AdoptionResult(facts.volume_id, "other programs keep changing its objects: try again", failed=True)

    async def _next_step(self, current: AdoptionFacts) -> AdoptionStep:
        step = next_adoption_step(current)
        claim = current.terms.claim
        if isinstance(step, PatchObject | RequestDeletion) and claim is not None:
            # Objects are replaced only while no pod uses them: the pods are read last.
            step = next_adoption_step(replace(current, pods=await self._pods(claim)))
        return step

    async def _current(self, facts: AdoptionFacts, listed: _Listed) -> AdoptionFacts | None:
        obj = await self._read(DRIVE, ObjectName(None, facts.drive.name))
        if obj is None:
            return None
        drive = read_drive_row(obj)
        volume = await self._read(VOLUME, ObjectName(None, facts.volume_id))
        rows = volume_rows([volume], [drive]) if volume is not None else []
        unrecorded = next(
            (each for each in drive.status.unrecorded_volumes if each.volume == facts.volume_id), facts.unrecorded
        )
        current = replace(facts, drive=drive, row=rows[0] if rows else None, unrecorded=unrecorded, pods=())
        names = {_name_of(facts), *(objects.name(each) for each in listed.by_handle.get(facts.volume_id, ()))}
        read = [await self._read(PERSISTENT_VOLUME, ObjectName(None, name)) for name in sorted(names)]
        named = [each for each in read if each is not None]
        own = tuple(each for each in named if handle_of(each) == facts.volume_id)
        others = [each for each in named if handle_of(each) != facts.volume_id]
        current = replace(current, persistent_volumes=own, namesake=others[0] if others else None)
        current = self._with_terms(current, listed.class_name)
        name = current.terms.claim_name
        claim = await self._read(PERSISTENT_VOLUME_CLAIM, name) if name is not None else None
        return replace(current, terms=replace(current.terms, claim=claim))

    async def _pods(self, claim: ApiObject) -> tuple[str, ...]:
        pods = (await self._kube.list(POD, Selection(objects.namespace(claim)))).items
        running = (pod for pod in pods if state.phase(pod) not in ENDED_PODS and uses_claim(pod, claim))
        return tuple(sorted(str(objects.name_of(pod)) for pod in running))


async def write_step(kube: KubeClient, step: CreateObject | PatchObject | RequestDeletion) -> None:
    """Make the write of a step. If it fails because the object changed, the next step reads the object again."""
    try:
        match step:
            case CreateObject(kind, body):
                await kube.create(kind, body)
            case PatchObject(kind, name, patch):
                await kube.patch(kind, ObjectName(None, name), patch)
            case RequestDeletion(kind, name, uid):
                await kube.delete(kind, ObjectName(None, name), DeleteOptions(uid=uid))
    except (AlreadyExists, Conflict, NotFound, PatchRefused):
        return


def _name_of(facts: AdoptionFacts) -> str:
    """Return the name of the volume's PersistentVolume."""
    if facts.persistent_volumes:
        return objects.name(facts.persistent_volumes[0])
    noted = read_planned(facts.row.obj) if facts.row is not None else None
    if noted is not None:
        return objects.name(noted)
    if facts.unrecorded is not None and facts.unrecorded.persistent_volume:
        return facts.unrecorded.persistent_volume
    return name_of_persistent_volume(facts.volume_id, facts.row.spec) if facts.row is not None else facts.volume_id
