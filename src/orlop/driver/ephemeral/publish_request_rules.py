"""Parse and validate a NodePublishVolume request. Pure.

The request is not trusted: the tenant wrote the volume attributes, and may have written those that usually come from
kubelet. The pod is taken from the target path, which only kubelet writes. A context with the uid of another pod is
refused. A context with the uid of this pod was written by kubelet, because a tenant cannot know a uid before the pod
exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orlop.csi.error_codes import FailedPrecondition, InvalidArgument, OutOfRange
from orlop.csi.proto import csi_pb2
from orlop.driver.kubelet_calls import (
    EPHEMERAL,
    KUBERNETES_PREFIX,
    POD_NAME,
    POD_NAMESPACE,
    POD_UID,
    SERVICE_ACCOUNT,
    checked_volume_id,
    target_below,
)
from orlop.foundation.duration import Duration, InvalidDuration
from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.records.ephemeral_folder import FolderOptions, FolderRecord, Owner, objection_to_volume_id

SIZE: Final = "orlop.dev/size"
INODES: Final = "orlop.dev/inodes"
AFTERLIFESPAN: Final = "orlop.dev/afterlifespan"
MODE: Final = "orlop.dev/mode"
MOUNT_OPTIONS: Final = "orlop.dev/mount-options"
ATTRIBUTES: Final = (SIZE, INODES, AFTERLIFESPAN, MODE, MOUNT_OPTIONS)

ALWAYS: Final = ("nosuid", "nodev")
CHOICES: Final = ("noexec", "noatime", "nodiratime", "relatime", "strictatime", "nosymfollow")
WITHOUT_EFFECT: Final = frozenset({"rw", "exec", "bind"})
LARGEST_MODE: Final = 0o777
DEFAULT_MODE: Final = 0o777
LARGEST_COUNT: Final = 2**63 - 1
LONGEST_OF_KUBELET: Final = {POD_NAME: 253, POD_NAMESPACE: 63, POD_UID: 128, SERVICE_ACCOUNT: 253}
"""Limits of Kubernetes: names of objects are DNS subdomains, that of a namespace is one DNS label."""

_POD_TARGET: Final = re.compile(r"pods/([^/]+)/volumes/kubernetes\.io~csi/([^/]+)/mount")
_OCTAL: Final = re.compile(r"0?[0-7]{1,4}")
_COUNT: Final = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class AdminLimits:
    """The limits that the flags set for every pod, in bytes and seconds; 0 bytes is no limit."""

    afterlifespan: float
    max_afterlifespan: float
    default_size: int = 0
    max_size: int = 0


@dataclass(frozen=True, slots=True)
class PublishOrder:
    """A valid NodePublishVolume request."""

    volume_id: str
    target: str
    """The path below kubelet's folder, without a slash at either end."""
    owner: Owner
    options: FolderOptions
    limited_by: tuple[str, ...] = ()
    """The attributes and flags that set its size and inodes."""
    volume_name: str = ""
    """The volume's name in the pod's spec."""
    beyond_limits: str = ""
    """Why a new folder must not have these options; empty if it may."""


def publish_order(
    request: csi_pb2.NodePublishVolumeRequest, kubelet_dirs: tuple[str, ...], limits: AdminLimits
) -> PublishOrder:
    """Return the validated request, or raise an error with the reason.

    Options beyond `limits` are no error here: the volume may have been published under other limits. The caller reads
    its record, then calls `refuse_beyond_limits` for a new folder.
    """
    volume_id = checked_volume_id(request.volume_id, objection_to_volume_id)
    target = target_below(request.target_path, *kubelet_dirs)
    flags = _mount_flags(request)
    context = request.volume_context
    if context.get(EPHEMERAL) != "true":
        value = f"{context[EPHEMERAL]!r}" if EPHEMERAL in context else "missing"
        raise InvalidArgument(f"this driver serves only inline volumes: {EPHEMERAL} must be 'true', but is {value}")
    _refuse_unknown_attributes(context)
    options = _options(request.readonly, context, flags, limits)
    owner, limited_by = _owner(target, context), _limited_by(context, limits)
    beyond_limits = _why_beyond_limits(context, options, limits)
    return PublishOrder(volume_id, target, owner, options, limited_by, _volume_name(target), beyond_limits)


