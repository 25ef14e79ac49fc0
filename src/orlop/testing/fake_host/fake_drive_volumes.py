"""The volumes of a fake drive, as one process uses them: keeps the contract of `DriveVolumes`.

    drive = machine.drives["/srv/folders/a"] = FakeDrive()
    volumes = FakeDriveVolumes(machine, drive, points)

Images are numbers of bytes, file systems the tenants' files by name. A loop device is a number; the identity of what is
mounted is made from it, as the kernel makes it from the device.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from typing import Final

from orlop.host.block.image_devices import ImageDevice
from orlop.host.block.image_files import ImageShape
from orlop.host.drive_volumes import DriveVolumes
from orlop.host.folders.folder_records import ShelfListing
from orlop.host.folders.project_quota import NO_LIMITS, FolderQuota, ProjectLimits, ProjectUsage
from orlop.host.kernel.disk_usage import DiskRoom
from orlop.host.mounts.mounts import AccessTimes, FileIdentity, MountOptions
from orlop.host.node_host import Names
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.fake_host.fake_drives import FakeDrive, FakeVolume, free_bytes, listing_of
from orlop.testing.fake_host.kubelet_dir import FakeKubeletDir, shown
from orlop.testing.fake_host.machine import FakeMachine, FakeMount
from orlop.testing.kill_points import KillPoints

DRIVE_DEVICE: Final = 50
FIRST_LOOP: Final = 7 << 8
NODES: Final = 5
"""The device of the folder of device nodes."""
ROOT_INODE: Final = 128


class FakeDriveVolumes:
    def __init__(self, machine: FakeMachine, drive: FakeDrive, points: KillPoints | None = None) -> None:
        self._machine = machine
        self._drive = drive
        self._acts = Acts(machine, points or KillPoints())
        self._kubelet_dir = FakeKubeletDir(self._acts)
        self.is_closed = False

    @property
    def kubelet_dir(self) -> FakeKubeletDir:
        return self._kubelet_dir

    def close(self) -> None:
        self.is_closed = True

    # ---- folders and records -----------------------------------------------------------------------------------------

    def create(
        self,
        volume_id: str,
        record: bytes,
        mode: int,
        quota: FolderQuota | None = None,
        *,
        durable: bool = True,  # noqa: ARG002 - there is no power to lose here
    ) -> None:
        drive = self._drive
        with self._faults("create_volume"):
            if quota is not None and drive.features.why_no_quota is not None:
                refuse(errno.EOPNOTSUPP, drive.features.why_no_quota)
            if volume_id in drive.volumes:
                refuse(errno.EEXIST, f"The folder {volume_id} cannot be made")
            volume = FakeVolume(self._machine.new_inode(), mode, record)
            with self._acts.effect(f"make {volume_id} half"):
                drive.half_made_volumes[volume_id] = volume
            if quota is not None:
                with self._acts.effect(f"limit {volume_id}"):
                    drive.limits[quota.project] = quota.limits
                    volume.project = quota.project
            with self._acts.effect(f"name {volume_id}"):
                drive.volumes[volume_id] = drive.half_made_volumes.pop(volume_id)

    def remove_half_made(self, volume_id: str) -> bool:
        with self._change("remove_half_made_volume", f"remove half-made {volume_id}"):
            return self._drive.half_made_volumes.pop(volume_id, None) is not None

    def read_record(self, volume_id: str) -> bytes:
        with self._look("read_volume_record"):
            record = self._volume(volume_id).record
            return record if record is not None else refuse(errno.ENODATA, f"The folder {volume_id} has no record")

    def write_record(self, volume_id: str, record: bytes, *, durable: bool = True) -> None:  # noqa: ARG002 - as above
        with self._change("write_volume_record", f"write record of {volume_id}"):
            self._volume(volume_id).record = record

    def listing(self) -> ShelfListing:
        with self._look("list_volumes"):
            return listing_of(self._drive.volumes, tuple(self._drive.half_made_volumes))

    # ---- deletion ----------------------------------------------------------------------------------------------------

    def discard(self, volume_id: str) -> str:
        drive = self._drive
        with self._change("discard_volume", f"discard {volume_id}"):
            volume = self._volume(volume_id)
            names = chain((volume_id,), (f"{volume_id}.{number}" for number in count(1)))
            name = next(each for each in names if each not in drive.trash)
            drive.trash[name] = drive.volumes.pop(volume_id)
            if volume_id in drive.images:
                drive.images[f"trash/{name}"] = drive.images.pop(volume_id)
            return name if volume is drive.trash[name] else refuse(errno.ENOENT, volume_id)

    def trash(self) -> ShelfListing:
        with self._look("list_trash"):
            return listing_of(self._drive.trash)

    def is_in_use(self, volume_id: str) -> bool:
        with self._look("is_in_use"):
            volume = self._drive.volumes.get(volume_id)
            return volume is not None and self._is_used(volume)

    def is_trash_in_use(self, name: str) -> bool:
        with self._look("is_trash_in_use"):
            volume = self._drive.trash.get(name)
            return volume is not None and self._is_used(volume)

    def erase(self, name: str) -> None:
        with self._change("erase_volume", f"erase {name}"):
            self._drive.trash.pop(name, None)
            self._drive.images.pop(f"trash/{name}", None)

    def stop_erasing(self) -> None:
        """Nothing to do: an erasure is one step here."""

    def _is_used(self, volume: FakeVolume) -> bool:
        mounts = chain(*self._machine.mounts.values(), self._machine.elsewhere)
        return bool(volume.devices) or any(_shows(volume, mount.root) for mount in mounts)

    # ---- images ------------------------------------------------------------------------------------------------------

    def make_image(self, volume_id: str, shape: ImageShape) -> None:
        with self._faults("make_image"):
            volume = self._volume(volume_id)
            if volume.image is not None:
                return
            volume.half_made_image = 0
            self._refuse_without_space(shape.bytes, volume_id)
            with self._acts.effect(f"allocate the image of {volume_id}"):
                volume.half_made_image = shape.bytes
            with self._acts.effect(f"name the image of {volume_id}"):
                volume.image, volume.half_made_image, volume.file_system_bytes = shape, 0, shape.bytes
                self._drive.images[volume_id] = shape.bytes

    def remove_half_made_image(self, volume_id: str) -> bool:
        with self._change("remove_half_made_image", f"remove the half-made image of {volume_id}"):
            volume = self._volume(volume_id)
            was_there, volume.half_made_image = volume.half_made_image, 0
            return bool(was_there)

    def image_bytes(self, volume_id: str) -> int | None:
        with self._look("image_bytes"):
            volume = self._drive.volumes.get(volume_id)
            return volume.image.bytes if volume is not None and volume.image is not None else None

    def grow_image(self, volume_id: str, shape: ImageShape) -> None:
        with self._change("grow_image", f"grow the image of {volume_id}"):
            volume, image = self._imaged(volume_id)
            if image.bytes < shape.bytes:
                self._refuse_without_space(shape.bytes - image.bytes, volume_id)
                volume.image = shape
                self._drive.images[volume_id] = shape.bytes

    def attach(self, volume_id: str, shape: ImageShape, *, read_only: bool) -> str:  # noqa: ARG002 - keeps_space
        with self._look("attach"):
            volume, _ = self._imaged(volume_id)
        existing = _device(volume, read_only=read_only)
        if existing is None:
            with self._change("attach_image", f"attach {volume_id}"):
                existing = self._machine.new_inode()
                volume.devices[existing] = read_only
        return f"/dev/loop{existing}"

    def devices(self, volume_id: str) -> tuple[ImageDevice, ...]:
        with self._look("image_devices"):
            volume = self._drive.volumes.get(volume_id)
            devices = volume.devices.items() if volume is not None else ()
            return tuple(ImageDevice(f"/dev/loop{number}", read_only) for number, read_only in devices)

    def detach(self, volume_id: str, *, read_only: bool | None = None) -> int:
        with self._look("detach"):
            volume = self._drive.volumes.get(volume_id)
            devices = dict(volume.devices) if volume is not None else {}
        chosen = [number for number, is_read_only in devices.items() if read_only in {None, is_read_only}]
        for number in chosen:
            with self._change("detach_image", f"detach {volume_id}"):
                if f"/dev/loop{number}" in self._machine.busy_loops:
                    refuse(errno.EBUSY, f"/dev/loop{number} is in use")
                assert volume is not None  # noqa: S101 - it has devices
                del volume.devices[number]
        return len(chosen)

    def grow_attached(self, volume_id: str, shape: ImageShape, staging: Names | None) -> None:
        with self._change("grow_attached", f"grow what is attached of {volume_id}"):
            volume, _ = self._imaged(volume_id)
            if staging is not None:
                volume.file_system_bytes = shape.bytes

    # ---- mounts ------------------------------------------------------------------------------------------------------

    def mount_image(self, volume_id: str, shape: ImageShape, target: Names, options: MountOptions) -> None:  # noqa: ARG002
        with self._change("mount_image", f"mount {volume_id} at {shown(target)}"):
            volume, _ = self._imaged(volume_id)
            if volume.is_damaged:
                refuse(errno.EUCLEAN, f"The file system of {volume_id} cannot be mounted")
            self._mount(FileIdentity(FIRST_LOOP + volume.inode, ROOT_INODE), target, options)

    def mount_folder(self, volume_id: str, target: Names, options: MountOptions) -> None:
        with self._change("mount_folder", f"mount {volume_id} at {shown(target)}"):
            self._mount(FileIdentity(DRIVE_DEVICE, self._volume(volume_id).inode), target, options)

    def bind_staged(self, staging: Names, target: Names, options: MountOptions) -> None:
        with self._change("bind_staged", f"bind {shown(staging)} at {shown(target)}"):
            stack = self._machine.mounts.get(staging)
            if not stack:
                refuse(errno.ENOENT, f"{shown(staging)} cannot be bound")
            self._mount(stack[-1].root, target, options)

    def bind_device(self, volume_id: str, target: Names, *, read_only: bool) -> None:
        with self._change("bind_device", f"bind the device of {volume_id} at {shown(target)}"):
            number = _device(self._volume(volume_id), read_only=read_only)
            if number is None:
                refuse(errno.ENXIO, f"No loop device has the image of {volume_id}")
            if target not in self._machine.kubelet_files:
                refuse(errno.ENOENT, f"{shown(target)} cannot be opened")
            mount = FakeMount(None, FileIdentity(NODES, number), MountOptions(no_suid=False, no_devices=False))
            self._machine.mounts.setdefault(target, []).append(mount)

    def is_volume(self, volume_id: str, root: FileIdentity) -> bool:
        with self._look("is_volume"):
            volume = self._drive.volumes.get(volume_id)
            return volume is not None and _shows(volume, root)

    def room_at(self, target: Names) -> DiskRoom:
        with self._look("room_at"):
            stack = self._machine.mounts.get(target)
            if not stack:
                refuse(errno.ENOENT, f"{shown(target)} cannot be opened")
            volume = next((each for each in self._drive.volumes.values() if _shows(each, stack[-1].root)), None)
            total = self._size_of(volume) if volume is not None else self._machine.total_bytes
            used = sum(map(len, volume.files.values())) if volume is not None else 0
            inodes = len(volume.files) if volume is not None else 0
            return DiskRoom(total, total - used, 1000, 1000 - inodes)

    def _mount(self, root: FileIdentity, target: Names, options: MountOptions) -> None:
        if target not in self._machine.kubelet_folders:
            refuse(errno.ENOENT, f"{shown(target)} cannot be opened")
        as_shown = replace(options, access_times=options.access_times or AccessTimes.RELATIVE)
        self._machine.mounts.setdefault(target, []).append(FakeMount(None, root, as_shown))

    def _size_of(self, volume: FakeVolume) -> int:
        if volume.image is not None:
            return volume.file_system_bytes
        return self._drive.limits.get(volume.project, NO_LIMITS).bytes or self._machine.total_bytes

    # ---- limits of folders -------------------------------------------------------------------------------------------

    def why_no_quota(self) -> str | None:
        with self._look("why_no_quota_on_drive"):
            return self._drive.features.why_no_quota

    def set_limits(self, project: int, limits: ProjectLimits) -> None:
        with self._change("set_limits", f"limit the project {project}"):
            self._drive.limits[project] = limits

    def quota_usage(self, project: int) -> ProjectUsage:
        with self._look("quota_usage_on_drive"):
            return self._usage(project)

    def projects(self) -> tuple[ProjectUsage, ...]:
        with self._look("projects_on_drive"):
            return tuple(self._usage(project) for project in sorted({*self._drive.limits, *self._by_project()}))

    def lift_limits(self, project: int) -> None:
        with self._change("lift_limits_on_drive", f"lift the limits of the project {project}"):
            self._drive.limits.pop(project, None)

    def _by_project(self) -> dict[int, list[FakeVolume]]:
        drive = self._drive
        everything = (*drive.volumes.values(), *drive.half_made_volumes.values(), *drive.trash.values())
        numbered = [volume for volume in everything if volume.project]
        return {volume.project: [each for each in numbered if each.project == volume.project] for volume in numbered}

    def _usage(self, project: int) -> ProjectUsage:
        volumes = self._by_project().get(project, [])
        used = sum(sum(map(len, volume.files.values())) for volume in volumes)
        inodes = sum(1 + len(volume.files) for volume in volumes)
        return ProjectUsage(project, used, inodes, self._drive.limits.get(project, NO_LIMITS))

    # ---- the drive ---------------------------------------------------------------------------------------------------

    def _volume(self, volume_id: str) -> FakeVolume:
        volume = self._drive.volumes.get(volume_id)
        return volume if volume is not None else refuse(errno.ENOENT, f"The folder {volume_id} cannot be opened")

    def _imaged(self, volume_id: str) -> tuple[FakeVolume, ImageShape]:
        volume = self._volume(volume_id)
        if volume.image is None:
            refuse(errno.ENOENT, f"The volume {volume_id} has no image on its drive")
        return volume, volume.image

    def _refuse_without_space(self, size: int, volume_id: str) -> None:
        if size > free_bytes(self._machine):
            refuse(errno.ENOSPC, f"The image of {volume_id} cannot be made")

    def _refuse_gone(self) -> None:
        if self._drive.is_gone:
            refuse(errno.EIO, "The drive cannot be read")

    @contextmanager
    def _faults(self, function: str) -> Iterator[None]:
        with self._machine.faults.around(function):
            self._refuse_gone()
            yield

    @contextmanager
    def _change(self, function: str, what: str) -> Iterator[None]:
        with self._acts.change(function, what):
            self._refuse_gone()
            yield

    @contextmanager
    def _look(self, function: str) -> Iterator[None]:
        with self._acts.look(function):
            self._refuse_gone()
            yield


def as_drive_volumes(volumes: FakeDriveVolumes) -> DriveVolumes:
    """Prove to the type checker that the fake implements the protocol."""
    return volumes


def _device(volume: FakeVolume, *, read_only: bool) -> int | None:
    return next((number for number, each in volume.devices.items() if each is read_only), None)


def _shows(volume: FakeVolume, root: FileIdentity) -> bool:
    if root.device == NODES:
        return root.inode in volume.devices
    if volume.image is not None:
        return root == FileIdentity(FIRST_LOOP + volume.inode, ROOT_INODE)
    return root == FileIdentity(DRIVE_DEVICE, volume.inode)
