"""What every host of static volumes promises: one suite, on a fake machine and on this kernel's disks and folders."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Protocol

import pytest

from orlop.foundation.clock import SystemClock
from orlop.host.host_errors import HostError
from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind, is_session
from orlop.host.static_disks.linux_static_host import LinuxStaticHost
from orlop.host.static_host import StaticHost
from orlop.testing.fake_host import FakeMachine, FakeStaticDisk, FakeStaticHost
from support.host.disks import LoopDisk, loop_disk
from support.host.kernel_rooms import mount_room, run

MIB = 1 << 20
SIZE = 8 * MIB
BLOCK = 4096


class DiskFolder(Protocol):
    """A folder with the entries `device`, `mount`, `folder` and `file`; device and mount hold data."""

    host: StaticHost
    folder: str
    can_discard: bool

    def device_blocks(self) -> set[int]:
        """The positions of the blocks that hold data."""

    def names(self, entry: str) -> set[str]: ...

    def use_device(self) -> None: ...

    def use_mount(self) -> None: ...

    def swap_device(self) -> None:
        """Put another disk in the place of the device."""


class FakeDiskFolder:
    folder = "/mnt/disks"
    can_discard = True

    def __init__(self) -> None:
        machine = FakeMachine()
        self._disks = {
            "device": FakeStaticDisk(EntryKind.DEVICE, SIZE, identity="wwn:1", data={0, MIB, SIZE - BLOCK}),
            "mount": FakeStaticDisk(EntryKind.MOUNT, SIZE, identity="fs:1", names={"a", "b"}),
            "folder": FakeStaticDisk(EntryKind.FOLDER, SIZE, identity="fs:2:1", names={"c"}),
            "file": FakeStaticDisk(EntryKind.OTHER),
        }
        machine.static_folders[self.folder] = self._disks
        self.host: StaticHost = FakeStaticHost(machine)

    def device_blocks(self) -> set[int]:
        return self._disks["device"].data

    def names(self, entry: str) -> set[str]:
        return self._disks[entry].names

    def use_device(self) -> None:
        self._disks["device"].used_by = ("it is mounted at /data",)

    def use_mount(self) -> None:
        self._disks["mount"].used_by = ("it is mounted at /data",)

    def swap_device(self) -> None:
        self._disks["device"] = FakeStaticDisk(EntryKind.DEVICE, SIZE, identity="wwn:2", data={0})


class LinuxDiskFolder:
    def __init__(self, room: Path, disk: LoopDisk, other: LoopDisk) -> None:
        self._room, self._disk, self._other = room, disk, other
        self._folder = room / "disks"
        self.folder = str(self._folder)
        # Where the file system below the loop device cannot punch holes, the device does not support it.
        self.can_discard = Path(f"/sys/class/block/{disk.name}/queue/discard_max_bytes").read_text().strip() != "0"
        for name in ("mount", "folder"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "file").touch()
        (self._folder / "device").symlink_to(disk.path)
        run("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", self._folder / "mount")
        for path in ("mount/a", "folder/c"):
            (self._folder / path).write_text("old")
        (self._folder / "mount/b").mkdir()
        (self._folder / "mount/b/deep").write_text("old")
        for at in (0, MIB, SIZE - BLOCK):
            disk.write(at, b"x" * BLOCK)
        self.host: StaticHost = LinuxStaticHost(SystemClock(), Random(1), {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    def device_blocks(self) -> set[int]:
        content = self._disk.path.read_bytes()
        return {at for at in range(0, SIZE, BLOCK) if any(content[at : at + BLOCK])}

    def names(self, entry: str) -> set[str]:
        return {each.name for each in (self._folder / entry).iterdir()}

    def use_device(self) -> None:
        run("mkfs.ext4", "-q", self._disk.path)
        (self._room / "data").mkdir()
        run("mount", self._disk.path, self._room / "data")

    def use_mount(self) -> None:
        pod = self._room / "pods/u/volumes/kubernetes.io~local-volume/pv"
        pod.mkdir(parents=True)
        run("mount", "--bind", self._folder / "mount", pod)

    def swap_device(self) -> None:
        (self._folder / "device").unlink()
        (self._folder / "device").symlink_to(self._other.path)


@pytest.fixture(params=["fake", "linux"])
def disks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskFolder]:
    if request.param == "fake":
        yield FakeDiskFolder()
        return
    with ExitStack() as stack:
        disk, other = (stack.enter_context(loop_disk(tmp_path / name, SIZE)) for name in ("disk", "other"))
        yield LinuxDiskFolder(stack.enter_context(mount_room(tmp_path / "room")), disk, other)


def entries(disks: DiskFolder) -> dict[str, DiskEntry]:
    return {each.name: each for each in disks.host.survey(disks.folder, lambda _name: True)}


def identity(disks: DiskFolder, name: str = "device") -> str:
    return entries(disks)[name].identity


def reason(call: Callable[[], object]) -> int | None:
    with pytest.raises(HostError) as caught:
        call()
    return caught.value.errno


def hold(disks: DiskFolder, name: str, identity: str) -> None:
    with disks.host.held_device(disks.folder, name, identity):
        pass


def test_entries_are_seen_for_what_they_are(disks: DiskFolder):
    seen = entries(disks)

    assert list(seen) == ["device", "file", "folder", "mount"]
    assert {name: each.kind for name, each in seen.items()} == {
        "device": EntryKind.DEVICE,
        "file": EntryKind.OTHER,
        "folder": EntryKind.FOLDER,
        "mount": EntryKind.MOUNT,
    }
    assert seen["device"].bytes == SIZE
    assert seen["mount"].bytes == SIZE
    assert seen["device"].identity
    assert seen["device"].recognized_by == seen["device"].identity
    assert len({each.place for name, each in seen.items() if name != "file"}) == 3
    # What is used changes all the time on a disk that others write to.
    again = [disks.host.entry(disks.folder, name) for name in seen]
    assert [replace(each, used_bytes=0) for each in again if each] == [
        replace(each, used_bytes=0) for each in seen.values()
    ]


def test_only_names_that_are_wanted_are_looked_at(disks: DiskFolder):
    assert [each.name for each in disks.host.survey(disks.folder, lambda name: name == "device")] == ["device"]


def test_a_folder_or_an_entry_that_is_missing_is_an_error(disks: DiskFolder):
    assert reason(lambda: disks.host.survey("/does/not/exist", lambda _name: True)) == errno.ENOENT
    assert reason(lambda: disks.host.entry(disks.folder, "missing")) == errno.ENOENT
    assert reason(lambda: hold(disks, "missing", "")) == errno.ENOENT


def test_a_device_is_overwritten_piece_by_piece(disks: DiskFolder):
    with disks.host.held_device(disks.folder, "device", identity(disks)) as device:
        assert device.bytes == SIZE
        assert device.recognized_by == identity(disks)
        device.zero(0, MIB)
        device.flush()
        assert disks.device_blocks() == {MIB, SIZE - BLOCK}
        device.zero(MIB, SIZE - MIB)
        device.flush()

    assert disks.device_blocks() == set()


def test_a_discard_is_done_by_the_device_or_refused(disks: DiskFolder):
    before = disks.device_blocks()
    with disks.host.held_device(disks.folder, "device", "") as device:
        if disks.can_discard:
            device.discard(0, SIZE)
            device.flush()
        else:
            assert reason(lambda: device.discard(0, SIZE)) == errno.EOPNOTSUPP

    assert disks.device_blocks() == (set() if disks.can_discard else before)  # a loop device returns zeros


def test_a_device_is_held_by_one_only(disks: DiskFolder):
    with disks.host.held_device(disks.folder, "device", ""):
        assert reason(lambda: hold(disks, "device", "")) == errno.EBUSY

    hold(disks, "device", "")


def test_a_device_in_use_is_not_held(disks: DiskFolder):
    disks.use_device()
    before = disks.device_blocks()

    assert reason(lambda: hold(disks, "device", "")) == errno.EBUSY
    stop = threading.Event()
    assert reason(lambda: disks.host.run_cleaner(disks.folder, "device", "", ["true"], stop)) == errno.EBUSY
    assert disks.device_blocks() == before


def test_another_disk_in_the_place_of_the_released_one_is_left_alone(disks: DiskFolder):
    released = identity(disks)
    disks.swap_device()

    assert reason(lambda: hold(disks, "device", released)) == errno.ENODEV
    stop = threading.Event()
    assert reason(lambda: disks.host.run_cleaner(disks.folder, "device", released, ["true"], stop)) == errno.ENODEV
    assert reason(lambda: disks.host.empty_folder(disks.folder, "mount", "fs:other", stop)) == errno.ENODEV
    assert disks.names("mount") == {"a", "b"}


def test_a_disk_that_nothing_identifies_is_known_until_the_machine_restarts(disks: DiskFolder):
    stop = threading.Event()
    for name in ("device", "mount", "folder"):
        assert entries(disks)[name].session == entries(disks)[name].session
        assert is_session(entries(disks)[name].session)
        assert not is_session(identity(disks, name))
    known, mount = (entries(disks)[name].session for name in ("device", "mount"))
    hold(disks, "device", known)

    disks.swap_device()
    assert reason(lambda: hold(disks, "device", known)) == errno.ENODEV
    assert reason(lambda: disks.host.run_cleaner(disks.folder, "device", known, ["true"], stop)) == errno.ENODEV
    assert reason(lambda: disks.host.empty_folder(disks.folder, "folder", mount, stop)) == errno.ENODEV
    disks.host.empty_folder(disks.folder, "mount", mount, stop)
    assert disks.names("mount") == set()


def test_what_is_no_device_cannot_be_held(disks: DiskFolder):
    for name in ("mount", "folder", "file"):
        assert reason(lambda name=name: hold(disks, name, "")) == errno.ENODEV  # type: ignore[misc]


@pytest.mark.parametrize("name", ["mount", "folder"])
def test_a_folder_is_emptied_and_stays(disks: DiskFolder, name: str):
    disks.host.empty_folder(disks.folder, name, identity(disks, name), threading.Event())

    assert disks.names(name) == set()
    assert name in entries(disks)


def test_an_emptying_that_is_stopped_can_be_resumed(disks: DiskFolder):
    stop = threading.Event()
    stop.set()
    assert reason(lambda: disks.host.empty_folder(disks.folder, "mount", "", stop)) == errno.ECANCELED

    disks.host.empty_folder(disks.folder, "mount", "", threading.Event())

    assert disks.names("mount") == set()


def test_a_mounted_disk_that_a_pod_uses_is_not_emptied(disks: DiskFolder):
    disks.use_mount()

    assert reason(lambda: disks.host.empty_folder(disks.folder, "mount", "", threading.Event())) == errno.EBUSY
    assert disks.names("mount") == {"a", "b"}


def test_the_admins_command_is_run_on_the_device(disks: DiskFolder):
    words = ["sh", "-c", 'dd if=/dev/zero of="$LOCAL_PV_BLKDEVICE" bs=1M count=8 conv=fsync']

    disks.host.run_cleaner(disks.folder, "device", identity(disks), words, threading.Event())

    assert disks.device_blocks() == set()
