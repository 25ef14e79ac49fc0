"""What may change of a pod: by an update, by its status, and by binding it to a node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from onenode.apiserver.answers.status_answers import conflict_on_part
from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid
from onenode.apiserver.schema.field_rules import difference, named_well, unchanged, without
from onenode.go_text import as_json
from orlop.kube.kinds import POD
from orlop.kube.objects import with_condition

Object = Mapping[str, Any]

CHANGEABLE: Final = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
FREE: Final = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
SYSTEM_CONDITIONS: Final = frozenset({"PodScheduled", "Ready", "Initialized"})


def pod_update(old: Object, new: Object) -> Iterator[Cause]:
    before, after = old.get("spec", {}), new.get("spec", {})
    for kind in ("containers", "initContainers"):
        if len(before.get(kind, [])) != len(after.get(kind, [])):
            yield forbidden(f"spec.{kind}", "pod updates may not add or remove containers")
            return
        yield from _images(after.get(kind, []), f"spec.{kind}")
    yield from _deadline(before.get("activeDeadlineSeconds"), after.get("activeDeadlineSeconds"))
    yield from _tolerations(before.get("tolerations", []), after.get("tolerations", []))
    yield from _gates(before.get("schedulingGates", []), after.get("schedulingGates", []))
    fixed, now = _fixed(before, before), _fixed(after, before)
    if fixed != now:
        changed = difference(fixed, now)
        yield forbidden("spec", f"pod updates may not change fields other than {CHANGEABLE}\n{changed}")


def _images(containers: Sequence[Object], path: str) -> Iterator[Cause]:
    for place, each in enumerate(containers):
        image = each.get("image", "")
        if image.strip() != image:
            yield invalid(f"{path}[{place}].image", image, "must not have leading or trailing whitespace")


def _deadline(old: int | None, new: int | None) -> Iterator[Cause]:
    path = "spec.activeDeadlineSeconds"
    if old is not None and new is None:
        yield invalid(path, None, "must not update from a positive integer to nil value")
    elif old is not None and new is not None and old < new:
        yield invalid(path, new, "must be less than or equal to previous value")


def _tolerations(old: Sequence[Object], new: Sequence[Object]) -> Iterator[Cause]:
    before, kept = ({as_json(without(each, ["tolerationSeconds"])) for each in given} for given in (old, new))
    if not before <= kept:
        yield forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")


def _gates(old: Sequence[Object], new: Sequence[Object]) -> Iterator[Cause]:
    known = {gate.get("name") for gate in old}
    for place, gate in enumerate(new):
        if gate.get("name") not in known:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            yield forbidden(f"spec.schedulingGates[{place}].name", why)


def _fixed(spec: Object, before: Object) -> dict[str, Any]:
    """The spec without what may change."""
    made = without(spec, FREE)
    for kind in ("containers", "initContainers"):
        if kind in made:
            made[kind] = [without(each, ["image"]) for each in made[kind]]
    # A pod that waits at a gate may be given more restrictions on where to run.
    if before.get("schedulingGates") and before.get("nodeSelector", {}).items() <= spec.get("nodeSelector", {}).items():
        made.pop("nodeSelector", None)
    return made


def pod_status(old: Object, new: Object) -> Iterator[Cause]:
    before, after = old.get("status", {}), new.get("status", {})
    for place, condition in enumerate(after.get("conditions", [])):
        kind = condition.get("type", "")
        if kind not in SYSTEM_CONDITIONS:
            yield from named_well(name_rules.label_key, kind, f"status.conditions[{place}].Type")
    nominated = after.get("nominatedNodeName", "")
    if nominated and nominated != before.get("nominatedNodeName"):
        yield from named_well(name_rules.dns_subdomain, nominated, "status.nominatedNodeName")
    yield from unchanged(before.get("qosClass"), after.get("qosClass"), "status.qosClass")


# ---- binding a pod to a node -----------------------------------------------------------------------------------------

# What binding a pod to a node makes of the pod, and when it cannot be bound. Pure.


PART: Final = "binding"
SCHEDULED: Final = {"type": "PodScheduled", "status": "True"}


def bound(pod: dict[str, Any], binding: Mapping[str, Any], now: datetime) -> dict[str, Any]:
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


def _why_not(pod: dict[str, Any], binding: Mapping[str, Any]) -> str:
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
