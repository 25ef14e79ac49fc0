"""Read pods and templates for the workload controllers: active, ready, available, number of replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from orlop.kube import objects

Object = Mapping[str, Any]

COPIED_FROM_TEMPLATE: Final = ("labels", "annotations", "finalizers")


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def is_finished(pod: Object) -> bool:
    return phase(pod) in {"Succeeded", "Failed"}


def is_active(pod: Object) -> bool:
    return not is_finished(pod) and not objects.is_being_deleted(pod)


def is_ready(pod: Object) -> bool:
    return objects.is_condition_true(pod, "Ready")


def ready_since(pod: Object) -> datetime | None:
    condition = objects.condition(pod, "Ready")
    if condition is None or condition.get("status") != "True" or not condition.get("lastTransitionTime"):
        return None
    return objects.read_time(str(condition["lastTransitionTime"]))


def seconds_to_available(pod: Object, min_ready_seconds: int, now: datetime) -> float | None:
    """Return how long the pod must still stay ready to be available; 0 if it is, None if it is not ready."""
    if not is_ready(pod):
        return None
    since = ready_since(pod)
    if not min_ready_seconds or since is None:
        return 0.0
    return max(0.0, min_ready_seconds - (now - since).total_seconds())


def is_available(pod: Object, min_ready_seconds: int, now: datetime) -> bool:
    return seconds_to_available(pod, min_ready_seconds, now) == 0.0


def next_available(pods: Iterable[Object], min_ready_seconds: int, now: datetime) -> float | None:
    """Return the seconds until the next ready pod becomes available; None if none will."""
    waits = (seconds_to_available(pod, min_ready_seconds, now) for pod in pods)
    return min((wait for wait in waits if wait), default=None)


def min_ready_seconds(workload: Object) -> int:
    return int(workload["spec"].get("minReadySeconds") or 0)


def replicas(workload: Object) -> int:
    """Return the desired replicas of a workload."""
    desired = workload["spec"].get("replicas")
    return 1 if desired is None else int(desired)


def copied_metadata(template: Object) -> dict[str, Any]:
    """Return the metadata that a template passes on; the rest of it is ignored, as in Kubernetes."""
    metadata = template.get("metadata") or {}
    kept = {name: metadata[name] for name in COPIED_FROM_TEMPLATE if metadata.get(name)}
    return {name: list(value) if name == "finalizers" else dict(value) for name, value in kept.items()}
