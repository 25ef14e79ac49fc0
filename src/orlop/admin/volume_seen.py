"""The objects that were read to explain a PersistentVolume. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orlop.admin.explanation import ApiObject, Unreadable
from orlop.admin.provisioner_outlook import ProvisionerSeen
from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.records.cluster_objects import DRIVER_NAME
from orlop.records.volume_context import DRIVE_KEY
from orlop.sidecars.attacher.volume_source_rules import volume_name_of
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source


@dataclass(frozen=True, slots=True)
class DriveSeen:
    """What was read about the drive of a volume. None: it does not exist, or may not be read."""

    volume: ApiObject | None = None
    """The Volume object."""
    drive: ApiObject | None = None
    node: ApiObject | None = None
    is_known: bool = False
    """The volume is on a drive, and its objects may be read."""
    is_node_known: bool = True


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
    on_drive: DriveSeen = DriveSeen()
    disk_reports: tuple[ApiObject, ...] = ()
    """The ProvisionerStatuses of the node of a static volume."""
    pod_events: tuple[ApiObject, ...] = ()
    """The Events about pods that use the claim, and have not started."""


def is_on_drive(volume: ApiObject) -> bool:
    """Return whether a PersistentVolume is one of ours on a drive."""
    attributes = csi_source(volume).get("volumeAttributes")
    return driver_of(volume) == DRIVER_NAME or (isinstance(attributes, Mapping) and DRIVE_KEY in attributes)


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
