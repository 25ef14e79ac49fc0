"""Which volumes of Kubernetes' own kinds a pod has: where, for whom, and how large they may be. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from onenode.host.payload_files import FileKind, FolderPermissions
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.desired_volumes_rules import containers_of, used_volumes
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_values import ApiObject
from orlop.foundation.quantity import InvalidQuantity, Quantity

SET_GROUP: Final = 0o2000
STICKY: Final = 0o1000
ALL: Final = 0o777
MEMORY: Final = "Memory"


class PlainKind(Enum):
    """The field of a volume, and what Kubernetes calls its folder."""

    EMPTY_DIR = "emptyDir", "kubernetes.io~empty-dir"
    CONFIG_MAP = "configMap", "kubernetes.io~configmap"
    SECRET = "secret", "kubernetes.io~secret"
    DOWNWARD_API = "downwardAPI", "kubernetes.io~downward-api"
    PROJECTED = "projected", "kubernetes.io~projected"
    HOST_PATH = "hostPath", ""

    @property
    def field(self) -> str:
        return self.value[0]

    @property
    def folder(self) -> str:
        """Empty: it has none of its own."""
        return self.value[1]


WITH_FILES: Final = frozenset({PlainKind.CONFIG_MAP, PlainKind.SECRET, PlainKind.DOWNWARD_API, PlainKind.PROJECTED})
"""Kubelet writes them, and writes them again; a pod only reads them."""
FOLDERS: Final = tuple(kind.folder for kind in PlainKind if kind.folder)


@dataclass(frozen=True, slots=True)
class PlainVolume:
    name: str
    kind: PlainKind
    source: ApiObject

    @property
    def has_files(self) -> bool:
        return self.kind in WITH_FILES

    @property
    def is_in_memory(self) -> bool:
        """What may be secret must not come to a disk."""
        if self.kind is PlainKind.EMPTY_DIR:
            return self.source.get("medium") == MEMORY
        return self.has_files and self.kind is not PlainKind.CONFIG_MAP


def plain_volumes_of(pod: ApiObject) -> tuple[PlainVolume, ...]:
    """Those that a container uses, in the pod's order."""
    return tuple(found for volume in used_volumes(pod) if (found := _plain(volume)) is not None)


def _plain(volume: ApiObject) -> PlainVolume | None:
    for kind in PlainKind:
        if volume.get(kind.field) is not None:
            return PlainVolume(str(volume.get("name") or ""), kind, volume[kind.field])
    return None


def folder_of(pod_uid: str, volume: PlainVolume) -> Names:
    return *volume_paths.pod_volumes(pod_uid), volume.kind.folder, volume.name


def unknown_medium(volume: PlainVolume) -> str | None:
    medium = volume.source.get("medium") or ""
    if volume.kind is PlainKind.EMPTY_DIR and medium not in {"", MEMORY}:
        return f'unknown storage medium "{medium}"'
    return None


# ---- whose it is -----------------------------------------------------------------------------------------------------


def group_of(pod: ApiObject) -> int | None:
    group = (_spec(pod).get("securityContext") or {}).get("fsGroup")
    return group if isinstance(group, int) else None


def access_of(pod: ApiObject, volume: PlainVolume) -> FolderPermissions:
    """Return the permissions of the folder: for everybody, as in kubelet, because a container may run as any user."""
    mode = ALL | (STICKY if volume.is_in_memory else 0)
    asked = volume.source.get("mode") if volume.kind is PlainKind.EMPTY_DIR else None
    mode = asked if isinstance(asked, int) else mode
    group = group_of(pod)
    return FolderPermissions(mode, None) if group is None else FolderPermissions(mode | 0o770 | SET_GROUP, group)


def user_of(pod: ApiObject) -> int | None:
    """The user that all containers run as; None where they differ, or nobody says."""
    of_pod = (_spec(pod).get("securityContext") or {}).get("runAsUser")
    users = {(each.get("securityContext") or {}).get("runAsUser", of_pod) for each in containers_of(pod)}
    found = users.pop() if len(users) == 1 else None
    return found if isinstance(found, int) else None


# ---- what is mounted inside it ---------------------------------------------------------------------------------------


