"""Texts of events, in kubelet's words: people and their tools search `kubectl describe` for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FAILED_MOUNT: Final = "FailedMount"
FAILED_MAP: Final = "FailedMapVolume"
SUCCESSFUL_MOUNT: Final = "SuccessfulMountVolume"
FAILED_RESIZE: Final = "VolumeResizeFailed"
RESIZED: Final = "FileSystemResizeSuccessful"
RESIZE_REFUSED: Final = "FileSystemResizeFailed"
SLOW_OWNERSHIP: Final = "VolumePermissionChangeInProgress"
NOT_A_MOUNT: Final = "VolumeNotAMountPoint"
"""Not kubelet's: it does not look."""
NOT_UNMOUNTED: Final = "OrlopFailedUnmount"
"""Not kubelet's: it writes no events of unmounts."""

PLUGIN: Final = "kubernetes.io/csi: "
NODE_AFFINITY: Final = "MountVolume.NodeAffinity check failed"
WAIT_FOR_ATTACH: Final = "MountVolume.WaitForAttach failed"
MOUNT_DEVICE: Final = "MountVolume.MountDevice failed"
SET_UP: Final = "MountVolume.SetUp failed"
TEAR_DOWN: Final = "UnmountVolume.TearDown failed"
NEW_UNMOUNTER: Final = "UnmountVolume.NewUnmounter failed"
MOUNT_REFERENCES: Final = "GetDeviceMountRefs check failed"
SUBPATHS: Final = "error cleaning subPath mounts"
UNMOUNT_DEVICE: Final = "UnmountDevice failed"
MAP_NODE_AFFINITY: Final = "MapVolume.NodeAffinity check failed"
NEW_MAPPER: Final = "MapVolume.NewBlockVolumeMapper initialization failed"
MAP_WAIT_FOR_ATTACH: Final = "MapVolume.WaitForAttach failed"
SET_UP_DEVICE: Final = "MapVolume.SetUpDevice failed"
MAP_POD_DEVICE: Final = "MapVolume.MapPodDevice failed"
EVAL_LINKS: Final = "MapVolume.EvalHostSymlinks failed"
MAP_BLOCK_VOLUME: Final = "MapVolume.MapBlockVolume failed"
MAP_EXPANDING: Final = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
SET_UP_EXPANDING: Final = "MountVolume.Setup failed while expanding volume"
EXPAND: Final = "NodeExpandVolume.NodeExpandVolume failed"
CLAIM_NOT_WRITTEN: Final = "mountVolume.NodeExpandVolume update pvc status failed: "
OLDER_CLAIM_NOT_WRITTEN: Final = "mountVolume.NodeExpandVolume update PVC status failed : "
NEW_UNMAPPER: Final = "UnmapVolume.NewUnmapper failed"
UNMAP_BLOCK_VOLUME: Final = "UnmapVolume.UnmapBlockVolume failed"
UNMAP_POD_DEVICE: Final = "UnmapVolume.UnmapPodDevice failed"
BIND_REFERENCES: Final = "UnmapDevice.GetDeviceBindMountRefs check failed"
UNMAP_DEVICE: Final = "UnmapDevice failed"
TEAR_DOWN_DEVICE: Final = "UnmapDevice.TearDownDevice failed"
REMOVE_MAP_PATH: Final = "UnmapDevice.RemoveMapPath failed"
IN_USE_BY_ANOTHER: Final = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
NO_MATCHING_TERMS: Final = "no matching NodeSelectorTerms"
DEADLINE: Final = "context deadline exceeded"
OWNERSHIP_LINK: Final = (
    "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
    "#configure-volume-permission-and-ownership-change-policy-for-pods"
)


def reason_of(prefix: str) -> str:
    """Return the reason of an event. As in kubelet, a device of another node has the reason of a mount."""
    if prefix == EXPAND:
        return FAILED_RESIZE
    is_map = prefix.startswith("MapVolume.") and prefix != MAP_NODE_AFFINITY
    return FAILED_MAP if is_map else FAILED_MOUNT


