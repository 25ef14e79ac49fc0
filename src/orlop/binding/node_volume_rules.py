"""Decide whether the volumes of a pod can be used on one node, and how its late-binding claims get theirs. Pure.

Order and wording are those of kube-scheduler (Filter of VolumeBinding, then VolumeZone):

1. Bound claims: the volume exists and its node affinity allows the node.
2. Late-binding claims with a selected node: if it is another node, this node does not fit. If it is this node,
   provision the claim without searching existing volumes, because a provisioner may already be working on it.
3. Other late-binding claims, the smallest first: find an existing volume that fits on this node and was not chosen for
   another claim of the pod.
4. Claims without such a volume must be provisioned: the class has a provisioner and allows the node, and its driver has
   enough capacity there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules, match_rules
from orlop.binding.node_affinity_rules import topology_terms_match, volume_allows_node
from orlop.foundation.quantity import Quantity
from orlop.kube import objects
from orlop.kube.objects import ObjectName

AFFINITY_CONFLICT: Final = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT: Final = "node(s) didn't find available persistent volumes to bind"
NO_ROOM: Final = "node(s) did not have enough free storage"
VOLUME_MISSING: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
ZONE_CONFLICT: Final = "node(s) had no available volume zone"

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
CURRENT_KEY: Final[Mapping[str, str]] = {
    ZONE: ZONE,
    REGION: REGION,
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
}
BETWEEN_ZONES: Final = "__"
_NOTHING: Final = Quantity.of(0)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LateClaim:
    """A claim that waits for its pod's node, with the fields of its class: read once, compared with each node."""

    claim: Object
    name: ObjectName
    size: Quantity | None
    selected_node: str | None
    class_name: str
    provisioner: str
    allowed_topologies: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class NodeStorage:
    """The storage that one node offers to the claims of one pod."""

    node: str
    labels: Mapping[str, str]
    volumes: Mapping[ObjectName, Sequence[Object]]
    """Candidates by claim: at least the volumes that fit on this node, and those reserved for the claim on any node."""
    size_limits: Mapping[str, Quantity | None]
    """The largest volume that can be provisioned on this node, by class. A missing class has no limit."""


@dataclass(frozen=True, slots=True)
class Binding:
    """An existing volume that a claim is to be bound to."""

    claim: Object
    volume: Object


@dataclass(frozen=True, slots=True)
class NodeVolumes:
    """Why the node does not fit; if there are no reasons, the volumes to bind and the claims to provision there."""

    reasons: tuple[str, ...] = ()
    bindings: tuple[Binding, ...] = ()
    provisions: tuple[Object, ...] = ()


def late_claim(claim: Object, storage_class: Object) -> LateClaim:
    return LateClaim(
        claim,
        objects.name_of(claim),
        state.requested_size(claim),
        objects.annotations(claim).get(state.SELECTED_NODE),
        state.class_name(claim),
        class_rules.provisioner(storage_class),
        class_rules.allowed_topologies(storage_class),
    )


def in_search_order(late: Sequence[LateClaim]) -> tuple[LateClaim, ...]:
    """Return the claims by rising size, so that a small claim never takes the only volume of a large one."""
    return tuple(sorted(late, key=lambda claim: (claim.size or _NOTHING, claim.name.name)))


def volumes_on_node(bound: Sequence[Object | None], late: Sequence[LateClaim], on: NodeStorage) -> NodeVolumes:
    """Return whether a pod's volumes can be used on a node, and how.

    `bound` are the volumes of bound claims, None for a missing one; `late` is in the order of `in_search_order`.
    """
    reasons = list(_bound_conflicts(bound, on.labels))
    late_volumes = _late_volumes(late, on)
    reasons += late_volumes.reasons
    if not reasons and any(zone_conflicts(volume, on.labels) for volume in bound if volume is not None):
        reasons.append(ZONE_CONFLICT)
    return NodeVolumes(tuple(reasons)) if reasons else late_volumes