def refuse_beyond_limits(order: PublishOrder) -> None:
    """Raise OUT_OF_RANGE if a new folder must not have the options of the order."""
    if order.beyond_limits:
        raise OutOfRange(order.beyond_limits)


def why_limits_are_refused(limited_by: Sequence[str], reason: str) -> str:
    """Return the sentence for limits that cannot be enforced; they come from the attributes and flags `limited_by`."""
    limits = " and ".join(limited_by) or "the limits of the volume"
    return f"{limits} cannot be enforced here, and no volume is published without its limits. {reason}"


def new_record(order: PublishOrder, now: float) -> FolderRecord:
    return FolderRecord(
        order.volume_id, order.owner, order.options, created_at=round(now, 3), volume_name=order.volume_name
    )


# ---- whose volume it is ----------------------------------------------------------------------------------------------


def _owner(target: str, context: Mapping[str, str]) -> Owner:
    _refuse_names_that_no_object_has(context)
    context_uid = context.get(POD_UID, "")
    pod_target = _POD_TARGET.fullmatch(target)
    if pod_target is not None and context_uid and context_uid != pod_target[1]:
        raise InvalidArgument(
            f"the target belongs to the pod {pod_target[1]} and the volume's context names another, {context_uid}: "
            f"a pod must not set {POD_UID} by itself"
        )
    return Owner(
        pod_uid=pod_target[1] if pod_target else context_uid,
        pod_name=context.get(POD_NAME, ""),
        namespace=context.get(POD_NAMESPACE, ""),
        service_account=context.get(SERVICE_ACCOUNT, ""),
        verified=pod_target is not None and context_uid == pod_target[1],
    )


def _volume_name(target: str) -> str:
    """Return the name in the pod's spec: volume ids are hashes, and a pod may have several volumes."""
    pod_target = _POD_TARGET.fullmatch(target)
    return pod_target[2] if pod_target else ""


def _refuse_names_that_no_object_has(context: Mapping[str, str]) -> None:
    for key, longest in LONGEST_OF_KUBELET.items():
        value = context.get(key, "")
        if len(value) > longest:
            raise InvalidArgument(
                f"{key} cannot be {value[:40]!r}… of {len(value)} characters: nothing in Kubernetes has more than "
                f"{longest} there, so kubelet did not write it, and a pod must not set it by itself"
            )


def refuse_another_pod(order: PublishOrder, recorded: Owner) -> None:
    """Raise FAILED_PRECONDITION if a folder, live or retained, belongs to another pod.

    Kubelet derives the volume id from the pod's uid, so two pods never have the same one.
    """
    asking, owning = order.owner.pod_uid, recorded.pod_uid
    # A record without a uid (taken over from another driver, or of a target that names no pod) belongs to any pod: it
    # must not lock its own pod out.
    if asking and owning and asking != owning:
        raise FailedPrecondition(
            f"the volume {order.volume_id} belongs to the pod {owning}, and the pod {asking} asks for it: "
            "an inline volume belongs to one pod, also while its folder is retained"
        )


# ---- what it asks for ------------------------------------------------------------------------------------------------


def _refuse_unknown_attributes(context: Mapping[str, str]) -> None:
    unknown = sorted(key for key in context if not key.startswith(KUBERNETES_PREFIX) and key not in ATTRIBUTES)
    if unknown:
        raise InvalidArgument(f"unknown volume attribute {unknown[0]!r}: allowed are {', '.join(ATTRIBUTES)}")


def _options(
    read_only: bool,  # noqa: FBT001 - the request's own field
    context: Mapping[str, str],
    flags: Iterable[str],
    limits: AdminLimits,
) -> FolderOptions:
    chosen = [*flags, *_listed(context.get(MOUNT_OPTIONS, ""))]
    return FolderOptions(
        lifespan_seconds=_lifespan(context.get(AFTERLIFESPAN), limits),
        own_lifespan=AFTERLIFESPAN in context,
        size_bytes=_size(context.get(SIZE), limits),
        inodes=_inodes(context.get(INODES)),
        mode=_mode(context.get(MODE)),
        mount_options=_mount_options(chosen),
        read_only=read_only or "ro" in chosen,
    )


