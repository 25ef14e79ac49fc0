"""The state of a fake machine that outlives a process: folders with records, kubelet's tree, mounts, disk space.

Its functions are what kubelet, tenants, containers and the admin do. None of them is an effect.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from orlop.host.block.image_files import ImageShape
from orlop.host.folders.project_quota import NO_LIMITS, ProjectLimits, ProjectUsage
from orlop.host.mounts.mounts import FileIdentity, MountOptions
from orlop.host.node_host import FolderPlace, FolderState, Names
from orlop.testing.fake_host.faults import Faults

if TYPE_CHECKING:
    from orlop.testing.fake_host.fake_drive_host import FakeDisk
    from orlop.testing.fake_host.fake_drives import FakeDrive
    from orlop.testing.fake_host.fake_static_host import FakeStaticDisk

BLOCK: Final = 4096
DEVICE: Final = 1
OTHER_DEVICE: Final = 2
FIRST_IMAGE_DEVICE: Final = 9 << 8
IMAGE_ROOT: Final = 2
KUBELET_DIR: Final = "/var/lib/kubelet"


@dataclass(frozen=True, slots=True)
class FakeShare:
    """The size of one inode, and its project number."""

    path: str
    project: int
    bytes: int


@dataclass(eq=False, slots=True)
class FakeFolder:
    """A folder. It stays the same object when it is moved, like an inode."""

    inode: int
    mode: int
    record: bytes | None
    files: dict[str, bytes] = field(default_factory=dict)
    """The content of each file, by its path in the folder."""
    project: int = 0
    left: dict[str, int] = field(default_factory=dict)
    """The project numbers of files that have another one than the folder, by path."""
    image: ImageShape | None = None
    """The image of the folder, which then has all the files."""
    is_damaged: bool = False
    """The file system in the image cannot be mounted."""

    @property
    def identity(self) -> FileIdentity:
        return FileIdentity(DEVICE, self.inode)

    @property
    def image_root(self) -> FileIdentity:
        """The root of the file system in its image, as the kernel makes it from the loop device."""
        return FileIdentity(FIRST_IMAGE_DEVICE + self.inode, IMAGE_ROOT)

    @property
    def bytes(self) -> int:
        return sum(share.bytes for share in self.shares())

    @property
    def inodes(self) -> int:
        return sum(1 for _ in self.shares())

    def shares(self) -> Iterator[FakeShare]:
        """Yield the share of each inode, the folder's own first."""
        yield FakeShare(".", self.project, BLOCK)
        if self.image is not None:
            yield FakeShare("image", self.project, self.image.bytes)
            return
        for path, content in sorted(self.files.items()):
            yield FakeShare(path, self.left.get(path, self.project), _in_blocks(content))


@dataclass(frozen=True, eq=False, slots=True)
class FakeMount:
    """A mount. `folder` is None if something else is mounted, such as a tmpfs."""

    folder: FakeFolder | None
    root: FileIdentity
    options: MountOptions


