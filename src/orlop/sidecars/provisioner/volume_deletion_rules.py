"""Decide the next step for a PersistentVolume: add or remove its finalizer, or delete its volume. Pure.

The finalizer keeps a PersistentVolume with the policy Delete until its volume is deleted, even if a user deletes the
object before the claim. Order of a deletion: DeleteVolume → delete the object → remove the finalizer. Conditions and
the finalizer's name are upstream's, so that either provisioner can finish what the other began.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules
from orlop.binding.class_rules import DELETE, parameters
from orlop.kube import objects, patches
from orlop.kube.patches import JsonPatch
from orlop.records.volume_order import SecretReference
from orlop.sidecars.provisioner.parameter_rules import InvalidParameters, SecretUse, secret_reference
from orlop.sidecars.provisioner.provisioner_settings import ApiObject
from orlop.sidecars.provisioner.volume_object_rules import (
    DELETION_SECRET_NAME,
    DELETION_SECRET_NAMESPACE,
    FINALIZER,
)

RELEASED: Final = "Released"
BOUND: Final = "Bound"
KEPT: Final = frozenset({"Retain", "Recycle"})


@dataclass(frozen=True, slots=True)
class DeletionFacts:
    volume: ApiObject
    driver: str
    storage_class: ApiObject | None = None
    """The class that the volume names; None if it does not exist."""
    attached_to: str = ""
    """The node of a VolumeAttachment that names the volume; "" for none."""
    needed_by: str = ""
    """Another PersistentVolume that has the same volume, and still needs it; "" for none."""
    is_deleted: bool = False
    """DeleteVolume has succeeded for this object."""
    may_run_until: float = 0.0
    """Until when a CreateVolume call without a final response may still take effect, in the clock's elapsed time."""
    now: float = 0.0
    """The clock's elapsed time."""


@dataclass(frozen=True, slots=True)
class NoVolumeStep:
    reason: str


@dataclass(frozen=True, slots=True)
class PatchFinalizers:
    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class DeleteVolume:
    handle: str
    secret: SecretReference | None


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete the PersistentVolume; its volume is deleted."""


@dataclass(frozen=True, slots=True)
class RefuseDeletion:
    """The volume cannot be deleted as its object is: report it on the PersistentVolume, and retry."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitForCalls:
    """Wait until CreateVolume calls without a final response have ended: one could create the volume again."""

    instant: float


@dataclass(frozen=True, slots=True)
class WaitForDetach:
    """Wait until no VolumeAttachment names the volume. Its deletion enqueues the PersistentVolume again."""

    node: str


DeletionStep = (
    NoVolumeStep | PatchFinalizers | DeleteVolume | DeleteObject | RefuseDeletion | WaitForCalls | WaitForDetach
)


def is_managed(volume: ApiObject, driver: str) -> bool:
    """Return whether this provisioner deletes the volume: it provisioned it, or it is a static one of its driver."""
    provisioned_by = objects.annotations(volume).get(state.PROVISIONED_BY)
    if provisioned_by is not None:
        return driver in {provisioned_by, objects.annotations(volume).get(state.MIGRATED_TO)}
    return csi_source(volume).get("driver") == driver


