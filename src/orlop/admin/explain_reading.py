"""Read the objects that an explanation depends on, and note those that may not be read. Writes nothing."""

from __future__ import annotations

from typing import Any

from orlop.admin.claim_seen import ClaimSeen
from orlop.admin.explain_attachment import AttachmentSeen
from orlop.admin.explanation import ApiObject, Unreadable, is_unreadable
from orlop.admin.journal_orders import OpenRequest, requests_of_name
from orlop.admin.object_shapes import well_formed
from orlop.admin.provisioner_outlook import ProvisionerSeen
from orlop.admin.volume_seen import DriveSeen, VolumeSeen, driver_of, is_on_drive
from orlop.admin.waiting_pods import waiting_pods
from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules
from orlop.binding.storage_protection_rules import names_claim
from orlop.kube import objects
from orlop.kube.api_errors import Forbidden, NotFound
from orlop.kube.client import EVERYTHING, KubeClient, Selection
from orlop.kube.events.event_bodies import WITHOUT_NAMESPACE
from orlop.kube.kinds import (
    CORE_EVENT,
    CSI_DRIVER,
    CSI_NODE,
    LEASE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    VOLUME_ATTRIBUTES_CLASS,
    InvalidPath,
    Kind,
)
from orlop.kube.label_syntax import faults_of_label_value
from orlop.kube.lease_rules import lock_name
from orlop.kube.objects import ObjectName
from orlop.records.cluster_objects import DRIVER_NAME
from orlop.records.drive import DRIVE
from orlop.records.provision_journal import DRIVER_LABEL
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.records.volume import VOLUME
from orlop.sidecars.attacher.attach_rules import attacher_of, id_in_annotation, id_in_csi_node, node_name_of
from orlop.sidecars.attacher.volume_source_rules import volume_name_of
from orlop.sidecars.provisioner.clone_rules import CLONING_PROTECTION, source_claim_name
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source
from orlop.static_pv.static_volume_rules import read_static_volume


