"""Whether a pod goes to a node, or why it cannot, in kube-scheduler's words. Pure.

A placeholder for one machine: a node that may be used and that the pod allows is the one. How much a node has of
anything is not counted. What stands against a node from elsewhere, such as where a pod's volumes are, is handed in as
`objections`, by the node's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orlop.kube import objects
from orlop.kube.label_requirements import InvalidSelector, Operator, Requirement

SCHEDULER: Final = "default-scheduler"
FINAL_PHASES: Final = ("Succeeded", "Failed")
FORBIDDING: Final = ("NoSchedule", "NoExecute")
UNSCHEDULABLE_TAINT: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
NO_NODES: Final = "no nodes available to schedule pods"
CORDONED: Final = "node(s) were unschedulable"
TAINTED: Final = "node(s) had untolerated taint(s)"
NOT_CHOSEN: Final = "node(s) didn't match Pod's node affinity/selector"
NOT_READY: Final = "node(s) were not ready"
OPERATORS: Final[Mapping[str, Operator]] = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.NOT_EXISTS,
    "Gt": Operator.GREATER,
    "Lt": Operator.LESS,
}

ApiObject = Mapping[str, Any]
Objections = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NotOurs:
    """It has a node, is another scheduler's, must wait for its gates, or will never run."""


@dataclass(frozen=True, slots=True)
class Bind:
    node: str


@dataclass(frozen=True, slots=True)
class Unschedulable:
    message: str


Decision = NotOurs | Bind | Unschedulable


def waits_for_a_node(pod: ApiObject) -> bool:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    is_ours = not spec.get("nodeName") and (spec.get("schedulerName") or SCHEDULER) == SCHEDULER
    is_to_run = not objects.is_being_deleted(pod) and status.get("phase") not in FINAL_PHASES
    return is_ours and is_to_run and not spec.get("schedulingGates")


def decide(pod: ApiObject, nodes: Iterable[ApiObject], objections: Objections | None = None) -> Decision:
    """Of several nodes the first by name, so that a second look says the same."""
    if not waits_for_a_node(pod):
        return NotOurs()
    against: Counter[str] = Counter()
    count = 0
    for node in sorted(nodes, key=objects.name):
        count += 1
        reasons = why_not_on(pod, node) or (objections or {}).get(objects.name(node), ())
        if not reasons:
            return Bind(objects.name(node))
        against.update(reasons)
    return Unschedulable(_message(count, against))


def why_not_on(pod: ApiObject, node: ApiObject) -> tuple[str, ...]:
    """The first reason alone, as kube-scheduler asks one thing after the other."""
    spec, of_node = pod.get("spec") or {}, node.get("spec") or {}
    tolerations = spec.get("tolerations") or ()
    if of_node.get("unschedulable") and not _tolerates(tolerations, UNSCHEDULABLE_TAINT):
        return (CORDONED,)
    taints = [taint for taint in of_node.get("taints") or () if taint.get("effect") in FORBIDDING]
    if not all(_tolerates(tolerations, taint) for taint in taints):
        return (TAINTED,)
    if not _is_chosen(spec, node):
        return (NOT_CHOSEN,)
    if not taints and not objects.is_condition_true(node, "Ready"):
        return (NOT_READY,)  # its taint is just being put on
    return ()


def unschedulable_condition(message: str) -> dict[str, str]:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


def _message(count: int, against: Counter[str]) -> str:
    if not count:
        return NO_NODES
    reasons = ", ".join(sorted(f"{times} {reason}" for reason, times in against.items()))
    return f"0/{count} nodes are available: {reasons}."


# ---- taints ----------------------------------------------------------------------------------------------------------


def _tolerates(tolerations: Sequence[ApiObject], taint: ApiObject) -> bool:
    return any(_is_tolerated_by(one, taint) for one in tolerations)


def _is_tolerated_by(toleration: ApiObject, taint: ApiObject) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


# ---- what the pod chooses --------------------------------------------------------------------------------------------


def _is_chosen(spec: ApiObject, node: ApiObject) -> bool:
    labels = objects.labels(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_fits(term, node) for term in required.get("nodeSelectorTerms") or ())


def _fits(term: ApiObject, node: ApiObject) -> bool:
    """A term that asks for nothing fits no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    named = {"metadata.name": objects.name(node)}
    asked = [*((one, objects.labels(node)) for one in expressions), *((one, named) for one in fields)]
    return bool(asked) and all(_holds(one, values) for one, values in asked)


def _holds(expression: ApiObject, values: Mapping[str, str]) -> bool:
    try:
        operator = OPERATORS[expression.get("operator", "")]
        return Requirement(expression.get("key", ""), operator, tuple(expression.get("values") or ())).matches(values)
    except (KeyError, InvalidSelector):
        return False
