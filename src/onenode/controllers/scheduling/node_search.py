"""Find a node for a pod among all nodes, from what the caches and the scheduler's own decisions show.

It gathers facts and has the rules decide: `scheduling_rules` (the node itself), `attach_limit_rules`, and
`orlop.binding` (claims, volumes, capacity). Reading a Node, a CSINode or a capacity is done once for each change, so
that a search takes microseconds for each node. A search neither waits nor changes anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onenode.controllers import scheduling_rules as rules
from onenode.controllers.scheduling import attach_limit_rules as limits
from onenode.controllers.scheduling.assumed_objects import AssumedObjects, FreeVolumes
from onenode.controllers.scheduling.attach_limit_rules import CountedVolume, NodeDrivers
from onenode.controllers.scheduling.fitting_nodes import FittingNodes
from onenode.controllers.scheduling.pod_resource_rules import allocatable_of
from onenode.controllers.scheduling.pods_on_nodes import PodsOnNodes
from onenode.controllers.scheduling.storage_capacities import StorageCapacities
from onenode.controllers.scheduling_rules import PodNeeds, SchedulableNode, Unschedulable
from orlop.binding import capacity_rules
from orlop.binding import claim_state_rules as state
from orlop.binding.node_affinity_rules import label_pins
from orlop.binding.node_volume_rules import (
    LateClaim,
    NodeStorage,
    NodeVolumes,
    in_search_order,
    late_claim,
    volumes_on_node,
)
from orlop.binding.pod_claim_rules import PodClaims, Refused, claims_used, pod_claims
from orlop.kube import objects
from orlop.kube.cache.informer import Informer
from orlop.kube.objects import ObjectName

ApiObject = Mapping[str, Any]
CLAIM_IN_USE: Final = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
ONE_POD: Final = "ReadWriteOncePod"
ATTACHMENTS_BY_NODE: Final = "the scheduler's attachments by node"
ATTACHMENTS_BY_VOLUME: Final = "the scheduler's attachments by volume"
NO_DRIVERS: Final = NodeDrivers()
NO_VOLUMES: Final = NodeVolumes()


@dataclass(frozen=True, slots=True)
class SchedulerCaches:
    pods: Informer
    nodes: Informer
    claims: Informer
    volumes: Informer
    classes: Informer
    csi_nodes: Informer
    csi_drivers: Informer
    capacities: Informer
    attachments: Informer

    def all(self) -> tuple[Informer, ...]:
        of_pods = self.pods, self.claims, self.volumes
        return (*of_pods, self.nodes, self.classes, self.csi_nodes, self.csi_drivers, self.capacities, self.attachments)


@dataclass(frozen=True, slots=True)
class Found:
    """A node for the pod, and what becomes of its late-binding claims there."""

    node: str
    volumes: NodeVolumes


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A pod with everything that a search compares with each node."""

    needs: PodNeeds
    bound: tuple[ApiObject | None, ...]
    late: tuple[LateClaim, ...]
    reserved: Mapping[ObjectName, list[ApiObject]]
    """By late-binding claim: the volumes that name it, wherever they are."""
    attached: tuple[CountedVolume, ...]
    drivers: frozenset[str]
    is_claim_in_use: bool
    classes_with_capacity: frozenset[str]


