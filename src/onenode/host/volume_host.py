"""What a kubelet asks of its machine for volumes: those of drivers (`VolumeHost`), and of Kubernetes' own kinds.

The seams: `linux_volume_host` and `linux_plain_volume_host` are the real ones, `onenode/testing` has models of them,
and one contract suite for each is kept by both. Everything blocks and raises HostError, whose `errno` distinguishes the
reasons named here apart. A volume is named by its place below kubelet's directory; no symbolic link is followed there.

Of drivers' volumes nothing is mounted, unmounted, or removed here but one empty folder or one of our own files, except
for subPaths (a part of a volume, mounted once more for one container) and for raw block volumes: the device that a
driver left at its target, mounted once more at a file of ours, held by a loop device, linked for its pod. Local volumes
have no driver: a folder of the machine is bound, a disk is formatted once and mounted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from onenode.host.payload_files import FileKind, FolderPermissions, HostPath, Names, Payload
from onenode.host.volume_ownership import OwnershipReport
from orlop.host.mounts.mounts import MountOptions


class VolumeHost(Protocol):
    def path_of(self, names: Names) -> str:
        """As text, for a driver: it has no descriptors of ours."""

    def make_folders(self, folder: Names) -> None:
        """With its parents, for root and its group alone; what is there is left as it is. ENOTDIR: no folder."""

    def names_in(self, folder: Names) -> frozenset[str] | None:
        """None if it is missing, or no folder."""

    def is_there(self, names: Names) -> bool: ...

    def is_mounted(self, names: Names) -> bool:
        """Whether it is a mount point; what is missing is none."""

    def mounted_elsewhere(self, target: Names) -> tuple[str, ...]:
        """Other mount points of what is mounted there; none if nothing is."""

    def write_file(self, file: Names, content: bytes) -> None:
        """Whole or not at all. ENOENT: its folder is missing."""

    def read_file(self, file: Names, most: int) -> bytes | None:
        """At most so many bytes of it; None if it is missing, or no plain file."""

    def remove_file(self, file: Names) -> bool:
        """Whether it was there; what a write that died has left of it goes too."""

    def remove_folder(self, folder: Names) -> bool:
        """Whether it was there. ENOTEMPTY and EBUSY (mounted on): it stays."""

    def give_to_group(
        self,
        volume: Names,
        group: int,
        *,
        unless_root_is: bool,
        report: OwnershipReport,
        should_stop: Callable[[], bool],
    ) -> None:
        """All that is in it. `unless_root_is`: nothing is done where the top has the group and its bits already."""

    def mount_subpath(self, volume: Names | HostPath, parts: tuple[str, ...], target: Names) -> None:
        """Mounts what the parts lead to inside the volume, and nothing outside of it; missing folders are made.

        EXDEV, ELOOP: a link leads out. EINVAL: no name. What is mounted at the target already is replaced.
        """

    def kind_at(self, path: HostPath) -> FileKind | None:
        """Return what kind of file is at a path; None if there is nothing."""

    def bind(self, source: Names | HostPath, target: Names, options: MountOptions) -> None:
        """Bind a folder at a target, which is created. If the same folder is mounted there already, keep that mount."""

    def mount_disk(self, disk: HostPath, target: Names, fs_type: str, options: Sequence[str]) -> None:
        """Mount the file system of a block device. Format a blank one with `fs_type`, or ext4 if that is empty.

        ENOTBLK: it is no block device. EBUSY: it is blank and in use. EINVAL: it has other content.
        """

    def unmount_subpath(self, target: Names) -> None:
        """The mount and its target; neither need be there."""

    def device_at(self, place: Names) -> str:
        """The path, without links, of the block device that a driver left there; its own links are followed.

        ENOENT: nothing is there. ENOTBLK: something else is.
        """

    def make_file(self, file: Names) -> None:
        """An empty one; what is there is left as it is. ENOENT: its folder is missing."""

    def mount_device(self, place: Names, file: Names) -> None:
        """The device that a driver left there, at a file, which is made; what else is mounted at it is replaced."""

    def unmount(self, place: Names) -> None:
        """Unmount a file or folder, if it is mounted; it stays itself. EBUSY: a program or a loop device uses it."""

    def hold_device(self, file: Names) -> str:
        """The loop device that has it, from before or now; so nobody can pull it away."""

    def release_device(self, file: Names) -> bool:
        """Whether a loop device had it."""

    def link(self, link: Names, path: str) -> None:
        """Another link, or a file, is replaced. ENOENT: its folder is missing."""

    def remove_link(self, link: Names) -> bool:
        """Whether it was there; anything but a link is left."""


class PlainVolumeHost(Protocol):
    def make_on_disk(self, volume: Names, access: FolderPermissions) -> None:
        """With its parents. It has its access from the first moment; one that is there is left as it is."""

    def make_in_memory(self, volume: Names, access: FolderPermissions, most_bytes: int) -> None:
        """The same, on a file system of its own that is never on a disk; one that is mounted there is left."""

    def write_payload(self, volume: Names, payload: Payload, stamp: str, group: int | None) -> bool:
        """All of it at once, in place of what was there; False: it was there already. ENOENT: no such volume."""

    def payload_of(self, volume: Names) -> dict[Names, bytes]:
        """What is in it, as a pod reads it."""

    def make_nested_folders(self, volume: Names, folders: Sequence[Names]) -> None:
        """Inside it, where others are mounted; what is there is left."""

    def volumes_in(self, folder: Names) -> frozenset[str]:
        """The names of those in a folder of volumes, also of what is half made or half erased; no folder: none."""

    def remove(self, volume: Names, stop: threading.Event) -> None:
        """Unmounted and erased, whatever a tenant left in it; never through a mount, never along a link.

        What is not there is removed. EBUSY: somebody uses it. ECANCELED: stopped on the way. Calling again is right.
        """

    def kind_at(self, path: HostPath) -> FileKind | None: ...

    def make_host_folder(self, path: HostPath) -> None: ...

    def make_host_file(self, path: HostPath) -> None: ...
