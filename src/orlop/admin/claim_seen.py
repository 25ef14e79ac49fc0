"""The objects that were read to explain a PersistentVolumeClaim. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orlop.admin.explanation import ApiObject, Unreadable
from orlop.admin.provisioner_outlook import ProvisionerSeen
from orlop.admin.volume_seen import DriveSeen
from orlop.binding import claim_state_rules as state
from orlop.binding.storage_protection_rules import names_claim
from orlop.kube import objects


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """The claim, and the objects that it depends on. Lists contain all objects that may be read; None: not existing."""

    claim: ApiObject
    volume: ApiObject | None = None
    """The PersistentVolume that the claim names."""
    volumes: tuple[ApiObject, ...] = ()
    classes: tuple[ApiObject, ...] = ()
    pods: tuple[ApiObject, ...] = ()
    """The pods in the claim's namespace."""
    claims: tuple[ApiObject, ...] = ()
    """The claims in the claim's namespace, for a claim that is being cloned."""
    nodes: tuple[ApiObject, ...] = ()
    selected_node: ApiObject | None = None
    csi_node: ApiObject | None = None
    """The CSINode of the selected node."""
    source_claim: ApiObject | None = None
    source_volume: ApiObject | None = None
    attributes_class: ApiObject | None = None
    events: tuple[ApiObject, ...] = ()
    provisioner: ProvisionerSeen = ProvisionerSeen()  # noqa: RUF009 - a value, and frozen
    unreadable: tuple[Unreadable, ...] = ()
    drives: tuple[ApiObject, ...] | None = None
    """The Drives, for a claim that waits for our own driver; None: for any other, or they may not be read."""
    on_drive: DriveSeen = DriveSeen()  # noqa: RUF009 - a value, and frozen
    pod_events: tuple[ApiObject, ...] = ()
    """The Events about pods that use the claim, and have not started."""

    @property
    def storage_class(self) -> ApiObject | None:
        name = state.class_name(self.claim)
        return next((each for each in self.classes if objects.name(each) == name), None) if name else None


def pods_naming(seen: ClaimSeen) -> list[ApiObject]:
    """Return the pods that use the claim, or will once they run, sorted by name."""
    return sorted((pod for pod in seen.pods if names_claim(pod, seen.claim)), key=objects.name)
