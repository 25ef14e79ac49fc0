"""The seam between the driver and the volumes of one drive: folders with records, images, and their mounts.

`host/drives/linux_drive_volumes` is the real one, `testing/fake_host/fake_drive_volumes` a model; both pass the same
contract tests. Every call blocks and raises HostError with the `errno` documented here. The bytes of a record are the
caller's. Two calls that change the same volume or target must not run at the same time.
"""

from __future__ import annotations

from typing import Protocol

from orlop.host.block.image_devices import ImageDevice
from orlop.host.block.image_files import ImageShape
from orlop.host.folders.folder_records import ShelfListing
from orlop.host.folders.project_quota import FolderQuota, ProjectLimits, ProjectUsage
from orlop.host.kernel.disk_usage import DiskRoom
from orlop.host.mounts.mounts import FileIdentity, MountOptions
from orlop.host.node_host import KubeletDir, Names


class ProjectQuotas(Protocol):
    """Project numbers of one file system, as `ProjectNumbers` uses them."""

    def quota_usage(self, project: int) -> ProjectUsage:
        """Return what counts under a project number, and its limits; an unused number has neither."""

    def projects(self) -> tuple[ProjectUsage, ...]:
        """List every project number with usage or limits, also those of other programs."""

    def lift_limits(self, project: int) -> None:
        """Remove the limits of a project number that nothing counts under."""


class DriveVolumes(ProjectQuotas, Protocol):
    @property
    def kubelet_dir(self) -> KubeletDir: ...

    def close(self) -> None:
        """Close what is open, when no call is running. The root of the drive stays open: it is the caller's."""

    # ---- folders and records

    def create(
        self, volume_id: str, record: bytes, mode: int, quota: FolderQuota | None = None, *, durable: bool = True
    ) -> None:
        """Create the volume's folder. Its limits are set before it gets its name.

        Without `durable`, the next durable change of the volume makes this one durable too: file systems keep the order
        of changes.

        EEXIST: there is one. EOPNOTSUPP: its limits would not be enforced.
        """

    def remove_half_made(self, volume_id: str) -> bool:
        """Remove what a killed `create` has left; return whether there was any."""

    def read_record(self, volume_id: str) -> bytes:
        """Return the record. ENOENT: no such volume. ENODATA: its folder has no record."""

    def write_record(self, volume_id: str, record: bytes, *, durable: bool = True) -> None:
        """Replace the record. After an error the old or the new one is there, complete. `durable` as for `create`."""

    def listing(self) -> ShelfListing:
        """List all volumes with their records, and what is there without a record."""

    # ---- deletion

    def discard(self, volume_id: str) -> str:
        """Move a volume to the trash, durably; return its name there. ENOENT: no such volume."""

    def trash(self) -> ShelfListing:
        """List the trash with its records."""

    def is_in_use(self, volume_id: str) -> bool:
        """Return whether any mount namespace has the volume or a part of it mounted, or a loop device its image."""

    def is_trash_in_use(self, name: str) -> bool:
        """Return whether a folder in the trash is in use, as `is_in_use`."""

    def erase(self, name: str) -> None:
        """Erase a folder of the trash. Succeeds if there is none. Raises HostError if a part of it is left."""

    def stop_erasing(self) -> None:
        """End every erasure soon. A part of each folder is left, which another process erases."""

    # ---- images

    def make_image(self, volume_id: str, shape: ImageShape) -> None:
        """Make the image, complete on disk before it has its name. Succeeds if there is one.

        Its name is durable with the next durable change of the volume.
        """

    def remove_half_made_image(self, volume_id: str) -> bool:
        """Remove what a killed `make_image` has left; return whether there was any.

        Not for a directory volume, whose files are the tenant's.
        """

    def image_bytes(self, volume_id: str) -> int | None:
        """Return the size of the image; None if there is none."""

    def grow_image(self, volume_id: str, shape: ImageShape) -> None:
        """Make the image larger, durably. An image never shrinks. ENOSPC: it has its old size."""

    def attach(self, volume_id: str, shape: ImageShape, *, read_only: bool) -> str:
        """Return the loop device of the image; attach one if there is none."""

    def devices(self, volume_id: str) -> tuple[ImageDevice, ...]:
        """Return the loop devices of the image."""

    def detach(self, volume_id: str, *, read_only: bool | None = None) -> int:
        """Detach them, or only the read-only or writable ones; return how many. EBUSY: one is open."""

    def grow_attached(self, volume_id: str, shape: ImageShape, staging: Names | None) -> None:
        """Make loop devices as large as the image, then the file system that is mounted at `staging`."""

    # ---- mounts

    def mount_image(self, volume_id: str, shape: ImageShape, target: Names, options: MountOptions) -> None:
        """Mount the file system of the image. The loop device goes with the last mount of it."""

    def mount_folder(self, volume_id: str, target: Names, options: MountOptions) -> None:
        """Bind the volume's folder to the target."""

    def bind_staged(self, staging: Names, target: Names, options: MountOptions) -> None:
        """Bind what is mounted at the staging path to the target."""

    def bind_device(self, volume_id: str, target: Names, *, read_only: bool) -> None:
        """Bind the attached loop device to the target, which is a file. ENXIO: none is attached."""

    def is_volume(self, volume_id: str, root: FileIdentity) -> bool:
        """Return whether a mount with this root shows the volume: its folder, its file system or its device."""

    def room_at(self, target: Names) -> DiskRoom:
        """Return the space of what is mounted at a target. Raises the I/O error of a file system that failed."""

    # ---- limits of folders

    def why_no_quota(self) -> str | None:
        """Return a sentence if limits of folders would not be enforced; None if they are."""

    def set_limits(self, project: int, limits: ProjectLimits) -> None:
        """Replace the limits of a project number."""
