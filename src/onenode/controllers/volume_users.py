"""Which pods need which volumes attached to which nodes: a book that is kept up pod by pod, and asked volume by volume.

What a pod once needed it goes on needing for as long as it is there, also when its claim or volume vanishes: it may
have it mounted. Only objects that were read are in here; nothing waits, sends requests or notifies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onenode.controllers import attachable_volumes_rules as rules
from onenode.controllers.attach_detach_rules import UsingPod
from onenode.controllers.attachable_volumes_rules import ApiObject, Attachable
from onenode.kubelet.volumes.volume_values import UniqueName
from orlop.binding.pod_claim_rules import ClaimUse, claims_used
from orlop.kube import objects
from orlop.kube.objects import ObjectName

Find = Callable[[ObjectName], ApiObject | None]


@dataclass(frozen=True, slots=True)
class Lookups:
    """As they were last seen."""

    claim: Find
    volume: Find
    csi_driver: Find


@dataclass(frozen=True, slots=True)
class _Needs:
    user: UsingPod
    node: str
    volumes: Mapping[str, Attachable] = field(default_factory=dict)
    """By what the pod calls them."""

    def names(self) -> frozenset[UniqueName]:
        return frozenset(volume.name for volume in self.volumes.values())


class VolumeUsers:
    def __init__(self, lookups: Lookups) -> None:
        self._find = lookups
        self._needs: dict[ObjectName, _Needs] = {}
        self._users: dict[UniqueName, dict[ObjectName, _Needs]] = {}
        self._pods_on: dict[str, set[ObjectName]] = {}

    def look_at(self, name: ObjectName, pod: ApiObject | None) -> frozenset[UniqueName]:
        """Gives the volumes for which something has changed."""
        before = self._needs.get(name)
        now = None if pod is None else self._needs_of(pod, before)
        if now == before:
            return frozenset()
        concerned: frozenset[UniqueName] = frozenset()
        if before is not None:
            concerned |= self._take_out(name, before)
        if now is not None:
            concerned |= self._put_in(name, now)
        return concerned

    def nodes_of(self, volume: UniqueName) -> dict[str, tuple[UsingPod, ...]]:
        """The pods that need it, by their nodes."""
        found: dict[str, tuple[UsingPod, ...]] = {}
        for needs in self._users.get(volume, {}).values():
            found[needs.node] = (*found.get(needs.node, ()), needs.user)
        return found

    def volume(self, name: UniqueName) -> Attachable | None:
        """As a pod that needs it has it; None where none does."""
        for needs in self._users.get(name, {}).values():
            return next(volume for volume in needs.volumes.values() if volume.name == name)
        return None

    def on(self, node: str) -> frozenset[UniqueName]:
        pods = self._pods_on.get(node, ())
        return frozenset(volume for name in pods for volume in self._needs[name].names())

    def names(self) -> tuple[UniqueName, ...]:
        return tuple(self._users)

    # ---- one pod -------------------------------------------------------------------------------------------------

    def _needs_of(self, pod: ApiObject, before: _Needs | None) -> _Needs | None:
        node = rules.node_of(pod)
        if not node:
            return None
        user = UsingPod(objects.namespace(pod) or "", objects.name(pod), objects.uid(pod))
        known = before.volumes if before is not None and before.user == user else {}
        volumes = {}
        for use in claims_used(pod):
            found = self._resolved(pod, use) or known.get(use.volume)
            if found is not None and rules.needs_attaching(self._find.csi_driver(ObjectName(None, found.driver))):
                volumes[use.volume] = found
        return _Needs(user, node, volumes) if volumes else None

    def _resolved(self, pod: ApiObject, use: ClaimUse) -> Attachable | None:
        claim = self._find.claim(use.claim)
        volume = self._find.volume(ObjectName(None, rules.volume_of_claim(claim)))
        return rules.attachable_by(pod, use, claim, volume)

    # ---- the book ------------------------------------------------------------------------------------------------

    def _take_out(self, name: ObjectName, needs: _Needs) -> frozenset[UniqueName]:
        del self._needs[name]
        self._pods_on[needs.node].discard(name)
        if not self._pods_on[needs.node]:
            del self._pods_on[needs.node]
        for volume in needs.names():
            users = self._users[volume]
            del users[name]
            if not users:
                del self._users[volume]
        return needs.names()

    def _put_in(self, name: ObjectName, needs: _Needs) -> frozenset[UniqueName]:
        self._needs[name] = needs
        self._pods_on.setdefault(needs.node, set()).add(name)
        for volume in needs.names():
            self._users.setdefault(volume, {})[name] = needs
        return needs.names()
