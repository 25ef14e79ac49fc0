"""Decide the next step for a ReplicaSet: pods to create or delete, and its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from onenode.controllers.workloads.ownership_rules import (
    API_VERSION,
    ChangeOwners,
    Wait,
    WriteStatus,
    is_controlled,
    ownership_step,
    status_step,
)
from onenode.controllers.workloads.pod_count_rules import (
    copied_metadata,
    is_active,
    is_available,
    is_ready,
    min_ready_seconds,
    next_available,
    phase,
    ready_since,
    replicas,
)
from orlop.kube import objects

Object = Mapping[str, Any]

MOST_AT_ONCE: Final = 500
KIND: Final = "ReplicaSet"
REPLICA_FAILURE: Final = "ReplicaFailure"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
PHASE_ORDER: Final = {"Pending": 0, "": 1, "Unknown": 1, "Running": 2}


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Create `count` pods with this body."""

    count: int
    pod: Object


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete these pods."""

    pods: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class CreationFailure:
    """A step that failed, as it is written into the status."""

    reason: str
    message: str


Step: TypeAlias = ChangeOwners | CreatePods | DeletePods | WriteStatus | Wait


def next_step(
    replica_set: Object, pods: Iterable[Object], now: datetime, failure: CreationFailure | None = None
) -> Step:
    """Return the next step. `pods` are all of the namespace. After a failure only the status is written."""
    known = list(pods)
    if failure is None and (step := ownership_step(replica_set, KIND, known)) is not None:
        return step
    owned = [pod for pod in known if is_controlled(replica_set, pod)]
    active = [pod for pod in owned if is_active(pod)]
    if failure is None and not objects.is_being_deleted(replica_set):
        surplus = len(active) - replicas(replica_set)
        if surplus < 0:
            return CreatePods(min(-surplus, MOST_AT_ONCE), new_pod(replica_set))
        if surplus > 0:
            return DeletePods(tuple(first_to_delete(active)[: min(surplus, MOST_AT_ONCE)]))
    seconds = next_available(active, min_ready_seconds(replica_set), now)
    return status_step(replica_set, _status(replica_set, owned, failure, now), seconds, ("replicas",))


def new_pod(replica_set: Object) -> dict[str, Any]:
    template = replica_set["spec"].get("template") or {}
    metadata = {
        "generateName": f"{objects.name(replica_set)}-",
        "namespace": objects.namespace(replica_set),
        "ownerReferences": [objects.controller_reference(replica_set, API_VERSION, KIND)],
    }
    return {"metadata": {**copied_metadata(template), **metadata}, "spec": template.get("spec") or {}}


def first_to_delete(pods: Iterable[Object]) -> list[Object]:
    """Sort pods by how little is lost with them, as Kubernetes does, except for siblings on the node."""
    # Stable sorts, the least important key first. A later time sorts before an earlier one, a missing one before all.
    ordered = sorted(pods, key=objects.name)
    ordered.sort(key=lambda pod: _age(objects.creation_time(pod)))
    ordered.sort(key=_restarts, reverse=True)
    ordered.sort(key=lambda pod: _age(ready_since(pod)))
    ordered.sort(key=_rank)
    return ordered


def _rank(pod: Object) -> tuple[bool, int, bool, int]:
    has_node = bool((pod.get("spec") or {}).get("nodeName"))
    return has_node, PHASE_ORDER.get(phase(pod), 2), is_ready(pod), _deletion_cost(pod)


def _age(moment: datetime | None) -> float:
    return -moment.timestamp() if moment is not None else float("-inf")


def _restarts(pod: Object) -> int:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return max((int(each.get("restartCount") or 0) for each in containers), default=0)


def _deletion_cost(pod: Object) -> int:
    try:
        return int(objects.annotations(pod).get(DELETION_COST, "0"))
    except ValueError:
        return 0


def _status(
    replica_set: Object, owned: Sequence[Object], failure: CreationFailure | None, now: datetime
) -> dict[str, Any]:
    active = [pod for pod in owned if is_active(pod)]
    seconds = min_ready_seconds(replica_set)
    labels = ((replica_set["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
    present = objects.without_condition(objects.conditions(replica_set), REPLICA_FAILURE)
    if failure is not None:
        condition = {"type": REPLICA_FAILURE, "status": "True", "reason": failure.reason, "message": failure.message}
        present = objects.with_condition(objects.conditions(replica_set), condition, now)
    return {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(labels.items() <= objects.labels(pod).items() for pod in active),
        "readyReplicas": sum(map(is_ready, active)),
        "availableReplicas": sum(is_available(pod, seconds, now) for pod in active),
        "terminatingReplicas": sum(objects.is_being_deleted(pod) for pod in owned),
        "conditions": present,
    }
