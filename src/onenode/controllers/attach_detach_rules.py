"""What comes next for a volume on a node: a VolumeAttachment is made, waited for, or deleted. Pure.

As Kubernetes' attach/detach controller decides it, but from the objects alone: what is attached is what
VolumeAttachments say, so nothing is lost with a process.

- Attach: a pod with a node needs the volume → the VolumeAttachment, unless the volume is for one node at a time and
  another has it → the driver's attacher says that it is attached → it is listed in the Node's `volumesAttached`, which
  kubelet waits for.
- Detach: no pod needs it → kubelet no longer has it in the Node's `volumesInUse` → it is off `volumesAttached` → the
  VolumeAttachment is deleted → it is gone, and only then the volume is free.
- A node that does not answer is waited for six minutes, one that is out of service not at all.

Kubelet uses a volume only while a Node lists it in both. So a Node that lists it in neither, read after our last list
that had it, shows that nobody uses it and nobody will: no other look is needed before it is detached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from onenode.controllers.attachable_volumes_rules import ApiObject, Attachable
from onenode.kubelet.node.node_status_rules import ATTACH_ANNOTATION
from onenode.kubelet.volumes.volume_values import UniqueName, attachment_name, driver_and_handle
from orlop.kube import objects
from orlop.kube.patches import NOT_THERE, JsonPatch, guarded_by_uid

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
LONGEST_UNMOUNT_SECONDS: Final = 360.0
LONGEST_ATTACH_SECONDS: Final = 120.0
LONGEST_DETACH_SECONDS: Final = 120.0


# ---- nodes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a Node says; of one that is gone, what it last said is in use."""

    is_there: bool = False
    is_managed: bool = False
    """Its kubelet leaves attaching to a controller."""
    is_ready: bool = False
    is_out_of_service: bool = False
    in_use: frozenset[UniqueName] | None = None
    """None: nobody knows, so everything may be."""
    listed: frozenset[UniqueName] = frozenset()

    def uses(self, volume: UniqueName) -> bool:
        return self.in_use is None or volume in self.in_use


def place_of(node: ApiObject | None, before: NodeFacts) -> NodeFacts:
    if node is None:
        return NodeFacts(in_use=before.in_use)
    status = node.get("status") or {}
    taints = (node.get("spec") or {}).get("taints") or ()
    return NodeFacts(
        is_there=True,
        is_managed=ATTACH_ANNOTATION in objects.annotations(node),
        is_ready=objects.is_condition_true(node, "Ready"),
        is_out_of_service=any(taint.get("key") == OUT_OF_SERVICE for taint in taints),
        in_use=frozenset(status.get("volumesInUse") or ()),
        listed=frozenset(str(one.get("name") or "") for one in status.get("volumesAttached") or ()),
    )


def is_of_a_csi_driver(name: UniqueName) -> bool:
    return driver_and_handle(name) is not None


def listing_patch(node: ApiObject, wanted: Iterable[UniqueName]) -> JsonPatch | None:
    """Lists these volumes of CSI drivers as attached, and no others; what else is listed stays.

    The patch fails if the list has changed meanwhile. None: the list is complete already.
    """
    present = (node.get("status") or {}).get("volumesAttached")
    others = [dict(one) for one in present or () if not is_of_a_csi_driver(str(one.get("name") or ""))]
    ours = [{"name": name, "devicePath": ""} for name in sorted(wanted)]
    before = {str(one.get("name") or "") for one in present or ()}
    if before == {one["name"] for one in (*others, *ours)}:
        return None
    patch = guarded_by_uid(node)
    if not node.get("status"):
        return patch.add("status", value={"volumesAttached": [*others, *ours]})
    patch = patch.test("status", "volumesAttached", value=NOT_THERE if present is None else list(present))
    return patch.add("status", "volumesAttached", value=[*others, *ours])


