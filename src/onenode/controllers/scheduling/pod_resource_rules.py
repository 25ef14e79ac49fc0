"""Decide how much of a node's CPU, memory and other resources a pod needs, and what the node lacks. Pure.

As in Kubernetes: containers add up; init containers run one after another before them, so only the largest counts,
with the sidecars (init containers that restart always) started before it. A container without a request needs what its
limit is. Each pod also takes one of the node's `pods`.

Amounts are whole numbers of billionths: sums are exact, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from orlop.foundation.quantity import NANOS_PER_UNIT, InvalidQuantity, Quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
TOO_MANY_PODS: Final = "Too many pods"
# What kube-scheduler counts for a container without requests when it compares the load of nodes, so that such pods
# spread as well.
USUAL_CPU: Final = NANOS_PER_UNIT // 10
USUAL_MEMORY: Final = 200 * 1024 * 1024 * NANOS_PER_UNIT
USUAL: Final = {CPU: USUAL_CPU, MEMORY: USUAL_MEMORY}

ApiObject = Mapping[str, Any]
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Requests:
    """What one or more pods need."""

    amounts: Amounts = field(default_factory=dict)
    weights: Amounts = field(default_factory=dict)
    """CPU and memory as they count when the load of nodes is compared."""


def requests_of(pod: ApiObject) -> Requests:
    spec = pod.get("spec") or {}
    running = [_requests(one) for one in spec.get("containers") or ()]
    needed = _sum(running)
    started: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            started = _sum((started, own))
            needed = _sum((needed, own))
            own = {}
        needed = _largest(needed, _sum((started, own)))
    # Requests of the pod as a whole replace the sum of its containers'.
    needed.update(_amounts((spec.get("resources") or {}).get("requests")))
    needed = _sum((needed, _amounts(spec.get("overhead"))))
    weights = {name: needed.get(name) or usual * max(1, len(running)) for name, usual in USUAL.items()}
    amounts = {name: amount for name, amount in needed.items() if amount > 0}
    return Requests({**amounts, PODS: NANOS_PER_UNIT}, weights)


def allocatable_of(node: ApiObject) -> dict[str, int] | None:
    """Return what the node has for pods; None if its kubelet has reported nothing yet."""
    return _amounts((node.get("status") or {}).get("allocatable")) or None


def used_by(pods: Iterable[Requests]) -> Requests:
    all_pods = tuple(pods)
    return Requests(_sum(one.amounts for one in all_pods), _sum(one.weights for one in all_pods))


def shortages(requests: Requests, allocatable: Amounts, used: Requests) -> tuple[str, ...]:
    """Return what is short, in kube-scheduler's words. What a pod does not request is never short."""
    taken = used.amounts
    short = [
        name for name, amount in requests.amounts.items() if amount + taken.get(name, 0) > allocatable.get(name, 0)
    ]
    return tuple(TOO_MANY_PODS if name == PODS else f"Insufficient {name}" for name in short)


def load(requests: Requests, allocatable: Amounts | None, used: Requests) -> float:
    """Return the mean share of CPU and memory requested once the pod is there, from 0 to about 1."""
    if allocatable is None:
        return 0.0
    total = 0.0
    for name, wanted in requests.weights.items():
        most = allocatable.get(name, 0)
        total += (wanted + used.weights.get(name, 0)) / most if most else 0.0
    return round(total / len(USUAL), 6)


def _requests(container: ApiObject) -> dict[str, int]:
    resources = container.get("resources") or {}
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}


def _amounts(texts: object) -> dict[str, int]:
    if not isinstance(texts, Mapping):
        return {}
    return {str(name): amount for name, text in texts.items() if (amount := _nanos(str(text))) is not None}


@lru_cache(maxsize=4096)
def _nanos(text: str) -> int | None:
    try:
        return Quantity.parse(text).nanos
    except InvalidQuantity:
        return None


def _sum(parts: Iterable[Amounts]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def _largest(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
