"""Decide the next write of the adoption of one volume. Pure.

    Volume missing, or of the node that the drive came from    → make it for this node, with what its
                                                                 PersistentVolume has to be (TO_MAKE)
    PersistentVolume of the name missing                       → make it
    PersistentVolume names another node                        → policy Retain → delete it → remove its finalizers
                                                                 (its claim is Lost) → make it (its claim is Bound)
    PersistentVolume names this node                           → restore its policy → remove TO_MAKE

Each step is decided on the objects as they are at that moment, so that the next command continues an adoption that was
killed at any point. Until the PersistentVolume is gone it keeps the volume; from then on TO_MAKE has all that is needed
to make it again. While a pod uses the claim, nothing of the volume is touched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orlop.admin.drives.adopted_object_rules import (
    FORMER_POLICY,
    RETAIN,
    TO_MAKE,
    ClaimTerms,
    encode_planned,
    persistent_volume_body,
    read_planned,
    restored_policy,
    spec_of,
    volume_body,
    with_claim,
)
from orlop.admin.drives.drive_list_rules import DriveRow
from orlop.admin.drives.volume_list_rules import VolumeRow
from orlop.binding import claim_state_rules as state
from orlop.binding.match_rules import mismatch
from orlop.binding.node_affinity_rules import volume_allows_node
from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME, Kind
from orlop.kube.patches import JsonPatch, guarded_by_uid, guarded_by_version
from orlop.records.drive import UnrecordedVolume
from orlop.records.volume import VOLUME
from orlop.records.volume_context import TOPOLOGY_NODE
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CreateObject:
    kind: Kind
    body: ApiObject


@dataclass(frozen=True, slots=True)
class PatchObject:
    kind: Kind
    name: str
    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class RequestDeletion:
    kind: Kind
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AwaitBinding:
    """The PersistentVolume is made, and its claim is not bound to it yet."""

    sentence: str


@dataclass(frozen=True, slots=True)
class AdoptionEnded:
    """Nothing is left to do; `sentence` is what the volume has now."""

    sentence: str


@dataclass(frozen=True, slots=True)
class AdoptionRefused:
    why: str


UNKNOWN_CLAIM: Final = AdoptionRefused("its claim is unknown: name it with --claim NAMESPACE/NAME")
AdoptionStep = CreateObject | PatchObject | RequestDeletion | AwaitBinding | AdoptionEnded | AdoptionRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionFacts:
    """Everything that is known of a volume on a drive of this cluster."""

    volume_id: str
    drive: DriveRow
    unrecorded: UnrecordedVolume | None = None
    """What the node reports of it; None if a Volume object describes it."""
    row: VolumeRow | None = None
    """The Volume object."""
    persistent_volumes: Sequence[ApiObject] = ()
    """Those that name the volume."""
    namesake: ApiObject | None = None
    """A PersistentVolume of another volume, which has the name that this volume needs."""
    terms: ClaimTerms = ClaimTerms()  # noqa: RUF009 - a value, and frozen
    pods: tuple[str, ...] = ()
    """Pods that use the claim."""


def next_adoption_step(facts: AdoptionFacts) -> AdoptionStep:
    """Return the next write of an adoption, or why there is none."""
    row = facts.row
    if row is not None and row.spec.erase:
        return AdoptionRefused("it was deleted, and is being erased")
    if len(facts.persistent_volumes) > 1:
        return AdoptionRefused(f"{len(facts.persistent_volumes)} PersistentVolumes name it: delete all but one")
    old = facts.persistent_volumes[0] if facts.persistent_volumes else None
    if old is None and facts.namesake is not None:
        name = objects.name(facts.namesake)
        return AdoptionRefused(f"the PersistentVolume {name} has its name, and is of another volume")
    if facts.pods and _is_disturbing(facts, old):
        return AdoptionRefused(f"pods use its claim: {', '.join(facts.pods)}. Delete them first")
    if row is None or _is_to_be_replaced(row, facts):
        return _make_volume(facts, old)
    return _make_persistent_volume(facts, row, old)


def _is_disturbing(facts: AdoptionFacts, old: ApiObject | None) -> bool:
    """Return whether objects that pods depend on have to be replaced. Making a missing one disturbs no pod."""
    if old is not None and (objects.is_being_deleted(old) or not _fits_node(old, facts)):
        return True
    return facts.row is not None and _is_elsewhere(facts.row, facts)


# ---- the Volume ------------------------------------------------------------------------------------------------------


def _is_to_be_replaced(row: VolumeRow, facts: AdoptionFacts) -> bool:
    """Return whether the object describes the volume at its former place, or describes nothing."""
    return _is_elsewhere(row, facts) or row.spec.reservation_only or objects.is_being_deleted(row.obj)


def _is_elsewhere(row: VolumeRow, facts: AdoptionFacts) -> bool:
    return (row.spec.drive, row.spec.node_name) != (facts.drive.name, facts.drive.node)


def _make_volume(facts: AdoptionFacts, old: ApiObject | None) -> AdoptionStep:
    # Before the old object is deleted: without the report of the node, it could not be made again.
    if facts.unrecorded is None:
        return AdoptionRefused("its node has not reported it: try again in a minute")
    if facts.row is not None:
        return discard_step(VOLUME, facts.row.obj)
    spec = spec_of(facts.unrecorded, facts.drive.name, facts.drive.node)
    to_make = persistent_volume_body(facts.volume_id, spec, old, facts.terms)
    # Without a claim the Volume alone is made: its space counts, and the operator can name the claim later.
    return CreateObject(VOLUME, volume_body(facts.volume_id, spec, to_make if _names_claim(to_make) else None))


def discard_step(kind: Kind, obj: ApiObject) -> PatchObject | RequestDeletion:
    """Return the next write that removes an object: delete it, then remove its finalizers.

    Delete it first: after that the API server refuses new finalizers.
    """
    if not objects.is_being_deleted(obj):
        return RequestDeletion(kind, objects.name(obj), objects.uid(obj))
    present = list(objects.finalizers(obj))
    patch = guarded_by_uid(obj).test("metadata", "finalizers", value=present).remove("metadata", "finalizers")
    return PatchObject(kind, objects.name(obj), patch)


# ---- the PersistentVolume --------------------------------------------------------------------------------------------


def _make_persistent_volume(facts: AdoptionFacts, row: VolumeRow, old: ApiObject | None) -> AdoptionStep:
    to_make = read_planned(row.obj)
    if old is not None and not objects.is_being_deleted(old) and _fits_node(old, facts):
        return _finish(facts, row, old)
    if to_make is None or not _fits_node(to_make, facts):
        body = persistent_volume_body(facts.volume_id, row.spec, old, facts.terms)
        return PatchObject(VOLUME, row.name, _noted(row.obj, body)) if _names_claim(body) else UNKNOWN_CLAIM
    if old is None:
        return CreateObject(PERSISTENT_VOLUME, with_claim(to_make, facts.terms.claim))
    if (old.get("spec") or {}).get("persistentVolumeReclaimPolicy") != RETAIN:
        return PatchObject(PERSISTENT_VOLUME, objects.name(old), retain_patch(old))
    return discard_step(PERSISTENT_VOLUME, old)


def _names_claim(body: ApiObject) -> bool:
    """Return whether a PersistentVolume is for one claim: without that, any claim could get the data."""
    return bool(body["spec"].get("claimRef"))


def _fits_node(persistent_volume: ApiObject, facts: AdoptionFacts) -> bool:
    affinity = (persistent_volume.get("spec") or {}).get("nodeAffinity")
    # A PersistentVolume that an admin made may name the node by another label: keep it.
    names_node = TOPOLOGY_NODE in json.dumps(affinity)
    return not names_node or volume_allows_node(persistent_volume, {TOPOLOGY_NODE: facts.drive.node})


def _noted(volume: ApiObject, body: ApiObject) -> JsonPatch:
    annotations = objects.metadata(volume).get("annotations")
    patch = guarded_by_version(volume)
    if annotations is None:
        return patch.add("metadata", "annotations", value={TO_MAKE: encode_planned(body)})
    return patch.add("metadata", "annotations", TO_MAKE, value=encode_planned(body))


def retain_patch(old: ApiObject) -> JsonPatch:
    """Return the patch that keeps the data whatever happens to the object, and notes the policy it had."""
    policy = str((old.get("spec") or {}).get("persistentVolumeReclaimPolicy") or "")
    patch = guarded_by_version(old).add("spec", "persistentVolumeReclaimPolicy", value=RETAIN)
    if objects.metadata(old).get("annotations") is None:
        return patch.add("metadata", "annotations", value={FORMER_POLICY: policy})
    return patch.add("metadata", "annotations", FORMER_POLICY, value=policy)


def _finish(facts: AdoptionFacts, row: VolumeRow, made: ApiObject) -> AdoptionStep:
    policy, phase, name = restored_policy(made), state.phase(made), objects.name(made)
    is_named_by_claim = facts.terms.claim is not None and state.volume_name(facts.terms.claim) == name
    if phase != "Bound" and is_named_by_claim and read_planned(row.obj) is not None:
        return AwaitBinding(f"the PersistentVolume {name} waits for its claim to be bound")
    # With the policy Delete, a PersistentVolume that is not Bound yet could be deleted with its data.
    if policy and phase == "Bound":
        patch = guarded_by_version(made).add("spec", "persistentVolumeReclaimPolicy", value=policy)
        return PatchObject(PERSISTENT_VOLUME, name, patch.remove("metadata", "annotations", FORMER_POLICY))
    if TO_MAKE in objects.annotations(row.obj):
        patch = guarded_by_version(row.obj).remove("metadata", "annotations", TO_MAKE)
        return PatchObject(VOLUME, row.name, patch)
    return AdoptionEnded(outcome(facts, made))


def outcome(facts: AdoptionFacts, made: ApiObject) -> str:
    """Return what a volume has, or will have, with this PersistentVolume."""
    reference = state.claim_reference(made) or {}
    named = f"{reference.get('namespace')}/{reference.get('name')}"
    claim, name = facts.terms.claim, objects.name(made)
    if not reference:
        return f"PersistentVolume {name}, for no claim"
    if claim is None:
        return f"PersistentVolume {name}, reserved for a claim {named}, which does not exist"
    if state.volume_name(claim) == name:
        return f"PersistentVolume {name}, for the claim {named}"
    if state.volume_name(claim):
        return f"PersistentVolume {name}; the claim {named} has another volume, {state.volume_name(claim)}"
    if (why := mismatch(claim, made)) is not None:
        return f"PersistentVolume {name}; the claim {named} cannot use it: {why}"
    return f"PersistentVolume {name}, for the claim {named}, which waits for a volume"


def handle_of(persistent_volume: ApiObject) -> str:
    """Return the volume handle; empty for a PersistentVolume that is not CSI's."""
    return str(csi_source(persistent_volume).get("volumeHandle") or "")