class ExplainReader:
    """Reads objects for one explanation. An object that does not exist is None; one that may not be read is noted."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._unreadable: list[Unreadable] = []

    # ---- VolumeAttachments ---------------------------------------------------------------------------------------

    async def attachment(self, name: ObjectName) -> AttachmentSeen:
        """Raise NotFound if there is no such object; so do `claim` and `volume`."""
        attachment = await self._client.get(VOLUME_ATTACHMENT, name)
        volume = await self._found(PERSISTENT_VOLUME, volume_name_of(attachment))
        node_id = await self._node_id(attachment)
        required = await self._attach_required(attacher_of(attachment))
        return AttachmentSeen(attachment, volume, node_id, tuple(self._unreadable), required)

    async def _node_id(self, attachment: dict[str, Any]) -> str | None:
        node, driver = node_name_of(attachment), attacher_of(attachment)
        known = id_in_csi_node(await self._found(CSI_NODE, node), driver)
        # The Node counts only if the CSINode does not have the driver's id.
        if known or is_unreadable(self._unreadable, CSI_NODE):
            return known
        return id_in_annotation(await self._found(NODE, node) or {}, driver)

    async def _attach_required(self, driver: str) -> bool | None:
        spec = (await self._found(CSI_DRIVER, driver) or {}).get("spec")
        required = spec.get("attachRequired") if isinstance(spec, dict) else None
        return required if isinstance(required, bool) else None

    # ---- PersistentVolumeClaims ----------------------------------------------------------------------------------

    async def claim(self, name: ObjectName) -> ClaimSeen:
        claim = well_formed(await self._client.get(PERSISTENT_VOLUME_CLAIM, name))
        in_namespace = Selection(name.namespace)
        volume_name = state.volume_name(claim)
        seen: dict[str, Any] = {
            "volume": await self._shaped(PERSISTENT_VOLUME, volume_name),
            "pods": await self._all(POD, in_namespace),
            "events": await self._events(PERSISTENT_VOLUME_CLAIM, name),
        }
        if CLONING_PROTECTION in objects.finalizers(claim):
            seen["claims"] = await self._all(PERSISTENT_VOLUME_CLAIM, in_namespace)
        if not volume_name and state.BIND_COMPLETED not in objects.annotations(claim):
            seen |= await self._for_search(claim)
        seen["on_drive"] = await self._on_drive(seen["volume"])
        if volume_name:
            seen["pod_events"] = await self._events_of_waiting_pods(seen["pods"], claim)
        return ClaimSeen(claim, **seen, unreadable=tuple(self._unreadable))

    async def open_requests_of(self, name: ObjectName) -> list[OpenRequest]:
        """Return the orders in any journal for claims of this name, also of claims that are gone."""
        return requests_of_name(await self._all(LEASE, Selection(labels=DRIVER_LABEL)), name)

    async def _for_search(self, claim: ApiObject) -> dict[str, Any]:
        name = state.class_name(claim)
        classes = await self._all(STORAGE_CLASS)
        # Users who may not list classes may often read the one that they name.
        if not classes and (named := await self._shaped(STORAGE_CLASS, name)) is not None:
            classes = (named,)
        storage_class = next((each for each in classes if objects.name(each) == name), {})
        driver = state.provisioner_of(claim)
        if class_rules.can_provision(storage_class):
            driver = class_rules.provisioner(storage_class)
        return {
            "classes": classes,
            "volumes": await self._all(PERSISTENT_VOLUME),
            "nodes": () if driver else await self._all(NODE),
            **(await self._for_provisioning(claim, driver) if driver else {}),
        }

    async def _for_provisioning(self, claim: ApiObject, driver: str) -> dict[str, Any]:
        node, namespace = state.selected_node(claim), objects.namespace(claim)
        source = await self._shaped(PERSISTENT_VOLUME_CLAIM, source_claim_name(claim), namespace)
        return {
            "drives": await self._drives() if driver == DRIVER_NAME else None,
            "provisioner": await self._provisioner(driver),
            "selected_node": await self._shaped(NODE, node),
            "csi_node": await self._shaped(CSI_NODE, node),
            "attributes_class": await self._shaped(VOLUME_ATTRIBUTES_CLASS, state.attributes_class_name(claim)),
            "source_claim": source,
            "source_volume": await self._shaped(PERSISTENT_VOLUME, state.volume_name(source or {})),
        }

    # ---- PersistentVolumes ---------------------------------------------------------------------------------------

    async def volume(self, name: ObjectName) -> VolumeSeen:
        volume = well_formed(await self._client.get(PERSISTENT_VOLUME, name))
        reference = state.claim_reference(volume) or {}
        namespace, claim_name = str(reference.get("namespace") or ""), str(reference.get("name") or "")
        driver = driver_of(volume)
        seen: dict[str, Any] = {
            "claim": await self._shaped(PERSISTENT_VOLUME_CLAIM, claim_name, namespace or None),
            "events": await self._events(PERSISTENT_VOLUME, name),
            "attachments": await self._all(VOLUME_ATTACHMENT),
            "on_drive": await self._on_drive(volume),
        }
        if (volume.get("spec") or {}).get("nodeAffinity"):
            seen["nodes"] = await self._all(NODE)
        if (static := read_static_volume(volume)) is not None:
            seen["disk_reports"] = await self._disk_reports(static.node)
        if driver and (reference.get("uid") or objects.is_being_deleted(volume)):
            seen["provisioner"] = await self._provisioner(driver)
        if reference.get("uid"):
            seen["pods"] = await self._all(POD, Selection(namespace)) if namespace else ()
            if seen["claim"] is not None:
                seen["pod_events"] = await self._events_of_waiting_pods(seen["pods"], seen["claim"])
        else:
            seen["claims"] = await self._all(PERSISTENT_VOLUME_CLAIM)
            seen["classes"] = await self._all(STORAGE_CLASS)
        return VolumeSeen(volume, **seen, unreadable=tuple(self._unreadable))

    async def _disk_reports(self, node: str) -> tuple[ApiObject, ...]:
        return await self._all(PROVISIONER_STATUS, Selection(fields=f"metadata.name={node}"))

    # ---- drives --------------------------------------------------------------------------------------------------

    async def left_volume(self, name: str) -> DriveSeen:
        """Return what is left of a PersistentVolume that is gone: its volume may be on a drive still."""
        volume = await self._shaped(VOLUME, name)
        return await self._of_volume(volume) if volume is not None else DriveSeen()

    async def _on_drive(self, volume: ApiObject | None) -> DriveSeen:
        if volume is None or not is_on_drive(volume):
            return DriveSeen()
        handle = str(csi_source(volume).get("volumeHandle") or "")
        return await self._of_volume(await self._shaped(VOLUME, handle))

    async def _of_volume(self, volume: ApiObject | None) -> DriveSeen:
        if is_unreadable(self._unreadable, VOLUME):
            return DriveSeen()
        spec = (volume or {}).get("spec") or {}
        node = await self._shaped(NODE, str(spec.get("nodeName") or ""))
        drive = await self._shaped(DRIVE, str(spec.get("drive") or ""))
        is_node_known = not is_unreadable(self._unreadable, NODE)
        return DriveSeen(volume, drive, node, is_known=True, is_node_known=is_node_known)

    async def _drives(self) -> tuple[ApiObject, ...] | None:
        drives = await self._all(DRIVE)
        return None if is_unreadable(self._unreadable, DRIVE) else drives

    # ---- of both -------------------------------------------------------------------------------------------------

    async def _provisioner(self, driver: str) -> ProvisionerSeen:
        csi_driver = await self._shaped(CSI_DRIVER, driver)
        leases = await self._all(LEASE, Selection(fields=f"metadata.name={lock_name(driver)}"))
        # A driver whose name cannot be a label's value has no journal.
        is_label = not faults_of_label_value(driver)
        journal = await self._all(LEASE, Selection(labels=f"{DRIVER_LABEL}={driver}")) if is_label else ()
        return ProvisionerSeen(driver, csi_driver, leases, journal, tuple(self._unreadable))

    async def _events_of_waiting_pods(self, pods: tuple[ApiObject, ...], claim: ApiObject) -> tuple[ApiObject, ...]:
        """Return the Events about the pods of a claim that have not started: why volumes cannot be mounted."""
        waiting = waiting_pods(pod for pod in pods if names_claim(pod, claim))
        return tuple([event for pod in waiting for event in await self._events(POD, objects.name_of(pod))])

    async def _events(self, kind: Kind, name: ObjectName) -> tuple[ApiObject, ...]:
        """Return the Events about an object. Those about objects without a namespace are in `default`."""
        fields = f"involvedObject.kind={kind.kind},involvedObject.name={name.name}"
        return await self._all(CORE_EVENT, Selection(name.namespace or WITHOUT_NAMESPACE, fields=fields))

    async def _shaped(self, kind: Kind, name: str, namespace: str | None = None) -> ApiObject | None:
        obj = await self._found(kind, name, namespace)
        return None if obj is None else well_formed(obj)

    async def _found(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return the object; None if it does not exist, may not be read, or can have no such name."""
        if not name:
            return None
        try:
            return await self._client.get(kind, ObjectName(namespace, name))
        except Forbidden:
            self._note(Unreadable(kind, name))
        except (NotFound, InvalidPath):
            pass
        return None

    async def _all(self, kind: Kind, selection: Selection = EVERYTHING) -> tuple[ApiObject, ...]:
        """Return all objects; none if they may not be listed, or the server does not have the kind."""
        try:
            return tuple(map(well_formed, (await self._client.list(kind, selection)).items))
        except Forbidden:
            self._note(Unreadable(kind))
        except (NotFound, InvalidPath):
            pass
        return ()

    def _note(self, unreadable: Unreadable) -> None:
        if unreadable not in self._unreadable:
            self._unreadable.append(unreadable)
