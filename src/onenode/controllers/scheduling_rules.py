"""Decide which node a pod gets, or why it gets none, in kube-scheduler's words. Pure.

`why_not_on` holds the checks of one node, in kube-scheduler's order; the first check that fails ends it.
`nodes_by_preference` orders the nodes that fit. Volumes are decided by `orlop.binding` and by
`scheduling.attach_limit_rules`.

kube-scheduler appends what preemption would achieve; nothing is preempted here, so the message ends before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from onenode.controllers.scheduling.pod_resource_rules import Amounts, Requests, load, requests_of, shortages
from orlop.binding.node_affinity_rules import pod_allows_node
from orlop.kube import objects

SCHEDULER: Final = "default-scheduler"
FINAL_PHASES: Final = ("Succeeded", "Failed")
FORBIDDING: Final = ("NoSchedule", "NoExecute")
UNSCHEDULABLE_TAINT: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
NO_NODES: Final = "no nodes available to schedule pods"
CORDONED: Final = "node(s) were unschedulable"
TAINTED: Final = "node(s) had untolerated taint(s)"
NOT_CHOSEN: Final = "node(s) didn't match Pod's node affinity/selector"
NOT_READY: Final = "node(s) were not ready"
UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SchedulableNode:
    """A Node, as far as scheduling needs it; read once for each version of the object."""

    node: ApiObject
    name: str
    labels: Mapping[str, str]
    taints: tuple[ApiObject, ...]
    """Those that keep pods away."""
    is_cordoned: bool
    is_ready: bool
    allocatable: Amounts | None
    """None: no kubelet has reported any, and nothing is counted."""


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """What a pod asks of a node, besides volumes."""

    pod: ApiObject
    uid: str
    tolerations: Sequence[ApiObject]
    is_choosy: bool
    """The pod has a nodeSelector or a required node affinity."""
    requests: Requests
    signature: str
    """Equal for pods that fit the same nodes, volumes aside."""


@dataclass(frozen=True, slots=True)
class Unschedulable:
    message: str
    reasons: frozenset[str] = field(default=frozenset(), compare=False)
    """The reasons of single nodes, by which the pod is retried when one of them may have passed."""


def waits_for_a_node(pod: ApiObject) -> bool:
    """Return whether the pod is ours to place: it has no node and no gate, and will run."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    is_ours = not spec.get("nodeName") and (spec.get("schedulerName") or SCHEDULER) == SCHEDULER
    is_to_run = not objects.is_being_deleted(pod) and status.get("phase") not in FINAL_PHASES
    return is_ours and is_to_run and not spec.get("schedulingGates")


def needs_of(pod: ApiObject) -> PodNeeds:
    spec = pod.get("spec") or {}
    tolerations, selector, requests = spec.get("tolerations") or (), spec.get("nodeSelector"), requests_of(pod)
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    signature = repr((tolerations, selector, affinity, requests))
    return PodNeeds(pod, objects.uid(pod), tolerations, bool(selector) or affinity is not None, requests, signature)


def why_not_on(pod: PodNeeds, node: SchedulableNode, used: Requests) -> tuple[str, ...]:
    """Return why the node does not fit; `used` is what its pods request. Nothing: it fits."""
    if node.is_cordoned and not _tolerates(pod.tolerations, UNSCHEDULABLE_TAINT):
        return (CORDONED,)
    if node.taints and not all(_tolerates(pod.tolerations, taint) for taint in node.taints):
        return (TAINTED,)
    if pod.is_choosy and not pod_allows_node(pod.pod, node.node):
        return (NOT_CHOSEN,)
    if not node.is_ready and not node.taints:
        # The node controller taints such a node, a moment later than the Node's condition changes.
        return (NOT_READY,)
    return shortages(pod.requests, node.allocatable, used) if node.allocatable is not None else ()


def forbidding_taints(node: ApiObject) -> tuple[ApiObject, ...]:
    taints = (node.get("spec") or {}).get("taints") or ()
    return tuple(taint for taint in taints if taint.get("effect") in FORBIDDING)


def load_on(pod: PodNeeds, node: SchedulableNode, used: Requests) -> float:
    """Return the share of the node's CPU and memory that is requested once the pod is there."""
    return load(pod.requests, node.allocatable, used)


def nodes_by_preference(uid: str, loads: Mapping[str, float], free_space: Mapping[str, int]) -> Iterator[str]:
    """Yield the nodes that fit, best first: by load, then the one with the most space for what is to be provisioned.

    Of equal ones a hash of the pod's uid and the node's name decides: pods spread, and a retry repeats itself.
    """
    equals: dict[tuple[float, int], list[str]] = {}
    for node, share in loads.items():
        equals.setdefault((share, -free_space.get(node, 0)), []).append(node)
    for rank in sorted(equals):
        yield from sorted(equals[rank], key=lambda node: (crc32(f"{uid}/{node}".encode()), node))


# ---- words -----------------------------------------------------------------------------------------------------------


def filter_message(nodes: int, against: Mapping[str, int]) -> str:
    if not nodes:
        return NO_NODES
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in against.items()))
    return f"0/{nodes} nodes are available: {reasons}."


def refusal_message(nodes: int, reason: str) -> str:
    """Return the message for a pod that no node can help: the reason has no count."""
    return f"0/{nodes} nodes are available: {reason}." if nodes else NO_NODES


def write_failure_message(error: str) -> str:
    return f'running PreBind plugin "VolumeBinding": {error}'


def wait_failure_message(error: str) -> str:
    return f'running PreBind plugin "VolumeBinding": binding volumes: {error}'


def not_scheduled_condition(message: str, reason: str = UNSCHEDULABLE) -> dict[str, str]:
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}


# ---- taints ----------------------------------------------------------------------------------------------------------


def _tolerates(tolerations: Iterable[ApiObject], taint: ApiObject) -> bool:
    return any(_is_tolerated_by(one, taint) for one in tolerations)


def _is_tolerated_by(toleration: ApiObject, taint: ApiObject) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")
