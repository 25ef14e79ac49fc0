"""Find out who uses a disk, as ends of sentences. A disk that anything uses is not wiped.

A device is used by mounts of it in any mount namespace, by what is built on it, as swap space, through its partitions
and loop devices over it, through its file bound somewhere else (as kubelet binds it for pods), and by processes that
have it open. A folder is used by every mount of it, or of something below it, that does not lead to its own place.

Processes and other namespaces are only seen with the host's process ids (hostPID).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from orlop.host.block import loop_devices
from orlop.host.block.device_rules import BlockDevice
from orlop.host.host_errors import HostError
from orlop.host.mounts.mount_table import FolderInFileSystem, MountLine, SeenNamespaces, parse_mount_lines

MOST_NAMED: Final = 3
VOLUMES_OF_KUBELET: Final = re.compile(
    r"/kubernetes\.io~local-volume/|/kubernetes\.io/local-volume/mounts/|/volume-subpaths/|/volumeDevices/"
)
"""In paths of mounts that kubelet makes of local volumes."""
FOLDERS_OF_PODS: Final = re.compile(rf"{VOLUMES_OF_KUBELET.pattern}|/kubernetes\.io~csi/")
"""In paths of all mounts for pods. The kubelet of `orlop up` mounts local volumes in folders of CSI volumes."""
_NODES: Final = "devtmpfs"


def foreign_uses(devices: Sequence[BlockDevice]) -> tuple[str, ...]:
    """Return the uses of a device and its partitions by others than kubelet. No device is opened for that."""
    return tuple(_uses(devices, ignore_kubelet=True))


def all_uses(devices: Sequence[BlockDevice], number: int, tables: Iterable[bytes]) -> tuple[str, ...]:
    """Return every use of a device, which is the first, and of its partitions. `number` is that of its file."""
    uses = list(_uses(devices, ignore_kubelet=False))
    uses += _bound_nodes(devices, tables)
    uses += _loops_over(number)
    uses += _processes_with(number)
    return tuple(uses)


def _uses(devices: Sequence[BlockDevice], *, ignore_kubelet: bool) -> Iterator[str]:
    for device in devices:
        subject = "it" if device is devices[0] else f"its partition {device.name}"
        is_volume = any(VOLUMES_OF_KUBELET.search(point) for point in device.mount_points)
        if device.mount_points and not (ignore_kubelet and is_volume):
            yield f"{subject} is mounted at {', '.join(device.mount_points[:MOST_NAMED])}"
        if device.holders:
            yield f"{subject} is in use by {', '.join(device.holders[:MOST_NAMED])}"
        if device.is_swap:
            yield f"{subject} is swap space in use"


def _bound_nodes(devices: Sequence[BlockDevice], tables: Iterable[bytes]) -> Iterator[str]:
    paths = {device.path.removeprefix("/dev"): device for device in devices}
    for table in tables:
        needles = [path.encode() for path in paths]
        if not any(needle in table for needle in needles):
            continue
        for line in parse_mount_lines(table):
            if line.file_system == _NODES and line.root.path in paths:
                yield f"its file is bound to {line.mount_point}"


def _loops_over(number: int) -> Iterator[str]:
    with suppress(HostError):
        for name in loop_devices.loop_names():
            path = loop_devices.path_behind(name)
            with suppress(OSError):
                if path is not None and path.startswith("/") and _is_device(os.stat(path), number):
                    yield f"the loop device {name} is attached to it"


def _processes_with(number: int) -> Iterator[str]:
    for process in sorted((name for name in os.listdir("/proc") if name.isdecimal()), key=int):
        if int(process) != os.getpid() and _has_open(process, number):
            yield f"the process {process} ({_command(process)}) has it open"


def _has_open(process: str, number: int) -> bool:
    folder = f"/proc/{process}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                # Only paths: a socket or a pipe is no device.
                link = os.readlink(f"{folder}/{name}")
                if link.startswith("/") and _is_device(os.stat(f"{folder}/{name}"), number):
                    return True
    return False


def _is_device(status: os.stat_result, number: int) -> bool:
    return stat.S_ISBLK(status.st_mode) and status.st_rdev == number


def _command(process: str) -> str:
    with suppress(OSError), open(f"/proc/{process}/comm", "rb") as file:
        return file.read(64).decode("utf-8", "replace").strip()
    return "?"


# ---- folders ---------------------------------------------------------------------------------------------------------


def folder_uses(folder: FolderInFileSystem, seen: SeenNamespaces, *, own_is_host: bool) -> tuple[str, ...]:
    """Return the uses of a folder by others than the admin who mounted it.

    The places of the folder are where the namespace of the host shows it, or ours. Other namespaces have copies of
    those mounts, perhaps below another root: they are no uses. Kubelet's mounts for pods always are.
    """
    host = [seen.own] if own_is_host else [seen.own, *seen.others[:1]]
    lines = [line for table in host for line in _mounts_of(folder, table)]
    places = {line.mount_point for line in lines if line.root == folder and not _is_kubelets(line)}
    uses = {
        line.mount_point: None
        for table in seen.tables
        for line in _mounts_of(folder, table)
        if line.root != folder or _is_kubelets(line) or not _is_copy(line.mount_point, places)
    }
    return tuple(f"it is mounted at {point}" for point in list(uses)[:MOST_NAMED])


def _mounts_of(folder: FolderInFileSystem, table: bytes) -> list[MountLine]:
    if f" {folder.device} ".encode() not in table:
        return []
    beginning = f"{folder.path.rstrip('/')}/"
    return [
        line
        for line in parse_mount_lines(table)
        if line.root.device == folder.device and (line.root == folder or line.root.path.startswith(beginning))
    ]


def _is_kubelets(line: MountLine) -> bool:
    return FOLDERS_OF_PODS.search(line.mount_point) is not None


def _is_copy(point: str, places: Iterable[str]) -> bool:
    return any(point == place or point.endswith(place) for place in places)
