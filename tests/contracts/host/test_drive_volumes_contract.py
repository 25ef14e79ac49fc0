"""What the volumes of every drive promise, asked of the fake ones and of those on this kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from orlop.foundation.clock import SystemClock
from orlop.host.block.image_files import ImageShape
from orlop.host.block.image_formats import MIB, ImageFormatter
from orlop.host.drive_volumes import DriveVolumes
from orlop.host.drives.linux_drive_volumes import LinuxDriveVolumes
from orlop.host.folders.project_quota import FolderQuota, ProjectLimits
from orlop.host.host_errors import HostError
from orlop.host.mounts.linux_kubelet_dir import LinuxKubeletDir
from orlop.host.mounts.mounts import MountOptions
from orlop.host.node_host import Names
from orlop.testing.fake_host import FakeDrive, FakeDriveVolumes, FakeMachine
from support.host.kernel_rooms import descriptor, mount_room

STAGING: Names = ("plugins", "globalmount")
TARGET: Names = ("pods", "u1", "mount")
DEVICE: Names = ("pods", "u1", "device")
SIZE = 16 * MIB
EXT4 = ImageShape(SIZE, "ext4", keeps_space=True)
RAW = ImageShape(SIZE, "", keeps_space=True)
PLAIN = MountOptions(no_suid=False, no_devices=False)
READ_ONLY = MountOptions(read_only=True)


class VolumesWorld(Protocol):
    volumes: DriveVolumes

    def write(self, target: Names, name: str, content: bytes) -> None: ...

    def read(self, target: Names, name: str) -> bytes: ...

    def leave_half_made(self, volume_id: str) -> None: ...

    def leave_half_made_image(self, volume_id: str) -> None: ...

    def device_of(self, target: Names) -> str:
        """Which loop device is mounted on a file."""


class FakeVolumesWorld:
    def __init__(self) -> None:
        self._machine = FakeMachine()
        self._drive = self._machine.drives["/srv/folders/a"] = FakeDrive()
        for folder in (STAGING, TARGET, DEVICE[:-1]):
            self._machine.kubelet_makes(folder)
        self.volumes: DriveVolumes = FakeDriveVolumes(self._machine, self._drive)

    def write(self, target: Names, name: str, content: bytes) -> None:
        mount = self._machine.mounts[target][-1]
        if mount.options.read_only:
            raise OSError(errno.EROFS, "read-only")
        volume_id = next(each for each in self._drive.volumes if self.volumes.is_volume(each, mount.root))
        self._drive.volumes[volume_id].files[name] = content

    def read(self, target: Names, name: str) -> bytes:
        mount = self._machine.mounts[target][-1]
        volume_id = next(each for each in self._drive.volumes if self.volumes.is_volume(each, mount.root))
        return self._drive.volumes[volume_id].files[name]

    def leave_half_made(self, volume_id: str) -> None:
        self._drive.half_made_volumes[volume_id] = self._drive.volumes.pop(volume_id)

    def leave_half_made_image(self, volume_id: str) -> None:
        self._drive.volumes[volume_id].half_made_image = SIZE

    def device_of(self, target: Names) -> str:
        return f"/dev/loop{self._machine.mounts[target][-1].root.inode}"


class LinuxVolumesWorld:
    def __init__(self, room: Path, clean_up: ExitStack) -> None:
        self._drive, self._kubelet = room / "drive", room / "kubelet"
        self._drive.mkdir()
        for folder in (STAGING, TARGET, DEVICE[:-1]):
            self._kubelet.joinpath(*folder).mkdir(parents=True, exist_ok=True)
        root = clean_up.enter_context(descriptor(self._drive))
        kubelet_dir = LinuxKubeletDir(str(self._kubelet))
        clean_up.callback(kubelet_dir.close)
        volumes = LinuxDriveVolumes(root, kubelet_dir, ImageFormatter(), SystemClock())
        clean_up.callback(volumes.close)
        clean_up.callback(lambda: [volumes.detach(each.name) for each in volumes.listing().folders])
        clean_up.callback(lambda: [kubelet_dir.unmount(each) for each in (TARGET, DEVICE, STAGING)])
        self.volumes: DriveVolumes = volumes

    def write(self, target: Names, name: str, content: bytes) -> None:
        (self._kubelet.joinpath(*target) / name).write_bytes(content)

    def read(self, target: Names, name: str) -> bytes:
        return (self._kubelet.joinpath(*target) / name).read_bytes()

    def leave_half_made(self, volume_id: str) -> None:
        (self._drive / "volumes" / volume_id).rename(self._drive / "volumes" / f".new.{volume_id}")

    def leave_half_made_image(self, volume_id: str) -> None:
        (self._drive / "volumes" / volume_id / "image.new").write_bytes(b"half")

    def device_of(self, target: Names) -> str:
        number = self._kubelet.joinpath(*target).stat().st_rdev
        return f"/dev/{Path(f'/sys/dev/block/{os.major(number)}:{os.minor(number)}').readlink().name}"


@pytest.fixture(params=["fake", "linux"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VolumesWorld]:
    if request.param == "fake":
        yield FakeVolumesWorld()
        return
    with mount_room(tmp_path / "room") as room, ExitStack() as clean_up:
        yield LinuxVolumesWorld(room, clean_up)


@pytest.fixture
def volumes(world: VolumesWorld) -> DriveVolumes:
    return world.volumes


def reason(call: Callable[..., object], *arguments: object, **more: object) -> int | None:
    with pytest.raises(HostError) as caught:
        call(*arguments, **more)
    assert str(caught.value).endswith(".")
    return caught.value.errno


def mounted_image(volumes: DriveVolumes, shape: ImageShape = EXT4) -> None:
    volumes.create("a", b"record", 0o700)
    volumes.make_image("a", shape)
    volumes.mount_image("a", shape, STAGING, PLAIN)


# ---- folders and records ---------------------------------------------------------------------------------------------


def test_a_volume_is_a_folder_with_its_record(volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)

    assert [(each.name, each.record) for each in volumes.listing().folders] == [("a", b"record")]
    assert volumes.read_record("a") == b"record"
    volumes.write_record("a", b"another")
    assert volumes.read_record("a") == b"another"


def test_a_name_that_is_taken_and_one_that_is_not_are_told_apart(volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)

    assert reason(volumes.create, "a", b"other", 0o700) == errno.EEXIST
    assert volumes.read_record("a") == b"record"
    assert reason(volumes.read_record, "b") == errno.ENOENT
    assert reason(volumes.write_record, "b", b"x") == errno.ENOENT
    assert reason(volumes.discard, "b") == errno.ENOENT


def test_a_half_made_volume_is_listed_as_such_and_removed(world: VolumesWorld, volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)
    world.leave_half_made("a")

    assert (volumes.listing().folders, volumes.listing().half_made) == ((), ("a",))
    assert volumes.remove_half_made("a")
    assert not volumes.remove_half_made("a")
    assert volumes.listing().half_made == ()


def test_limits_that_would_not_be_enforced_are_refused(volumes: DriveVolumes):
    if volumes.why_no_quota() is None:
        pytest.skip("this machine's own file system has project quotas")

    assert reason(volumes.create, "a", b"", 0o777, FolderQuota(1_862_000_000, ProjectLimits(4096, None))) == (
        errno.EOPNOTSUPP
    )
    assert volumes.listing().folders == ()


# ---- images ----------------------------------------------------------------------------------------------------------


def test_an_image_has_its_size_and_is_made_once(volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)
    assert volumes.image_bytes("a") is None

    volumes.make_image("a", EXT4)
    volumes.make_image("a", ImageShape(2 * SIZE, "ext4", keeps_space=True))

    assert volumes.image_bytes("a") == SIZE
    assert volumes.image_bytes("b") is None


def test_a_half_made_image_is_no_image_and_is_removed(world: VolumesWorld, volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)
    world.leave_half_made_image("a")

    assert volumes.image_bytes("a") is None
    assert volumes.remove_half_made_image("a")
    assert not volumes.remove_half_made_image("a")
    assert reason(volumes.remove_half_made_image, "b") == errno.ENOENT
    world.leave_half_made_image("a")
    volumes.make_image("a", EXT4)
    assert not volumes.remove_half_made_image("a")


def test_an_image_without_a_volume_is_refused(volumes: DriveVolumes):
    assert reason(volumes.make_image, "a", EXT4) == errno.ENOENT
    assert reason(volumes.attach, "a", EXT4, read_only=False) == errno.ENOENT
    assert reason(volumes.grow_image, "a", EXT4) == errno.ENOENT


def test_an_image_too_large_for_the_drive_is_refused_and_leaves_nothing(volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)

    assert reason(volumes.make_image, "a", ImageShape(1 << 45, "", keeps_space=True)) in {errno.ENOSPC, errno.EFBIG}

    assert volumes.image_bytes("a") is None
    volumes.make_image("a", EXT4)


def test_an_image_grows_and_never_shrinks(volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)
    volumes.make_image("a", RAW)

    volumes.grow_image("a", ImageShape(2 * SIZE, "", keeps_space=True))
    volumes.grow_image("a", RAW)

    assert volumes.image_bytes("a") == 2 * SIZE


def test_an_image_that_cannot_grow_keeps_its_size(volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)
    volumes.make_image("a", RAW)

    assert reason(volumes.grow_image, "a", ImageShape(1 << 45, "", keeps_space=True)) in {errno.ENOSPC, errno.EFBIG}
    assert volumes.image_bytes("a") == SIZE


def test_an_image_is_attached_once_for_writing_and_once_for_reading(volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)
    volumes.make_image("a", RAW)

    writable = volumes.attach("a", RAW, read_only=False)

    assert volumes.attach("a", RAW, read_only=False) == writable
    readable = volumes.attach("a", RAW, read_only=True)
    assert {(each.path, each.is_read_only) for each in volumes.devices("a")} == {(writable, False), (readable, True)}
    assert volumes.detach("a", read_only=True) == 1
    assert volumes.detach("a") == 1
    assert volumes.detach("a") == 0
    assert volumes.detach("b") == 0
    assert volumes.devices("b") == ()


# ---- mounts ----------------------------------------------------------------------------------------------------------


def test_the_file_system_of_an_image_is_mounted_at_the_staging_path_and_bound_from_there(
    world: VolumesWorld, volumes: DriveVolumes
):
    mounted_image(volumes)
    volumes.bind_staged(STAGING, TARGET, PLAIN)

    world.write(TARGET, "file", b"content")
    assert world.read(STAGING, "file") == b"content"
    for place in (STAGING, TARGET):
        mounted = volumes.kubelet_dir.mounted_at(place)
        assert mounted is not None
        assert volumes.is_volume("a", mounted.root)
        assert not volumes.is_volume("b", mounted.root)


def test_what_was_written_is_there_when_the_image_is_mounted_again(world: VolumesWorld, volumes: DriveVolumes):
    mounted_image(volumes)
    world.write(STAGING, "file", b"content")

    assert volumes.kubelet_dir.unmount(STAGING) == 1
    assert volumes.devices("a") == ()
    volumes.mount_image("a", EXT4, STAGING, PLAIN)

    assert world.read(STAGING, "file") == b"content"


def test_a_read_only_bind_of_a_writable_volume_cannot_be_written(world: VolumesWorld, volumes: DriveVolumes):
    mounted_image(volumes)
    volumes.bind_staged(STAGING, TARGET, READ_ONLY)

    with pytest.raises(OSError) as caught:  # noqa: PT011 - by its number
        world.write(TARGET, "file", b"")
    assert caught.value.errno == errno.EROFS
    world.write(STAGING, "file", b"")


def test_a_folder_is_mounted_itself(world: VolumesWorld, volumes: DriveVolumes):
    volumes.create("a", b"record", 0o777)
    volumes.create("b", b"record", 0o777)
    volumes.mount_folder("a", STAGING, PLAIN)

    world.write(STAGING, "image", b"a file of the tenant")
    mounted = volumes.kubelet_dir.mounted_at(STAGING)

    assert mounted is not None
    assert (volumes.is_volume("a", mounted.root), volumes.is_volume("b", mounted.root)) == (True, False)
    assert volumes.is_in_use("a")


def test_a_device_is_bound_to_a_file(world: VolumesWorld, volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)
    volumes.make_image("a", RAW)
    assert volumes.kubelet_dir.make_file(DEVICE)
    assert reason(volumes.bind_device, "a", DEVICE, read_only=False) == errno.ENXIO
    device = volumes.attach("a", RAW, read_only=False)

    volumes.bind_device("a", DEVICE, read_only=False)

    assert world.device_of(DEVICE) == device
    mounted = volumes.kubelet_dir.mounted_at(DEVICE)
    assert mounted is not None
    assert volumes.is_volume("a", mounted.root)
    assert reason(volumes.kubelet_dir.remove_file, DEVICE) == errno.EBUSY
    assert volumes.kubelet_dir.unmount(DEVICE) == 1
    assert volumes.kubelet_dir.remove_file(DEVICE)
    assert not volumes.kubelet_dir.remove_file(DEVICE)


def test_a_file_for_a_device_is_told_apart_from_a_folder(volumes: DriveVolumes):
    assert volumes.kubelet_dir.make_file(DEVICE)
    assert not volumes.kubelet_dir.make_file(DEVICE)
    assert reason(volumes.kubelet_dir.make_file, TARGET) == errno.EISDIR
    assert reason(volumes.kubelet_dir.remove_file, TARGET) == errno.EISDIR
    assert reason(volumes.kubelet_dir.make_file, ("missing", "device")) == errno.ENOENT


def test_the_room_of_a_volume_is_that_of_its_file_system(volumes: DriveVolumes):
    mounted_image(volumes)

    room = volumes.room_at(STAGING)

    assert 10 * MIB < room.free_bytes <= room.total_bytes <= SIZE
    assert room.total_inodes > 0


# ---- deletion --------------------------------------------------------------------------------------------------------


def test_a_discarded_volume_is_in_the_trash_and_gone_when_erased(volumes: DriveVolumes):
    volumes.create("a", b"record", 0o700)
    volumes.make_image("a", EXT4)

    name = volumes.discard("a")

    assert volumes.listing().folders == ()
    assert [(each.name, each.record) for each in volumes.trash().folders] == [(name, b"record")]
    volumes.erase(name)
    volumes.erase(name)
    assert volumes.trash().folders == ()


def test_a_second_volume_of_the_name_has_its_own_place_in_the_trash(volumes: DriveVolumes):
    volumes.create("a", b"first", 0o700)
    first = volumes.discard("a")
    volumes.create("a", b"second", 0o700)

    second = volumes.discard("a")

    assert first != second
    assert {each.record for each in volumes.trash().folders} == {b"first", b"second"}


@pytest.mark.parametrize("attached", [False, True])
def test_what_is_mounted_or_attached_is_in_use_also_in_the_trash(volumes: DriveVolumes, *, attached: bool):
    volumes.create("a", b"record", 0o700)
    volumes.make_image("a", EXT4)
    assert not volumes.is_in_use("a")
    if attached:
        volumes.attach("a", EXT4, read_only=True)
    else:
        volumes.mount_image("a", EXT4, STAGING, PLAIN)
    assert volumes.is_in_use("a")

    if attached:
        volumes.detach("a")
    else:
        volumes.kubelet_dir.unmount(STAGING)
    assert not volumes.is_in_use("a")
    assert not volumes.is_trash_in_use(volumes.discard("a"))
    assert not volumes.is_in_use("a")
