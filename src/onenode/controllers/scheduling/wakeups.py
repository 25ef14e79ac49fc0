"""Which pods are scheduled again when something changes: each waits for topics, and each change has some.

A change first reaches the books of the search, then wakes the pods that it may help: a claim those that name it, a
volume those that want one of its class, a pod that is gone those that found no place. Every change of a Node that
counts wakes all. Changes that can only take something away, and heartbeats, wake nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from onenode.controllers.scheduling.attach_limit_rules import LIMIT_EXCEEDED
from onenode.controllers.scheduling.node_search import CLAIM_IN_USE, NodeSearch, SchedulerCaches
from onenode.controllers.scheduling.pod_resource_rules import TOO_MANY_PODS
from onenode.controllers.scheduling_rules import FINAL_PHASES, SchedulableNode, waits_for_a_node
from orlop.binding import claim_state_rules as state
from orlop.binding.match_rules import AVAILABLE
from orlop.binding.pod_claim_rules import claims_used
from orlop.kube import objects
from orlop.kube.objects import ObjectName

ApiObject = Mapping[str, Any]
Topic: TypeAlias = tuple[str, str]
NODES: Final[Topic] = ("nodes", "")
PLACES: Final[Topic] = ("places on nodes", "")
ATTACHMENTS: Final[Topic] = ("attachments", "")
DRIVERS: Final[Topic] = ("drivers", "")
NEEDS_PLACE: Final = frozenset({TOO_MANY_PODS, LIMIT_EXCEEDED, CLAIM_IN_USE})
INSUFFICIENT: Final = "Insufficient "


def claim_topic(name: ObjectName) -> Topic:
    return "claim", str(name)


def volume_topic(name: str) -> Topic:
    return "volume", name


def node_topic(name: str) -> Topic:
    return "node", name


def class_topic(name: str) -> Topic:
    return "class", name


def topics_of(pod: ApiObject, claims: Iterable[ApiObject], reasons: Iterable[str]) -> frozenset[Topic]:
    """Return what may help a pod that found no node; `claims` are those of its claims that exist."""
    topics = {NODES, *(claim_topic(use.claim) for use in claims_used(pod))}
    for claim in claims:
        topics |= {class_topic(state.class_name(claim)), volume_topic(state.volume_name(claim)), DRIVERS}
    for reason in reasons:
        if reason in NEEDS_PLACE or reason.startswith(INSUFFICIENT):
            topics.add(PLACES)
        if reason == LIMIT_EXCEEDED:
            topics.add(ATTACHMENTS)
    return frozenset(topics)


class Wakeups:
    def __init__(self, caches: SchedulerCaches, search: NodeSearch, wake: Callable[[ObjectName], None]) -> None:
        self._caches = caches
        self._search = search
        self._wake = wake
        self._topics: dict[ObjectName, frozenset[Topic]] = {}
        self._waiting: dict[Topic, dict[ObjectName, None]] = {}
        self._nodes_seen: dict[ObjectName, object] = {}
        self._pods_seen: dict[ObjectName, object] = {}

    # ---- pods that wait ------------------------------------------------------------------------------------------

    def wait_for(self, pod: ObjectName, topics: frozenset[Topic]) -> None:
        """Wake the pod at the next change of one of the topics, and at each one after it."""
        self.leave(pod)
        self._topics[pod] = topics
        for topic in topics:
            self._waiting.setdefault(topic, {})[pod] = None

    def leave(self, pod: ObjectName) -> None:
        for topic in self._topics.pop(pod, ()):
            waiting = self._waiting[topic]
            del waiting[pod]
            if not waiting:
                del self._waiting[topic]

    def __len__(self) -> int:
        """Return how many pods wait."""
        return len(self._topics)

    def wake(self, topic: Topic) -> None:
        for pod in tuple(self._waiting.get(topic, ())):
            self._wake(pod)

    # ---- changes -------------------------------------------------------------------------------------------------

    def listen(self) -> tuple[Callable[[], None], ...]:
        """Follow the caches; return what ends it. Volumes and claims come before the pods that use them."""
        caches = self._caches
        return (
            caches.classes.add_listener(self._class_changed),
            caches.volumes.add_listener(self._volume_changed),
            caches.claims.add_listener(self._claim_changed),
            caches.csi_drivers.add_listener(lambda _name: self.wake(DRIVERS)),
            caches.csi_nodes.add_listener(self._csi_node_changed),
            caches.capacities.add_listener(self._capacity_changed),
            caches.attachments.add_listener(self._attachment_changed),
            caches.nodes.add_listener(self._node_changed),
            caches.pods.add_listener(self._pod_changed),
        )

    def _pod_changed(self, name: ObjectName) -> None:
        pod = self._caches.pods.get(name)
        if self._search.pods.look_at(name, pod):
            self.wake(PLACES)
        before, now = self._pods_seen.get(name), _what_counts_of_pod(pod)
        if now is None:
            self._pods_seen.pop(name, None)
        else:
            self._pods_seen[name] = now
        # The condition that says why it waits is our own write, and no reason to search again.
        if before != now and (name in self._topics or (pod is not None and waits_for_a_node(pod))):
            self._wake(name)

    def _node_changed(self, name: ObjectName) -> None:
        facts = self._search.node_changed(name)
        now = None if facts is None else _what_counts_of_node(facts)
        if self._nodes_seen.get(name) == now:
            return
        if now is None:
            del self._nodes_seen[name]
        else:
            self._nodes_seen[name] = now
        self.wake(NODES)
        self.wake(node_topic(name.name))

    def _csi_node_changed(self, name: ObjectName) -> None:
        if self._search.csi_node_changed(name):
            self.wake(NODES)

    def _claim_changed(self, name: ObjectName) -> None:
        self._search.claim_changed(name)
        self.wake(claim_topic(name))

    def _volume_changed(self, name: ObjectName) -> None:
        self._search.volume_changed(name)
        self.wake(volume_topic(name.name))
        volume = self._caches.volumes.get(name)
        if volume is None:
            return
        reference = state.claim_reference(volume)
        if reference is not None:
            self.wake(claim_topic(ObjectName(reference.get("namespace"), str(reference.get("name") or ""))))
        elif state.phase(volume) == AVAILABLE:
            self.wake(class_topic(state.class_name(volume)))

    def _class_changed(self, name: ObjectName) -> None:
        self.wake(class_topic(name.name))

    def _capacity_changed(self, name: ObjectName) -> None:
        if class_name := self._search.capacity_changed(name):
            self.wake(class_topic(class_name))

    def _attachment_changed(self, name: ObjectName) -> None:
        self._search.attachment_changed(name)
        if self._caches.attachments.get(name) is None:
            self.wake(ATTACHMENTS)


def _what_counts_of_node(facts: SchedulableNode) -> object:
    return facts.labels, facts.taints, facts.is_cordoned, facts.is_ready, facts.allocatable


def _what_counts_of_pod(pod: ApiObject | None) -> object:
    if pod is None:
        return None
    has_ended = (pod.get("status") or {}).get("phase") in FINAL_PHASES
    return objects.uid(pod), pod.get("spec"), objects.is_being_deleted(pod), has_ended
