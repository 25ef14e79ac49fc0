"""Pods whose node is chosen, until they are bound to it: which volumes and claims they took, and what is written.

A reservation is the scheduler's memory alone. It is made and given up without waiting for anything, so no other pod is
decided in between; what it took is in the books of the search from then on (`NodeSearch.pods`, `claims`, `volumes`).
After a restart there is none: volumes that were reserved and claims that have a node are found as they are stored, and
lead back to the same node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onenode.controllers.scheduling.node_search import Found, NodeSearch
from onenode.controllers.scheduling.volume_wait_rules import BindingFacts, ProvisionFacts, WaitFacts
from onenode.controllers.scheduling.wakeups import Topic, claim_topic, node_topic, volume_topic
from orlop.binding import claim_state_rules as state
from orlop.binding.node_volume_rules import given_to_node, reserved_for
from orlop.kube import objects
from orlop.kube.objects import ObjectName

ApiObject = Mapping[str, Any]


@dataclass(slots=True)
class _Claim:
    """A claim of the pod, with the volume chosen for it, or None to have one provisioned."""

    claim: ObjectName
    uid: str
    volume: ObjectName | None
    to_write: ApiObject | None


@dataclass(slots=True)
class Reservation:
    pod: ObjectName
    pod_uid: str
    node: str
    claims: list[_Claim] = field(default_factory=list)
    waits_since: float | None = None

    def topics(self) -> frozenset[Topic]:
        """Return whose changes may end the wait for volumes."""
        topics = {node_topic(self.node), *(claim_topic(one.claim) for one in self.claims)}
        return frozenset({*topics, *(volume_topic(one.volume.name) for one in self.claims if one.volume is not None)})


class Reservations:
    def __init__(self, search: NodeSearch) -> None:
        self._search = search
        self._all: dict[ObjectName, Reservation] = {}

    def get(self, pod: ObjectName) -> Reservation | None:
        return self._all.get(pod)

    def __len__(self) -> int:
        return len(self._all)

    def make(self, pod: ApiObject, found: Found) -> Reservation:
        """Take the node, the volumes and the claims for the pod."""
        made = Reservation(objects.name_of(pod), objects.uid(pod), found.node)
        for binding in found.volumes.bindings:
            name, volume = objects.name_of(binding.claim), objects.name_of(binding.volume)
            to_write = reserved_for(binding.volume, binding.claim)
            made.claims.append(_Claim(name, objects.uid(binding.claim), volume, to_write))
            if to_write is not None:
                self._search.volumes.decide(to_write)
                self._search.volume_changed(volume)
        for claim in found.volumes.provisions:
            name, to_write = objects.name_of(claim), given_to_node(claim, found.node)
            made.claims.append(_Claim(name, objects.uid(claim), None, to_write))
            if to_write is not None:
                self._search.claims.decide(to_write)
                self._search.claim_changed(name)
        self._search.pods.assume(pod, found.node)
        self._all[made.pod] = made
        return made

    def wrote_volume(self, reservation: Reservation, volume: ApiObject) -> None:
        name = objects.name_of(volume)
        for one in reservation.claims:
            if one.volume == name:
                one.to_write = None
        self._search.volumes.wrote(volume)
        self._search.volume_changed(name)

    def wrote_claim(self, reservation: Reservation, claim: ApiObject) -> None:
        name = objects.name_of(claim)
        for one in reservation.claims:
            if one.claim == name and one.volume is None:
                one.to_write = None
        self._search.claims.wrote(claim)
        self._search.claim_changed(name)

    def keep_pod(self, reservation: Reservation) -> None:
        """End a reservation whose pod was bound: it counts on its node until the cache shows it there."""
        del self._all[reservation.pod]

    def give_up(self, reservation: Reservation) -> bool:
        """End a reservation; return whether that freed a place on the node. What was written stays written."""
        del self._all[reservation.pod]
        for one in reservation.claims:
            if one.to_write is None:
                continue
            if one.volume is not None:
                self._search.volumes.give_up(one.volume)
                self._search.volume_changed(one.volume)
            else:
                self._search.claims.give_up(one.claim)
                self._search.claim_changed(one.claim)
        return self._search.pods.forget(reservation.pod, reservation.pod_uid)

    def facts(self, reservation: Reservation, now: float) -> WaitFacts:
        """Return how the node, the claims and the volumes are now."""
        node = self._search.node(reservation.node)
        waits_since = now if reservation.waits_since is None else reservation.waits_since
        return WaitFacts(
            reservation.node,
            None if node is None else node.labels,
            tuple(self._binding(one, one.volume) for one in reservation.claims if one.volume is not None),
            tuple(self._provision(one) for one in reservation.claims if one.volume is None),
            now - waits_since,
        )

    def _binding(self, one: _Claim, volume: ObjectName) -> BindingFacts:
        return BindingFacts(one.claim, volume.name, one.to_write, self._claim(one), self._search.volumes.get(volume))

    def _provision(self, one: _Claim) -> ProvisionFacts:
        claim = self._claim(one)
        volume = self._search.volumes.get(ObjectName(None, state.volume_name(claim or {})))
        return ProvisionFacts(one.claim, one.to_write, claim, volume)

    def _claim(self, one: _Claim) -> ApiObject | None:
        """Return the claim; another one of the same name is not it."""
        claim = self._search.claims.get(one.claim)
        return claim if claim is not None and objects.uid(claim) == one.uid else None
