"""Explain which pods of a bound claim have not started, perhaps because kubelet cannot mount their volumes. Pure.

A claim is Bound before its volume is attached and mounted. Failures of both are events about the pod, not about the
claim, so they are read for pods that have a node and whose containers kubelet has not begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from orlop.admin.explanation import MOST_NAMES, ApiObject, Finding
from orlop.admin.past_events import PastEvent, events_about, failures
from orlop.admin.shell_commands import describe_command
from orlop.binding.storage_protection_rules import node_of
from orlop.kube import objects
from orlop.kube.kinds import POD

VOLUME_FAILURES: Final = ("FailedAttachVolume", "FailedMount", "FailedMapVolume")
"""Reasons of events about a pod whose volume cannot be attached (attach/detach controller) or mounted (kubelet)."""
BEFORE_CONTAINERS: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons for which a container waits while kubelet mounts the volumes; any other comes after that."""


def waiting_pods(pods: Iterable[ApiObject]) -> list[ApiObject]:
    """Return the first of the pods whose volumes kubelet has to mount, or is mounting, on their node."""
    return [pod for pod in pods if _waits(pod)][:MOST_NAMES]


def with_waiting_pods(
    finding: Finding, pods: Iterable[ApiObject], events: Sequence[ApiObject], now: datetime
) -> Finding:
    """Add to the finding about a bound claim or volume the pods that have not started, and their last failure.

    `events`: those about these pods.
    """
    waiting = [(pod, failures(events_about(_about(pod, events), objects.uid(pod)), *VOLUME_FAILURES)) for pod in pods]
    if not waiting:
        return finding
    # A pod with a failure explains more than one that has only just been created.
    pod, failed = next((each for each in waiting if each[1]), waiting[0])
    name, command = objects.name(pod), describe_command(POD, objects.namespace(pod), objects.name(pod))
    more = f" {len(waiting) - 1} more have not started either." if len(waiting) > 1 else ""
    if failed:
        sentence = f"The pod {name} has not started. {failed[0].sentence(now).rstrip('.')}.{more}"
        to_do = f"Remove the cause of this error, then the pod {name} starts by itself. {command} shows all its events."
    else:
        sentence = f"The pod {name} has not started, and no event shows a failure of its volumes.{more}"
        to_do = f"If this lasts, {command} shows what it waits for."
    fields = {**finding.fields, "podsNotStarted": [_fields(each, about) for each, about in waiting]}
    return replace(finding, sentence=f"{finding.sentence} {sentence}", next=to_do, fields=fields)


def _waits(pod: ApiObject) -> bool:
    status = pod.get("status") or {}
    if not node_of(pod) or objects.is_being_deleted(pod) or (status.get("phase") or "Pending") != "Pending":
        return False
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return all(_is_before_start(each.get("state") or {}) for each in containers)


def _is_before_start(container: ApiObject) -> bool:
    reason = (container.get("waiting") or {}).get("reason") or ""
    return not {"running", "terminated"} & container.keys() and reason in BEFORE_CONTAINERS


def _about(pod: ApiObject, events: Iterable[ApiObject]) -> list[ApiObject]:
    return [event for event in events if (event.get("involvedObject") or {}).get("name") == objects.name(pod)]


def _fields(pod: ApiObject, failed: Iterable[PastEvent]) -> Mapping[str, Any]:
    return {"name": objects.name(pod), "failures": [event.fields() for event in failed]}
