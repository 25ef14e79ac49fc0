"""The status of a pod as kubelet writes it: phase, conditions, the state of each container. Pure.

What others wrote (the scheduler's condition, the class of service, fields unknown here) is left alone: what comes out
is only what is to be changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from onenode.kubelet.pods.pod_life_rules import (
    ContainerLife,
    PodLife,
    Running,
    Terminated,
    Waiting,
    is_done,
    is_failed,
)
from orlop.foundation.duration import Duration
from orlop.kube.objects import Object, conditions, name, namespace, time_text, uid, with_condition

OWN_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """What a status contains besides the state of the containers."""

    now: datetime
    node_address: str
    can_start: bool
    """Volumes are there."""


def pod_status(pod: Mapping[str, Any], life: PodLife, facts: StatusFacts) -> Object:
    phase = pod_phase(life)
    status: Object = {
        "phase": phase,
        "conditions": _conditions(pod, life, phase, facts),
        "hostIP": facts.node_address,
        "hostIPs": [{"ip": facts.node_address}],
        "startTime": (pod.get("status") or {}).get("startTime") or time_text(facts.now),
        "containerStatuses": _container_statuses(pod, pod["spec"]["containers"], life.main, is_init=False),
    }
    if (generation := pod["metadata"].get("generation")) is not None:
        status["observedGeneration"] = generation
    if facts.can_start:
        status |= {"podIP": facts.node_address, "podIPs": [{"ip": facts.node_address}]}
    if life.init:
        specs = pod["spec"]["initContainers"]
        status["initContainerStatuses"] = _container_statuses(pod, specs, life.init, is_init=True)
    return status


def pod_phase(life: PodLife) -> str:
    if any(is_failed(one) for one in life.init) and life.restart_policy == "Never":
        return "Failed"
    begun = [one for one in life.main if _has_begun(one)]
    if not all(is_done(one) for one in life.init) and not begun:
        return "Pending"
    if len(begun) < len(life.main):
        return "Pending"
    if any(isinstance(one.state, Running) for one in life.main) or life.restart_policy == "Always":
        return "Running"
    if all(one.ended is not None and one.ended.code == 0 for one in life.main):
        return "Succeeded"
    return "Failed" if life.restart_policy == "Never" else "Running"


def _has_begun(one: ContainerLife) -> bool:
    return isinstance(one.state, Running) or one.ended is not None


def container_id(pod_uid: str, container: str, attempt: int) -> str:
    """Long and opaque, as those of container runtimes."""
    return f"orlop://{sha256(f'{pod_uid}/{container}/{attempt}'.encode()).hexdigest()}"


def backoff_message(pod: Mapping[str, Any], container: str, seconds: float) -> str:
    return f"back-off {Duration(int(seconds * 1e9))} restarting failed container={container} pod={pod_text(pod)}"


def pod_text(pod: Mapping[str, Any]) -> str:
    """As kubelet names a pod in its messages."""
    return f"{name(pod)}_{namespace(pod)}({uid(pod)})"


# ---- conditions ------------------------------------------------------------------------------------------------------


def _conditions(pod: Mapping[str, Any], life: PodLife, phase: str, facts: StatusFacts) -> list[Object]:
    present: list[Object] = [dict(one) for one in conditions(pod)]
    wanted = (
        {
            "type": "PodReadyToStartContainers",
            "status": _truth(facts.can_start and phase not in {"Succeeded", "Failed"}),
        },
        _initialized(life, phase),
        _ready("Ready", life, phase),
        _ready("ContainersReady", life, phase),
        {"type": "PodScheduled", "status": "True"},
    )
    for condition in wanted:
        present = with_condition(_without_reasons(present, condition["type"]), condition, facts.now)
    return present


def _without_reasons(present: list[Object], kind: str) -> list[Object]:
    """A reason that no longer holds must not stay because the new condition has none."""
    kept = []
    for one in present:
        dropped = {"reason", "message"} if one.get("type") == kind and kind in OWN_CONDITIONS else set()
        kept.append({field: value for field, value in one.items() if field not in dropped})
    return kept


def _initialized(life: PodLife, phase: str) -> Object:
    if phase == "Succeeded":
        return {"type": "Initialized", "status": "True", "reason": "PodCompleted"}
    incomplete = [one.name for one in life.init if not is_done(one)]
    if not incomplete or any(_has_begun(one) for one in life.main):
        return {"type": "Initialized", "status": "True"}
    message = f"containers with incomplete status: [{' '.join(incomplete)}]"
    return {"type": "Initialized", "status": "False", "reason": "ContainersNotInitialized", "message": message}


def _ready(kind: str, life: PodLife, phase: str) -> Object:
    if phase == "Succeeded":
        return {"type": kind, "status": "False", "reason": "PodCompleted"}
    if phase == "Failed":
        return {"type": kind, "status": "False", "reason": "PodFailed"}
    unready = [one.name for one in life.main if not isinstance(one.state, Running)]
    if not unready:
        return {"type": kind, "status": "True"}
    message = f"containers with unready status: [{' '.join(unready)}]"
    return {"type": kind, "status": "False", "reason": "ContainersNotReady", "message": message}


def _truth(value: bool) -> str:  # noqa: FBT001 - Kubernetes' own words for it
    return "True" if value else "False"


# ---- containers ------------------------------------------------------------------------------------------------------


def _container_statuses(
    pod: Mapping[str, Any], specs: Sequence[Mapping[str, Any]], lives: Sequence[ContainerLife], *, is_init: bool
) -> list[Object]:
    return [_container_status(uid(pod), spec, one, is_init=is_init) for spec, one in zip(specs, lives, strict=True)]


def _container_status(pod_uid: str, spec: Mapping[str, Any], one: ContainerLife, *, is_init: bool) -> Object:
    is_running = isinstance(one.state, Running)
    status: Object = {
        "name": one.name,
        "image": spec.get("image") or "",
        "imageID": "",
        "ready": is_done(one) if is_init else is_running,
        "started": is_running,
        "restartCount": max(0, one.attempt),
        "state": state_fields(one.state),
        "lastState": {},
    }
    if one.attempt >= 0:
        status["containerID"] = container_id(pod_uid, one.name, one.attempt)
        status |= _granted(spec)
    if one.ended is not None and one.state is not one.ended:
        status["lastState"] = state_fields(one.ended)
    return status


def _granted(spec: Mapping[str, Any]) -> Object:
    """Return what a container was started with: its volumes, and what it asked for of the node."""
    resources = spec.get("resources") or {}
    fields: Object = {"resources": resources}
    if requests := resources.get("requests"):
        fields["allocatedResources"] = requests
    if mounts := spec.get("volumeMounts"):
        fields["volumeMounts"] = [_mounted(each) for each in mounts]
    return fields


def _mounted(mount: Mapping[str, Any]) -> Object:
    place = {"name": mount["name"], "mountPath": mount["mountPath"]}
    if not mount.get("readOnly"):
        return place
    # A mount below one that may only be read can be written here, as in kubelet by default.
    return {**place, "readOnly": True, "recursiveReadOnly": "Disabled"}


def state_fields(state: Waiting | Running | Terminated) -> Object:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(since):
            return {"running": {"startedAt": time_text(since)}}
        case Terminated():
            return {"terminated": _terminated_fields(state)}


def _terminated_fields(state: Terminated) -> Object:
    fields: Object = {
        "exitCode": state.code,
        "reason": state.reason,
        "startedAt": time_text(state.began) if state.began else None,
        "finishedAt": time_text(state.ended),
        "containerID": state.container_id,
    }
    if state.message:
        fields["message"] = state.message
    return fields