# ---- what a dry run shows --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedAdoption:
    """What the adoption of one volume would do. `volume` and `persistent_volume` are `make`, `replace` or `keep`."""

    facts: AdoptionFacts
    volume: str
    persistent_volume: str
    sentence: str
    why_not: str = ""


def planned_adoption(facts: AdoptionFacts) -> PlannedAdoption:
    row, old = facts.row, facts.persistent_volumes[0] if facts.persistent_volumes else None
    volume = "make" if row is None else "replace" if _is_to_be_replaced(row, facts) else "keep"
    is_kept = old is not None and not objects.is_being_deleted(old) and _fits_node(old, facts)
    persistent_volume = "make" if old is None else "keep" if is_kept else "replace"
    step = next_adoption_step(facts)
    if isinstance(step, AdoptionRefused):
        return PlannedAdoption(facts, volume, persistent_volume, "", step.why)
    spec = spec_of(facts.unrecorded, facts.drive.name, facts.drive.node) if facts.unrecorded is not None else None
    spec = spec if spec is not None or row is None else row.spec
    if spec is None or (is_kept and old is not None):
        return PlannedAdoption(facts, volume, persistent_volume, outcome(facts, old) if old is not None else "")
    made = with_claim(persistent_volume_body(facts.volume_id, spec, old, facts.terms), facts.terms.claim)
    if not _names_claim(made):
        return PlannedAdoption(facts, volume, "keep", "", UNKNOWN_CLAIM.why)
    return PlannedAdoption(facts, volume, persistent_volume, outcome(facts, made))
