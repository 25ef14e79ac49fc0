"""The seam between the driver and its machine: a working directory, kubelet's directory, and binds between the two.

`linux_node_host` is the real machine, `testing/fake_host` a model of it; both pass the same contract tests. Every call
blocks and raises HostError with the `errno` documented here. Calls may come from several threads; two calls that change
the same folder or target must not run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from orlop.host.block.image_files import ImageShape
from orlop.host.folders.folder_records import ShelfListing
from orlop.host.folders.project_quota import FolderQuota, ProjectUsage
from orlop.host.folders.project_strays import StrayCount
from orlop.host.kernel.disk_usage import DiskRoom, TreeUsage
from orlop.host.mounts.mounts import FileIdentity, MountedAt, MountOptions

Names = tuple[str, ...]
"""Names that lead from a root to something below it."""


class FolderState(Enum):
    """The shelves of a working directory: a folder's state is the shelf it is on. The value is its name on disk."""

    LIVE = "live"
    RETAINED = "retained"
    TRASH = "trash"


@dataclass(frozen=True, slots=True)
class FolderPlace:
    state: FolderState
    name: str

    def __str__(self) -> str:
        return f"{self.state.value}/{self.name}"


class MountSnapshot(Protocol):
    """The mount tables of all namespaces, as read at one moment."""

    def is_mounted(self, place: FolderPlace, *, has_image: bool) -> bool:
        """Return whether the folder, a part of it, or the image it has, is mounted anywhere.

        This costs less than `mounted_folders`, and least for a folder without an image.
        """


class Workdir(Protocol):
    """Folders with their records. A change survives power loss when the function returns, unless it says otherwise."""

    def create(
        self,
        place: FolderPlace,
        record: bytes,
        mode: int,
        quota: FolderQuota | None = None,
        image: ImageShape | None = None,
    ) -> None:
        """Create an empty folder, or one with an image alone. Durable after `make_durable`.

        Its limits are set, and its image is complete, before it gets its name.

        EEXIST: the name is taken, and no folder was changed. EOPNOTSUPP: its limits would not be enforced. ENOSPC: the
        image does not fit.
        """

    def remove_half_made(self, place: FolderPlace) -> bool:
        """Remove what a killed `create` has left; return whether there was any."""

    def read_record(self, place: FolderPlace) -> bytes:
        """Return the record of a folder. ENOENT: no such folder. ENODATA: it has no record."""

    def write_record(self, place: FolderPlace, record: bytes) -> None:
        """Replace the record. ENOENT: no such folder. After an error the old or the new one is there, complete."""

    def move(self, place: FolderPlace, to: FolderPlace) -> None:
        """Rename a folder with its contents. Durable after `make_durable` of the target shelf.

        ENOENT: it is not there. EEXIST: the other place is taken. EBUSY: mounted on.
        """

    def make_durable(self, state: FolderState) -> None:
        """Make all folders created on this shelf, or moved there, survive power loss: one fsync."""

    def listing(self, state: FolderState) -> ShelfListing:
        """List all folders of a shelf with their records, and what is there without a record."""

    def synchronise(self) -> None:
        """Make everything durable. Use when an earlier failed call may have taken effect."""

    def names_in_trash(self) -> frozenset[str]:
        """List the trash. Remains of a folder whose erasure was interrupted have the folder's name."""

    def strangers(self) -> frozenset[str]:
        """List what is beside the shelves and is not ours."""

    def identity(self, place: FolderPlace) -> FileIdentity:
        """Return the device and inode of a folder. ENOENT: no such folder."""

    def is_shown_by(self, place: FolderPlace, root: FileIdentity) -> bool:
        """Return whether a mount with this root shows the folder, or the file system in its image. ENOENT: none."""

    def snapshot_mounts(self) -> MountSnapshot:
        """Read the mount tables of all visible namespaces, now."""

    def mounted_folders(self) -> frozenset[FolderPlace]:
        """Read the mount tables of all visible namespaces, now; return the folders mounted, wholly or in part.

        A folder whose image has a loop device is mounted: the device goes with the last mount, in whatever namespace.
        """

    def room(self) -> DiskRoom: ...

    def measure(self, place: FolderPlace, should_stop: Callable[[], bool]) -> TreeUsage:
        """Measure a folder. ENOENT: no such folder. ECANCELED: stopped. ESTALE: it changed meanwhile; measure again."""

    def why_not_writable(self) -> str | None:
        """Return a sentence if the disk refuses changes; None if it accepts them."""

    def why_no_quota(self) -> str | None:
        """Return a sentence if limits of folders would not be enforced; None if they are."""

    def why_no_images(self) -> str | None:
        """Return a sentence if folders cannot have images here; None if they can."""

    def quota_usage(self, project: int) -> ProjectUsage:
        """Return what counts under a project number, and its limits; an unused number has neither."""

    def projects(self) -> tuple[ProjectUsage, ...]:
        """List every project number with usage or limits, also those of other programs."""

    def lift_limits(self, project: int) -> None:
        """Remove the limits of a project number that nothing counts under."""

    def strays(self, place: FolderPlace, project: int, should_stop: Callable[[], bool]) -> StrayCount | None:
        """Count the files in the folder that count under another project number; fewer if stopped.

        ENOENT: no such folder. ECANCELED: stopped before any was found.
        """


class KubeletDir(Protocol):
    """Targets below kubelet's directory. No symbolic link is followed there; mounts may be crossed."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The path in the flag, and the path with symbolic links resolved: kubelet may use either."""

    def is_shared(self) -> bool:
        """Return whether mounts below it propagate; if not, no pod would see its volume."""

    def make_target(self, target: Names) -> bool:
        """Create the target; return False if it existed. ENOENT: no parent. ENOTDIR: something else has its name."""

    def remove_target(self, target: Names) -> bool:
        """Remove the target; return False if it was gone. ENOTEMPTY, EBUSY (mounted on): it stays."""

    def make_file(self, target: Names) -> bool:
        """Create the target as an empty file, for a device; return False if it existed. EISDIR: it is a folder."""

    def remove_file(self, target: Names) -> bool:
        """Remove an empty file; return False if it was gone. EBUSY (mounted on), EISDIR, ENOTEMPTY: it stays."""

    def mounted_at(self, target: Names) -> MountedAt | None:
        """Return the topmost mount; None if nothing is mounted, or the target does not exist."""

    def room_at(self, target: Names) -> DiskRoom:
        """Return the space of what is mounted at a target. Raises the I/O error of a file system that failed."""

    def unmount(self, target: Names) -> int:
        """Unmount everything at the target; return how many mounts that were. EBUSY: in use; it stays."""

    def names_in(self, folder: Names) -> frozenset[str] | None:
        """List a folder below it; None if it is missing. `()` is kubelet's directory itself."""


class NodeHost(Protocol):
    @property
    def workdir(self) -> Workdir: ...

    @property
    def kubelet_dir(self) -> KubeletDir: ...

    def bind(self, place: FolderPlace, target: Names, options: MountOptions) -> None:
        """Bind the folder to the target, above what is mounted there. ENOENT: one of them is missing."""

    def mount_image(self, place: FolderPlace, file_system: str, target: Names, options: MountOptions) -> None:
        """Mount the file system of the folder's image at the target, above what is mounted there.

        Its loop device goes with the last mount of it. ENOENT: the target or the image is missing. EUCLEAN: the file
        system is damaged.
        """