# ---- one volume on one node ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UsingPod:
    """A pod that needs the volume."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AttachDetachFacts:
    node: str
    place: NodeFacts
    attachment: ApiObject | None = None
    users: tuple[UsingPod, ...] = ()
    is_in_use: bool = False
    """Kubelet may have it mounted."""
    is_listed: bool = False
    """The Node may say that it is attached."""
    seconds_unneeded: float = 0.0
    seconds_awaited: float = 0.0
    """Since it was made, or since we are here."""
    seconds_detaching: float = 0.0
    """Since its VolumeAttachment was first seen to be deleted."""
    volume: UniqueName = ""

    @property
    def is_needed(self) -> bool:
        """Where the Node is gone nothing is attached any more, and what is stays while there are pods."""
        can_be_had = self.place.is_managed or (not self.place.is_there and self.attachment is not None)
        return bool(self.users) and can_be_had


# ---- the steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """For a change; or for so many seconds, when time alone changes something."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Attach:
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Taken:
    """Another node has it."""

    by: tuple[UsingPod, ...]


@dataclass(frozen=True, slots=True)
class Attached:
    pass


@dataclass(frozen=True, slots=True)
class NotAttached:
    """It failed, and somebody else tries again; `occasion` distinguishes this failure from the next one."""

    why: str
    occasion: str = ""
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Detach:
    uid: str


@dataclass(frozen=True, slots=True)
class NotDetached:
    """The attacher reported an error, or has not finished for LONGEST_DETACH_SECONDS; it goes on trying."""

    why: str
    occasion: str = ""
    retry_after: float | None = None


Step: TypeAlias = Wait | Attach | Taken | Attached | NotAttached | Detach | NotDetached


def next_step(one: AttachDetachFacts, volume: Attachable | None, others: Sequence[AttachDetachFacts]) -> Step:
    """`others` are the same volume on other nodes; `volume` is None where nobody knows more than its name."""
    if one.is_needed and volume is not None:
        return _attach(one, volume, others)
    return _detach(one)


def is_to_be_listed(one: AttachDetachFacts) -> bool:
    """Whether kubelet may rely on it: it is attached, and stays so."""
    if one.attachment is None or not is_attached(one.attachment) or objects.is_being_deleted(one.attachment):
        return False
    return one.is_needed or not _may_be_taken(one)


def is_attached(attachment: ApiObject) -> bool:
    return _status(attachment).get("attached") is True


# ---- attach ----------------------------------------------------------------------------------------------------------


def _attach(one: AttachDetachFacts, volume: Attachable, others: Sequence[AttachDetachFacts]) -> Step:
    found = one.attachment
    if found is None:
        return _begin(one, volume, others)
    if objects.is_being_deleted(found):
        return NotAttached(BEING_DELETED, objects.uid(found))
    if is_attached(found):
        return Attached()
    if (error := _status(found).get("attachError")) is not None:
        return NotAttached(str(error.get("message") or ""), str(error.get("time") or ""))
    rounds, into_this = divmod(one.seconds_awaited, LONGEST_ATTACH_SECONDS)
    if rounds:
        why = attach_timed_out(volume.driver, volume.handle)
        return NotAttached(why, f"round {rounds:g}", LONGEST_ATTACH_SECONDS - into_this)
    return Wait(LONGEST_ATTACH_SECONDS - into_this)


def _begin(one: AttachDetachFacts, volume: Attachable, others: Sequence[AttachDetachFacts]) -> Step:
    if volume.is_exclusive:
        holders = [other for other in others if _has_it(other)]
        if holders:
            return Taken(tuple(user for holder in holders for user in holder.users))
        waits = [left for other in others if (left := _seconds_to_wait_for(other)) is not None]
        if waits:
            return Wait(min((seconds for seconds in waits if seconds), default=None))
    spec = {
        "attacher": volume.driver,
        "nodeName": one.node,
        "source": {"persistentVolumeName": volume.volume},
    }
    return Attach({"metadata": {"name": attachment_name(volume.handle, volume.driver, one.node)}, "spec": spec})


def _has_it(other: AttachDetachFacts) -> bool:
    return other.attachment is not None and is_attached(other.attachment)