class FakeMachine:
    def __init__(self, total_bytes: int = 1 << 30, total_inodes: int = 100_000) -> None:
        self.faults: Final = Faults()
        self.lock: Final = threading.RLock()
        self.folders: dict[FolderPlace, FakeFolder] = {}
        self.half_made: dict[FolderPlace, FakeFolder] = {}
        self.drives: dict[str, FakeDrive] = {}
        """Folders that are drives, or may become one, by path."""
        self.disks: dict[str, FakeDisk] = {}
        """Disks by the kernel's name. A test pulls one out by removing it."""
        self.mounted_drives: dict[str, FakeDisk] = {}
        """Disks that are mounted as drives, by id; also one that was pulled out."""
        self.known_drives: set[str] = set()
        self.busy_drives: set[str] = set()
        """Drives that cannot be unmounted, because a process uses them."""
        # Folders of disks for static volumes, by path, and the disk of each entry; folders of files.
        self.static_folders: dict[str, dict[str, FakeStaticDisk]] = {}
        self.configuration_files: dict[str, dict[str, str]] = {}
        self.strangers: dict[FolderState | None, dict[str, str]] = {}
        """Entries that are not ours, by shelf (None: beside the shelves): each name, with the reason."""
        self.kubelet_folders: set[Names] = {()}
        self.kubelet_files: set[Names] = set()
        self.kubelet_contents: dict[Names, bytes] = {}
        """The content of the files that kubelet itself wrote."""
        self.links: dict[Names, str] = {}
        """The symbolic links among kubelet's files, and their targets."""
        self.devices: dict[Names, int] = {}
        """The number of the block device that is mounted on each file."""
        self.loops: dict[str, str] = {}
        """Loop devices, and the paths behind them."""
        self.busy_loops: set[str] = set()
        """Loop devices that a process has open."""
        self.group_of: dict[Names, int] = {}
        """Targets whose group was changed, with everything below them, and that group."""
        self.kubelet_is_shared = True
        self.mounts: dict[Names, list[FakeMount]] = {}
        """Mounts below kubelet's directory; the last one of a list is the topmost."""
        self.elsewhere: list[FakeMount] = []
        """Mounts in other namespaces and places, which only the table of all mounts shows."""
        self.failed_devices: set[int] = set()
        """Devices whose file systems fail: their mounts can only be unmounted."""
        self.busy: set[Names] = set()
        """Targets that cannot be unmounted, because a process uses them."""
        self.total_bytes, self.total_inodes = total_bytes, total_inodes
        self.used_by_others = 0
        """Bytes on the same disk that are not in our folders."""
        self.why_no_quota: str | None = "The fake disk has no project quota. Give it one."
        self.why_no_images: str | None = "The fake machine has no loop devices. Give it some."
        self.why_not_writable: str | None = None
        self.limits: dict[int, ProjectLimits] = {}
        """By project number. On a disk with quota, writes of tenants beyond them fail."""
        self.inodes_used_by_others = 0
        self._inodes = itertools.count(100)

    def new_folder(self, mode: int, record: bytes | None) -> FakeFolder:
        return FakeFolder(self.new_inode(), mode, record)

    def new_inode(self) -> int:
        return next(self._inodes)

    def kubelet_makes(self, folder: Names) -> None:
        """Create a folder and its parents, as kubelet does."""
        self.kubelet_folders.update(folder[:depth] for depth in range(len(folder) + 1))

    def kubelet_removes(self, folder: Names) -> None:
        """Remove a folder with everything below it, mounts included."""
        below = {names for names in self.kubelet_folders if names[: len(folder)] == folder}
        self.kubelet_folders -= below
        for names in below:
            self.mounts.pop(names, None)

    def mount_elsewhere(self, place: FolderPlace) -> FakeMount:
        """Mount the folder in another mount namespace, as a container or its subPath does."""
        folder = self.folders[place]
        root = folder.identity if folder.image is None else folder.image_root
        mount = FakeMount(folder, root, MountOptions())
        self.elsewhere.append(mount)
        return mount

    def unmount_elsewhere(self, mount: FakeMount) -> None:
        self.elsewhere.remove(mount)

    def mount_something_else(self, target: Names) -> None:
        root = FileIdentity(OTHER_DEVICE, next(self._inodes))
        self.mounts.setdefault(target, []).append(FakeMount(None, root, MountOptions()))

    def place_device(self, target: Names, number: int) -> None:
        """Create a file and mount a block device on it, as a driver does."""
        self.make_empty_file(target)
        self.devices[target] = number
        root = FileIdentity(DEVICE, number)
        self.mounts[target] = [FakeMount(None, root, MountOptions())]

    def make_empty_file(self, target: Names) -> None:
        self.kubelet_files.add(target)
        self.kubelet_contents[target] = b""

    def take_device(self, target: Names) -> None:
        """Unmount the device and remove its file, as a driver does."""
        self.mounts.pop(target, None)
        self.devices.pop(target, None)
        self.kubelet_files.discard(target)
        self.kubelet_contents.pop(target, None)

    def pull_disk(self, name: str) -> FakeDisk:
        """Take a disk out, even if it is in use."""
        disk = self.disks.pop(name)
        if disk.drive is not None:
            disk.drive.is_gone = True
        return disk

    def plug_disk(self, name: str, disk: FakeDisk) -> None:
        """Plug a disk in, or in again: a new device, whatever its name. A mount of the old device stays one of it."""
        self.disks[name] = replace(disk)
        if disk.drive is not None:
            disk.drive.is_gone = False

    def reboot(self) -> None:
        """Drop all mounts, with what is in memory, and all devices; keep files and folders on disk."""
        self.mounts.clear()
        self.devices.clear()
        self.loops.clear()
        self.mounted_drives.clear()

    def free_bytes(self) -> int:
        used = self.used_by_others + sum(folder.bytes for folder in self._all_folders())
        return max(0, self.total_bytes - used)

    def free_inodes(self) -> int:
        used = self.inodes_used_by_others + sum(folder.inodes for folder in self._all_folders())
        return max(0, self.total_inodes - used)

    def tenant_writes(self, place: FolderPlace, path: str, content: bytes) -> None:
        """Write as a tenant does. ENOSPC, and no effect, beyond the limits of the project or the size of the image."""
        folder = self.folders[place]
        if folder.image is not None:
            others = sum(_in_blocks(each) for name, each in folder.files.items() if name != path)
            if others + _in_blocks(content) > folder.image.bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            folder.files[path] = content
            return
        number = folder.left.get(path, folder.project)
        used, limits = self.usage(number), self.limits.get(number, NO_LIMITS)
        more = _in_blocks(content) - _in_blocks(folder.files.get(path, b""))
        too_large = limits.bytes is not None and used.bytes + more > limits.bytes
        too_many = limits.inodes is not None and path not in folder.files and used.inodes >= limits.inodes
        if self.why_no_quota is None and (too_large or too_many):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        folder.files[path] = content

    def usage(self, project: int) -> ProjectUsage:
        sizes = [share.bytes for share in self._shares() if share.project == project]
        return ProjectUsage(project, sum(sizes), len(sizes), self.limits.get(project, NO_LIMITS))

    def projects(self) -> list[ProjectUsage]:
        numbers = {0, *self.limits, *(share.project for share in self._shares())}
        return [self.usage(number) for number in sorted(numbers)]

    def _shares(self) -> Iterator[FakeShare]:
        for folder in self._all_folders():
            yield from folder.shares()

    def _all_folders(self) -> list[FakeFolder]:
        return [*self.folders.values(), *self.half_made.values()]


def _in_blocks(content: bytes) -> int:
    return -(-len(content) // BLOCK) * BLOCK
