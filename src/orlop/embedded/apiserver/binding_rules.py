"""What binding a pod to a node makes of the pod, and when it cannot be bound. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from orlop.embedded.apiserver.status_answers import conflict_on_part
from orlop.kube.kinds import POD
from orlop.kube.objects import with_condition

Object = dict[str, Any]

PART: Final = "binding"
SCHEDULED: Final = {"type": "PodScheduled", "status": "True"}


def bound(pod: Object, binding: Mapping[str, Any], now: datetime) -> Object:
    if why := _why_not(pod, binding):
        raise conflict_on_part(POD, PART, pod["metadata"]["name"], why)
    status = pod.get("status", {})
    conditions = with_condition(status.get("conditions", []), SCHEDULED, now)
    given = binding.get("metadata", {}).get("annotations", {})
    metadata = pod["metadata"]
    if given:
        metadata = {**metadata, "annotations": {**metadata.get("annotations", {}), **given}}
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod.get("spec", {}), "nodeName": binding["target"]["name"]},
        "status": {**status, "conditions": conditions},
    }


def _why_not(pod: Object, binding: Mapping[str, Any]) -> str:
    name, spec = pod["metadata"]["name"], pod.get("spec", {})
    wanted, found = binding.get("metadata", {}).get("uid"), pod["metadata"].get("uid")
    if wanted and wanted != found:
        return f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""