def nested_mount_points(pod: ApiObject, volume: str) -> tuple[Names, ...]:
    """Where containers mount other volumes inside this one, outermost alone, as names below its top."""
    found = (names for container in containers_of(pod) for names in _nested_in(container, volume))
    return tuple(dict.fromkeys(found))


def _nested_in(container: Mapping[str, Any], volume: str) -> Iterator[Names]:
    mounts = container.get("volumeMounts") or ()
    everything = sorted(_clean(str(mount.get("mountPath"))) for mount in mounts)
    for own in (_clean(str(mount.get("mountPath"))) for mount in mounts if mount.get("name") == volume):
        outermost: Names | None = None
        for path in everything:
            is_below = len(path) > len(own) and path[: len(own)] == own
            if is_below and (outermost is None or path[: len(outermost)] != outermost):
                outermost = path
                yield path[len(own) :]


def _clean(path: str) -> Names:
    return tuple(name for name in posixpath.normpath(f"/{path}").split("/") if name)


def _spec(pod: ApiObject) -> Mapping[str, Any]:
    return pod.get("spec") or {}


_KIND_OF_TYPE: Final = {
    "Directory": FileKind.FOLDER,
    "DirectoryOrCreate": FileKind.FOLDER,
    "File": FileKind.FILE,
    "FileOrCreate": FileKind.FILE,
    "Socket": FileKind.SOCKET,
    "CharDevice": FileKind.CHARACTER_DEVICE,
    "BlockDevice": FileKind.BLOCK_DEVICE,
}


class HostPathStep(Enum):
    NOTHING = auto()
    MAKE_FOLDER = auto()
    MAKE_FILE = auto()


class PlainVolumeRefused(ValueError):
    """In kubelet's words."""


def host_path_step(path: str, expected: str, found: FileKind | None) -> HostPathStep:
    """`expected` is the type, empty where anything will do; of that nothing, a folder is made, as runtimes do it."""
    if not path.startswith("/") or "\0" in path:
        raise PlainVolumeRefused(f"invalid HostPath `{path}`: must be an absolute path")
    if ".." in path.split("/"):
        raise PlainVolumeRefused(f"invalid HostPath `{path}`: must not contain '..'")
    if not expected:
        return HostPathStep.MAKE_FOLDER if found is None else HostPathStep.NOTHING
    if expected not in _KIND_OF_TYPE:
        raise PlainVolumeRefused(f"{expected} is an invalid volume type")
    if found is None and expected.endswith("OrCreate"):
        return HostPathStep.MAKE_FOLDER if expected.startswith("Directory") else HostPathStep.MAKE_FILE
    if found is not _KIND_OF_TYPE[expected]:
        raise PlainVolumeRefused(f"hostPath type check failed: {path} is not {_KIND_OF_TYPE[expected].value}")
    return HostPathStep.NOTHING


def memory_limit(pod: ApiObject, volume: PlainVolume, allocatable: Mapping[str, str]) -> int:
    limits = [_bytes(allocatable.get("memory")), _pods_memory(pod)]
    if volume.kind is PlainKind.EMPTY_DIR:
        limits.append(_bytes(volume.source.get("sizeLimit")))
    return min((limit for limit in limits if limit is not None), default=0)


def _pods_memory(pod: ApiObject) -> int | None:
    """None: one of its containers has no limit, so that the node's is the only one."""
    spec = pod.get("spec") or {}
    together = [_limit(each) for each in spec.get("containers") or ()]
    before = [_limit(each) for each in spec.get("initContainers") or ()]
    known = [limit for limit in (*together, *before) if limit is not None]
    if not together or len(known) < len(together) + len(before):
        return None
    return max(sum(known[: len(together)]), *known[len(together) :], 0)


def _limit(container: Mapping[str, Any]) -> int | None:
    return _bytes(((container.get("resources") or {}).get("limits") or {}).get("memory"))


def _bytes(text: Any) -> int | None:
    """None where there is no limit; zero is none either."""
    try:
        value = Quantity.parse(str(text)).value() if text is not None else 0
    except InvalidQuantity:
        return None
    return value if value > 0 else None