class NodeSearch:
    """`node_changed` and the like must be called for each name that a cache reports, before the next search."""

    def __init__(self, caches: SchedulerCaches) -> None:
        self._caches = caches
        self.pods = PodsOnNodes(self._usage_changed)
        self._fitting = FittingNodes(self.pods.used_on)
        self.claims = AssumedObjects(caches.claims)
        self.volumes = AssumedObjects(caches.volumes)
        self._free = FreeVolumes()
        self._capacities = StorageCapacities()
        self._drivers: dict[str, NodeDrivers] = {}
        self._attached: dict[str, frozenset[CountedVolume]] = {}
        self._attachment_nodes: dict[ObjectName, str] = {}
        caches.attachments.add_index(ATTACHMENTS_BY_NODE, _node_keys)
        caches.attachments.add_index(ATTACHMENTS_BY_VOLUME, _volume_keys)

    # ---- what changed --------------------------------------------------------------------------------------------

    def node_changed(self, name: ObjectName) -> SchedulableNode | None:
        node = self._caches.nodes.get(name)
        facts = None if node is None else _facts(node)
        self._capacities.node_changed(name.name)
        self._fitting.node_changed(name.name, facts)
        return facts

    def csi_node_changed(self, name: ObjectName) -> bool:
        """Return whether its drivers or their limits changed."""
        before, now = self._drivers.pop(name.name, NO_DRIVERS), limits.drivers_of(self._caches.csi_nodes.get(name))
        if now != NO_DRIVERS:
            self._drivers[name.name] = now
        return before != now

    def volume_changed(self, name: ObjectName) -> None:
        """Also after a decision about the volume."""
        self.volumes.refresh(name)
        volume = self.volumes.get(name)
        self._free.look_at(name.name, volume)
        reference = state.claim_reference(volume or {}) or {}
        self.pods.claim_changed(ObjectName(reference.get("namespace"), str(reference.get("name") or "")))
        for attachment in self._caches.attachments.cache.by_index(ATTACHMENTS_BY_VOLUME, name.name):
            self._attached.pop(_node_of(attachment), None)

    def claim_changed(self, name: ObjectName) -> None:
        self.claims.refresh(name)
        self.pods.claim_changed(name)

    def capacity_changed(self, name: ObjectName) -> str:
        """Return the class for which more may fit now, or ""."""
        return self._capacities.look_at(name, self._caches.capacities.get(name))

    def attachment_changed(self, name: ObjectName) -> None:
        attachment = self._caches.attachments.get(name)
        self._attached.pop(self._attachment_nodes.pop(name, ""), None)
        if attachment is not None:
            node = self._attachment_nodes[name] = _node_of(attachment)
            self._attached.pop(node, None)

    def _usage_changed(self, node: str) -> None:
        self._fitting.usage_changed(node)

    # ---- reading -------------------------------------------------------------------------------------------------

    def node(self, name: str) -> SchedulableNode | None:
        return self._fitting.get(name)

    def storage_class(self, claim: ApiObject) -> ApiObject | None:
        return self._caches.classes.get(ObjectName(None, state.class_name(claim)))

    def find(self, pod: ApiObject) -> Found | Unschedulable:
        """Return the best node, or why there is none."""
        decision = self._claims_of(pod)
        if isinstance(decision, Refused):
            message = rules.refusal_message(len(self._fitting), decision.reason)
            return Unschedulable(message, frozenset({decision.reason}))
        wanted = self._wanted(pod, decision)
        fits = self._fitting.of(wanted.needs)
        possible = self._possible(wanted, fits.loads)
        against: Counter[str] = Counter()
        for name in rules.nodes_by_preference(wanted.needs.uid, possible, self._free_space(wanted, possible)):
            found = self._volumes_on(wanted, name)
            if not found.reasons:
                return Found(name, found)
            against.update(found.reasons)
        # The other nodes are asked for their reasons alone.
        for name in fits.loads.keys() - possible.keys():
            against.update(self._volumes_on(wanted, name).reasons)
        for reasons in fits.reasons.values():
            against.update(reasons)
        return Unschedulable(rules.filter_message(len(self._fitting), against), frozenset(against))

    def _possible(self, wanted: _Wanted, loads: Mapping[str, float]) -> Mapping[str, float]:
        """Return the nodes that a claim's selected node and the labels of bound volumes leave."""
        names: set[str] | None = None
        for selected in (one.selected_node for one in wanted.late if one.selected_node is not None):
            names = {selected} if names is None else names & {selected}
        for pins in (label_pins(volume) for volume in wanted.bound if volume is not None):
            if pins is not None:
                labelled = self._fitting.labelled(pins)
                names = labelled if names is None else names & labelled
        return loads if names is None else {name: loads[name] for name in names if name in loads}

    def _volumes_on(self, wanted: _Wanted, name: str) -> NodeVolumes:
        """Decide about the volumes on a node that fits otherwise."""
        node = self._fitting.get(name)
        if node is None or not (wanted.bound or wanted.late):
            return NO_VOLUMES
        if wanted.is_claim_in_use:
            return NodeVolumes((CLAIM_IN_USE,))
        if wanted.drivers and (reasons := self._why_not_attached(wanted, name)):
            return NodeVolumes(reasons)
        return volumes_on_node(wanted.bound, wanted.late, self._storage(wanted, node))

    def _why_not_attached(self, wanted: _Wanted, node: str) -> tuple[str, ...]:
        drivers = self._drivers.get(node, NO_DRIVERS)
        csi_drivers = self._found(self._caches.csi_drivers, wanted.drivers)
        if missing := limits.why_no_driver(wanted.drivers, csi_drivers, drivers):
            return missing
        if not drivers.limits or not wanted.attached:
            return ()
        of_pods = self.pods.volumes_on(node, self._attached_by)
        return limits.why_not_attached(wanted.attached, of_pods, self._attached_to(node), drivers)

    def _storage(self, wanted: _Wanted, node: SchedulableNode) -> NodeStorage:
        volumes = {
            one.name: [*wanted.reserved[one.name], *self._free.on_node(one.class_name, node.labels)]
            for one in wanted.late
        }
        size_limits = {
            name: self._capacities.room(name, node.name, node.labels).limit for name in wanted.classes_with_capacity
        }
        return NodeStorage(node.name, node.labels, volumes, size_limits)

    def _free_space(self, wanted: _Wanted, names: Iterable[str]) -> dict[str, int]:
        """Return the capacity that each node has for the pod's claims; empty where that does not count."""
        if not wanted.classes_with_capacity:
            return {}
        nodes = [node for name in names if (node := self._fitting.get(name)) is not None]
        return {node.name: self._free_on(node, wanted.classes_with_capacity) for node in nodes}

    def _free_on(self, node: SchedulableNode, classes: Iterable[str]) -> int:
        return sum(self._capacities.room(name, node.name, node.labels).free for name in classes)

    # ---- what a pod wants ----------------------------------------------------------------------------------------

    def _claims_of(self, pod: ApiObject) -> PodClaims | Refused:
        names = [use.claim for use in claims_used(pod)]
        if not names:
            return PodClaims()
        claims = {name: claim for name in names if (claim := self.claims.get(name)) is not None}
        classes = self._found(self._caches.classes, map(state.class_name, claims.values()))
        volumes = {
            name: volume
            for name in map(state.volume_name, claims.values())
            if (volume := self.volumes.get(ObjectName(None, name))) is not None
        }
        return pod_claims(pod, claims, classes, volumes)

    def _wanted(self, pod: ApiObject, claims: PodClaims) -> _Wanted:
        late = in_search_order([late_claim(one, self.storage_class(one) or {}) for one in claims.late])
        attached = [self._attached_by(objects.name_of(one)) for one in (*claims.bound, *claims.late)]
        counted = tuple(one for one in attached if one is not None)
        return _Wanted(
            rules.needs_of(pod),
            tuple(self.volumes.get(ObjectName(None, state.volume_name(one))) for one in claims.bound),
            late,
            {one.name: self._free.reserved_for(one.claim) for one in late},
            counted,
            frozenset(driver for driver, _ in counted),
            self._is_claim_in_use(pod),
            frozenset(one.class_name for one in late if self._counts_capacity(one)),
        )

    def _is_claim_in_use(self, pod: ApiObject) -> bool:
        own = objects.name_of(pod)
        for use in claims_used(pod):
            claim = self.claims.get(use.claim)
            is_for_one = not use.is_ephemeral and claim is not None and ONE_POD in state.access_modes(claim)
            if is_for_one and self.pods.users_of(use.claim) - {own}:
                return True
        return False

    def _counts_capacity(self, late: LateClaim) -> bool:
        return capacity_rules.publishes_capacity(self._caches.csi_drivers.get(ObjectName(None, late.provisioner)))

    # ---- volumes, as far as attaching goes -----------------------------------------------------------------------

    def _attached_by(self, name: ObjectName) -> CountedVolume | None:
        claim = self.claims.get(name)
        if claim is None:
            return None
        volume = self.volumes.get(ObjectName(None, state.volume_name(claim)))
        return limits.volume_of_claim(claim, volume, self.storage_class(claim))

    def _attached_to(self, node: str) -> frozenset[CountedVolume]:
        known = self._attached.get(node)
        if known is None:
            names = map(_volume_of, self._caches.attachments.cache.by_index(ATTACHMENTS_BY_NODE, node))
            volumes = (self._caches.volumes.get(ObjectName(None, name)) for name in names)
            known = frozenset(one for volume in volumes if (one := limits.volume_of(volume)) is not None)
            self._attached[node] = known
        return known

    @staticmethod
    def _found(informer: Informer, names: Iterable[str]) -> dict[str, ApiObject]:
        return {name: obj for name in names if (obj := informer.get(ObjectName(None, name))) is not None}


def _node_of(attachment: ApiObject) -> str:
    return str((attachment.get("spec") or {}).get("nodeName") or "")


def _volume_of(attachment: ApiObject) -> str:
    source = (attachment.get("spec") or {}).get("source") or {}
    return str(source.get("persistentVolumeName") or "")


def _node_keys(attachment: ApiObject) -> list[str]:
    return [_node_of(attachment)]


def _volume_keys(attachment: ApiObject) -> list[str]:
    return [_volume_of(attachment)]


def _facts(node: ApiObject) -> SchedulableNode:
    return SchedulableNode(
        node,
        objects.name(node),
        objects.labels(node),
        rules.forbidding_taints(node),
        bool((node.get("spec") or {}).get("unschedulable")),
        objects.is_condition_true(node, "Ready"),
        allocatable_of(node),
    )
