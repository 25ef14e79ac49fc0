"""The root of a container: this machine's `/` seen through a layer of its own, which vanishes with the container.

Order, all of it in the container's own mount namespace, and each file system made detached and only then attached:
clones of what comes from outside (volumes, other file systems of this machine, /sys) → leave the machine's mount
namespace → an overlay: below it `/`, above it a tmpfs that is limited in size, in which /tmp and /run begin empty →
what is hidden is covered → /proc, /dev and /sys → the volumes, outermost first → the overlay becomes the root and the
machine's tree is let go.

Of a block device the container gets a node of its own, with the owner and the permissions of the machine's: what it
does to the node's permissions does not reach the machine. It can make no other nodes.

Nothing is mounted where this machine sees it, so there is nothing to clean up: all of it goes with the last process.
Targets are walked by the kernel as if the new root were the root already: no link and no `..` leads out of it.

What `/` holds can be read, by root all of it: that is no wall. It must not be possible to change any of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from onenode.containers.container_places import attach, attach_at, attach_kept_open, open_in
from onenode.containers.container_request import RootRequest, VolumePlace
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.mounts.mount_table import parse_mount_lines

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC = 0x01, 0x02, 0x04, 0x08
_INODES_PER_MEBIBYTE: Final = 256
_TARGET_FLAGS: Final = os.O_PATH | os.O_CLOEXEC
_BEGIN_EMPTY: Final = {"tmp": 0o1777, "run": 0o755}
_PSEUDO: Final = frozenset(
    (
        *("proc", "sysfs", "devtmpfs", "devpts", "tmpfs", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs"),
        *("securityfs", "configfs", "fusectl", "hugetlbfs", "bpf", "pstore", "autofs", "binfmt_misc", "efivarfs"),
        *("ramfs", "rpc_pipefs", "nsfs"),
    )
)
_PROGRAMS: Final = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt", "/home", "/root", "/srv"),
    *("/nix", "/gnu", "/snap"),
)
"""Where commands and what they need are; a disk that is mounted elsewhere is not held by any container."""
_OVER_A_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "glusterfs", "lustre", "gpfs"})
_DEVICES: Final = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_DEVICE_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_NOT_WRITABLE: Final = ~0o222
_READ_ONLY_IN_PROC: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs")


@dataclass(frozen=True, slots=True)
class _Carried:
    """Another file system of this machine, to be seen read-only at the same place."""

    path: str
    tree: int


@dataclass(frozen=True, slots=True)
class _Device:
    """A block device's number, and what its node is to be like."""

    place: VolumePlace
    number: int
    mode: int
    user: int
    group: int


class ContainerRoot:
    """Made while the process is still in the machine's mount namespace; `enter` leaves it for good."""

    def __init__(self, request: RootRequest, volumes: Sequence[int]) -> None:
        self._request = request
        sources = list(zip(request.volumes, volumes, strict=True))
        self._volumes = [_cloned(place, source) for place, source in sources if not place.is_device]
        self._devices = [_noted_device(place, source) for place, source in sources if place.is_device]
        self._carried = list(_carried_file_systems(request.hidden))
        self._sys = _clone_of("/sys")

    def enter(self) -> int:
        """Called by the first process of the container's process namespace: its /proc is this one's.

        Returns the container's own null device: opened before any volume could lie in its way.
        """
        system_calls.unshare(system_calls.NEW_MOUNTS | system_calls.NEW_HOST_NAME | system_calls.NEW_IPC)
        _keep_mounts_to_ourselves()
        root = self._attached_overlay()
        nothing = self._furnished(root)
        os.fchdir(root)
        system_calls.swap_root_for_working_folder()
        system_calls.umount2(".", system_calls.UNMOUNT_LAZILY)
        os.chdir("/")
        os.close(root)
        return nothing

    def _attached_overlay(self) -> int:
        """The descriptor of its root. It is attached upon `/`, which nobody looks at any more."""
        overlay = _overlay(self._request)
        place = os.open("/", _TARGET_FLAGS)
        try:
            system_calls.attach_tree(overlay, place)
        finally:
            os.close(place)
        return overlay

    def _furnished(self, root: int) -> int:
        for carried in self._carried:
            attach_at(root, carried.path, carried.tree)
        for path in self._request.hidden:
            _cover(root, path)
        attach_at(root, "/sys", self._sys)
        _attach_proc(root)
        nothing = _attached_dev(root)
        with _device_nodes(root, self._devices) as devices:
            by_depth = sorted([*self._volumes, *devices], key=lambda volume: len(PurePosixPath(volume[0].path).parts))
            for place, tree in by_depth:
                attach_at(root, place.path, tree)
        if self._request.read_only:
            system_calls.set_mount_attributes(root, READ_ONLY, 0, 0)
        return nothing


