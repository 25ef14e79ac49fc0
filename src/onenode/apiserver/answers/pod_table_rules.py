"""What a table shows of a pod: its status in one word, its restarts, where it runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from onenode.apiserver.answers.table_columns import age_text, column, wide

NONE: Final = "<none>"
FINISHED: Final = ("Succeeded", "Failed")
POD_COLUMNS: Final = (
    *map(column, ("Ready", "Status", "Restarts", "Age")),
    *map(wide, ("IP", "Node", "Nominated Node", "Readiness Gates")),
)

Object = Mapping[str, Any]


def pod_cells(pod: Object, now: datetime) -> Sequence[Any]:
    spec, status, meta = pod.get("spec") or {}, pod.get("status") or {}, pod.get("metadata") or {}
    containers = status.get("containerStatuses") or []
    ready = sum(1 for one in containers if one.get("ready"))
    return [
        meta.get("name", ""),
        f"{ready}/{len(spec.get('containers') or [])}",
        pod_status(pod),
        _restarts(containers, now),
        age_text(meta.get("creationTimestamp"), now),
        _first_address(status) or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _gates(spec, status),
    ]


def pod_status(pod: Object) -> str:
    status = pod.get("status") or {}
    phase = str(status.get("phase", ""))
    shown = str(status.get("reason") or phase)
    shown = _initialising(pod) or next(_reasons(status.get("containerStatuses") or []), shown)
    if (pod.get("metadata") or {}).get("deletionTimestamp") and phase not in FINISHED:
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return shown


def _initialising(pod: Object) -> str:
    """`Init:1/2`, or why an init container does not end; empty when all of them are done."""
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or []
    total = len((pod.get("spec") or {}).get("initContainers") or [])
    for number, one in enumerate(statuses):
        state = one.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and terminated.get("exitCode", 0) == 0:
            continue
        if terminated is not None:
            return f"Init:{terminated.get('reason') or _exit_text(terminated)}"
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{number}/{total}"
    return ""


def _reasons(containers: Sequence[Object]) -> Iterator[str]:
    """Of the containers, the last first: that is the one kubectl shows."""
    for one in reversed(containers):
        state = one.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            yield str(waiting["reason"])
        elif terminated is not None:
            yield str(terminated.get("reason") or _exit_text(terminated))


def _exit_text(terminated: Object) -> str:
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode', 0)}"


def _restarts(containers: Sequence[Object], now: datetime) -> str:
    count = sum(int(one.get("restartCount") or 0) for one in containers)
    ended = [
        str(finished)
        for one in containers
        if (finished := ((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt"))
    ]
    return f"{count} ({age_text(max(ended), now)} ago)" if count and ended else str(count)


def _first_address(status: Object) -> str:
    addresses = status.get("podIPs") or []
    return str(addresses[0].get("ip", "")) if addresses else str(status.get("podIP") or "")


def _gates(spec: Object, status: Object) -> str:
    gates = [one.get("conditionType") for one in spec.get("readinessGates") or []]
    if not gates:
        return NONE
    true = {one.get("type") for one in status.get("conditions") or [] if one.get("status") == "True"}
    return f"{sum(1 for gate in gates if gate in true)}/{len(gates)}"
