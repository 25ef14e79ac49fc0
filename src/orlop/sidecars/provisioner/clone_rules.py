"""Decide how a new volume gets its first content, by the claim's data source. Pure.

A volume begins empty, or as a clone of another claim's volume; or its source is refused, or left to a volume populator.
A claim that is being cloned has a finalizer: it must not be deleted while the driver copies from its volume.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.sidecars.provisioner.provisioner_settings import CLONES, ApiObject
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source

CLONING_PROTECTION: Final = "provisioner.storage.kubernetes.io/cloning-protection"
SNAPSHOTS: Final = "snapshot.storage.k8s.io"
BOUND: Final = "Bound"


@dataclass(frozen=True, slots=True)
class NoSource:
    """The volume begins empty."""


@dataclass(frozen=True, slots=True)
class Clone:
    """The volume begins as a copy of another claim's volume."""

    volume_id: str


@dataclass(frozen=True, slots=True)
class SourceRefused:
    reason: str


@dataclass(frozen=True, slots=True)
class Populated:
    """Another controller, the volume populator for this kind of source, provides the volume."""

    kind: str


SourceDecision = NoSource | Clone | SourceRefused | Populated


def data_source(claim: ApiObject) -> ApiObject | None:
    """Return the claim's data source; None if it has none.

    `dataSourceRef` comes first: the API server copies each field to the other, except that sources in another namespace
    are in `dataSourceRef` alone.
    """
    spec = claim.get("spec") or {}
    for field in ("dataSourceRef", "dataSource"):
        source = spec.get(field)
        if isinstance(source, dict) and source.get("kind"):
            return source
    return None


def source_claim_name(claim: ApiObject) -> str:
    """Return the name of the claim that this one is to be cloned from; "" for none."""
    source = data_source(claim)
    if source is None or source.get("kind") != "PersistentVolumeClaim" or source.get("apiGroup"):
        return ""
    return str(source.get("name") or "")


def decide_source(
    claim: ApiObject,
    source_claim: ApiObject | None,
    source_volume: ApiObject | None,
    driver: str,
    capabilities: frozenset[str],
) -> SourceDecision:
    """Decide by the claim, its source claim and the PersistentVolume of the source; None if that does not exist."""
    source = data_source(claim)
    if source is None:
        return NoSource()
    group, kind = str(source.get("apiGroup") or ""), str(source["kind"])
    if source.get("namespace") and source["namespace"] != objects.namespace(claim):
        return SourceRefused("the data source is in another namespace, which is not supported")
    if group == SNAPSHOTS and kind == "VolumeSnapshot":
        return SourceRefused("the data source is a VolumeSnapshot; volumes from snapshots are not supported yet")
    name = source_claim_name(claim)
    if not name:
        return Populated(f"{kind}.{group}" if group else kind)
    fault = _fault_of_clone(claim, source_claim, source_volume, driver, capabilities)
    if fault is not None or source_volume is None:
        return SourceRefused(f"the claim {name} cannot be cloned: {fault}")
    return Clone(str(csi_source(source_volume).get("volumeHandle") or ""))


def _fault_of_clone(
    claim: ApiObject, source: ApiObject | None, volume: ApiObject | None, driver: str, capabilities: frozenset[str]
) -> str | None:
    if CLONES not in capabilities:
        return f"the driver {driver} lacks the capability {CLONES}"
    if source is None:
        return "it does not exist"
    if state.phase(source) != BOUND:
        return f"it is {state.phase(source) or 'Pending'}, not Bound"
    if objects.is_being_deleted(source):
        return "it is being deleted"
    if volume is None:
        return f"its PersistentVolume {state.volume_name(source)} does not exist"
    return _fault_of_source_volume(claim, source, volume, driver)


def _fault_of_source_volume(claim: ApiObject, source: ApiObject, volume: ApiObject, driver: str) -> str | None:
    reference = state.claim_reference(volume) or {}
    if csi_source(volume).get("driver") != driver:
        return f"its volume is not of the driver {driver}"
    if reference.get("uid") != objects.uid(source):
        return f"its PersistentVolume {objects.name(volume)} is bound to another claim"
    if state.phase(volume) != BOUND:
        return f"its PersistentVolume {objects.name(volume)} is {state.phase(volume) or 'Pending'}, not Bound"
    requested, present = state.requested_size(claim), state.requested_size(source)
    # Compare requests and not capacities, as upstream does: the driver may have rounded the source's capacity up, and a
    # clone that requests the same size must be accepted.
    if requested is not None and present is not None and requested < present:
        return f"it requests {present}, and the new claim only {requested}"
    if state.volume_mode(claim) != state.volume_mode(source):
        return f"its volumeMode is {state.volume_mode(source)}, and the new claim's {state.volume_mode(claim)}"
    return None


def is_clone_unfinished(claim: ApiObject) -> bool:
    """Return whether the claim is a clone whose volume the driver may still be copying."""
    return bool(source_claim_name(claim)) and state.phase(claim) != BOUND


def may_release_source(source: ApiObject, claims_of_namespace: Iterable[ApiObject]) -> bool:
    """Return whether no unfinished clone names this claim as its source."""
    name = objects.name(source)
    return not any(source_claim_name(claim) == name and is_clone_unfinished(claim) for claim in claims_of_namespace)