# ---- before leaving --------------------------------------------------------------------------------------------------


def _cloned(place: VolumePlace, source: int) -> tuple[VolumePlace, int]:
    """With what is mounted below it, as the volume's owner has it; nothing mounted later comes along."""
    try:
        tree = system_calls.clone_whole_tree(source)
        to_set = READ_ONLY if place.read_only else 0
        system_calls.set_attributes_of_whole_tree(tree, to_set, system_calls.PROPAGATION_PRIVATE)
    except OSError as error:
        raise HostError.because(error, f"The volume for {place.path} cannot be bound") from error
    return place, tree


def _noted_device(place: VolumePlace, source: int) -> _Device:
    found = os.fstat(source)
    if not stat.S_ISBLK(found.st_mode):
        raise HostError(errno.ENOTBLK, f"What is to be the device {place.path} is no block device: map it again.")
    mode = stat.S_IMODE(found.st_mode) & (_NOT_WRITABLE if place.read_only else ~0)
    return _Device(place, found.st_rdev, mode, found.st_uid, found.st_gid)


def _clone_of(path: str) -> int:
    place = os.open(path, _TARGET_FLAGS | os.O_DIRECTORY)
    try:
        tree = system_calls.clone_tree(place)
    finally:
        os.close(place)
    limits = READ_ONLY | NO_SUID | NO_DEVICES
    system_calls.set_mount_attributes(tree, limits, 0, system_calls.PROPAGATION_PRIVATE)
    return tree


def _carried_file_systems(hidden: Sequence[str]) -> Iterator[_Carried]:
    """An overlay does not show what is mounted below its lower folder: what else holds programs is brought along.

    One mount for each device: a second one could show what the first one hides. No file system of a server that may not
    answer: looking it up would block, and the container never start.
    """
    seen = {_device_of_root()}
    for device, path, kind in _mounts_of_this_machine():
        if device in seen or not _is_carried(path, kind) or _is_below(path, hidden):
            continue
        seen.add(device)
        try:
            yield _Carried(path, _clone_of(path))
        except OSError:
            continue  # a mount on a file, one that is covered, or a server that does not answer: not seen inside


def _is_carried(path: str, kind: str) -> bool:
    # Of /var only itself: below it others keep the disks of their containers.
    is_wanted = path == "/var" or _is_below(path, _PROGRAMS)
    return is_wanted and kind not in _PSEUDO | _OVER_A_NETWORK and not kind.startswith("fuse")


def _device_of_root() -> str:
    device = system_calls.statx(-100, "/").device
    return f"{os.major(device)}:{os.minor(device)}"


def _mounts_of_this_machine() -> Iterator[tuple[str, str, str]]:
    with open("/proc/self/mountinfo", "rb") as table:
        for mount in parse_mount_lines(table.read()):
            yield mount.root.device, mount.mount_point, mount.file_system