def failed(prefix: str, volume: str, why: str) -> str:
    """The blank before the colon is kubelet's."""
    return f'{prefix} for volume "{volume}" : {why}'


def not_unmounted(prefix: str, volume: str, why: str) -> str:
    return f"{failed(prefix, volume, why)}. It is tried again; the pod stays until the volume is unmounted."


def not_registered(doing: str, driver: str) -> str:
    """Without a word of what it was needed for where kubelet has none."""
    who = f"{PLUGIN}{doing}: " if doing else ""
    return f"{who}driver name {driver} not found in the list of registered CSI drivers"


def expanded(volume: str, node: str) -> str:
    return f'MountVolume.NodeExpandVolume succeeded for volume "{volume}" {node}'


def read_only_expansion(volume: str) -> str:
    return f'MountVolume.NodeExpandVolume failed for volume "{volume}" requested read-only file system'


def not_expanded(why: str, *, is_infeasible: bool) -> str:
    return f"Expander.NodeExpand failed to expand the volume {'' if is_infeasible else ': '}{why}"


def not_ready(unmounted: Iterable[str], unattached: Iterable[str], unprocessed: Iterable[str], cause: str) -> str:
    return (
        f"unmounted volumes={_listed(unmounted)}, unattached volumes={_listed(unattached)}, "
        f"failed to process volumes={_listed(unprocessed)}: {cause}"
    )


def cannot_be_had(text: str) -> str:
    return f"Unable to attach or mount volumes: {text}"


def still_mounted(mounted: Iterable[str], cause: str) -> str:
    return f"mounted volumes={_listed(mounted)}: {cause}"


def mounted_elsewhere(path: str, others: Iterable[str]) -> str:
    return f'the device mount path "{path}" is still mounted by other references {_listed(others)}'


def mapped(volume: str, what: str, path: str) -> str:
    return f'MapVolume.MapPodDevice succeeded for volume "{volume}" {what} "{path}"'


def still_referenced(path: str, pods: Iterable[str]) -> str:
    return f'the device "{path}" is still referenced from other Pods {_listed(pods)}'


def nothing_to_resolve(path: str) -> str:
    return f"lstat {path}: no such file or directory"


def no_device(driver: str, what: str) -> str:
    """Kubelet does not look; its container runtime would refuse it later."""
    return f"driver {driver} answered NodePublishVolume with success, but {what}"


def nothing_there(driver: str, path: str) -> str:
    return f"driver {driver} answered NodePublishVolume with success, but there is nothing at {path}"


def not_a_mount(volume: str, driver: str, path: str) -> str:
    return (
        f'Driver {driver} answered NodePublishVolume for volume "{volume}" with success, but nothing is mounted at '
        f"{path}: what the pod writes there stays on the node's own disk, and may be lost"
    )


def unsupported_mode(mode: str, driver: str, modes: tuple[str, ...] | None) -> str:
    """None: there is no CSIDriver object."""
    listed = " ".join(f'"{one}"' for one in modes or ())
    why = "no CSIDriver object" if modes is None else f"only supports [{listed}]"
    about = f"{PLUGIN}mounter.SetupAt failed to check volume lifecycle mode: "
    return f'{about}volume mode "{mode}" not supported by driver {driver} ({why})'


def no_folder(doing: str, path: str, why: str) -> str:
    """The two blanks are kubelet's."""
    return f'{PLUGIN}{doing} failed to create dir "{path}":  {why}'


def no_data_file(who: str, place: str, file: str) -> str:
    """Return the text for a data file that is missing or not kubelet's. Kubelet's text has the same words for both."""
    return (
        f"{PLUGIN}{who} failed to load volume data file [{place}]: {PLUGIN}failed to open volume data file [{file}]: "
        f"open {file}: no such file or directory"
    )


def _listed(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"
