"""What a pod asks for with its scratch folder, and why it may not have it. Pure.

Untrusted: the tenant wrote the attributes, and may have written those that usually come from kubelet. Which pod it is
for, the target path says, since only kubelet writes that; a context that names another pod is refused, and one that
names the same pod's uid was filled by kubelet, as nobody knows a uid before the pod exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orlop.csi.error_codes import FailedPrecondition, InvalidArgument, OutOfRange
from orlop.csi.proto import csi_pb2
from orlop.foundation.duration import Duration, InvalidDuration
from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.records.ephemeral_folder import FolderOptions, Owner, objection_to_volume_id

KUBERNETES_PREFIX: Final = "csi.storage.k8s.io/"
EPHEMERAL: Final = KUBERNETES_PREFIX + "ephemeral"
POD_NAME: Final = KUBERNETES_PREFIX + "pod.name"
POD_NAMESPACE: Final = KUBERNETES_PREFIX + "pod.namespace"
POD_UID: Final = KUBERNETES_PREFIX + "pod.uid"
SERVICE_ACCOUNT: Final = KUBERNETES_PREFIX + "serviceAccount.name"

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
LONGEST_TARGET: Final = 4095
LONGEST_NAME: Final = 255
LONGEST_OF_KUBELET: Final = {POD_NAME: 253, POD_NAMESPACE: 63, POD_UID: 128, SERVICE_ACCOUNT: 253}
"""What Kubernetes allows: objects' names are DNS subdomains, a namespace's is one label of such a name."""

_POD_TARGET: Final = re.compile(r"pods/([^/]+)/volumes/kubernetes\.io~csi/([^/]+)/mount")
_OCTAL: Final = re.compile(r"0?[0-7]{1,4}")
_COUNT: Final = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class AdminLimits:
    """What the admin allows a pod, in bytes and seconds; 0 bytes: no limit."""

    afterlifespan: float
    max_afterlifespan: float
    default_size: int = 0
    max_size: int = 0


@dataclass(frozen=True, slots=True)
class PublishOrder:
    """A request that may be served."""

    volume_id: str
    target: str
    """Below kubelet's folder, without a slash at either end."""
    owner: Owner
    options: FolderOptions
    limited_by: tuple[str, ...] = ()
    """The attributes and flags that its limits come from."""
    volume_name: str = ""
    """What the pod's spec calls it."""


def publish_order(
    request: csi_pb2.NodePublishVolumeRequest, kubelet_dirs: tuple[str, ...], limits: AdminLimits
) -> PublishOrder:
    """What to serve, or the error that says what is wrong with the request."""
    volume_id = checked_volume_id(request.volume_id)
    target = target_below(request.target_path, *kubelet_dirs)
    flags = _mount_flags(request)
    context = request.volume_context
    if context.get(EPHEMERAL) != "true":
        given = f"{context[EPHEMERAL]!r}" if EPHEMERAL in context else "nothing"
        raise InvalidArgument(f"only inline volumes are served here: {EPHEMERAL} has to be 'true' and is {given}")
    _refuse_unknown_attributes(context)
    options = _options(request.readonly, context, flags, limits)
    owner, limited_by = _owner(target, context), _limited_by(context, limits)
    return PublishOrder(volume_id, target, owner, options, limited_by, _volume_name(target))


def checked_volume_id(volume_id: str) -> str:
    if not volume_id:
        raise InvalidArgument("the request names no volume: volume_id is empty")
    if objection := objection_to_volume_id(volume_id):
        raise InvalidArgument(f"the volume id {volume_id[:200]!r} cannot be served: {objection}")
    return volume_id


def target_below(target_path: str, *kubelet_dirs: str) -> str:
    """The target as a path below kubelet's folder, by any of its paths.

    Only text is looked at: links are found when it is walked.
    """
    if not target_path:
        raise InvalidArgument("the request names no target: target_path is empty")
    if "\0" in target_path or len(target_path.encode(errors="surrogatepass")) > LONGEST_TARGET:
        raise InvalidArgument(f"the target path is no path of this machine: {target_path[:100]!r}")
    if not target_path.startswith("/"):
        raise InvalidArgument(f"the target path {target_path!r} has to begin with '/'")
    names = _names_in(target_path)
    root = next((root for root in map(_names_in, kubelet_dirs) if names[: len(root)] == root), names)
    below = names[len(root) :]
    if not below:
        raise InvalidArgument(f"the target path {target_path!r} is not below kubelet's folder {kubelet_dirs[0]}")
    if ".." in below:
        raise InvalidArgument(f"the target path {target_path!r} must not hold '..'")
    if any(len(name.encode(errors="surrogatepass")) > LONGEST_NAME for name in below):
        raise InvalidArgument(f"the target path {target_path[:100]!r}… holds a name of more than {LONGEST_NAME} bytes")
    return "/".join(below)


def _names_in(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in {"", "."}]


# ---- whose volume it is ----------------------------------------------------------------------------------------------


