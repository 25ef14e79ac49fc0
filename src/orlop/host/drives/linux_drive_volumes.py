"""The volumes of one drive on this machine, by the descriptor of the drive's root.

    volumes/<id>/       the volume: the folder itself for a directory, else a folder with one file:
    volumes/<id>/image  the image; under the name `image.new` while it is made
    trash/<name>/       deleted volumes

Order of making an image: allocate it under its temporary name → make the file system → fsync → rename. So an image with
its name is whole, and one with the temporary name is made again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Final, TypeVar

from orlop.host.block import image_devices
from orlop.host.block.image_files import (
    MISSING,
    ImageShape,
    allocate,
    attach_mount,
    detached_mount,
    ending_of,
    image_place,
    opened_image,
    write_image,
)
from orlop.host.block.image_formats import ImageFormatter, grow_file_system
from orlop.host.drive_volumes import DriveVolumes
from orlop.host.drives.drive_files import TRASH, VOLUMES
from orlop.host.erase.erase_folder import TrashEraser
from orlop.host.folders import folder_records, project_quota
from orlop.host.folders.folder_records import IMAGE
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import reopen
from orlop.host.mounts import mount_table, mounts
from orlop.host.mounts.mounts import FileIdentity, MountOptions

if TYPE_CHECKING:
    from orlop.foundation.clock import Clock
    from orlop.host.block.image_devices import ImageDevice
    from orlop.host.folders.folder_records import ShelfListing
    from orlop.host.folders.project_quota import FolderQuota, ProjectLimits, ProjectUsage
    from orlop.host.kernel.disk_usage import DiskRoom
    from orlop.host.mounts.linux_kubelet_dir import LinuxKubeletDir
    from orlop.host.node_host import Names

T = TypeVar("T")
TEMPORARY_NAME: Final = "image.new"
_WITHOUT_OPTIONS: Final = MountOptions(no_suid=False, no_devices=False)


class LinuxDriveVolumes:
    """The volumes below `root`, which stays the drive's. Close it when no call is running."""

    def __init__(self, root: int, kubelet_dir: LinuxKubeletDir, formatter: ImageFormatter, clock: Clock) -> None:
        self._root = root
        self._kubelet_dir = kubelet_dir
        self._formatter = formatter
        with ExitStack() as opened:
            self._volumes = folder_records.open_shelf(root, VOLUMES)
            opened.callback(os.close, self._volumes)
            self._trash = folder_records.open_shelf(root, TRASH)
            opened.callback(os.close, self._trash)
            self._eraser = opened.enter_context(TrashEraser(self._trash, clock))
            self._opened = opened.pop_all()

    @property
    def kubelet_dir(self) -> LinuxKubeletDir:
        return self._kubelet_dir

    def close(self) -> None:
        self._opened.close()

    # ---- folders and records -----------------------------------------------------------------------------------------

    def create(
        self, volume_id: str, record: bytes, mode: int, quota: FolderQuota | None = None, *, durable: bool = True
    ) -> None:
        prepare = partial(project_quota.hold_to, quota=quota) if quota is not None else None
        folder_records.create(self._volumes, volume_id, record, mode, prepare)
        if durable:
            folder_records.make_durable(self._volumes, VOLUMES)

    def remove_half_made(self, volume_id: str) -> bool:
        return folder_records.remove_half_made(self._volumes, volume_id)

    def read_record(self, volume_id: str) -> bytes:
        return folder_records.read_record(self._volumes, volume_id)

    def write_record(self, volume_id: str, record: bytes, *, durable: bool = True) -> None:
        folder_records.write_record(self._volumes, volume_id, record, durable=durable)

    def listing(self) -> ShelfListing:
        return folder_records.list_shelf(self._volumes)

    # ---- deletion ----------------------------------------------------------------------------------------------------

    def discard(self, volume_id: str) -> str:
        # A volume of the same name may wait in the trash already, if this one was made anew.
        for name in chain((volume_id,), (f"{volume_id}.{number}" for number in count(1))):
            try:
                folder_records.move(self._volumes, volume_id, self._trash, name)
            except HostError as error:
                if error.errno != errno.EEXIST:
                    raise
            else:
                break
        folder_records.make_durable(self._trash, TRASH)
        folder_records.make_durable(self._volumes, VOLUMES)
        return name

    def trash(self) -> ShelfListing:
        return folder_records.list_shelf(self._trash)

    def is_in_use(self, volume_id: str) -> bool:
        return self._is_in_use(self._volumes, volume_id)

    def is_trash_in_use(self, name: str) -> bool:
        return self._is_in_use(self._trash, name)

    def erase(self, name: str) -> None:
        self._eraser.erase(name)

    def stop_erasing(self) -> None:
        self._eraser.stop()

    def _is_in_use(self, shelf: int, name: str) -> bool:
        namespaces = mount_table.read_all_namespaces()
        if namespaces.mounted_folders().holds(namespaces.folder_of(shelf).below(name)):
            return True
        with image_place(shelf, name) as image:
            return image is not None and bool(image_devices.devices_of(image, ending_of(name)))

    # ---- images ------------------------------------------------------------------------------------------------------

    def make_image(self, volume_id: str, shape: ImageShape) -> None:
        with folder_records.opened_folder(self._volumes, volume_id) as folder:
            try:
                if IMAGE in os.listdir(folder):
                    return
                _remove_half_made(folder)
                write_image(folder, TEMPORARY_NAME, shape, self._formatter)
                os.rename(TEMPORARY_NAME, IMAGE, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                # Return its space now: the volume may be retried much later, or never.
                with suppress(OSError):
                    _remove_half_made(folder)
                raise HostError.because(error, f"The image of {volume_id} cannot be made") from error

    def remove_half_made_image(self, volume_id: str) -> bool:
        with folder_records.opened_folder(self._volumes, volume_id) as folder:
            try:
                return _remove_half_made(folder)
            except OSError as error:
                raise HostError.because(error, f"The half-made image of {volume_id} cannot be removed") from error

    def image_bytes(self, volume_id: str) -> int | None:
        with image_place(self._volumes, volume_id) as image:
            return os.fstat(image).st_size if image is not None else None

    def grow_image(self, volume_id: str, shape: ImageShape) -> None:
        with opened_image(self._volumes, volume_id) as image:
            size = os.fstat(image).st_size
            if size >= shape.bytes:
                return
            try:
                allocate(image, size, shape.bytes, keeps_space=shape.keeps_space)
                os.fsync(image)
            except OSError as error:
                with suppress(OSError):
                    os.ftruncate(image, size)
                raise HostError.because(error, f"The image of {volume_id} cannot grow") from error

    def attach(self, volume_id: str, shape: ImageShape, *, read_only: bool) -> str:
        with opened_image(self._volumes, volume_id) as image:
            existing = self._device(image, volume_id, read_only=read_only)
            return existing or image_devices.attach_image(image, read_only=read_only, keeps_space=shape.keeps_space)

    def devices(self, volume_id: str) -> tuple[ImageDevice, ...]:
        with image_place(self._volumes, volume_id) as image:
            return image_devices.devices_of(image, ending_of(volume_id)) if image is not None else ()

    def detach(self, volume_id: str, *, read_only: bool | None = None) -> int:
        with image_place(self._volumes, volume_id) as image:
            return image_devices.detach(image, ending_of(volume_id), read_only=read_only) if image is not None else 0

    def grow_attached(self, volume_id: str, shape: ImageShape, staging: Names | None) -> None:
        for device in self.devices(volume_id):
            image_devices.adopt_size(device.path)
        if staging is not None:
            with self._opened_root(staging) as root:
                grow_file_system(root, shape.file_system, shape.bytes)

    # ---- mounts ------------------------------------------------------------------------------------------------------

    def mount_image(self, volume_id: str, shape: ImageShape, target: Names, options: MountOptions) -> None:
        with (
            self._kubelet_dir.opened_target(target) as place,
            detached_mount(self._volumes, volume_id, shape.file_system, options, keeps_space=shape.keeps_space) as tree,
        ):
            attach_mount(tree, place, volume_id)

    def mount_folder(self, volume_id: str, target: Names, options: MountOptions) -> None:
        with (
            folder_records.opened_folder(self._volumes, volume_id) as folder,
            self._kubelet_dir.opened_target(target) as place,
        ):
            mounts.bind(folder, place, options)

    def bind_staged(self, staging: Names, target: Names, options: MountOptions) -> None:
        with self._kubelet_dir.opened_target(staging) as root, self._kubelet_dir.opened_target(target) as place:
            mounts.bind(root, place, options)

    def bind_device(self, volume_id: str, target: Names, *, read_only: bool) -> None:
        with opened_image(self._volumes, volume_id) as image:
            device = self._device(image, volume_id, read_only=read_only)
        if device is None:
            raise HostError(errno.ENXIO, f"No loop device has the image of {volume_id}: it is not staged.")
        node = _device_node(device)
        try:
            with self._kubelet_dir.opened_target(target) as place:
                mounts.bind(node, place, _WITHOUT_OPTIONS)
        finally:
            os.close(node)

    def is_volume(self, volume_id: str, root: FileIdentity) -> bool:
        try:
            with folder_records.opened_folder(self._volumes, volume_id) as folder:
                if mounts.identity_of(folder) == root:
                    return True
        except HostError as error:
            return _if_missing(error, False)
        with image_place(self._volumes, volume_id) as image:
            if image is None:
                return False
            if image_devices.image_behind(root.device) == mounts.identity_of(image):
                return True
            devices = image_devices.devices_of(image, ending_of(volume_id))
            return any(_node_identity(each.path) == root for each in devices)

    def room_at(self, target: Names) -> DiskRoom:
        return self._kubelet_dir.room_at(target)

    # ---- limits of folders -------------------------------------------------------------------------------------------

    def why_no_quota(self) -> str | None:
        return project_quota.why_not_enforced(self._root)

    def set_limits(self, project: int, limits: ProjectLimits) -> None:
        project_quota.set_limits(self._root, project, limits)

    def quota_usage(self, project: int) -> ProjectUsage:
        return project_quota.usage_of(self._root, project)

    def projects(self) -> tuple[ProjectUsage, ...]:
        return tuple(project_quota.projects(self._root))

    def lift_limits(self, project: int) -> None:
        project_quota.set_limits(self._root, project, project_quota.NO_LIMITS)

    # ---- descriptors -------------------------------------------------------------------------------------------------

    @contextmanager
    def _opened_root(self, target: Names) -> Iterator[int]:
        """Open what is mounted at a target, for reading."""
        with self._kubelet_dir.opened_target(target) as place:
            try:
                root = reopen(place)
            except OSError as error:
                raise HostError.because(error, f"The volume at {'/'.join(target)} cannot be opened") from error
        try:
            yield root
        finally:
            os.close(root)

    def _device(self, image: int, volume_id: str, *, read_only: bool) -> str | None:
        devices = image_devices.devices_of(image, ending_of(volume_id))
        return next((each.path for each in devices if each.is_read_only is read_only), None)


def as_drive_volumes(volumes: LinuxDriveVolumes) -> DriveVolumes:
    """Prove to the type checker that the seam is implemented."""
    return volumes


def _remove_half_made(folder: int) -> bool:
    with suppress(FileNotFoundError):
        os.unlink(TEMPORARY_NAME, dir_fd=folder)
        return True
    return False


def _if_missing(error: HostError, answer: T) -> T:
    """Return `answer` if the volume is missing; raise every other error."""
    if error.errno not in MISSING:
        raise error
    return answer


def _device_node(device: str) -> int:
    try:
        return os.open(device, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise HostError.because(error, f"{device} cannot be bound: a container needs the host's /dev") from error


def _node_identity(device: str) -> FileIdentity:
    node = _device_node(device)
    try:
        return mounts.identity_of(node)
    finally:
        os.close(node)
