"""Decide the next step for a pod whose node is chosen while its claims are not bound yet. Pure.

kube-scheduler's PreBind of VolumeBinding: write the claim on each chosen volume, then the node on each claim to be
provisioned, then wait until the binder has bound all of them. The wait ends early when somebody took back what was
written: then the pod is scheduled anew. Objects are passed as the scheduler has last seen or written them; a cache that
is older than our own write would look as if somebody had taken it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from orlop.binding import claim_state_rules as state
from orlop.binding.node_affinity_rules import volume_allows_node
from orlop.binding.pod_claim_rules import is_usable
from orlop.kube import objects
from orlop.kube.objects import ObjectName

LONGEST_WAIT_SECONDS: Final = 600.0
TIMED_OUT: Final = "context deadline exceeded"
NO_MATCHING_TERMS: Final = "no matching NodeSelectorTerms"

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BindingFacts:
    """A volume that was reserved for a claim, and both; None: gone."""

    claim_name: ObjectName
    volume_name: str
    to_write: ApiObject | None
    """The volume with its `claimRef`, until that is written."""
    claim: ApiObject | None
    volume: ApiObject | None


@dataclass(frozen=True, slots=True)
class ProvisionFacts:
    """A claim that was given to the node, and its volume; None: not there."""

    claim_name: ObjectName
    to_write: ApiObject | None
    """The claim with its node, until that is written."""
    claim: ApiObject | None
    volume: ApiObject | None


@dataclass(frozen=True, slots=True)
class WaitFacts:
    node: str
    labels: Mapping[str, str] | None
    """The node's; None: the Node is gone."""
    bindings: tuple[BindingFacts, ...]
    provisions: tuple[ProvisionFacts, ...]
    seconds_waited: float


@dataclass(frozen=True, slots=True)
class WriteVolume:
    volume: ApiObject


@dataclass(frozen=True, slots=True)
class WriteClaim:
    claim: ApiObject


@dataclass(frozen=True, slots=True)
class AllBound:
    """The pod can be bound to its node."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A change of one of the objects is waited for, for so many seconds at most."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BindingFailed:
    """The pod must be scheduled anew; `error` is in kube-scheduler's words."""

    error: str


WaitProgress: TypeAlias = AllBound | Wait | BindingFailed
WriteReservation: TypeAlias = WriteVolume | WriteClaim
Step: TypeAlias = WriteReservation | WaitProgress


def next_step(facts: WaitFacts) -> Step:
    """Return the next write, or, when all is written, what the first volume that is not bound waits for."""
    for binding in facts.bindings:
        if binding.to_write is not None:
            return WriteVolume(binding.to_write)
    for provision in facts.provisions:
        if provision.to_write is not None:
            return WriteClaim(provision.to_write)
    return _progress(facts)


def _progress(facts: WaitFacts) -> WaitProgress:
    if facts.labels is None:
        return BindingFailed(f'failed to get node "{facts.node}": node "{facts.node}" not found')
    left = LONGEST_WAIT_SECONDS - facts.seconds_waited
    waiting = BindingFailed(TIMED_OUT) if left <= 0 else Wait(left)
    for binding in facts.bindings:
        step = _binding_step(binding, facts.node, facts.labels)
        if not isinstance(step, AllBound):
            return waiting if isinstance(step, Wait) else step
    for provision in facts.provisions:
        step = _provision_step(provision, facts.node, facts.labels)
        if not isinstance(step, AllBound):
            return waiting if isinstance(step, Wait) else step
    return AllBound()


_NOT_YET: Final = Wait(LONGEST_WAIT_SECONDS)


def _binding_step(facts: BindingFacts, node: str, labels: Mapping[str, str]) -> WaitProgress:
    if facts.volume is None:
        return BindingFailed(f'failed to check binding: could not find v1.PersistentVolume "{facts.volume_name}"')
    if facts.claim is None:
        return BindingFailed(f'failed to check binding: could not find v1.PersistentVolumeClaim "{facts.claim_name}"')
    if not volume_allows_node(facts.volume, labels):
        return BindingFailed(_wrong_node(facts.volume, node))
    if not (state.claim_reference(facts.volume) or {}).get("uid"):
        return BindingFailed(f'ClaimRef got reset for pv "{facts.volume_name}"')
    return AllBound() if is_usable(facts.claim) else _NOT_YET


def _provision_step(facts: ProvisionFacts, node: str, labels: Mapping[str, str]) -> WaitProgress:
    claim = facts.claim
    if claim is None:
        return BindingFailed(
            f'failed to check provisioning pvc: could not find v1.PersistentVolumeClaim "{facts.claim_name}"'
        )
    if not objects.annotations(claim):
        return BindingFailed(f'selectedNode annotation reset for PVC "{facts.claim_name.name}"')
    if objects.annotations(claim).get(state.SELECTED_NODE) != node:
        # The provisioner takes the node off the claim when it cannot provision there.
        return BindingFailed(f'provisioning failed for PVC "{facts.claim_name.name}"')
    # The event of the claim may overtake that of its volume; a volume that was deleted makes the claim Lost in the end.
    if facts.volume is None:
        return _NOT_YET
    if not volume_allows_node(facts.volume, labels):
        return BindingFailed(_wrong_node(facts.volume, node))
    return AllBound() if is_usable(claim) else _NOT_YET


def _wrong_node(volume: ApiObject, node: str) -> str:
    return f'pv "{objects.name(volume)}" node affinity doesn\'t match node "{node}": {NO_MATCHING_TERMS}'
