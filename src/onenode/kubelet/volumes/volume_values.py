"""The values that the parts of the volume manager exchange, and the names that Kubernetes derives from them. Pure.

Nothing stands between the parts that are hashed: this is how every kubelet and every attacher does it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from orlop.foundation.quantity import Quantity
from orlop.kube.objects import ObjectName

ApiObject: TypeAlias = Mapping[str, Any]
"""An object as it was read."""

UniqueName: TypeAlias = str
"""Of a volume on this node, as Kubernetes writes it into `status.volumesInUse`."""

PodUid: TypeAlias = str

LOCAL_DRIVER: Final = "kubernetes.io~local-volume"
"""The driver of PersistentVolumes of the type `local`: kubelet itself. No driver of CSI can have this name."""
LOCAL_PATH: Final = "path"
"""The volume attribute with the path of a local volume."""
NOTHING: Final = Quantity.of(0)
WITHOUT_ATTRIBUTES: Final[Mapping[str, str]] = {}


class Lifecycle(Enum):
    """Kubernetes' words."""

    PERSISTENT = "Persistent"
    EPHEMERAL = "Ephemeral"


class VolumeMode(Enum):
    """Kubernetes' words."""

    FILESYSTEM = "Filesystem"
    BLOCK = "Block"


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """A volume as its PersistentVolume, or the pod that has it inline, describes it."""

    name: str
    """The PV's; of an inline one, what the pod calls it."""
    driver: str
    handle: str
    lifecycle: Lifecycle
    mode: VolumeMode = VolumeMode.FILESYSTEM
    fs_type: str = ""
    mount_options: tuple[str, ...] = ()
    access_modes: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    stage_secret: ObjectName | None = None
    publish_secret: ObjectName | None = None
    node_affinity: ApiObject | None = None
    expand_secret: ObjectName | None = None
    size: Quantity | None = None
    """As the PV has it."""

    @property
    def is_inline(self) -> bool:
        return self.lifecycle is Lifecycle.EPHEMERAL


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What volumes need to know of a pod."""

    uid: PodUid
    name: ObjectName
    service_account: str = ""
    fs_group: int | None = None
    fs_group_change_policy: str = ""


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """What a claim says of its size, and of how far somebody is with changing it."""

    name: ObjectName
    size: Quantity = NOTHING
    """The capacity it has, by its status."""
    requested: Quantity = NOTHING
    allocated: Quantity | None = None
    resize_status: str = ""
    is_for_many_nodes: bool = False
    is_not_required: bool = False
    """Nothing need be done on nodes."""


@dataclass(frozen=True, slots=True)
class DesiredMount:
    """One volume in one pod; the pod may have it under several names."""

    volume: UniqueName
    spec: VolumeSpec
    pod: PodFacts
    outer_names: tuple[str, ...]
    read_only: bool = False
    attach_required: bool = False
    requires_republish: bool = False
    claim: ClaimFacts | None = None
    """None: it is inline."""


# ---- what is there ---------------------------------------------------------------------------------------------------


class Device(Enum):
    """The staging of a volume on this node."""

    NOT_MOUNTED = "not mounted"
    UNCERTAIN = "uncertain"
    MOUNTED = "mounted"


class MountState(Enum):
    """Of a volume in a pod; one that is not mounted is not listed."""

    UNCERTAIN = "uncertain"
    MOUNTED = "mounted"


@dataclass(frozen=True, slots=True)
class ActualMount:
    pod_uid: PodUid
    spec: VolumeSpec
    state: MountState
    remount_required: bool = False
    reconstructed: bool = False
    """Found on disk after a restart, and not mounted anew since."""


@dataclass(frozen=True, slots=True)
class ActualVolume:
    """Listed here means: as far as this node knows, it is attached or needs no attaching."""

    name: UniqueName
    spec: VolumeSpec
    device: Device = Device.NOT_MOUNTED
    mounts: Mapping[PodUid, ActualMount] = field(default_factory=dict)
    attachable: bool = False
    size: Quantity | None = None
    """What the claim said when the volume came, or what it was expanded to since."""
    may_expand: bool = True
    """False: the driver cannot while it is in use."""
    has_failed_to_expand: bool = False


Desired: TypeAlias = Mapping[UniqueName, Mapping[PodUid, DesiredMount]]
Actual: TypeAlias = Mapping[UniqueName, ActualVolume]


UNIQUE_NAME_PREFIX: Final = "kubernetes.io/csi/"


def inline_handle(pod_uid: PodUid, volume: str) -> str:
    """Of a volume that a pod has in its own spec."""
    return _hashed(pod_uid + volume)


def attachment_name(handle: str, driver: str, node: str) -> str:
    """Of the VolumeAttachment; also written where nothing is attached."""
    return _hashed(handle + driver + node)


def unique_name(spec: VolumeSpec, pod_uid: PodUid) -> UniqueName:
    return f"{UNIQUE_NAME_PREFIX}{pod_uid}-{spec.name}" if spec.is_inline else persistent_name(spec.driver, spec.handle)


def persistent_name(driver: str, handle: str) -> UniqueName:
    return f"{UNIQUE_NAME_PREFIX}{driver}^{handle}"


def driver_and_handle(name: UniqueName) -> tuple[str, str] | None:
    """Of a persistent volume of a CSI driver; None where it is the name of something else.

    A handle may hold any character, also the one that stands before it; the name of a driver may not.
    """
    driver, mark, handle = name.removeprefix(UNIQUE_NAME_PREFIX).partition("^")
    is_ours = name.startswith(UNIQUE_NAME_PREFIX) and mark and driver and handle
    return (driver, handle) if is_ours else None


def _hashed(text: str) -> str:
    return f"csi-{hashlib.sha256(text.encode()).hexdigest()}"
