"""Decide how a Deployment's replica sets are scaled next: rolling update and Recreate. Pure.

The bounds of a rolling update: never more pods desired than `replicas + maxSurge`, and old pods are deleted only while
more than `replicas - maxUnavailable` are available.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onenode.controllers.workloads.pod_count_rules import replicas
from orlop.kube import objects

Object = Mapping[str, Any]

HUNDRED: Final = 100
DEFAULT_SHARE: Final = "25%"


@dataclass(frozen=True, slots=True)
class RollingBounds:
    """`most` is how many pods may be desired at once, `least` how many must be available."""

    most: int
    least: int


@dataclass(frozen=True, slots=True)
class ScaleReplicaSet:
    """Set the replicas of a replica set."""

    replica_set: Object
    replicas: int


def is_recreated(deployment: Object) -> bool:
    return bool((deployment["spec"].get("strategy") or {}).get("type") == "Recreate")


def bounds(deployment: Object) -> RollingBounds:
    desired = replicas(deployment)
    if is_recreated(deployment):
        return RollingBounds(desired, desired)
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    surge = math.ceil(_share(rolling.get("maxSurge", DEFAULT_SHARE), desired))
    unavailable = min(desired, math.floor(_share(rolling.get("maxUnavailable", DEFAULT_SHARE), desired)))
    if not surge and not unavailable:
        unavailable = 1  # percentages of few replicas: without one of them nothing could move
    return RollingBounds(desired + surge, max(0, desired - unavailable))


def _share(value: int | str, whole: int) -> float:
    if isinstance(value, str):
        # Whole numbers first: 55% of 20 are 11, and 20 * 0.55 is more.
        return int(value.removesuffix("%")) * whole / HUNDRED
    return value


def available(replica_set: Object) -> int:
    """Return how many available pods stay: after a scale-down the status still counts pods that go."""
    counted = int((replica_set.get("status") or {}).get("availableReplicas") or 0)
    return min(counted, replicas(replica_set))


def is_emptied(replica_set: Object) -> bool:
    """Return whether all its pods are gone, as the status of its current spec shows."""
    status = replica_set.get("status") or {}
    is_observed = int(status.get("observedGeneration") or 0) >= objects.generation(replica_set)
    has_pods = any(status.get(field) for field in ("replicas", "terminatingReplicas"))
    return is_observed and not replicas(replica_set) and not has_pods


def first_replicas(deployment: Object, old: Iterable[Object]) -> int:
    """Return how many replicas a new replica set begins with."""
    if is_recreated(deployment):
        return replicas(deployment)
    room = bounds(deployment).most - sum(map(replicas, old))
    return max(0, min(room, replicas(deployment)))


def scalings(deployment: Object, new: Object, old: Sequence[Object]) -> Iterator[ScaleReplicaSet]:
    """Yield the possible scalings in their order. `old` are sorted, the oldest first."""
    desired, current = replicas(deployment), replicas(new)
    if current > desired:
        yield ScaleReplicaSet(new, desired)
    if is_recreated(deployment):
        if current < desired and all(map(is_emptied, old)):
            yield ScaleReplicaSet(new, desired)
        return
    room = bounds(deployment).most - current - sum(map(replicas, old))
    if current < desired and room > 0:
        yield ScaleReplicaSet(new, min(desired, current + room))
    yield from _old_scalings(bounds(deployment).least, new, old)


def emptyings(old: Iterable[Object]) -> Iterator[ScaleReplicaSet]:
    return (ScaleReplicaSet(each, 0) for each in old if replicas(each))


def _old_scalings(least: int, new: Object, old: Sequence[Object]) -> Iterator[ScaleReplicaSet]:
    unavailable_new = max(0, replicas(new) - available(new))
    room = replicas(new) + sum(map(replicas, old)) - least - unavailable_new
    if room <= 0:
        return
    # Pods that are not available first: they serve no clients, and may be the reason for the rollout.
    for each in old:
        if useless := min(room, replicas(each) - available(each)):
            yield ScaleReplicaSet(each, replicas(each) - useless)
    surplus = available(new) + sum(map(available, old)) - least
    for each in old:
        if surplus > 0 and replicas(each):
            yield ScaleReplicaSet(each, max(0, replicas(each) - surplus))
