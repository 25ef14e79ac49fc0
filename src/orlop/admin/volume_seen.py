"""The objects that were read to explain a PersistentVolume. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orlop.admin.explanation import ApiObject, Unreadable
from orlop.admin.provisioner_outlook import ProvisionerSeen
from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.sidecars.attacher.volume_source_rules import volume_name_of
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source


@dataclass(frozen=True, slots=True)
class VolumeSeen:
    """The PersistentVolume, and the objects that it depends on. Lists contain all objects that may be read."""

    volume: ApiObject
    claim: ApiObject | None = None
    """The claim that `claimRef` names, whatever its uid; None if it does not exist."""
    claims: tuple[ApiObject, ...] = ()
    """The claims of all namespaces, for a volume without a claim."""
    classes: tuple[ApiObject, ...] = ()
    pods: tuple[ApiObject, ...] = ()
    """The pods in the claim's namespace."""
    nodes: tuple[ApiObject, ...] = ()
    attachments: tuple[ApiObject, ...] = ()
    events: tuple[ApiObject, ...] = ()
    provisioner: ProvisionerSeen = ProvisionerSeen()  # noqa: RUF009 - a value, and frozen
    unreadable: tuple[Unreadable, ...] = ()


def driver_of(volume: ApiObject) -> str:
    """Return the volume's CSI driver, else the provisioner that its annotation names; "" if it has neither."""
    return str(csi_source(volume).get("driver") or objects.annotations(volume).get(state.PROVISIONED_BY) or "")


def claim_named(volume: ApiObject) -> str | None:
    """Return `namespace/name` of the claim that the volume is reserved for; None for none."""
    reference = state.claim_reference(volume)
    return None if reference is None else f"{reference.get('namespace')}/{reference.get('name')}"


def attachments_of(seen: VolumeSeen) -> list[ApiObject]:
    name = objects.name(seen.volume)
    return sorted((each for each in seen.attachments if volume_name_of(each) == name), key=objects.name)
