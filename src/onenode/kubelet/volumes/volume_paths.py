"""Where Kubernetes has what belongs to a volume, as names below kubelet's directory. Pure.

Drivers, operators and other tools rely on these paths; none of them may change.
"""

from __future__ import annotations

import hashlib
from typing import Final, TypeAlias

Names: TypeAlias = tuple[str, ...]
"""Names that lead from kubelet's directory to something below it."""

PODS: Final = "pods"
VOLUMES: Final = "volumes"
VOLUME_DEVICES: Final = "volumeDevices"
VOLUME_SUBPATHS: Final = "volume-subpaths"
PLUGIN: Final = "kubernetes.io~csi"
DATA_FILE: Final = "vol_data.json"
MOUNT: Final = "mount"
GLOBAL_MOUNT: Final = "globalmount"
ALL_PODS: Final[Names] = (PODS,)
CSI_PLUGINS: Final[Names] = ("plugins", "kubernetes.io", "csi")
BLOCK_ROOT: Final[Names] = (*CSI_PLUGINS, VOLUME_DEVICES)
BLOCK_STAGING: Final = "staging"
BLOCK_PUBLISH: Final = "publish"
TAKEN_BY_BLOCK: Final = frozenset({BLOCK_STAGING, BLOCK_PUBLISH})
"""Names beside those of raw block volumes: none of these can have one of them."""
LONGEST_NAME: Final = 255


def escaped(name: str) -> str:
    """What may hold slashes, as one name."""
    return name.replace("/", "~")


def is_fit_name(name: str) -> bool:
    """Whether it can only be an entry of the folder it is looked up in."""
    size = len(name.encode("utf-8", "surrogateescape"))
    return 0 < size <= LONGEST_NAME and name not in {".", ".."} and "/" not in name and "\0" not in name


# ---- of a pod --------------------------------------------------------------------------------------------------------


def pod_folder(pod_uid: str) -> Names:
    return PODS, pod_uid


def pod_volumes(pod_uid: str) -> Names:
    return PODS, pod_uid, VOLUMES


def pod_csi_volumes(pod_uid: str) -> Names:
    return *pod_volumes(pod_uid), PLUGIN


def pod_volume(pod_uid: str, volume: str) -> Names:
    return *pod_csi_volumes(pod_uid), escaped(volume)


def mount_target(pod_uid: str, volume: str) -> Names:
    return *pod_volume(pod_uid, volume), MOUNT


def data_file(folder: Names) -> Names:
    return *folder, DATA_FILE


def all_subpaths(pod_uid: str) -> Names:
    return *pod_folder(pod_uid), VOLUME_SUBPATHS


def pod_subpaths(pod_uid: str, volume: str) -> Names:
    return *all_subpaths(pod_uid), escaped(volume)


# ---- of the node -----------------------------------------------------------------------------------------------------


def staging_folder(driver: str, handle: str) -> Names:
    """A handle may be any text, so it is hashed."""
    return *CSI_PLUGINS, driver, hashlib.sha256(handle.encode()).hexdigest()


def global_mount(driver: str, handle: str) -> Names:
    return *staging_folder(driver, handle), GLOBAL_MOUNT


# ---- of raw block volumes --------------------------------------------------------------------------------------------


def block_staging(volume: str) -> Names:
    return *BLOCK_ROOT, BLOCK_STAGING, volume


def block_publish_folder(volume: str) -> Names:
    return *BLOCK_ROOT, BLOCK_PUBLISH, volume


def block_publish(volume: str, pod_uid: str) -> Names:
    return *block_publish_folder(volume), pod_uid


def block_folder(volume: str) -> Names:
    return *BLOCK_ROOT, escaped(volume)


def block_data(volume: str) -> Names:
    return *block_folder(volume), "data"


def block_devices(volume: str) -> Names:
    return *block_folder(volume), "dev"


def block_device(volume: str, pod_uid: str) -> Names:
    return *block_devices(volume), pod_uid


def pod_devices(pod_uid: str) -> Names:
    return *pod_folder(pod_uid), VOLUME_DEVICES


def pod_csi_devices(pod_uid: str) -> Names:
    return *pod_devices(pod_uid), PLUGIN


def pod_device_link(pod_uid: str, volume: str) -> Names:
    return *pod_csi_devices(pod_uid), escaped(volume)