def zone_conflicts(volume: Object, labels: Mapping[str, str]) -> bool:
    """Return whether a volume's zone or region label excludes the node. A node without such labels is in every zone."""
    zones = {key: value for key, value in objects.labels(volume).items() if key in CURRENT_KEY}
    if not zones or not any(key in labels for key in CURRENT_KEY):
        return False
    return any(
        labels.get(key, labels.get(CURRENT_KEY[key])) not in value.split(BETWEEN_ZONES) for key, value in zones.items()
    )


def reserved_for(volume: Object, claim: Object) -> dict[str, Any] | None:
    """Return the volume with a `claimRef` to the claim, to be written; None if it has that already.

    A volume whose `claimRef` an admin wrote is not marked `bound-by-controller`: otherwise the binder would remove the
    admin's `claimRef` when the claim is deleted.
    """
    reference = state.claim_reference(volume) or {}
    if state.refers_to(volume, claim) and reference.get("uid"):
        return None
    metadata = dict(objects.metadata(volume))
    if not state.refers_to(volume, claim):
        metadata["annotations"] = {**objects.annotations(volume), state.BOUND_BY_CONTROLLER: "yes"}
    claim_ref = {
        "kind": "PersistentVolumeClaim",
        "namespace": objects.namespace(claim),
        "name": objects.name(claim),
        "uid": objects.uid(claim),
        "apiVersion": "v1",
        "resourceVersion": objects.resource_version(claim),
    }
    return {**volume, "metadata": metadata, "spec": {**(volume.get("spec") or {}), "claimRef": claim_ref}}


def given_to_node(claim: Object, node: str) -> dict[str, Any] | None:
    """Return the claim with the selected node, to be written; None if it has that already."""
    if objects.annotations(claim).get(state.SELECTED_NODE) == node:
        return None
    annotations = {**objects.annotations(claim), state.SELECTED_NODE: node}
    return {**claim, "metadata": {**objects.metadata(claim), "annotations": annotations}}


def _bound_conflicts(bound: Sequence[Object | None], labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the complaint about the first volume that does not fit, as kube-scheduler stops there."""
    for volume in bound:
        if volume is None:
            return (VOLUME_MISSING,)
        if not volume_allows_node(volume, labels):
            return (AFFINITY_CONFLICT,)
    return ()


def _late_volumes(late: Sequence[LateClaim], on: NodeStorage) -> NodeVolumes:
    if any(claim.selected_node is not None and claim.selected_node != on.node for claim in late):
        return NodeVolumes((BIND_CONFLICT,))
    to_provision = [claim for claim in late if claim.selected_node is not None]
    bindings: list[Binding] = []
    chosen: frozenset[str] = frozenset()
    for claim in late:
        if claim.selected_node is not None:
            continue
        candidates = on.volumes.get(claim.name, ())
        volume = match_rules.volume_for_scheduler(claim.claim, candidates, on.labels, chosen) if candidates else None
        if volume is None and match_rules.reserved_volume(claim.claim, candidates) is not None:
            # The claim's reserved volume is on another node. kube-scheduler would provision a second volume here, and
            # notice only when the binder binds the claim to the first.
            return NodeVolumes((BIND_CONFLICT,))
        if volume is None:
            to_provision.append(claim)
        else:
            bindings.append(Binding(claim.claim, volume))
            chosen |= {objects.name(volume)}
    for claim in to_provision:
        if (reason := _why_not_provisioned(claim, on)) is not None:
            return NodeVolumes((reason,))
    return NodeVolumes((), tuple(bindings), tuple(claim.claim for claim in to_provision))


def _why_not_provisioned(claim: LateClaim, on: NodeStorage) -> str | None:
    if claim.provisioner in {"", class_rules.NO_PROVISIONER}:
        return BIND_CONFLICT
    if not topology_terms_match(claim.allowed_topologies, on.labels):
        return BIND_CONFLICT
    if claim.size is None or claim.class_name not in on.size_limits:
        return None
    limit = on.size_limits[claim.class_name]
    return NO_ROOM if limit is None or limit < claim.size else None
