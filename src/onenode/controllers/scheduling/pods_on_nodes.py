"""Which pods are on which nodes, with those that the scheduler has just put there: what they request, and their claims.

A pod that was bound or reserved counts on its node at once (`assume`), before the watch shows it: two pods never both
take the last place. An assumed pod becomes a real one when the cache shows its node, and goes when the cache shows that
the pod is gone, or when the scheduler gives it up (`forget`). Sums are made from the list of a node's pods, and kept
until that changes. Nothing here waits or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onenode.controllers.scheduling.attach_limit_rules import CountedVolume
from onenode.controllers.scheduling.pod_resource_rules import Requests, requests_of, used_by
from onenode.controllers.scheduling_rules import FINAL_PHASES
from orlop.binding.pod_claim_rules import ClaimUse, claims_used
from orlop.kube import objects
from orlop.kube.objects import ObjectName

ApiObject = Mapping[str, Any]
Resolve = Callable[[ObjectName], CountedVolume | None]
"""Return the volume of a claim, as far as attaching goes."""
NOTHING: Final = Requests()


@dataclass(frozen=True, slots=True)
class _Placed:
    uid: str
    node: str
    requests: Requests
    uses: tuple[ClaimUse, ...]
    is_assumed: bool


class PodsOnNodes:
    def __init__(self, usage_changed: Callable[[str], None] = lambda _node: None) -> None:
        self._usage_changed = usage_changed
        self._placed: dict[ObjectName, _Placed] = {}
        self._on: dict[str, dict[ObjectName, _Placed]] = {}
        self._users: dict[ObjectName, set[ObjectName]] = {}
        """By claim: the pods that refer to it."""
        self._used: dict[str, Requests] = {}
        self._volumes: dict[str, frozenset[CountedVolume]] = {}

    # ---- reading -------------------------------------------------------------------------------------------------

    def used_on(self, node: str) -> Requests:
        """Return what the node's pods request together."""
        known = self._used.get(node)
        if known is None:
            placed = self._on.get(node)
            known = self._used[node] = used_by(one.requests for one in placed.values()) if placed else NOTHING
        return known

    def volumes_on(self, node: str, resolve: Resolve) -> frozenset[CountedVolume]:
        """Return the volumes of the node's pods."""
        known = self._volumes.get(node)
        if known is None:
            claims = {use.claim for one in self._on.get(node, {}).values() for use in one.uses}
            found = frozenset(volume for claim in claims if (volume := resolve(claim)) is not None)
            known = self._volumes[node] = found
        return known

    def users_of(self, claim: ObjectName) -> frozenset[ObjectName]:
        """Return the pods with a node that name the claim; not those with a generic ephemeral volume."""
        return frozenset(
            pod
            for pod in self._users.get(claim, ())
            if any(use.claim == claim and not use.is_ephemeral for use in self._placed[pod].uses)
        )

    def is_assumed(self, pod: ObjectName, uid: str) -> bool:
        placed = self._placed.get(pod)
        return placed is not None and placed.is_assumed and placed.uid == uid

    # ---- changing ------------------------------------------------------------------------------------------------

    def look_at(self, name: ObjectName, pod: ApiObject | None) -> bool:
        """Take over what the cache shows of a pod; return whether something on a node became free."""
        before = self._placed.get(name)
        if pod is not None and _is_on_a_node(pod):
            if before is not None and not before.is_assumed and before.uid == objects.uid(pod):
                return False
            self._put(name, _placed(pod, pod["spec"]["nodeName"], is_assumed=False))
            return before is not None and before.node != pod["spec"]["nodeName"]
        is_still_assumed = before is not None and before.is_assumed and pod is not None and not _has_ended(pod, before)
        if before is None or is_still_assumed:
            return False
        self._remove(name)
        return True

    def assume(self, pod: ApiObject, node: str) -> None:
        self._put(objects.name_of(pod), _placed(pod, node, is_assumed=True))

    def forget(self, name: ObjectName, uid: str) -> bool:
        """Give up an assumed pod; return whether there was one. What the cache has shown stays."""
        placed = self._placed.get(name)
        if placed is None or not placed.is_assumed or placed.uid != uid:
            return False
        self._remove(name)
        return True

    def claim_changed(self, claim: ObjectName) -> None:
        """The claim, or its volume, changed: what its users have attached is to be read anew."""
        for pod in self._users.get(claim, ()):
            self._volumes.pop(self._placed[pod].node, None)

    def _put(self, name: ObjectName, placed: _Placed) -> None:
        self._remove(name)
        self._placed[name] = placed
        self._on.setdefault(placed.node, {})[name] = placed
        for use in placed.uses:
            self._users.setdefault(use.claim, set()).add(name)
        self._node_changed(placed.node)

    def _remove(self, name: ObjectName) -> None:
        placed = self._placed.pop(name, None)
        if placed is None:
            return
        del self._on[placed.node][name]
        if not self._on[placed.node]:
            del self._on[placed.node]
        for claim in {use.claim for use in placed.uses}:
            self._users[claim].discard(name)
            if not self._users[claim]:
                del self._users[claim]
        self._node_changed(placed.node)

    def _node_changed(self, node: str) -> None:
        self._used.pop(node, None)
        self._volumes.pop(node, None)
        self._usage_changed(node)


def _is_on_a_node(pod: ApiObject) -> bool:
    has_node = bool((pod.get("spec") or {}).get("nodeName"))
    return has_node and (pod.get("status") or {}).get("phase") not in FINAL_PHASES


def _has_ended(pod: ApiObject, assumed: _Placed) -> bool:
    status = pod.get("status") or {}
    return objects.uid(pod) != assumed.uid or status.get("phase") in FINAL_PHASES


def _placed(pod: ApiObject, node: str, *, is_assumed: bool) -> _Placed:
    return _Placed(objects.uid(pod), node, requests_of(pod), tuple(claims_used(pod)), is_assumed)
