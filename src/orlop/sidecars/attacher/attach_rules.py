"""What comes next for one VolumeAttachment. Pure: facts in, one step out; the shell does it, reads again, asks again.

Attach, in this order and never another: the PersistentVolume is not being deleted → our finalizer is on it → our
finalizer and the node's id are on the VolumeAttachment → the driver publishes → `attached` is told. So whatever dies
when, the driver is never asked for a volume whose objects could vanish before it was asked to take it back.

Detach: the driver unpublishes, from the node whose id was recorded → our finalizer goes → where others keep the object,
`attached` is taken back. Our finalizer stands for "the driver may have it published": a VolumeAttachment without it is
none that must be detached, however it looks; one with it must, also when attaching never succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from orlop.kube import objects, patches
from orlop.kube.patches import NOT_THERE, JsonPatch
from orlop.sidecars.attacher.attacher_name_rules import NODE_ID_ANNOTATION
from orlop.sidecars.attacher.volume_source_rules import (
    BadObject,
    VolumeSource,
    bare_source_of,
    checked_access_modes,
    source_of,
    volume_name_of,
)

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AttachmentFacts:
    attachment: Json
    volume: Json | None
    """The PersistentVolume that it names, where it names one that is there."""
    node_id: str | None
    """What the driver calls the node at present; None where nobody says, or it is not `needs_node_id`."""
    driver: str
    finalizer: str
    published: bool | None = None
    """Whether the driver says that it is published at the node; None: it was not asked."""


# ---- the steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nothing:
    """All is as it should be, until something changes."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Told on the object, and tried again later."""

    sentence: str


@dataclass(frozen=True, slots=True)
class ProtectVolume:
    """Our finalizer, on the PersistentVolume."""

    volume: str
    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class ProtectAttachment:
    """Our finalizer and the node's id, on the VolumeAttachment."""

    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class Publish:
    source: VolumeSource
    node_id: str


@dataclass(frozen=True, slots=True)
class UnpublishFormer:
    """From the node as it was called before, where an attempt may have reached the driver; then it is forgotten."""

    source: VolumeSource
    node_id: str
    then: JsonPatch


@dataclass(frozen=True, slots=True)
class Unpublish:
    source: VolumeSource
    node_id: str


@dataclass(frozen=True, slots=True)
class MarkDetached:
    """It says that it is attached, and it is not as far as we know."""

    patch: JsonPatch


Step: TypeAlias = (
    Nothing | Refuse | ProtectVolume | ProtectAttachment | Publish | UnpublishFormer | Unpublish | MarkDetached
)


def next_step(facts: AttachmentFacts) -> Step:
    if attacher_of(facts.attachment) != facts.driver:
        return Nothing("it is for another driver")
    try:
        return _detach(facts) if is_to_be_detached(facts.attachment) else _attach(facts)
    except BadObject as error:
        return Refuse(str(error))


def attacher_of(attachment: Json) -> str:
    name = _part(attachment, "spec").get("attacher")
    return name if isinstance(name, str) else ""


def node_name_of(attachment: Json) -> str:
    name = _part(attachment, "spec").get("nodeName")
    return name if isinstance(name, str) else ""


def is_attached(attachment: Json) -> bool:
    return _part(attachment, "status").get("attached") is True


def is_to_be_detached(attachment: Json) -> bool:
    """The other way than attaching, with workers of its own."""
    return objects.is_being_deleted(attachment)


def needs_node_id(attachment: Json) -> bool:
    """Whether what comes next depends on what the driver calls the node at present: a recorded id is detached from."""
    return not is_to_be_detached(attachment) or recorded_node_id(attachment) is None


def recorded_node_id(attachment: Json) -> str | None:
    return objects.annotations(attachment).get(NODE_ID_ANNOTATION) or None


# ---- attach ----------------------------------------------------------------------------------------------------------


def _attach(facts: AttachmentFacts) -> Step:
    attachment, finalizer = facts.attachment, facts.finalizer
    has_ours = objects.has_finalizer(attachment, finalizer)
    if is_attached(attachment) and has_ours and facts.published is not False:
        return Nothing("it is attached")
    if is_attached(attachment):
        # Told by somebody else, or before the driver wanted to be asked; or it was so, and the driver says that it is
        # no more. Else it would be believed from here on, also where attaching fails, or the node has another id.
        return MarkDetached(detached_patch(attachment))
    source = source_of(attachment, facts.volume, facts.driver)
    checked_access_modes(source.access_modes)
    if facts.volume is not None and source.volume_name:
        if objects.is_being_deleted(facts.volume):
            raise BadObject(f"the PersistentVolume {source.volume_name} is being deleted: it is not attached any more")
        if (patch := patches.add_finalizer(facts.volume, finalizer)) is not None:
            return ProtectVolume(source.volume_name, patch)
    return _publish(facts, source, has_ours=has_ours)


