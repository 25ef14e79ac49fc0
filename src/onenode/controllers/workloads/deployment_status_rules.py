"""The status of a Deployment: counts, and the conditions that `kubectl rollout status` and `wait` read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from onenode.controllers.workloads.ownership_rules import collisions
from onenode.controllers.workloads.pod_count_rules import replicas
from onenode.controllers.workloads.rollout_rules import bounds
from orlop.kube import objects

Object = Mapping[str, Any]
ReplicaCounts = Mapping[str, int]

SUMMED: Final = ("replicas", "readyReplicas", "availableReplicas", "terminatingReplicas")
NO_DEADLINE: Final = 2**31 - 1
DEADLINE_SECONDS: Final = 600
AVAILABLE, PROGRESSING, FAILURE = "Available", "Progressing", "ReplicaFailure"
COMPLETE: Final = "NewReplicaSetAvailable"
TIMED_OUT: Final = "ProgressDeadlineExceeded"
PAUSED, RESUMED = "DeploymentPaused", "DeploymentResumed"


def deployment_status(
    deployment: Object, new: Object | None, old: Sequence[Object], now: datetime
) -> tuple[dict[str, Any], float | None]:
    """Return the status, and the seconds until the deadline of a rollout passes, if one runs."""
    every = [*old, new] if new is not None else list(old)
    counts = {field: sum(_count(each, field) for each in every) for field in SUMMED}
    counts["updatedReplicas"] = _count(new, "replicas") if new is not None else 0
    counts["unavailableReplicas"] = max(0, sum(map(replicas, every)) - counts["availableReplicas"])
    present = _with(objects.conditions(deployment), _availability(deployment, counts), now)
    progress = _progress(deployment, new, counts, now)
    if progress is not None:
        present = _with(present, progress, now)
    present = _with_failure(present, new, old, now)
    ordered = sorted(present, key=lambda each: str(each["type"]))
    status = {**counts, "collisionCount": collisions(deployment), "conditions": ordered}
    return status, _seconds_left(deployment, present, now)


def _count(replica_set: Object, field: str) -> int:
    return int((replica_set.get("status") or {}).get(field) or 0)


def _with(present: Sequence[Object], new: Object, now: datetime) -> list[dict[str, Any]]:
    """Replace the condition; `lastUpdateTime` changes with the condition, and when a rollout progresses."""
    before = next((each for each in present if each["type"] == new["type"]), None)
    same = before is not None and all(before.get(field) == new[field] for field in ("status", "reason", "message"))
    moved = new.get("lastUpdateTime") or (before or {}).get("lastUpdateTime")
    time = moved if same and moved else objects.time_text(now)
    return objects.with_condition(present, {**new, "lastUpdateTime": time}, now)


def _availability(deployment: Object, counts: ReplicaCounts) -> Object:
    if counts["availableReplicas"] >= bounds(deployment).least:
        text = "Deployment has minimum availability."
        return {"type": AVAILABLE, "status": "True", "reason": "MinimumReplicasAvailable", "message": text}
    text = "Deployment does not have minimum availability."
    return {"type": AVAILABLE, "status": "False", "reason": "MinimumReplicasUnavailable", "message": text}


def _with_failure(
    present: Sequence[Object], new: Object | None, old: Sequence[Object], now: datetime
) -> list[dict[str, Any]]:
    """Show the failure of a replica set to create its pods: the new one's before the others'."""
    every = [*([new] if new is not None else []), *old]
    failure = next(filter(None, (objects.condition(each, FAILURE) for each in every)), None)
    if failure is None:
        return objects.without_condition(present, FAILURE)
    return _with(present, {field: failure[field] for field in ("type", "status", "reason", "message")}, now)


# ---- progress --------------------------------------------------------------------------------------------------------


def _deadline(deployment: Object) -> int | None:
    seconds = deployment["spec"].get("progressDeadlineSeconds", DEADLINE_SECONDS)
    return None if seconds in {None, NO_DEADLINE} else int(seconds)


def _progress(deployment: Object, new: Object | None, counts: ReplicaCounts, now: datetime) -> Object | None:
    """Return the condition Progressing; None leaves it as it is."""
    before = objects.condition(deployment, PROGRESSING) or {}
    if _deadline(deployment) is None:
        return None
    if deployment["spec"].get("paused"):
        return _unknown(PAUSED, "Deployment is paused") if before.get("reason") != TIMED_OUT else None
    if before.get("reason") == PAUSED:
        return _unknown(RESUMED, "Deployment is resumed")
    return _rollout(deployment, objects.name(new), counts, now) if new is not None else None


def _rollout(deployment: Object, name: str, counts: ReplicaCounts, now: datetime) -> Object | None:
    before = objects.condition(deployment, PROGRESSING) or {}
    reason = before.get("reason")
    condition: Object | None = None
    if is_complete(deployment, counts):
        condition = _progressing(COMPLETE, f'ReplicaSet "{name}" has successfully progressed.')
    elif f'"{name}"' not in str(before.get("message", "")) and reason != RESUMED:
        condition = _progressing("NewReplicaSetCreated", f'Created new replica set "{name}"')
    elif reason == COMPLETE and counts["replicas"] == counts["updatedReplicas"]:
        pass  # pods that were lost, and another scale, are no rollout
    elif _has_progressed(deployment, counts):
        text = f'ReplicaSet "{name}" is progressing.'
        condition = {**_progressing("ReplicaSetUpdated", text), "lastUpdateTime": objects.time_text(now)}
    elif reason != COMPLETE and _is_late(deployment, before, now):
        text = f'ReplicaSet "{name}" has timed out progressing.'
        condition = {"type": PROGRESSING, "status": "False", "reason": TIMED_OUT, "message": text}
    return condition


def _progressing(reason: str, message: str) -> dict[str, str]:
    return {"type": PROGRESSING, "status": "True", "reason": reason, "message": message}


def _unknown(reason: str, message: str) -> dict[str, str]:
    return {"type": PROGRESSING, "status": "Unknown", "reason": reason, "message": message}


def is_complete(deployment: Object, counts: ReplicaCounts) -> bool:
    desired = replicas(deployment)
    return all(counts[field] == desired for field in ("updatedReplicas", "replicas", "availableReplicas"))


def _has_progressed(deployment: Object, counts: ReplicaCounts) -> bool:
    before = deployment.get("status") or {}

    def was(field: str) -> int:
        return int(before.get(field) or 0)

    old, old_before = counts["replicas"] - counts["updatedReplicas"], was("replicas") - was("updatedReplicas")
    more = any(counts[field] > was(field) for field in ("updatedReplicas", "readyReplicas", "availableReplicas"))
    return more or old < old_before


def _is_late(deployment: Object, condition: Object, now: datetime) -> bool:
    left = _seconds_to_deadline(deployment, condition, now)
    return condition.get("reason") == TIMED_OUT or (left is not None and left <= 0)


def _seconds_to_deadline(deployment: Object, condition: Object, now: datetime) -> float | None:
    deadline, since = _deadline(deployment), condition.get("lastUpdateTime")
    if deadline is None or not since:
        return None
    return deadline - (now - objects.read_time(str(since))).total_seconds()


def _seconds_left(deployment: Object, present: Sequence[Object], now: datetime) -> float | None:
    condition = next((each for each in present if each["type"] == PROGRESSING), None)
    if condition is None or condition.get("reason") in {COMPLETE, TIMED_OUT, PAUSED}:
        return None
    left = _seconds_to_deadline(deployment, condition, now)
    # Times have whole seconds: a moment later the deadline has certainly passed.
    return None if left is None else max(0.0, left) + 1.0