def _seconds_to_wait_for(other: AttachDetachFacts) -> float | None:
    """While it is being attached there, or taken from there, which a change will end; None: not at all."""
    if other.attachment is None:
        return None
    if objects.is_being_deleted(other.attachment):
        return 0.0
    # Also where nobody needs it any more: what its attacher has begun goes on until the VolumeAttachment is deleted.
    is_tried = _status(other.attachment).get("attachError") is None
    left = LONGEST_ATTACH_SECONDS - other.seconds_awaited
    return left if is_tried and left > 0 else None


# ---- detach ----------------------------------------------------------------------------------------------------------


def _detach(one: AttachDetachFacts) -> Step:
    found = one.attachment
    if found is None:
        return Wait()
    if objects.is_being_deleted(found):
        return _end_of_detach(one, found)
    if not _may_be_taken(one):
        left = LONGEST_UNMOUNT_SECONDS - one.seconds_unneeded
        return Wait(left if left > 0 else None)
    if one.is_listed:
        return Wait()  # the list of the Node is written first
    return Detach(objects.uid(found))


def _end_of_detach(one: AttachDetachFacts, found: ApiObject) -> Step:
    """Return what a detach under way has come to: only an object that is gone ends it well.

    `attached: false` is no end, as in Kubernetes (verifyDetachmentStatus): while the object exists its attacher has not
    removed its finalizer, and no new VolumeAttachment can have the name.
    """
    if (error := _status(found).get("detachError")) is not None:
        return NotDetached(str(error.get("message") or ""))
    rounds, into_this = divmod(one.seconds_detaching, LONGEST_DETACH_SECONDS)
    left = LONGEST_DETACH_SECONDS - into_this
    if not rounds:
        return Wait(left)
    attacher = str((found.get("spec") or {}).get("attacher") or "")
    driver, handle = driver_and_handle(one.volume) or (attacher, one.volume)
    return NotDetached(detach_timed_out(driver, handle), f"round {rounds:g}", left)


def _may_be_taken(one: AttachDetachFacts) -> bool:
    if not one.is_in_use or one.place.is_out_of_service:
        return True
    return one.seconds_unneeded >= LONGEST_UNMOUNT_SECONDS and not one.place.is_ready


def _status(attachment: ApiObject) -> Mapping[str, Any]:
    return attachment.get("status") or {}


# ---- texts of events -------------------------------------------------------------------------------------------------

# What events say of attaching, in the words of Kubernetes' attach/detach controller. Pure.
#
# A success ends with a blank, and a failure has one before its colon: so they stand in every cluster, and people and
# their tools look for them.


ATTACHED_REASON: Final = "SuccessfulAttachVolume"
NOT_ATTACHED_REASON: Final = "FailedAttachVolume"
BEING_DELETED: Final = "volume attachment is being deleted"
TAKEN: Final = (
    "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"
)


@dataclass(frozen=True, slots=True)
class PodName:
    namespace: str
    name: str


def attached_text(volume: str) -> str:
    return f'AttachVolume.Attach succeeded for volume "{volume}" '


def not_attached_text(volume: str, why: str) -> str:
    return f'AttachVolume.Attach failed for volume "{volume}" : {why}'


def attach_timed_out(driver: str, handle: str) -> str:
    return f"timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"


def detach_timed_out(driver: str, handle: str) -> str:
    return f"timed out waiting for external-attacher of {driver} CSI driver to detach volume {handle}"


def taken_text(volume: str, for_namespace: str, users: Sequence[PodName]) -> str:
    """`users` have it on other nodes; of those in other namespaces a pod's owner learns the number alone."""
    return f'Waiting for detach for volume "{volume}" {_why_taken(for_namespace, users)}'


def _why_taken(for_namespace: str, users: Sequence[PodName]) -> str:
    if not users:
        return TAKEN
    known = [user.name for user in users if user.namespace == for_namespace]
    others = len(users) - len(known)
    if not known:
        return f"Volume is already used by {others} pod(s) in different namespaces"
    rest = f" and {others} pod(s) in different namespaces" if others else ""
    return f"Volume is already used by pod(s) {', '.join(known)}{rest}"
