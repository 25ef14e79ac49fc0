"""Parse and validate the node's requests for volumes on drives. Pure.

A request names paths below kubelet's folder only. The volume context names a drive, never a path: what is not a drive
of this node, or not the volume that the drive holds under this id, is refused later, under the volume's key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orlop.csi.error_codes import FailedPrecondition, InvalidArgument, OutOfRange
from orlop.csi.proto import csi_pb2
from orlop.driver.kubelet_calls import (
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    checked_volume_id,
    target_below,
    used_path_below,
)
from orlop.driver.persistent.volume_request_rules import AccessMode, form_of
from orlop.records.api_record import LONGEST_NAME
from orlop.records.drive import VolumeAccessMode, VolumeMode
from orlop.records.volume import FileSystemOrNone
from orlop.records.volume_context import InvalidVolumeContext, VolumeContext, decode_context, is_volume_id
from orlop.records.volume_record import VolumeTarget

BLOCK: Final = 4096
"""Sizes are multiples of it: a loop device has no half sector."""
MOUNT_WORDS: Final = (
    "ro",
    "nosuid",
    "nodev",
    "noexec",
    "nosymfollow",
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
)
WITHOUT_EFFECT: Final = frozenset({"rw", "exec", "suid", "dev", "bind", "defaults"})
_OF_KUBELET: Final = re.compile(r"pods/[^/]+/volumes/kubernetes\.io~csi/[^/]+/mount|plugins/kubernetes\.io/csi/.+")


@dataclass(frozen=True, slots=True)
class UsedForm:
    """How a request wants to use the volume."""

    volume_mode: VolumeMode
    file_system: FileSystemOrNone
    """Empty: the request names none."""
    mount_options: tuple[str, ...] = ()
    """Words of mount(8), without those that change nothing."""
    alone: bool = False
    """At one target at a time (ReadWriteOncePod)."""

    @property
    def read_only(self) -> bool:
        return "ro" in self.mount_options

    @property
    def access_mode(self) -> VolumeAccessMode:
        return "ReadWriteOncePod" if self.alone else "ReadWriteOnce"


@dataclass(frozen=True, slots=True)
class VolumeStageOrder:
    """A valid NodeStageVolume request."""

    volume_id: str
    staging: str
    """The path below kubelet's folder, as all paths here."""
    context: VolumeContext
    form: UsedForm


@dataclass(frozen=True, slots=True)
class VolumePublishOrder:
    """A valid NodePublishVolume request."""

    volume_id: str
    staging: str
    target: VolumeTarget
    form: UsedForm


@dataclass(frozen=True, slots=True)
class VolumeExpandOrder:
    """A valid NodeExpandVolume request."""

    volume_id: str
    path: str
    bytes: int
    """What the volume must have at least; 0: what it was promised."""


def stage_order(request: csi_pb2.NodeStageVolumeRequest, kubelet_dirs: tuple[str, ...]) -> VolumeStageOrder:
    """Return the validated request, or raise an error with the reason."""
    volume_id = drive_volume_id(request.volume_id)
    staging = target_below(request.staging_target_path, *kubelet_dirs, field="staging_target_path")
    form = _form(request, read_only=False)
    try:
        context = decode_context(request.volume_context)
    except InvalidVolumeContext as error:
        raise InvalidArgument(f"{error}: only Orlop's controller makes volumes on drives") from None
    if context.bytes % BLOCK:
        raise InvalidArgument(f"the volume context asks for {context.bytes} bytes, which is not a multiple of {BLOCK}")
    if context.volume_mode == "Block" and (context.file_system or context.backing != "image"):
        raise InvalidArgument("the volume context asks for a block device with a file system, or in a folder")
    if context.volume_mode == "Filesystem" and not context.file_system:
        raise InvalidArgument("the volume context names no file system")
    refuse_other_use(form, context.volume_mode, context.file_system)
    return VolumeStageOrder(volume_id, staging, context, form)