def _publish(facts: AttachmentFacts, source: VolumeSource, *, has_ours: bool) -> Step:
    recorded = recorded_node_id(facts.attachment)
    if facts.node_id is None:
        raise BadObject(
            f"nobody says what the driver {facts.driver} calls the node {node_name_of(facts.attachment)!r}: no "
            "CSINode of that name lists the driver. Does it run there, and is it registered with kubelet?"
        )
    if has_ours and recorded is not None and recorded != facts.node_id:
        return UnpublishFormer(source, recorded, _protection(facts.attachment, facts.finalizer, facts.node_id))
    if not has_ours or recorded is None:
        return ProtectAttachment(_protection(facts.attachment, facts.finalizer, facts.node_id))
    return Publish(source, recorded)


def _protection(attachment: Json, finalizer: str, node_id: str) -> JsonPatch:
    """Both in one patch, which fails when either was changed by somebody else meanwhile."""
    ours = patches.add_finalizer(attachment, finalizer)
    theirs = patches.set_annotation(attachment, NODE_ID_ANNOTATION, node_id)
    operations = [*(ours.operations if ours else ()), *(theirs.operations if theirs else ())]
    return JsonPatch(tuple(operations))


# ---- detach ----------------------------------------------------------------------------------------------------------


def _detach(facts: AttachmentFacts) -> Step:
    attachment = facts.attachment
    if not objects.has_finalizer(attachment, facts.finalizer) and not facts.published:
        if is_attached(attachment):
            return MarkDetached(detached_patch(attachment))
        return Nothing("it is detached, and others keep it")
    source = _source_to_detach(facts)
    node_id = recorded_node_id(attachment) or facts.node_id
    if node_id is None:
        # Without an id a driver takes it from every node, also from those whose pods use it.
        raise BadObject(
            f"nobody says what the driver {facts.driver} calls the node {node_name_of(attachment)!r}: neither the "
            f"annotation {NODE_ID_ANNOTATION} nor a CSINode. Set the annotation to the node's id, and it is detached"
        )
    return Unpublish(source, node_id)


def _source_to_detach(facts: AttachmentFacts) -> VolumeSource:
    name = volume_name_of(facts.attachment)
    if name and facts.volume is None:
        raise BadObject(
            f"the PersistentVolume {name} is gone, though our finalizer should have kept it: nobody knows which volume "
            "is to be detached. Detach it at the driver's own, then take the finalizer from this object"
        )
    return bare_source_of(facts.attachment, facts.volume, facts.driver)


# ---- what is told ----------------------------------------------------------------------------------------------------


def attached_patch(attachment: Json, metadata: Mapping[str, str]) -> JsonPatch:
    told = {"attached": True, "attachmentMetadata": dict(metadata) or None, "attachError": None}
    return _status_patch(attachment, told)


def detached_patch(attachment: Json) -> JsonPatch:
    return _status_patch(attachment, {"attached": False, "attachmentMetadata": None, "detachError": None})


def failed_patch(attachment: Json, message: str, code: int | None, time: str) -> JsonPatch:
    """The error of what is being tried: attaching, or detaching."""
    field = "detachError" if objects.is_being_deleted(attachment) else "attachError"
    error = {"message": message, "time": time, **({"errorCode": code} if code is not None else {})}
    return _status_patch(attachment, {field: error})


def _status_patch(attachment: Json, told: Mapping[str, Any]) -> JsonPatch:
    """Of this very object, while nothing else was told of it: a write may land late, or be made upon an old cache.

    Fields of its status that are not told stay as somebody else has set them.
    """
    status = attachment.get("status")
    patch = patches.guarded_by_uid(attachment).test("status", value=status if status is not None else NOT_THERE)
    if not isinstance(status, Mapping):
        known = {name: value for name, value in told.items() if value is not None}
        return patch.add("status", value={"attached": False, **known})
    for name, value in told.items():
        if value is not None:
            patch = patch.add("status", name, value=value)
        elif name in status:
            patch = patch.remove("status", name)
    return patch


def _part(obj: Json, member: str) -> Json:
    part = obj.get(member)
    return part if type(part) is dict or isinstance(part, Mapping) else {}
