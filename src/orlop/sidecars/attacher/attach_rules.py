"""Decide the next step for a VolumeAttachment whose driver can attach. Pure.

Facts in, one step out; `attach_handler` takes the step, reads the result, and asks for the next one.

Attach, in this order and no other: the PersistentVolume is not being deleted → our finalizer is on it → our finalizer
and the node's id are on the VolumeAttachment → ControllerPublishVolume → `status.attached` is set. So, whatever dies
when, the driver is never called for a volume whose objects could vanish before the driver was called to detach it.

Detach: ControllerUnpublishVolume, for the node whose id was recorded → our finalizer is removed → if other finalizers
keep the object, `status.attached` is reset. Our finalizer means "the driver may have published the volume": a
VolumeAttachment without it needs no detach, whatever its status; one with it does, even if attaching never succeeded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from orlop.kube import objects, patches
from orlop.kube.patches import NOT_THERE, JsonPatch
from orlop.sidecars.attacher.volume_source_rules import (
    BadObject,
    VolumeSource,
    bare_source_of,
    checked_access_modes,
    source_of,
    volume_name_of,
)

ApiObject = Mapping[str, Any]

NODE_ID_ANNOTATION: Final = "csi.alpha.kubernetes.io/node-id"
"""On a VolumeAttachment, as upstream writes it: the driver's id of the node that the volume is attached to."""
NODE_IDS_ANNOTATION: Final = "csi.volume.kubernetes.io/nodeid"
"""On a Node: JSON, from the driver's name to the driver's id of the node."""
MARKED_ANNOTATION: Final = "attacher.orlop.dev/marked-attached"
"""On a VolumeAttachment with our finalizer: `attached` was set while the driver could not attach."""


@dataclass(frozen=True, slots=True)
class AttachmentFacts:
    attachment: ApiObject
    volume: ApiObject | None
    """The PersistentVolume that the attachment names, if it names one and that exists."""
    node_id: str | None
    """The driver's current id of the node; None if no object has it, or if not `needs_node_id`."""
    driver: str
    finalizer: str
    published: bool | None = None
    """Whether the driver lists the volume as published on the node; None if the list was not read."""


# ---- the steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nothing:
    """The object is reconciled, until something changes."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Write the error to the object's status, and retry later."""

    sentence: str


@dataclass(frozen=True, slots=True)
class ProtectVolume:
    """Add our finalizer to the PersistentVolume."""

    volume: str
    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class ProtectAttachment:
    """Add our finalizer and the node's id to the VolumeAttachment."""

    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class Publish:
    source: VolumeSource
    node_id: str


@dataclass(frozen=True, slots=True)
class UnpublishFormer:
    """Unpublish from the node's former id, which an earlier attach may have used; then record the current id."""

    source: VolumeSource
    node_id: str
    then: JsonPatch


@dataclass(frozen=True, slots=True)
class Unpublish:
    source: VolumeSource
    node_id: str


@dataclass(frozen=True, slots=True)
class MarkDetached:
    """Reset `status.attached`: the object claims to be attached, and as far as we know it is not."""

    patch: JsonPatch


Step: TypeAlias = (
    Nothing | Refuse | ProtectVolume | ProtectAttachment | Publish | UnpublishFormer | Unpublish | MarkDetached
)


def next_step(facts: AttachmentFacts) -> Step:
    """Return the next step. `Nothing` carries the reason, for the log and for `orlop explain`."""
    if attacher_of(facts.attachment) != facts.driver:
        return Nothing("belongs to another driver")
    try:
        return _detach(facts) if is_to_be_detached(facts.attachment) else _attach(facts)
    except BadObject as error:
        return Refuse(str(error))


def attacher_of(attachment: ApiObject) -> str:
    name = _part(attachment, "spec").get("attacher")
    return name if isinstance(name, str) else ""


def node_name_of(attachment: ApiObject) -> str:
    name = _part(attachment, "spec").get("nodeName")
    return name if isinstance(name, str) else ""


def is_attached(attachment: ApiObject) -> bool:
    return _part(attachment, "status").get("attached") is True


def is_marked(attachment: ApiObject) -> bool:
    """Return whether `attached` was set by an attacher whose driver could not attach."""
    return MARKED_ANNOTATION in objects.annotations(attachment)


def is_to_be_detached(attachment: ApiObject) -> bool:
    return objects.is_being_deleted(attachment)


def needs_node_id(attachment: ApiObject) -> bool:
    """Return whether the next step depends on the driver's current id of the node: a recorded id is detached from."""
    return not is_to_be_detached(attachment) or recorded_node_id(attachment) is None


# ---- node ids --------------------------------------------------------------------------------------------------------


def recorded_node_id(attachment: ApiObject) -> str | None:
    return objects.annotations(attachment).get(NODE_ID_ANNOTATION) or None


def id_in_csi_node(csi_node: ApiObject | None, driver: str) -> str | None:
    """Return the driver's id of the node; None if the CSINode does not have one, or is malformed."""
    spec = csi_node.get("spec") if csi_node is not None else None
    drivers = spec.get("drivers") if isinstance(spec, Mapping) else None
    ids = (each.get("nodeID") for each in drivers or () if isinstance(each, Mapping) and each.get("name") == driver)
    return next((node_id for node_id in ids if isinstance(node_id, str) and node_id), None)


def id_in_annotation(node: ApiObject, driver: str) -> str | None:
    """Return the driver's id of the node from the annotation that older kubelets write; None as above."""
    try:
        ids = json.loads(objects.annotations(node).get(NODE_IDS_ANNOTATION) or "{}")
    except (ValueError, RecursionError):
        return None
    node_id = ids.get(driver) if isinstance(ids, dict) else None
    return node_id if isinstance(node_id, str) and node_id else None