def drive_publish_order(request: csi_pb2.NodePublishVolumeRequest, kubelet_dirs: tuple[str, ...]) -> VolumePublishOrder:
    """Return the validated request, or raise an error with the reason."""
    volume_id = drive_volume_id(request.volume_id)
    target = target_below(request.target_path, *kubelet_dirs)
    form = _form(request, read_only=request.readonly)
    if not request.staging_target_path:
        raise FailedPrecondition("the request has no staging_target_path: volumes on drives are staged first")
    staging = target_below(request.staging_target_path, *kubelet_dirs, field="staging_target_path")
    if target == staging or target.startswith(f"{staging}/"):
        raise InvalidArgument(f"the target path {request.target_path!r} is inside the staging path")
    context = request.volume_context
    return VolumePublishOrder(
        volume_id,
        staging,
        VolumeTarget(
            target,
            read_only=form.read_only,
            alone=form.alone,
            pod_namespace=context.get(POD_NAMESPACE, "")[:LONGEST_NAME],
            pod_name=context.get(POD_NAME, "")[:LONGEST_NAME],
            pod_uid=context.get(POD_UID, "")[:LONGEST_NAME],
        ),
        form,
    )


def drive_expand_order(request: csi_pb2.NodeExpandVolumeRequest, kubelet_dirs: tuple[str, ...]) -> VolumeExpandOrder:
    """Return the validated request, or raise an error with the reason."""
    volume_id = drive_volume_id(request.volume_id)
    path = used_path_below(request.volume_path, *kubelet_dirs)
    required, limit = request.capacity_range.required_bytes, request.capacity_range.limit_bytes
    if required < 0 or limit < 0 or (limit and required > limit):
        raise OutOfRange(f"capacity_range holds no size: {required} to {limit} bytes")
    size = -(-required // BLOCK) * BLOCK
    if limit and size > limit:
        raise OutOfRange(f"no volume has {required} to {limit} bytes: sizes are multiples of {BLOCK}")
    return VolumeExpandOrder(volume_id, path, size)


def drive_volume_id(text: str) -> str:
    return checked_volume_id(text, lambda each: None if is_volume_id(each) else "no volume on a drive has such an id")


def refuse_other_use(form: UsedForm, volume_mode: VolumeMode, file_system: FileSystemOrNone) -> None:
    """Raise FAILED_PRECONDITION if the volume is not of the form that a request wants to use."""
    if form.volume_mode != volume_mode:
        raise FailedPrecondition(
            f"the volume has volumeMode {volume_mode}, and the request asks for {form.volume_mode}"
        )
    if form.file_system not in {"", file_system}:
        raise FailedPrecondition(
            f"the volume has the file system {file_system}, and the request asks for {form.file_system}"
        )


def is_path_of_kubelet(path: str) -> bool:
    """Return whether kubelet names such a path to CSI drivers, so that what is mounted there is a driver's."""
    return _OF_KUBELET.fullmatch(path) is not None


def _form(request: csi_pb2.NodeStageVolumeRequest | csi_pb2.NodePublishVolumeRequest, *, read_only: bool) -> UsedForm:
    if not request.HasField("volume_capability"):
        raise InvalidArgument("the request has no volume_capability, which defines how the volume is used")
    capability = request.volume_capability
    volume_mode, file_system = form_of((capability,))
    mode = capability.access_mode.mode
    words = _mount_words(capability.mount.mount_flags)
    if read_only or mode == AccessMode.SINGLE_NODE_READER_ONLY:
        words = ("ro", *(word for word in words if word != "ro"))
    return UsedForm(volume_mode, file_system, words, mode == AccessMode.SINGLE_NODE_SINGLE_WRITER)


def _mount_words(flags: Iterable[str]) -> tuple[str, ...]:
    """Return the options in a fixed order, so that equal options compare equal."""
    words = {word.strip() for flag in flags for word in flag.split(",")} - {""} - WITHOUT_EFFECT
    for word in sorted(words):
        if word not in MOUNT_WORDS:
            raise InvalidArgument(f"unknown mount option {word[:100]!r}: allowed are {', '.join(MOUNT_WORDS)}")
    times = [word for word in ("noatime", "relatime", "strictatime") if word in words]
    if len(times) > 1:
        raise InvalidArgument(f"the mount options {' and '.join(times)} exclude each other")
    return tuple(word for word in MOUNT_WORDS if word in words)