def needs_volume(volume: ApiObject) -> bool:
    """Return whether a PersistentVolume needs its volume: every one that does not wait for its deletion."""
    policy = (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy")
    return state.phase(volume) != RELEASED or policy != DELETE


def csi_source(volume: ApiObject) -> ApiObject:
    source = (volume.get("spec") or {}).get("csi")
    return source if isinstance(source, dict) else {}


def next_volume_step(facts: DeletionFacts) -> DeletionStep:  # noqa: PLR0911 - one return for each state
    volume = facts.volume
    if not is_managed(volume, facts.driver):
        return NoVolumeStep("another driver's volume")
    policy, phase = (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy"), state.phase(volume)
    if (patch := _finalizer_patch(volume, policy, phase)) is not None:
        return PatchFinalizers(patch)
    if policy != DELETE:
        return NoVolumeStep(f"its reclaim policy is {policy}")
    if objects.is_being_deleted(volume) and not objects.has_finalizer(volume, FINALIZER):
        # The finalizer is removed last: without it the volume is already deleted, or was never ours to delete.
        return NoVolumeStep("being deleted without our finalizer")
    if facts.is_deleted:
        return _remove_object(volume)
    if phase != RELEASED:
        return NoVolumeStep(f"its phase is {phase or 'Pending'}")
    return _delete(facts)


def _finalizer_patch(volume: ApiObject, policy: object, phase: str) -> JsonPatch | None:
    if policy == DELETE and phase == BOUND and not objects.is_being_deleted(volume):
        return patches.add_finalizer(volume, FINALIZER)
    return patches.remove_finalizer(volume, FINALIZER) if policy in KEPT else None


def _remove_object(volume: ApiObject) -> DeletionStep:
    if not objects.is_being_deleted(volume):
        return DeleteObject()
    patch = patches.remove_finalizer(volume, FINALIZER)
    if patch is None:
        return NoVolumeStep("deleted")
    if set(objects.finalizers(volume)) == {FINALIZER}:
        # The object goes with this write. Without managedFields, the API server does not work out who has changed which
        # field, which is a third of what the write costs it.
        patch = patch.add("metadata", "managedFields", value=[{}])
    return PatchFinalizers(patch)


def _delete(facts: DeletionFacts) -> DeletionStep:
    name, source = objects.name(facts.volume), csi_source(facts.volume)
    handle = source.get("volumeHandle")
    if not isinstance(handle, str) or not handle or source.get("driver") != facts.driver:
        return RefuseDeletion(f"persistentvolume {name} has no volumeHandle of the driver {facts.driver}")
    if facts.needed_by:
        # An admin made a second object to give the data to another claim. VolumeAttachments name that object, so the
        # check for attachments below does not notice its use.
        return RefuseDeletion(
            f"the PersistentVolume {facts.needed_by} has the same volume {handle}: delete one of the two objects with "
            "the policy Retain"
        )
    if facts.attached_to:
        # No failure, unlike upstream, which records VolumeFailedDelete and retries: after a pod and its claim are
        # deleted together, every volume is attached for a moment, and an administrator would see a warning each time.
        return WaitForDetach(facts.attached_to)
    if facts.now < facts.may_run_until:
        return WaitForCalls(facts.may_run_until)
    try:
        return DeleteVolume(handle, _secret(facts.volume, facts.storage_class))
    except InvalidParameters as error:
        return RefuseDeletion(str(error))


def _secret(volume: ApiObject, storage_class: ApiObject | None) -> SecretReference | None:
    annotations = objects.annotations(volume)
    if DELETION_SECRET_NAME in annotations and DELETION_SECRET_NAMESPACE in annotations:
        name, namespace = annotations[DELETION_SECRET_NAME], annotations[DELETION_SECRET_NAMESPACE]
        return SecretReference(namespace, name) if name and namespace else None
    if storage_class is None:
        return None
    # Static volumes, and those of older provisioners, have no such annotations: use the secret that the class names.
    reference = state.claim_reference(volume) or {}
    claim = {"metadata": {"namespace": reference.get("namespace"), "name": reference.get("name")}}
    return secret_reference(SecretUse.PROVISION, parameters(storage_class), objects.name(volume), claim)


def needs_provisioner(driver: str, classes: Iterable[ApiObject], volumes: Iterable[ApiObject]) -> bool:
    """Return whether the driver needs a provisioner: a class names it, or a volume of it has the policy Delete."""
    return any(class_rules.provisioner(storage_class) == driver for storage_class in classes) or any(
        is_managed(volume, driver) and (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy") == DELETE
        for volume in volumes
    )
