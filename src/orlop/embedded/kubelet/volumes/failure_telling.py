"""Tells of operations that failed: in the log, and to the pod as an event.

A mount that fails is an event each time, as kubelet has it. Of an unmount that fails kubelet says nothing to anybody
but its log, and the pod stays for reasons that nobody sees: here it is one event, whose reason is none of kubelet's.
Such an event, and the line in the log, come once for each reason, and again when it is another one.
"""

from __future__ import annotations

from orlop.embedded.kubelet.volumes import event_texts as texts
from orlop.embedded.kubelet.volumes.reconcile_rules import Expand, Mount, Operation, Unmount
from orlop.embedded.kubelet.volumes.step_failures import StepFailed
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools, reference_to
from orlop.embedded.kubelet.volumes.volume_values import PodFacts, PodUid, UniqueName


class FailureTelling:
    """Pods are known from their first sight to the end of their volumes: also those that want none any more."""

    def __init__(self, tools: VolumeTools) -> None:
        self._tools = tools
        self._pods: dict[PodUid, PodFacts] = {}
        self._told: dict[tuple[UniqueName, PodUid], str] = {}

    def know(self, pod: PodFacts) -> None:
        self._pods[pod.uid] = pod

    def forget(self, pod_uid: PodUid) -> None:
        self._pods.pop(pod_uid, None)
        self._told = {key: reason for key, reason in self._told.items() if key[1] != pod_uid}

    def forget_volume(self, volume: UniqueName) -> None:
        self._told = {key: reason for key, reason in self._told.items() if key[0] != volume}

    def failed(self, operation: Operation, volume: str, error: StepFailed) -> None:
        """`volume` is what it is called: in the pod, or its PersistentVolume."""
        pod, is_new = self._pods.get(_pod_uid(operation)), self._is_new(operation, error)
        if is_new:
            self._tools.log.warning(
                "an operation on a volume failed", pod=_pod_name(operation, pod), volume=volume, error=str(error)
            )
        if pod is None:
            return
        if isinstance(operation, Mount | Expand):
            note = texts.failed(error.prefix, volume, error.why)
            self._tools.events.warning(reference_to(pod), texts.reason_of(error.prefix), note)
        elif isinstance(operation, Unmount) and is_new:
            note = texts.not_unmounted(error.prefix, volume, error.why)
            self._tools.events.warning(reference_to(pod), texts.NOT_UNMOUNTED, note)

    def succeeded(self, operation: Operation) -> None:
        self._told.pop((operation.volume, _pod_uid(operation)), None)

    def _is_new(self, operation: Operation, error: StepFailed) -> bool:
        key, reason = (operation.volume, _pod_uid(operation)), str(error)
        is_new = self._told.get(key) != reason
        self._told[key] = reason
        return is_new


def _pod_uid(operation: Operation) -> PodUid:
    """Empty: it is about the node, whatever pods have the volume."""
    return operation.pod_uid if isinstance(operation, Mount | Expand | Unmount) else ""


def _pod_name(operation: Operation, pod: PodFacts | None) -> str | None:
    return str(pod.name) if pod is not None else _pod_uid(operation) or None
