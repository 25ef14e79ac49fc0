"""Which volumes of a pod have to be attached to its node, and how long the pod needs them. Pure.

As Kubernetes' attach/detach controller decides it:
- All volumes of a pod count, whether a container uses them or not; inline ones of a CSI driver are never attached.
- A claim must be bound, to a volume that is bound to it; the claim of a generic ephemeral volume must be the pod's own.
- A driver's volumes need attaching unless its CSIDriver says `attachRequired: false`; one without a CSIDriver does.
- A pod needs its volumes no longer when it has finished, or when it is being deleted and no container of it runs: what
  is still mounted then, kubelet writes to the status of its Node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from onenode.kubelet.volumes.steps.csi_request_rules import driver_facts
from onenode.kubelet.volumes.volume_values import UniqueName, persistent_name
from orlop.binding.pod_claim_rules import ClaimUse
from orlop.kube import objects

ApiObject: TypeAlias = Mapping[str, Any]
"""An object as it was read."""

FINAL_PHASES: Final = ("Succeeded", "Failed")
SHARED_MODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})


@dataclass(frozen=True, slots=True)
class Attachable:
    """A persistent volume, as far as attaching it goes."""

    name: UniqueName
    volume: str
    """The PersistentVolume's name."""
    driver: str
    handle: str
    is_exclusive: bool
    """For one node at a time."""


def node_of(pod: ApiObject) -> str:
    """Where it needs volumes; empty where it needs none, or none any more."""
    node = str(_part(pod, "spec").get("nodeName") or "")
    return "" if is_done_with_volumes(pod) else node


def is_done_with_volumes(pod: ApiObject) -> bool:
    status = _part(pod, "status")
    if status.get("phase") in FINAL_PHASES:
        return True
    return objects.is_being_deleted(pod) and not any(map(_runs, status.get("containerStatuses") or ()))


def _runs(container: ApiObject) -> bool:
    state = container.get("state") or {}
    return state.get("terminated") is None and state.get("waiting") is None


def volume_of_claim(claim: ApiObject | None) -> str:
    """The name of the PersistentVolume that it is bound to; empty while it is not."""
    if claim is None or _part(claim, "status").get("phase") != "Bound":
        return ""
    return str(_part(claim, "spec").get("volumeName") or "")


def attachable_by(
    pod: ApiObject, use: ClaimUse, claim: ApiObject | None, volume: ApiObject | None
) -> Attachable | None:
    """None where it is not known (yet): one of the objects is missing, or they do not belong together."""
    if claim is None or volume is None or volume_of_claim(claim) != objects.name(volume):
        return None
    if (_part(volume, "spec").get("claimRef") or {}).get("uid") != objects.uid(claim):
        return None
    if use.is_ephemeral and (objects.controller_of(claim) or {}).get("uid") != objects.uid(pod):
        return None
    return attachable(volume)


def attachable(volume: ApiObject) -> Attachable | None:
    """None: it is no volume of a CSI driver."""
    spec = _part(volume, "spec")
    source = spec.get("csi") or {}
    driver, handle = str(source.get("driver") or ""), str(source.get("volumeHandle") or "")
    if not driver or not handle:
        return None
    modes = frozenset(spec.get("accessModes") or ())
    is_exclusive = bool(modes) and not modes & SHARED_MODES
    return Attachable(persistent_name(driver, handle), objects.name(volume), driver, handle, is_exclusive)


def needs_attaching(csi_driver: ApiObject | None) -> bool:
    return driver_facts(csi_driver).attach_required


def _part(obj: ApiObject, member: str) -> ApiObject:
    part = obj.get(member)
    return part if isinstance(part, Mapping) else {}