# ---- attach ----------------------------------------------------------------------------------------------------------


def _attach(facts: AttachmentFacts) -> Step:
    attachment, finalizer = facts.attachment, facts.finalizer
    has_ours = objects.has_finalizer(attachment, finalizer)
    if is_attached(attachment) and has_ours and not is_marked(attachment) and facts.published is not False:
        return Nothing("already attached")
    if is_attached(attachment):
        # Another client set `attached`, or we set it while the driver could not attach, or the driver has lost the
        # volume since. Reset it first: if attaching fails now, no pod must be started with the volume.
        return MarkDetached(detached_patch(attachment))
    source = source_of(attachment, facts.volume, facts.driver)
    checked_access_modes(source.access_modes)
    if facts.volume is not None and source.volume_name:
        if objects.is_being_deleted(facts.volume):
            raise BadObject(f"the PersistentVolume {source.volume_name} is being deleted, so it is not attached")
        if (patch := patches.add_finalizer(facts.volume, finalizer)) is not None:
            return ProtectVolume(source.volume_name, patch)
    return _publish(facts, source, has_ours=has_ours)


def _publish(facts: AttachmentFacts, source: VolumeSource, *, has_ours: bool) -> Step:
    recorded = recorded_node_id(facts.attachment)
    if facts.node_id is None:
        raise BadObject(
            f"the driver {facts.driver} has no id for the node {node_name_of(facts.attachment)!r}: no CSINode of that "
            "name lists the driver. Check that the driver runs there and is registered with kubelet"
        )
    # Only with our finalizer can an attempt have reached the driver. Without it the recorded id is a leftover, and an
    # unpublish would detach the volume from a node that another VolumeAttachment may have attached it to.
    if has_ours and recorded is not None and recorded != facts.node_id:
        return UnpublishFormer(source, recorded, _protection(facts.attachment, facts.finalizer, facts.node_id))
    if not has_ours or recorded is None or is_marked(facts.attachment):
        return ProtectAttachment(_protection(facts.attachment, facts.finalizer, facts.node_id))
    return Publish(source, recorded)


def _protection(attachment: ApiObject, finalizer: str, node_id: str) -> JsonPatch:
    """Return one patch for finalizer and annotations, which fails if another client changed any of them meanwhile."""
    parts = (
        patches.add_finalizer(attachment, finalizer),
        patches.set_annotation(attachment, NODE_ID_ANNOTATION, node_id),
        patches.unset_annotation(attachment, MARKED_ANNOTATION),
    )
    return JsonPatch(tuple(operation for part in parts if part is not None for operation in part.operations))


# ---- detach ----------------------------------------------------------------------------------------------------------


def _detach(facts: AttachmentFacts) -> Step:
    attachment = facts.attachment
    if not objects.has_finalizer(attachment, facts.finalizer) and not facts.published:
        if is_attached(attachment):
            return MarkDetached(detached_patch(attachment))
        return Nothing("detached; other finalizers keep it")
    source = _source_to_detach(facts)
    node_id = recorded_node_id(attachment) or facts.node_id
    if node_id is None:
        # Without an id a driver detaches the volume from every node, also from those whose pods use it.
        raise BadObject(
            f"the driver {facts.driver} has no id for the node {node_name_of(attachment)!r}: neither the annotation "
            f"{NODE_ID_ANNOTATION} nor a CSINode has one. Set the annotation to the node's id"
        )
    return Unpublish(source, node_id)


def _source_to_detach(facts: AttachmentFacts) -> VolumeSource:
    name = volume_name_of(facts.attachment)
    if name and facts.volume is None:
        raise BadObject(
            f"the PersistentVolume {name} is gone, though our finalizer should have kept it, and with it the volume's "
            "handle. Detach the volume with the storage system's own tools, then remove the finalizer from this object"
        )
    return bare_source_of(facts.attachment, facts.volume, facts.driver)


# ---- status ----------------------------------------------------------------------------------------------------------


def attached_patch(attachment: ApiObject, metadata: Mapping[str, str]) -> JsonPatch:
    changes = {"attached": True, "attachmentMetadata": dict(metadata) or None, "attachError": None}
    return _status_patch(attachment, changes)


def detached_patch(attachment: ApiObject) -> JsonPatch:
    return _status_patch(attachment, {"attached": False, "attachmentMetadata": None, "detachError": None})


def failed_patch(attachment: ApiObject, message: str, code: int | None, time: str) -> JsonPatch:
    """Set the error of the current direction: `detachError` if the object is being deleted, else `attachError`."""
    field = "detachError" if objects.is_being_deleted(attachment) else "attachError"
    error = {"message": message, "time": time, **({"errorCode": code} if code is not None else {})}
    return _status_patch(attachment, {field: error})


def _status_patch(attachment: ApiObject, changes: Mapping[str, Any]) -> JsonPatch:
    """Return a patch that sets these fields of the status; None removes a field. Other fields stay.

    The patch fails if the object is another one or its status has changed: a write may arrive late, or be based on an
    old cache.
    """
    status = attachment.get("status")
    patch = patches.guarded_by_uid(attachment).test("status", value=status if status is not None else NOT_THERE)
    if not isinstance(status, Mapping):
        present = {name: value for name, value in changes.items() if value is not None}
        return patch.add("status", value={"attached": False, **present})
    for name, value in changes.items():
        if value is not None:
            patch = patch.add("status", name, value=value)
        elif name in status:
            patch = patch.remove("status", name)
    return patch


def _part(obj: ApiObject, member: str) -> ApiObject:
    part = obj.get(member)
    return part if type(part) is dict or isinstance(part, Mapping) else {}
