"""What every host of folder drives promises, asked of the fake one and of the one on this kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest

from orlop.host.drive_host import FolderDriveHost, SeenFolder
from orlop.host.drives import drive_files, folder_drives
from orlop.host.drives.folder_drives import LinuxFolderDrives
from orlop.host.host_errors import HostError
from orlop.testing.fake_host import FakeDrive, FakeFolderDrives, FakeMachine
from orlop.testing.kill_points import KillPoints, explore_kills
from support.host.file_systems import mounted

MIB = 1 << 20
FAKE_ROOT = "/srv/folders"


class DriveWorld(Protocol):
    root: str

    def host(self, points: KillPoints | None = None) -> FolderDriveHost: ...

    def make_folder(self, path: str, *names: str) -> None:
        """A folder that holds these files."""

    def write_image(self, path: str, volume: str, size: int) -> None: ...

    def remove_image(self, path: str, volume: str) -> None: ...

    def others_take(self, size: int) -> None:
        """Fill the file system with something else."""

    def others_leave(self) -> None: ...

    def free(self) -> int: ...


class FakeDriveWorld:
    root = FAKE_ROOT

    def __init__(self) -> None:
        self._machine = FakeMachine(total_bytes=500 * MIB)

    def host(self, points: KillPoints | None = None) -> FolderDriveHost:
        return FakeFolderDrives(self._machine, FAKE_ROOT, points)

    def make_folder(self, path: str, *names: str) -> None:
        self._machine.drives[path] = FakeDrive(foreign=set(names))

    def write_image(self, path: str, volume: str, size: int) -> None:
        self._machine.drives[path].images[volume] = size

    def remove_image(self, path: str, volume: str) -> None:
        del self._machine.drives[path].images[volume]

    def others_take(self, size: int) -> None:
        self._machine.used_by_others += size

    def others_leave(self) -> None:
        self._machine.used_by_others = 0

    def free(self) -> int:
        held = sum(drive.reserve + sum(drive.images.values()) for drive in self._machine.drives.values())
        return self._machine.total_bytes - self._machine.used_by_others - held


class LinuxDriveWorld:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = str(root)
        self._other = root / "other"
        self._monkeypatch = monkeypatch

    def host(self, points: KillPoints | None = None) -> FolderDriveHost:
        effects = ("begin", "make_shelves", "complete", "remove_files")
        files = drive_files if points is None else points.wrap(drive_files, *effects)
        self._monkeypatch.setattr(folder_drives, "drive_files", files)
        return LinuxFolderDrives(self.root)

    def make_folder(self, path: str, *names: str) -> None:
        Path(path).mkdir(parents=True)
        for name in names:
            (Path(path) / name).touch()

    def write_image(self, path: str, volume: str, size: int) -> None:
        folder = Path(path) / "volumes" / volume
        folder.mkdir()
        with (folder / "image").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def remove_image(self, path: str, volume: str) -> None:
        (Path(path) / "volumes" / volume / "image").unlink()
        (Path(path) / "volumes" / volume).rmdir()

    def others_take(self, size: int) -> None:
        with self._other.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def others_leave(self) -> None:
        self._other.unlink()

    def free(self) -> int:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize


@pytest.fixture(params=["fake", "linux"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriveWorld]:
    if request.param == "fake":
        yield FakeDriveWorld()
        return
    with ExitStack() as stack:
        yield LinuxDriveWorld(stack.enter_context(mounted("tmpfs", tmp_path, "mode=755,size=500m")), monkeypatch)


@pytest.fixture
def host(world: DriveWorld) -> FolderDriveHost:
    return world.host()


def reason(call: Callable[..., object], *arguments: object, **more: object) -> int | None:
    with pytest.raises(HostError) as caught:
        call(*arguments, **more)
    assert str(caught.value).endswith(".")
    return caught.value.errno


def test_a_new_drive_has_its_record_and_has_reserved_its_capacity(world: DriveWorld, host: FolderDriveHost):
    free = world.free()

    host.make_folder_drive(f"{world.root}/a", b"record", 64 * MIB)

    assert host.folder_drives() == (SeenFolder(f"{world.root}/a", b"record"),)
    with closing(host.open_folder_drive(f"{world.root}/a")) as drive:
        assert drive.read_record() == b"record"
        assert drive.reserved() == 64 * MIB
        assert drive.space().free == world.free()
    assert free - world.free() >= 64 * MIB


def test_a_folder_that_exists_and_is_empty_becomes_a_drive(world: DriveWorld, host: FolderDriveHost):
    world.make_folder(f"{world.root}/a")

    host.make_folder_drive(f"{world.root}/a", b"record", MIB)

    assert [seen.path for seen in host.folder_drives()] == [f"{world.root}/a"]


@pytest.mark.parametrize("path", ["a/../b", "", ".", "a//b", "a/b/c/d", "../elsewhere", "a/./b"])
def test_a_path_that_does_not_lie_plainly_below_the_root_is_refused(
    world: DriveWorld, host: FolderDriveHost, path: str
):
    assert reason(host.make_folder_drive, f"{world.root}/{path}", b"record", MIB) == errno.EINVAL
    assert reason(host.open_folder_drive, f"{world.root}/{path}") == errno.EINVAL
    assert host.folder_drives() == ()


def test_a_folder_elsewhere_is_refused(host: FolderDriveHost):
    assert reason(host.make_folder_drive, "/srv/other/a", b"record", MIB) == errno.EINVAL


def test_a_folder_that_holds_something_is_refused_and_not_changed(world: DriveWorld, host: FolderDriveHost):
    world.make_folder(f"{world.root}/a", "photo.jpg")

    assert reason(host.make_folder_drive, f"{world.root}/a", b"record", MIB) == errno.ENOTEMPTY
    assert host.folder_drives() == ()


def test_a_drive_is_not_made_twice(world: DriveWorld, host: FolderDriveHost):
    host.make_folder_drive(f"{world.root}/a", b"first", MIB)

    assert reason(host.make_folder_drive, f"{world.root}/a", b"second", 2 * MIB) == errno.EEXIST

    assert host.folder_drives() == (SeenFolder(f"{world.root}/a", b"first"),)


def test_a_drive_inside_a_drive_is_refused(world: DriveWorld, host: FolderDriveHost):
    host.make_folder_drive(f"{world.root}/a", b"record", MIB)

    assert reason(host.make_folder_drive, f"{world.root}/a/b", b"record", MIB) == errno.EBUSY

    assert [seen.path for seen in host.folder_drives()] == [f"{world.root}/a"]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_capacity_that_is_not_free_is_refused_and_nothing_is_kept(
    world: DriveWorld, host: FolderDriveHost, *, dry_run: bool
):
    world.others_take(400 * MIB)
    free = world.free()

    assert reason(host.make_folder_drive, f"{world.root}/a", b"record", 200 * MIB, dry_run=dry_run) == errno.ENOSPC

    assert host.folder_drives() == ()
    assert world.free() == free


def test_a_dry_run_changes_nothing(world: DriveWorld, host: FolderDriveHost):
    free = world.free()

    host.make_folder_drive(f"{world.root}/x/a", b"record", 100 * MIB, dry_run=True)

    assert host.folder_drives() == ()
    assert world.free() == free
    assert reason(host.open_folder_drive, f"{world.root}/x/a") == errno.ENOENT


def test_space_moves_between_the_reserve_and_the_images_and_never_exceeds_the_capacity(
    world: DriveWorld, host: FolderDriveHost
):
    path = f"{world.root}/a"
    host.make_folder_drive(path, b"record", 100 * MIB)
    after = world.free()
    with closing(host.open_folder_drive(path)) as drive:
        drive.shrink_reserve(60 * MIB)
        world.write_image(path, "one", 60 * MIB)
        assert drive.fit_reserve(100 * MIB) == 0
        assert drive.reserved() == 40 * MIB

        assert reason(drive.shrink_reserve, 41 * MIB) == errno.ENOSPC
        assert drive.reserved() == 40 * MIB

        world.remove_image(path, "one")
        assert drive.fit_reserve(100 * MIB) == 0
        assert drive.reserved() == 100 * MIB
    assert after - world.free() < MIB


def test_what_others_took_meanwhile_is_missing_until_it_is_free_again(world: DriveWorld, host: FolderDriveHost):
    path = f"{world.root}/a"
    host.make_folder_drive(path, b"record", 100 * MIB)
    with closing(host.open_folder_drive(path)) as drive:
        drive.shrink_reserve(100 * MIB)
        world.others_take(world.free() - 30 * MIB)

        assert 70 * MIB <= drive.fit_reserve(100 * MIB) < 71 * MIB

        world.others_leave()
        assert drive.fit_reserve(100 * MIB) == 0
        assert drive.reserved() == 100 * MIB


def test_the_record_is_replaced(world: DriveWorld, host: FolderDriveHost):
    host.make_folder_drive(f"{world.root}/a", b"old", MIB)

    with closing(host.open_folder_drive(f"{world.root}/a")) as drive:
        drive.write_record(b"new")

    assert host.folder_drives() == (SeenFolder(f"{world.root}/a", b"new"),)


def test_an_empty_drive_is_removed_and_its_space_is_free_again(world: DriveWorld, host: FolderDriveHost):
    world.make_folder(f"{world.root}/a")
    free = world.free()
    host.make_folder_drive(f"{world.root}/a", b"record", 100 * MIB)

    host.remove_folder_drive(f"{world.root}/a")

    assert host.folder_drives() == ()
    assert world.free() == free
    host.make_folder_drive(f"{world.root}/a", b"record", 100 * MIB)


def test_a_drive_that_holds_a_volume_is_not_removed(world: DriveWorld, host: FolderDriveHost):
    host.make_folder_drive(f"{world.root}/a", b"record", 10 * MIB)
    world.write_image(f"{world.root}/a", "one", MIB)

    assert reason(host.remove_folder_drive, f"{world.root}/a") == errno.ENOTEMPTY

    assert host.folder_drives() == (SeenFolder(f"{world.root}/a", b"record"),)


async def test_making_a_drive_ends_the_same_whatever_dies_when(world: DriveWorld, monkeypatch: pytest.MonkeyPatch):
    is_fake = isinstance(world, FakeDriveWorld)
    count = iter(range(100))

    def build() -> DriveWorld:
        if is_fake:
            return FakeDriveWorld()
        root = Path(world.root) / f"world-{next(count)}"
        root.mkdir()
        return LinuxDriveWorld(root, monkeypatch)

    async def run(built: DriveWorld, points: KillPoints) -> None:
        host = built.host(points)
        if not any(seen.record for seen in host.folder_drives()):
            host.make_folder_drive(f"{built.root}/a", b"record", 8 * MIB)

    def check(built: DriveWorld) -> None:
        host = built.host()
        assert host.folder_drives() == (SeenFolder(f"{built.root}/a", b"record"),)
        with closing(host.open_folder_drive(f"{built.root}/a")) as drive:
            assert drive.reserved() == 8 * MIB

    explored = await explore_kills(build, run, check)

    assert explored.runs >= 6