def _owner(target: str, context: Mapping[str, str]) -> Owner:
    _refuse_names_that_no_object_has(context)
    told_uid = context.get(POD_UID, "")
    found = _POD_TARGET.fullmatch(target)
    if found is not None and told_uid and told_uid != found[1]:
        raise InvalidArgument(
            f"the target belongs to the pod {found[1]} and the volume's context names another, {told_uid}: "
            f"a pod must not set {POD_UID} by itself"
        )
    return Owner(
        pod_uid=found[1] if found else told_uid,
        pod_name=context.get(POD_NAME, ""),
        namespace=context.get(POD_NAMESPACE, ""),
        service_account=context.get(SERVICE_ACCOUNT, ""),
        verified=found is not None and told_uid == found[1],
    )


def _volume_name(target: str) -> str:
    """Of two volumes of one pod this tells which is which: their ids say nothing to people."""
    found = _POD_TARGET.fullmatch(target)
    return found[2] if found else ""


def _refuse_names_that_no_object_has(context: Mapping[str, str]) -> None:
    for key, longest in LONGEST_OF_KUBELET.items():
        given = context.get(key, "")
        if len(given) > longest:
            raise InvalidArgument(
                f"{key} cannot be {given[:40]!r}… of {len(given)} characters: nothing in Kubernetes has more than "
                f"{longest} there, so kubelet did not write it, and a pod must not set it by itself"
            )


def refuse_another_pod(order: PublishOrder, recorded: Owner) -> None:
    """A folder is one pod's, living and dead: kubelet gives no two pods the same volume id."""
    asks, has = order.owner.pod_uid, recorded.pod_uid
    if asks and has and asks != has:
        raise FailedPrecondition(
            f"the volume {order.volume_id} belongs to the pod {has}, and the pod {asks} asks for it: "
            "an inline volume is one pod's, and so is what it left behind"
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
        asked = Duration.parse(text)
    except InvalidDuration as error:
        raise InvalidArgument(f"{AFTERLIFESPAN}: {error}") from None
    if asked.nanoseconds < 0:
        raise InvalidArgument(f"{AFTERLIFESPAN} cannot be {text!r}: allowed is 0s (no afterlife) or more")
    if asked.seconds > limits.max_afterlifespan:
        most = Duration.of(seconds=limits.max_afterlifespan)
        raise OutOfRange(f"{AFTERLIFESPAN} cannot be {text!r}: this node keeps folders for at most {most}")
    return asked.seconds


def _size(text: str | None, limits: AdminLimits) -> int:
    if text is None:
        return limits.default_size or limits.max_size
    try:
        asked = Quantity.parse(text).value()
    except InvalidQuantity as error:
        raise InvalidArgument(f"{SIZE}: {error}") from None
    if asked <= 0:
        raise InvalidArgument(f"{SIZE} cannot be {text!r}: a folder needs more than nothing")
    if limits.max_size and asked > limits.max_size:
        raise OutOfRange(f"{SIZE} cannot be {text!r}: this node allows at most {Quantity.of(limits.max_size)}")
    if asked > LARGEST_COUNT:
        raise InvalidArgument(f"{SIZE} cannot be {text!r}: that is more than any disk holds")
    return asked


def _limited_by(context: Mapping[str, str], limits: AdminLimits) -> tuple[str, ...]:
    asked = tuple(attribute for attribute in (SIZE, INODES) if attribute in context)
    if SIZE in asked or not (limits.default_size or limits.max_size):
        return asked
    return ("--default-size" if limits.default_size else "--max-size", *asked)


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
        raise InvalidArgument("the request says nothing of how the volume is used: volume_capability is missing")
    match request.volume_capability.WhichOneof("access_type"):
        case "block":
            raise InvalidArgument("inline volumes are folders: a raw block device cannot be had")
        case None:
            raise InvalidArgument("volume_capability has to say how the volume is used: mount is missing")
    if request.volume_capability.access_mode.mode == csi_pb2.VolumeCapability.AccessMode.Mode.UNKNOWN:
        raise InvalidArgument("volume_capability has to say how many use the volume: access_mode is missing")
    return [option for flag in request.volume_capability.mount.mount_flags for option in _listed(flag)]


def _listed(text: str) -> list[str]:
    return [option.strip() for option in text.split(",") if option.strip()]


def _mount_options(asked: Iterable[str]) -> tuple[str, ...]:
    """In one order, whatever the order they were asked in."""
    asked = set(asked) - WITHOUT_EFFECT - {"ro"}
    for option in sorted(asked):
        if option in {"suid", "dev"}:
            raise InvalidArgument(
                f"the mount option {option!r} cannot be had: volumes are mounted nosuid and nodev, always"
            )
        if option not in (*CHOICES, *ALWAYS):
            known = ", ".join((*ALWAYS, *CHOICES, "ro"))
            raise InvalidArgument(f"unknown mount option {option[:100]!r}: allowed are {known}")
    times = [option for option in ("noatime", "relatime", "strictatime") if option in asked]
    if len(times) > 1:
        raise InvalidArgument(f"the mount options {' and '.join(times)} exclude each other")
    return (*ALWAYS, *(option for option in CHOICES if option in asked))
