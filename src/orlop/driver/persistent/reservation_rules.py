"""Read Drive and Volume objects, and build the patches of allocations. Pure.

Each patch tests the uid and the generation of the drive that it was decided on. Writes of status move no generation, so
a busy node does not disturb reservations; a change of the spec (another reservation, `cordon`, `remove`) does. The
list of finalizers is tested too: the drive has ours as long as it has allocations, so that the object of a drive with
volumes cannot be deleted. The index of an allocation is safe in a patch for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orlop.driver.persistent.drive_choice_rules import DriveFacts, DrivePlacement, Offer
from orlop.driver.persistent.volume_request_rules import WantedVolume
from orlop.kube import objects
from orlop.kube.patches import JsonPatch
from orlop.records.api_record import new_object, part_of
from orlop.records.drive import ALLOCATIONS_FINALIZER, RELEASED, Allocation, DriveSpec, DriveStatus
from orlop.records.volume import ERASE_FINALIZER, DriveVolumeSpec, DriveVolumeStatus

ApiObject = Mapping[str, Any]
FACTS: Final = "facts"
"""Field of a Volume in the cache, after `slim_volume`."""


@dataclass(frozen=True, slots=True)
class PlacedVolume:
    """The facts of a Volume object that the controller needs."""

    name: str
    uid: str
    version: str
    spec: DriveVolumeSpec
    status: DriveVolumeStatus
    finalizers: tuple[str, ...] = ()
    is_being_deleted: bool = False

    @property
    def is_erased(self) -> bool:
        """Return whether the node reports that a volume which was to be erased, or looked for, has no data."""
        return self.status.phase == "Erased" and (self.spec.erase or self.spec.reservation_only)

    @property
    def holds_space(self) -> bool:
        """Return whether its drive must list it. One for a reservation alone is listed already, or needs no space."""
        return not self.is_erased and not self.spec.reservation_only

    @property
    def is_in_use(self) -> bool:
        status = self.status
        return bool(status.phase in {"Staged", "Published"} or status.staged_path or status.published)


def slim_volume(obj: dict[str, Any]) -> dict[str, Any]:
    """Return a Volume as a cache keeps it: with its facts, which need a fifth of the memory of the object."""
    try:
        facts = read_volume(obj)
    except ValueError:
        return obj
    metadata = {name: obj["metadata"][name] for name in ("name", "uid", "resourceVersion")}
    return {"metadata": metadata, FACTS: facts}


def read_volume(obj: ApiObject) -> PlacedVolume:
    """Return the facts of a Volume. Raises `ValueError`."""
    if isinstance(facts := obj.get(FACTS), PlacedVolume):
        return facts
    return PlacedVolume(
        name=objects.name(obj),
        uid=objects.uid(obj),
        version=objects.resource_version(obj),
        spec=part_of(obj, "spec", DriveVolumeSpec),
        status=part_of(obj, "status", DriveVolumeStatus),
        finalizers=objects.finalizers(obj),
        is_being_deleted=objects.is_being_deleted(obj),
    )


def read_drive(obj: ApiObject, offers: dict[Offer, Offer] | None = None) -> DriveFacts:
    """Return the facts of a Drive. Equal offers become one object through `offers`. Raises `ValueError`."""
    spec, status = part_of(obj, "spec", DriveSpec), part_of(obj, "status", DriveStatus)
    offer = Offer(status.file_system, status.backings)
    unrecorded = () if status.allocations_restored else status.unrecorded_volumes
    return DriveFacts(
        name=objects.name(obj),
        uid=objects.uid(obj),
        version=objects.resource_version(obj),
        generation=objects.generation(obj),
        node_name=spec.node_name,
        state=status.state,
        restored=status.allocations_restored,
        tier=spec.tier,
        labels=tuple(sorted(objects.labels(obj).items())),
        unschedulable=spec.unschedulable,
        removing=spec.removing or objects.is_being_deleted(obj),
        released=spec.removing and not objects.is_being_deleted(obj) and objects.is_condition_true(obj, RELEASED),
        capacity=status.capacity_bytes,
        free=status.capacity_bytes - sum(allocation.bytes for allocation in spec.allocations),
        allocations={allocation.volume: allocation for allocation in spec.allocations},
        claim_ids=frozenset(each.volume_claim_id.lower() for each in spec.allocations if each.volume_claim_id),
        offer=offer if offers is None else offers.setdefault(offer, offer),
        finalizers=objects.finalizers(obj) if "finalizers" in objects.metadata(obj) else None,
        unrecorded_names=frozenset(each.volume for each in status.unrecorded_volumes),
        unrecorded=tuple(
            Allocation(volume=each.volume, bytes=max(1, each.bytes), volume_claim_id=each.volume_claim_id)
            for each in unrecorded
        ),
    )


def reservation(drive: DriveFacts, allocation: Allocation) -> JsonPatch:
    """Add an allocation, and the finalizer with the first one."""
    return _with_finalizer(drive).add("spec", "allocations", "-", value=_body(allocation))


def restoration(drive: DriveFacts, missing: Sequence[Allocation]) -> JsonPatch:
    """Add allocations that the object of the drive has lost, and enlarge those that someone has made smaller."""
    patch = _with_finalizer(drive)
    for allocation in missing:
        if allocation.volume in drive.allocations:
            place = _place(drive, allocation.volume)
            patch = patch.replace("spec", "allocations", place, "bytes", value=allocation.bytes)
        else:
            patch = patch.add("spec", "allocations", "-", value=_body(allocation))
    return patch


def growth(drive: DriveFacts, volume_id: str, size: int) -> JsonPatch:
    return _guarded(drive).replace("spec", "allocations", _place(drive, volume_id), "bytes", value=size)


def release(drive: DriveFacts, volume_id: str) -> JsonPatch | None:
    """Remove an allocation, and the finalizer with the last one; None if the drive has none for the volume."""
    if volume_id not in drive.allocations:
        return None
    patch = _guarded(drive).remove("spec", "allocations", _place(drive, volume_id))
    ours = ALLOCATIONS_FINALIZER in (drive.finalizers or ())
    if len(drive.allocations) > 1 or not ours:
        return patch
    others = [name for name in drive.finalizers or () if name != ALLOCATIONS_FINALIZER]
    tested = patch.test("metadata", "finalizers", value=list(drive.finalizers or ()))
    return tested.replace("metadata", "finalizers", value=others)


def missing_allocations(drive: DriveFacts, volumes: Mapping[str, DriveVolumeSpec]) -> tuple[Allocation, ...]:
    """Return what a drive must list and does not: Volume objects placed on it, and volumes that its node reports.

    An allocation smaller than its Volume object was changed by hand: an expansion enlarges the allocation first.
    `volumes` are those objects on this drive whose data may still exist. An object that names another node does not
    count: the drive was moved, and its node reports what is on the disk, or the object was forged.
    """
    expected = {each.volume: each for each in drive.unrecorded} | {
        name: Allocation(volume=name, bytes=spec.bytes, volume_claim_id=spec.volume_claim_id)
        for name, spec in volumes.items()
        if spec.node_name == drive.node_name
    }
    return tuple(each for name, each in sorted(expected.items()) if _reserved(drive, name) < each.bytes)


def _reserved(drive: DriveFacts, volume_id: str) -> int:
    held = drive.allocations.get(volume_id)
    return held.bytes if held is not None else 0


def allocation_of(wanted: WantedVolume, size: int) -> Allocation:
    return Allocation(volume=wanted.volume_id, bytes=size, volume_claim_id=wanted.storage.volume_claim_id)


def volume_object(wanted: WantedVolume, drive: DriveFacts, placement: DrivePlacement) -> dict[str, Any]:
    """Return the Volume object for a reservation."""
    spec = DriveVolumeSpec(
        drive=drive.name,
        node_name=drive.node_name,
        bytes=placement.bytes,
        backing=placement.backing,
        file_system=placement.file_system,
        volume_mode=wanted.storage.volume_mode,
        thin=wanted.storage.thin,
        access_mode=wanted.access_mode,
        persistent_volume=wanted.persistent_volume,
        claim=wanted.claim,
        volume_claim_id=wanted.storage.volume_claim_id,
        parameters=dict(wanted.storage.parameters),
    )
    return new_object("Volume", wanted.volume_id, spec, finalizers=[ERASE_FINALIZER])


def volume_to_erase(drive: DriveFacts, allocation: Allocation) -> dict[str, Any]:
    """Return the Volume object for an allocation that has none, when the volume is deleted: its node erases it."""
    return _volume_for(drive, allocation, erase=True)


def volume_to_find(drive: DriveFacts, allocation: Allocation) -> dict[str, Any]:
    """Return the Volume object that asks a node whether it has data for an allocation; it keeps them."""
    return _volume_for(drive, allocation, reservation_only=True)


def _volume_for(
    drive: DriveFacts, allocation: Allocation, *, erase: bool = False, reservation_only: bool = False
) -> dict[str, Any]:
    """Return a Volume of which only name and size are known. Its node reads the rest from the disk."""
    spec = DriveVolumeSpec(
        drive=drive.name,
        node_name=drive.node_name,
        bytes=allocation.bytes,
        backing="image",
        file_system="",
        volume_mode="Filesystem",
        volume_claim_id=allocation.volume_claim_id,
        erase=erase,
        reservation_only=reservation_only,
    )
    return new_object("Volume", allocation.volume, spec, finalizers=[ERASE_FINALIZER])


def _guarded(drive: DriveFacts) -> JsonPatch:
    patch = JsonPatch().test("metadata", "uid", value=drive.uid)
    return patch.test("metadata", "generation", value=drive.generation)


def _with_finalizer(drive: DriveFacts) -> JsonPatch:
    present = drive.finalizers
    patch = _guarded(drive).test("metadata", "finalizers", value=None if present is None else list(present))
    if present is not None and ALLOCATIONS_FINALIZER in present:
        return patch
    return patch.add("metadata", "finalizers", value=[*(present or ()), ALLOCATIONS_FINALIZER])


def _place(drive: DriveFacts, volume_id: str) -> int:
    return list(drive.allocations).index(volume_id)


def _body(allocation: Allocation) -> dict[str, Any]:
    claim_id = {"volumeClaimID": allocation.volume_claim_id} if allocation.volume_claim_id else {}
    return {"volume": allocation.volume, "bytes": allocation.bytes, **claim_id}
