"""What a kubelet asks of its machine for volumes: folders and small files below its directory, and what is mounted.

The seam: `linux_volume_host` is the real one, `testing/fake_host` has a model of it, and one contract suite is kept by
both. Everything blocks and raises HostError, whose `errno` tells the reasons named here apart. No symbolic link is
followed below the directory. Nothing here mounts, unmounts, or removes anything but one empty folder or one of our
own files, except for subPaths (a part of a volume, mounted once more for one container) and for raw block volumes: the
device that a driver left at its target, mounted once more at a file of ours, held by a loop device, linked for its pod.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from orlop.host.payload_files import HostPath
from orlop.host.volume_ownership import OwnershipReport

Names = tuple[str, ...]
"""Names that lead from kubelet's directory to something below it."""


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

    def unmount_device(self, file: Names) -> None:
        """The file stays; nothing need be mounted. EBUSY: somebody has it open, such as a loop device."""

    def hold_device(self, file: Names) -> str:
        """The loop device that has it, from before or now; so nobody can pull it away."""

    def release_device(self, file: Names) -> bool:
        """Whether a loop device had it."""

    def link(self, link: Names, path: str) -> None:
        """Another link, or a file, is replaced. ENOENT: its folder is missing."""

    def remove_link(self, link: Names) -> bool:
        """Whether it was there; anything but a link is left."""