def _lifespan(text: str | None, limits: AdminLimits) -> float:
    if text is None:
        return limits.afterlifespan
    try:
        lifespan = Duration.parse(text)
    except InvalidDuration as error:
        raise InvalidArgument(f"{AFTERLIFESPAN}: {error}") from None
    if lifespan.nanoseconds < 0:
        raise InvalidArgument(f"{AFTERLIFESPAN} cannot be {text!r}: allowed is 0s (no afterlife) or more")
    return lifespan.seconds


def _size(text: str | None, limits: AdminLimits) -> int:
    if text is None:
        return limits.default_size or limits.max_size
    try:
        size = Quantity.parse(text).value()
    except InvalidQuantity as error:
        raise InvalidArgument(f"{SIZE}: {error}") from None
    if size <= 0:
        raise InvalidArgument(f"{SIZE} cannot be {text!r}: allowed is a size of 1 byte or more")
    if size > LARGEST_COUNT:
        raise OutOfRange(f"{SIZE} cannot be {text!r}: a disk holds at most {LARGEST_COUNT} bytes")
    return size


def _why_beyond_limits(context: Mapping[str, str], options: FolderOptions, limits: AdminLimits) -> str:
    if options.own_lifespan and options.lifespan_seconds > limits.max_afterlifespan:
        most = Duration.of(seconds=limits.max_afterlifespan)
        return f"{AFTERLIFESPAN} cannot be {context[AFTERLIFESPAN]!r}: this node keeps folders for at most {most}"
    if SIZE in context and limits.max_size and options.size_bytes > limits.max_size:
        return f"{SIZE} cannot be {context[SIZE]!r}: this node allows at most {Quantity.of(limits.max_size)}"
    return ""


def _limited_by(context: Mapping[str, str], limits: AdminLimits) -> tuple[str, ...]:
    attributes = tuple(attribute for attribute in (SIZE, INODES) if attribute in context)
    if SIZE in attributes or not (limits.default_size or limits.max_size):
        return attributes
    return ("--default-size" if limits.default_size else "--max-size", *attributes)


def _inodes(text: str | None) -> int:
    if text is None:
        return 0
    if not _COUNT.fullmatch(text) or not 0 < int(text) <= LARGEST_COUNT:
        raise InvalidArgument(f"{INODES} cannot be {text!r}: allowed is a whole number of files, 1 or more")
    return int(text)


def _mode(text: str | None) -> int:
    if text is None:
        return DEFAULT_MODE
    if not _OCTAL.fullmatch(text) or int(text, 8) > LARGEST_MODE:
        raise InvalidArgument(f"{MODE} cannot be {text!r}: allowed are octal modes up to 0777, such as 0750")
    return int(text, 8)


# ---- how it is mounted -----------------------------------------------------------------------------------------------


def _mount_flags(request: csi_pb2.NodePublishVolumeRequest) -> list[str]:
    if not request.HasField("volume_capability"):
        raise InvalidArgument("the request has no volume_capability, which defines how the volume is used")
    match request.volume_capability.WhichOneof("access_type"):
        case "block":
            raise InvalidArgument("volume_capability asks for a raw block device, but inline volumes are folders")
        case None:
            raise InvalidArgument("volume_capability has no access type: mount is missing")
    if request.volume_capability.access_mode.mode == csi_pb2.VolumeCapability.AccessMode.Mode.UNKNOWN:
        raise InvalidArgument("volume_capability has no access mode: access_mode is missing")
    return [option for flag in request.volume_capability.mount.mount_flags for option in _listed(flag)]


def _listed(text: str) -> list[str]:
    return [option.strip() for option in text.split(",") if option.strip()]


def _mount_options(words: Iterable[str]) -> tuple[str, ...]:
    """Return the options in a fixed order, so that equal options compare equal."""
    requested = set(words) - WITHOUT_EFFECT - {"ro"}
    for option in sorted(requested):
        if option in {"suid", "dev"}:
            raise InvalidArgument(
                f"the mount option {option!r} is not allowed: volumes are always mounted with nosuid and nodev"
            )
        if option not in (*CHOICES, *ALWAYS):
            known = ", ".join((*ALWAYS, *CHOICES, "ro"))
            raise InvalidArgument(f"unknown mount option {option[:100]!r}: allowed are {known}")
    times = [option for option in ("noatime", "relatime", "strictatime") if option in requested]
    if len(times) > 1:
        raise InvalidArgument(f"the mount options {' and '.join(times)} exclude each other")
    return (*ALWAYS, *(option for option in CHOICES if option in requested))
