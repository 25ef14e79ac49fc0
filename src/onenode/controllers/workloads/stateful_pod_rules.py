"""The pods and claims of a StatefulSet: stable names, and who owns a claim under its retention policy. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from onenode.controllers.workloads.ownership_rules import API_VERSION, selects, with_owners
from onenode.controllers.workloads.pod_count_rules import copied_metadata, replicas
from onenode.controllers.workloads.revision_rules import KIND, REVISION_OF_POD
from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.objects import ObjectName

Object = Mapping[str, Any]

POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
NUMBERED: Final = re.compile(r"(?P<set>.+)-(?P<ordinal>0|[1-9][0-9]{0,8})")
DELETE: Final = "Delete"


def ordinal_of(stateful_set: Object, pod: Object) -> int | None:
    """Return the number of a pod of the set; None if the pod has another's name."""
    match = NUMBERED.fullmatch(objects.name(pod))
    return int(match["ordinal"]) if match is not None and match["set"] == objects.name(stateful_set) else None


def is_member(stateful_set: Object, pod: Object) -> bool:
    return selects(stateful_set, pod) and ordinal_of(stateful_set, pod) is not None


def pod_name(stateful_set: Object, ordinal: int) -> str:
    return f"{objects.name(stateful_set)}-{ordinal}"


def ordinals(stateful_set: Object) -> range:
    start = int((stateful_set["spec"].get("ordinals") or {}).get("start") or 0)
    return range(start, start + replicas(stateful_set))


def new_member(stateful_set: Object, ordinal: int, template: Object, revision: str) -> dict[str, Any]:
    name = pod_name(stateful_set, ordinal)
    metadata = copied_metadata(template)
    labels = {**metadata.get("labels", {}), POD_NAME: name, POD_INDEX: str(ordinal), REVISION_OF_POD: revision}
    spec = template.get("spec") or {}
    sources = {volume: {"claimName": claim.name} for volume, claim in claim_names(stateful_set, ordinal)}
    claimed = [{"name": volume, "persistentVolumeClaim": source} for volume, source in sources.items()]
    others = [volume for volume in spec.get("volumes") or () if volume.get("name") not in sources]
    service = stateful_set["spec"].get("serviceName")
    identity = {"hostname": name, **({"subdomain": service} if service else {})}
    return {
        "metadata": {
            **metadata,
            "name": name,
            "namespace": objects.namespace(stateful_set),
            "labels": labels,
            "ownerReferences": [objects.controller_reference(stateful_set, API_VERSION, KIND)],
        },
        "spec": {**spec, **identity, **({"volumes": [*claimed, *others]} if claimed or others else {})},
    }


# ---- claims ----------------------------------------------------------------------------------------------------------


def claim_names(stateful_set: Object, ordinal: int) -> Iterator[tuple[str, ObjectName]]:
    """Yield each volume that has a claim template, and the pod's claim for it."""
    for template in stateful_set["spec"].get("volumeClaimTemplates") or ():
        volume = objects.name(template)
        yield volume, ObjectName(objects.namespace(stateful_set), f"{volume}-{pod_name(stateful_set, ordinal)}")


def is_claim_of(stateful_set: Object, claim: Object) -> bool:
    """Return whether a pod of the set would use the claim, by its name."""
    match = NUMBERED.fullmatch(objects.name(claim))
    if match is None:
        return False
    templates = stateful_set["spec"].get("volumeClaimTemplates") or ()
    return match["set"] in {f"{objects.name(each)}-{objects.name(stateful_set)}" for each in templates}


def new_claim(stateful_set: Object, volume: str, name: ObjectName) -> dict[str, Any]:
    template = next(
        each for each in stateful_set["spec"].get("volumeClaimTemplates") or () if objects.name(each) == volume
    )
    metadata = copied_metadata(template)
    labels = {**metadata.get("labels", {}), **((stateful_set["spec"].get("selector") or {}).get("matchLabels") or {})}
    metadata |= {"name": name.name, "namespace": name.namespace, "labels": labels}
    if _goes_with(stateful_set, "whenDeleted"):
        metadata["ownerReferences"] = [objects.controller_reference(stateful_set, API_VERSION, KIND)]
    return {"metadata": metadata, "spec": dict(template.get("spec") or {})}


def is_stale(claim: Object, pod: str) -> bool:
    """Return whether the claim goes with a former pod of this name, which is gone: the pod needs a new claim."""
    return any(owner.get("kind") == "Pod" and owner.get("name") == pod for owner in objects.owner_references(claim))


def claim_owners_patch(stateful_set: Object, claim: Object, pod: Object, *, is_condemned: bool) -> MergePatch | None:
    """Have the garbage collector delete the claim with the set or with the scaled-down pod, as the policy says.

    Other owners stay, and a claim of another controller is not changed. `is_condemned`: the pod is scaled down, and its
    claim goes with it, not with the set.
    """
    with_pod = is_condemned and _goes_with(stateful_set, "whenScaled")
    with_set = _goes_with(stateful_set, "whenDeleted") and not with_pod
    ours = {objects.uid(pod), objects.uid(stateful_set)}
    present = objects.owner_references(claim)
    owners = [each for each in present if each.get("uid") not in ours]
    if any(each.get("controller") for each in owners):
        return None
    if with_pod:
        owners.append(objects.controller_reference(pod, "v1", "Pod"))
    if with_set:
        owners.append(objects.controller_reference(stateful_set, API_VERSION, KIND))
    is_same = {each.get("uid") for each in present} == {each.get("uid") for each in owners}
    return None if is_same else with_owners(claim, owners)


def _goes_with(stateful_set: Object, event: str) -> bool:
    policy = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    return bool(policy.get(event) == DELETE)
