"""Decide whether the claims of a pod let it be scheduled, which are to be bound, and which must be created. Pure.

These are the checks that kube-scheduler makes once for a pod, before it checks any node (PreFilter of VolumeBinding and
VolumeZone). Refusals have kube-scheduler's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules
from orlop.kube import objects
from orlop.kube.objects import ObjectName

BOUND: Final = "Bound"
LOST: Final = "Lost"
UNBOUND_IMMEDIATE: Final = "pod has unbound immediate PersistentVolumeClaims"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A volume of a pod that refers to a claim."""

    volume: str
    claim: ObjectName
    is_ephemeral: bool


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of a pod, each once: those that are bound, and those that wait for the pod's node."""

    bound: tuple[Object, ...] = ()
    late: tuple[Object, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod fits no node, whatever the nodes are."""

    reason: str


PodClaimsDecision: TypeAlias = PodClaims | Refused


def claims_used(pod: Object) -> Iterator[ClaimUse]:
    """Yield the claims that a pod's volumes refer to; that of a generic ephemeral volume is `<pod>-<volume>`."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        name, source = str(volume.get("name") or ""), volume.get("persistentVolumeClaim")
        if source is not None:
            yield ClaimUse(
                name, ObjectName(objects.namespace(pod), str(source.get("claimName") or "")), is_ephemeral=False
            )
        elif volume.get("ephemeral") is not None:
            yield ClaimUse(name, ObjectName(objects.namespace(pod), f"{objects.name(pod)}-{name}"), is_ephemeral=True)


def pod_claims(
    pod: Object, claims: Mapping[ObjectName, Object], classes: Mapping[str, Object], volumes: Mapping[str, Object]
) -> PodClaimsDecision:
    """Return a pod's claims, sorted by what they need, or why the pod must wait.

    `claims`, `classes` and `volumes` contain at least the existing objects that the pod refers to.
    """
    uses = {use.claim: use for use in claims_used(pod)}
    for use in uses.values():
        if (reason := _refusal(pod, use, claims.get(use.claim))) is not None:
            return Refused(reason)
    used = [claims[name] for name in uses]
    bound = tuple(claim for claim in used if is_usable(claim))
    late = tuple(claim for claim in used if _waits_for_node(claim, classes))
    if len(bound) + len(late) < len(used):
        return Refused(UNBOUND_IMMEDIATE)
    missing = next((reason for use in uses.values() if (reason := _missing_volume(use, claims, volumes))), None)
    return PodClaims(bound, late) if missing is None else Refused(missing)


def is_usable(claim: Object) -> bool:
    """Return whether the claim has its volume.

    The binder marks a completed bind with an annotation. A claim bound by hand, in a cluster without a binder, has only
    the phase.
    """
    return state.is_bound(claim) or (bool(state.volume_name(claim)) and state.phase(claim) == BOUND)


def not_owner_text(pod: Object, claim: ObjectName) -> str:
    return f"PVC {claim} was not created for pod {objects.name_of(pod)} (pod is not owner)"


def _refusal(pod: Object, use: ClaimUse, claim: Object | None) -> str | None:
    name = use.claim.name
    if claim is None and use.is_ephemeral:
        return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
    if claim is None:
        return f'persistentvolumeclaim "{name}" not found'
    if state.phase(claim) == LOST:
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{state.volume_name(claim)}"'
    if objects.is_being_deleted(claim):
        return f'persistentvolumeclaim "{name}" is being deleted'
    owner = objects.controller_of(claim) or {}
    if use.is_ephemeral and owner.get("uid") != objects.uid(pod):
        return not_owner_text(pod, use.claim)
    return None


def _waits_for_node(claim: Object, classes: Mapping[str, Object]) -> bool:
    # The binder handles a claim that names a volume, also with a late-binding class: its volume is already chosen.
    if is_usable(claim) or state.volume_name(claim):
        return False
    return class_rules.is_late_binding(classes.get(state.class_name(claim)))


def _missing_volume(use: ClaimUse, claims: Mapping[ObjectName, Object], volumes: Mapping[str, Object]) -> str | None:
    """Return VolumeZone's reason if a bound volume is missing. VolumeZone ignores generic ephemeral volumes."""
    name = state.volume_name(claims[use.claim])
    return f'persistentvolume "{name}" not found' if name and not use.is_ephemeral and name not in volumes else None


# ---- claims of generic ephemeral volumes -----------------------------------------------------------------------------

# The claim of such a volume is controlled by the pod, so it is deleted with it. If the pod does not control the claim
# of that name, it is somebody else's data: the pod must wait until it is gone.

FAILED_BINDING: Final = "FailedBinding"


@dataclass(frozen=True, slots=True)
class NothingMissing:
    """The pod has its claims, needs none, or is being deleted."""


@dataclass(frozen=True, slots=True)
class CreateClaim:
    volume: str
    claim: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NameTaken:
    reason: str


EphemeralStep: TypeAlias = NothingMissing | CreateClaim | NameTaken


def has_ephemeral_claims(pod: Object) -> bool:
    return any(True for _ in ephemeral_uses(pod))


def ephemeral_uses(pod: Object) -> Iterator[ClaimUse]:
    return (use for use in claims_used(pod) if use.is_ephemeral)


def next_ephemeral_step(pod: Object, find: Callable[[ObjectName], Object | None]) -> EphemeralStep:
    """Return the step for the first volume, in the pod's order, whose claim is missing or not the pod's."""
    if objects.is_being_deleted(pod):
        return NothingMissing()
    for use in ephemeral_uses(pod):
        claim = find(use.claim)
        if claim is None:
            return CreateClaim(use.volume, claim_for(pod, use))
        if (objects.controller_of(claim) or {}).get("uid") != objects.uid(pod):
            return NameTaken(f"ephemeral volume {use.volume}: {not_owner_text(pod, use.claim)}")
    return NothingMissing()


def claim_for(pod: Object, use: ClaimUse) -> dict[str, Any]:
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    template = next(each["ephemeral"] for each in volumes if each.get("name") == use.volume)["volumeClaimTemplate"]
    owner = objects.controller_reference(pod, "v1", "Pod")
    wanted = template.get("metadata") or {}
    metadata = {key: dict(wanted[key]) for key in ("labels", "annotations") if wanted.get(key)}
    names = {"name": use.claim.name, "namespace": use.claim.namespace, "ownerReferences": [owner]}
    return {"metadata": {**names, **metadata}, "spec": dict(template["spec"])}