def _is_below(path: str, above: Sequence[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(each) for each in above)


# ---- the layers ------------------------------------------------------------------------------------------------------


def _keep_mounts_to_ourselves() -> None:
    root = os.open("/", _TARGET_FLAGS)
    try:
        system_calls.set_attributes_of_whole_tree(root, 0, system_calls.PROPAGATION_PRIVATE)
    finally:
        os.close(root)


def _overlay(request: RootRequest) -> int:
    inodes = max(1024, request.writable_bytes // (1 << 20) * _INODES_PER_MEBIBYTE)
    options = {"size": str(request.writable_bytes), "nr_inodes": str(inodes), "mode": "0755"}
    layer = system_calls.new_file_system("tmpfs", dict(options), NO_DEVICES)
    try:
        for name in ("upper", "work"):
            os.mkdir(name, 0o755, dir_fd=layer)
        _begin_empty(layer)
        layers = {"upperdir": f"/proc/self/fd/{layer}/upper", "workdir": f"/proc/self/fd/{layer}/work"}
        return system_calls.new_file_system("overlay", {"lowerdir": "/", **layers}, NO_DEVICES)
    except OSError as error:
        raise HostError.because(error, "The root cannot be laid over this machine's") from error
    finally:
        os.close(layer)


def _begin_empty(layer: int) -> None:
    """Other people's files and sockets in /tmp and /run are none of a container's business."""
    for name, mode in _BEGIN_EMPTY.items():
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
            os.mkdir(f"upper/{name}", mode, dir_fd=layer)
            os.setxattr(f"/proc/self/fd/{layer}/upper/{name}", "trusted.overlay.opaque", b"y")


def _cover(root: int, path: str) -> None:
    """With an empty folder; what is not there needs no cover."""
    try:
        target = open_in(root, path)
    except FileNotFoundError:
        return
    empty = system_calls.new_file_system("tmpfs", {"size": "4k", "mode": "0555"}, READ_ONLY | NO_SUID | NO_DEVICES)
    attach(empty, target)


def _attach_proc(root: int) -> None:
    proc = system_calls.new_file_system("proc", {}, NO_SUID | NO_DEVICES | NO_EXEC)
    attach(proc, open_in(root, "/proc"))
    for name in _READ_ONLY_IN_PROC:
        try:
            place = open_in(root, f"/proc/{name}")
        except FileNotFoundError:
            continue
        tree = system_calls.clone_tree(place)
        system_calls.set_mount_attributes(tree, READ_ONLY, 0, system_calls.PROPAGATION_PRIVATE)
        attach(tree, place)


def _attached_dev(root: int) -> int:
    dev = system_calls.new_file_system("tmpfs", {"size": "64k", "mode": "0755"}, NO_SUID | NO_EXEC)
    for name, (major, minor) in _DEVICES.items():
        os.mknod(name, 0o20666, os.makedev(major, minor), dir_fd=dev)
    for name, path in _DEVICE_LINKS.items():
        os.symlink(path, name, dir_fd=dev)
    for name in ("shm", "pts"):
        os.mkdir(name, 0o755, dir_fd=dev)
    attach_kept_open(dev, open_in(root, "/dev"))
    shared = system_calls.new_file_system("tmpfs", {"size": "64m", "mode": "1777"}, NO_SUID | NO_DEVICES | NO_EXEC)
    attach(shared, open_in(root, "/dev/shm"))  # noqa: S108 - a place in the container
    options = {"newinstance": None, "ptmxmode": "0666", "mode": "0620", "gid": "5"}
    attach(system_calls.new_file_system("devpts", options, NO_SUID | NO_EXEC), open_in(root, "/dev/pts"))
    nothing = os.open("null", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dev)
    os.close(dev)
    return nothing


@contextmanager
def _device_nodes(root: int, devices: Sequence[_Device]) -> Iterator[list[tuple[VolumePlace, int]]]:
    """Mounts of nodes that are made in /dev; their names there go again once they are attached elsewhere."""
    folder = open_in(root, "/dev")
    try:
        yield [_device_node(folder, f".device-{number}", device) for number, device in enumerate(devices)]
        for number in range(len(devices)):
            os.unlink(f".device-{number}", dir_fd=folder)
    finally:
        os.close(folder)


def _device_node(folder: int, name: str, device: _Device) -> tuple[VolumePlace, int]:
    try:
        os.mknod(name, stat.S_IFBLK | 0o600, device.number, dir_fd=folder)
        os.chown(name, device.user, device.group, dir_fd=folder, follow_symlinks=False)
        os.chmod(name, device.mode, dir_fd=folder)
        node = os.open(name, _TARGET_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        try:
            return device.place, system_calls.clone_tree(node)
        finally:
            os.close(node)
    except OSError as error:
        raise HostError.because(error, f"The device {device.place.path} cannot be made in the container") from error
