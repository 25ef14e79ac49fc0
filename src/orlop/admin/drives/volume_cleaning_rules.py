"""Decide which volumes no claim needs any more, and how each is deleted. Pure.

A volume is deleted only if nothing names it: no PersistentVolume, or one that was released with the policy Retain; no
claim, by its own name or by that of the volume; no open request of a provisioner; no pod. A volume that has no
PersistentVolume may be a new one whose PersistentVolume is still to be written: it has to be old enough.

A PersistentVolume that was released gets the policy Delete: its provisioner then deletes it as any other. A volume
without one is marked as deleted, as DeleteVolume would. In both cases the node erases the data when nothing has it
mounted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from orlop.admin.drives.adopted_object_rules import TO_MAKE
from orlop.admin.drives.volume_list_rules import VolumeRow
from orlop.binding import claim_state_rules as state
from orlop.binding.class_rules import DELETE
from orlop.kube import objects
from orlop.kube.patches import JsonPatch, guarded_by_generation, guarded_by_version
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source

ApiObject = Mapping[str, Any]
YOUNGEST: Final = timedelta(minutes=10)
"""Longer than a provisioner takes from CreateVolume to the PersistentVolume, with its retries."""
LEFT: Final = frozenset({"Released", "Failed"})


@dataclass(frozen=True, slots=True)
class KeepVolume:
    """Do not delete the volume. `why` is the end of a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class EraseVolume:
    """Mark the Volume object as deleted."""

    patch: JsonPatch
    why: str


@dataclass(frozen=True, slots=True)
class DeletePersistentVolume:
    """Set the policy of the PersistentVolume to Delete: its provisioner then deletes it."""

    name: str
    patch: JsonPatch
    why: str


CleaningDecision = KeepVolume | EraseVolume | DeletePersistentVolume


@dataclass(frozen=True, slots=True)
class Claimants:
    """Everything that may need a volume."""

    volumes: Mapping[str, tuple[ApiObject, ...]]
    """PersistentVolumes by volume handle."""
    claims: tuple[ApiObject, ...]
    ordered: frozenset[str]
    """Names of volumes that a provisioner has open requests for."""
    is_journal_known: bool = True
    now: datetime | None = None

    @classmethod
    def of(
        cls,
        volumes: Iterable[ApiObject],
        claims: Iterable[ApiObject],
        ordered: Iterable[str],
        *,
        is_journal_known: bool,
        now: datetime,
    ) -> Claimants:
        by_handle: dict[str, tuple[ApiObject, ...]] = {}
        for volume in volumes:
            handle = str(csi_source(volume).get("volumeHandle") or "")
            by_handle[handle] = (*by_handle.get(handle, ()), volume)
        return cls(by_handle, tuple(claims), frozenset(ordered), is_journal_known, now)


def decide_cleaning(row: VolumeRow, claimants: Claimants) -> CleaningDecision:  # noqa: PLR0911 - one for each reason
    """Return whether a volume is needed, else how it is deleted. In doubt it is kept."""
    if row.is_deleted:
        return KeepVolume("it is being deleted already")
    if row.is_in_use:
        return KeepVolume("it is in use" + (f" by {', '.join(row.pods)}" if row.pods else ""))
    if row.spec.reservation_only:
        return KeepVolume("only its reserved space is known; its node decides whether it has data")
    if TO_MAKE in objects.annotations(row.obj):
        return KeepVolume("it is being adopted: orlop adopt finishes that")
    named = claimants.volumes.get(row.name, ())
    if len(named) > 1:
        return KeepVolume(f"{len(named)} PersistentVolumes name it")
    if named:
        return _released(named[0], claimants)
    return _without_persistent_volume(row, claimants)


def _released(volume: ApiObject, claimants: Claimants) -> CleaningDecision:
    name, phase = objects.name(volume), state.phase(volume)
    if objects.is_being_deleted(volume):
        return KeepVolume(f"its PersistentVolume {name} is being deleted")
    if phase not in LEFT:
        return KeepVolume(f"its PersistentVolume {name} is {phase or 'Pending'}")
    if (claim := _claim_of(volume, name, claimants.claims)) is not None:
        return KeepVolume(f"the claim {objects.name_of(claim)} names its PersistentVolume {name}")
    if (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy") == DELETE:
        return KeepVolume(f"its PersistentVolume {name} has the policy Delete: its provisioner deletes it")
    patch = guarded_by_version(volume).add("spec", "persistentVolumeReclaimPolicy", value=DELETE)
    reference = state.claim_reference(volume) or {}
    gone = f"the claim {reference.get('namespace')}/{reference.get('name')} is gone"
    return DeletePersistentVolume(name, patch, f"{gone}, and its PersistentVolume {name} is {phase}")


def _claim_of(volume: ApiObject, name: str, claims: Iterable[ApiObject]) -> ApiObject | None:
    """Return the claim that the PersistentVolume is reserved for, or that asks for it by name."""
    reference = state.claim_reference(volume) or {}
    for claim in claims:
        is_same = reference.get("uid") and reference.get("uid") == objects.uid(claim)
        if is_same or state.volume_name(claim) == name:
            return claim
    return None


def _without_persistent_volume(row: VolumeRow, claimants: Claimants) -> CleaningDecision:
    names = {row.name, row.spec.persistent_volume} - {""}
    for claim in claimants.claims:
        if state.volume_name(claim) in names:
            return KeepVolume(f"the claim {objects.name_of(claim)} names it: orlop adopt makes its PersistentVolume")
        is_own = str(objects.name_of(claim)) == row.claim and not state.volume_name(claim)
        if is_own or any(objects.uid(claim) and objects.uid(claim) in name for name in names):
            return KeepVolume(f"the claim {objects.name_of(claim)} waits for its volume")
    if not claimants.is_journal_known:
        return KeepVolume("whether a provisioner is creating it is unknown: its journal cannot be read")
    if claimants.ordered & names:
        return KeepVolume("a provisioner has an open request for it")
    created = objects.creation_time(row.obj)
    if created is None or claimants.now is None or claimants.now - created < YOUNGEST:
        return KeepVolume(f"it is younger than {YOUNGEST.seconds // 60} minutes, and may be a new one")
    gone = f"no claim {row.claim} needs it" if row.claim else "no claim names it"
    return EraseVolume(
        guarded_by_generation(row.obj).add("spec", "erase", value=True), f"{gone}, and it has no PersistentVolume"
    )
