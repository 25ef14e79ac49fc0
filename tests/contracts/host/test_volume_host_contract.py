"""What a kubelet has of its machine for volumes: one suite, on a fake machine and on this kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from onenode.host.linux_volume_host import LinuxVolumeHost
from onenode.host.volume_host import Names, VolumeHost
from onenode.host.volume_ownership import OwnershipReport
from onenode.testing.fake_kubelet_machine import FakeKubeletMachine
from onenode.testing.fake_volume_host import FakeVolumeHost
from orlop.host.host_errors import HostError
from support.host.kernel_rooms import mount_room, run

FOLDER = ("pods", "u1", "volumes", "kubernetes.io~csi", "scratch")
TARGET = (*FOLDER, "mount")
FILE = (*FOLDER, "vol_data.json")


class Place(Protocol):
    host: VolumeHost

    def mount(self, target: Names) -> None: ...

    def unmount(self, target: Names) -> None: ...


class FakePlace:
    def __init__(self) -> None:
        self._machine = FakeKubeletMachine()
        self.host: VolumeHost = FakeVolumeHost(self._machine)

    def mount(self, target: Names) -> None:
        self._machine.mount_something_else(target)

    def unmount(self, target: Names) -> None:
        self._machine.mounts.pop(target)


class LinuxPlace:
    def __init__(self, room: Path, host: LinuxVolumeHost) -> None:
        self._room = room
        self.host: VolumeHost = host

    def mount(self, target: Names) -> None:
        run("mount", "-t", "tmpfs", "tmpfs", str(self._room.joinpath(*target)))

    def unmount(self, target: Names) -> None:
        run("umount", str(self._room.joinpath(*target)))


@pytest.fixture(params=["fake", "linux"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "fake":
        yield FakePlace()
        return
    with mount_room(tmp_path / "room") as room, LinuxVolumeHost(str(room)) as host:
        yield LinuxPlace(room, host)


def test_folders_are_made_with_their_parents_and_again(place: Place):
    place.host.make_folders(TARGET)
    place.host.make_folders(TARGET)

    assert place.host.is_there(TARGET)
    assert place.host.names_in(FOLDER) == frozenset({"mount"})
    assert place.host.names_in(("pods", "u2")) is None


def test_a_file_in_the_way_of_a_folder_is_an_error(place: Place):
    place.host.make_folders(FOLDER)
    place.host.write_file(TARGET, b"x")

    with pytest.raises(HostError) as refused:
        place.host.make_folders((*TARGET, "more"))
    assert refused.value.errno == errno.ENOTDIR
    assert place.host.names_in(TARGET) is None


def test_a_file_is_written_read_replaced_and_removed(place: Place):
    place.host.make_folders(FOLDER)
    place.host.write_file(FILE, b"one")
    place.host.write_file(FILE, b"another")

    assert place.host.read_file(FILE, 100) == b"another"
    assert place.host.read_file(FILE, 3) == b"ano"
    assert place.host.names_in(FOLDER) == frozenset({"vol_data.json"})
    assert place.host.remove_file(FILE)
    assert not place.host.remove_file(FILE)
    assert place.host.read_file(FILE, 100) is None
    assert place.host.names_in(FOLDER) == frozenset()


def test_a_file_cannot_be_written_where_its_folder_is_missing(place: Place):
    with pytest.raises(HostError) as refused:
        place.host.write_file(FILE, b"x")
    assert refused.value.errno == errno.ENOENT


def test_a_folder_is_no_file(place: Place):
    place.host.make_folders(FILE)

    assert place.host.read_file(FILE, 100) is None


def test_only_an_empty_folder_is_removed(place: Place):
    place.host.make_folders(TARGET)

    with pytest.raises(HostError) as refused:
        place.host.remove_folder(FOLDER)
    assert refused.value.errno == errno.ENOTEMPTY
    assert place.host.remove_folder(TARGET)
    assert not place.host.remove_folder(TARGET)
    assert not place.host.remove_folder((*TARGET, "below"))


def test_a_mount_is_seen_and_keeps_its_folder(place: Place):
    place.host.make_folders(TARGET)
    assert not place.host.is_mounted(TARGET)
    place.mount(TARGET)

    assert place.host.is_mounted(TARGET)
    with pytest.raises(HostError) as refused:
        place.host.remove_folder(TARGET)
    assert refused.value.errno == errno.EBUSY
    place.unmount(TARGET)
    assert not place.host.is_mounted(TARGET)
    assert place.host.remove_folder(TARGET)


def test_what_is_missing_is_neither_there_nor_mounted(place: Place):
    assert not place.host.is_there(TARGET)
    assert not place.host.is_mounted(TARGET)
    assert place.host.read_file(FILE, 10) is None
    assert not place.host.remove_file(FILE)


def test_a_volume_is_given_to_a_group_once_where_that_is_enough(place: Place):
    place.host.make_folders(TARGET)
    first, second = OwnershipReport(), OwnershipReport()

    place.host.give_to_group(TARGET, 2000, unless_root_is=True, report=first, should_stop=lambda: False)
    place.host.give_to_group(TARGET, 2000, unless_root_is=True, report=second, should_stop=lambda: False)

    assert (first.skipped, first.files) == (False, 1)
    assert (second.skipped, second.files) == (True, 0)


def test_giving_to_a_group_can_be_stopped(place: Place):
    place.host.make_folders((*TARGET, "sub"))

    with pytest.raises(HostError) as stopped:
        place.host.give_to_group(TARGET, 2000, unless_root_is=False, report=OwnershipReport(), should_stop=lambda: True)
    assert stopped.value.errno == errno.ECANCELED


def test_what_is_mounted_once_is_mounted_nowhere_else(place: Place):
    place.host.make_folders(TARGET)
    assert place.host.mounted_elsewhere(TARGET) == ()
    place.mount(TARGET)

    assert place.host.mounted_elsewhere(TARGET) == ()


# ---- on this kernel alone --------------------------------------------------------------------------------------------


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Path]:
    with mount_room(tmp_path / "room") as room:
        yield room


def test_no_link_leads_out_of_kubelets_directory(kubelet: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"x")
    (kubelet / "pods").symlink_to(outside)
    with LinuxVolumeHost(str(kubelet)) as host:
        for refused in (host.make_folders, lambda names: host.write_file(names, b"y"), host.remove_folder):
            with pytest.raises(HostError):
                refused(("pods", "secret"))
        assert host.read_file(("pods", "secret"), 10) is None
        assert host.names_in(("pods",)) is None
        assert not host.remove_file(("pods", "secret"))

    assert (outside / "secret").read_bytes() == b"x"
    assert sorted(outside.iterdir()) == [outside / "secret"]


def test_a_file_that_is_a_link_is_replaced_and_never_followed(kubelet: Path, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"keep")
    with LinuxVolumeHost(str(kubelet)) as host:
        host.make_folders(FOLDER)
        kubelet.joinpath(*FILE).symlink_to(precious)
        assert host.read_file(FILE, 10) is None
        host.write_file(FILE, b"ours")

        assert host.read_file(FILE, 10) == b"ours"
    assert precious.read_bytes() == b"keep"


def test_folders_are_for_root_and_its_group(kubelet: Path):
    with LinuxVolumeHost(str(kubelet)) as host:
        host.make_folders(FOLDER)

    assert {kubelet.joinpath(*FOLDER[:depth]).stat().st_mode & 0o777 for depth in range(1, 6)} == {0o750}


def test_everything_in_a_volume_is_given_to_its_group_and_links_are_not_followed(kubelet: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"x")
    outside.chmod(0o600)
    with LinuxVolumeHost(str(kubelet)) as host:
        host.make_folders((*TARGET, "sub", "deep"))
        volume = kubelet.joinpath(*TARGET)
        (volume / "sub/file").write_bytes(b"x")
        (volume / "sub/file").chmod(0o4711)
        (volume / "link").symlink_to(outside)
        (volume / "dangling").symlink_to("nowhere")
        (volume / "setuid").write_bytes(b"x")
        (volume / "setuid").chmod(0o4775)
        os.mkfifo(volume / "fifo", 0o600)
        report = OwnershipReport()
        host.give_to_group(TARGET, 2000, unless_root_is=True, report=report, should_stop=lambda: False)

    found = {
        str(path.relative_to(volume)): (path.lstat().st_gid, oct(path.lstat().st_mode & 0o7777))
        for path in [volume, *volume.rglob("*")]
        if not path.is_symlink()
    }
    assert found == {
        ".": (2000, "0o2770"),
        "sub": (2000, "0o2770"),
        "sub/deep": (2000, "0o2770"),
        "sub/file": (2000, "0o4771"),
        "setuid": (2000, "0o4775"),
        "fifo": (2000, "0o660"),
    }
    assert {(volume / name).lstat().st_gid for name in ("link", "dangling")} == {2000}
    assert (outside.stat().st_gid, outside.stat().st_mode & 0o777) == (os.getgid(), 0o600)
    assert (report.files, report.remarks.count) == (8, 0)


def test_what_is_mounted_inside_a_volume_is_not_touched(kubelet: Path):
    with LinuxVolumeHost(str(kubelet)) as host:
        host.make_folders((*TARGET, "inner"))
        inner = kubelet.joinpath(*TARGET, "inner")
        run("mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", str(inner))
        host.give_to_group(TARGET, 2000, unless_root_is=False, report=OwnershipReport(), should_stop=lambda: False)

        assert inner.stat().st_gid == 0
        run("umount", str(inner))


def test_a_volume_that_cannot_be_written_is_remarked_and_no_error(kubelet: Path):
    with LinuxVolumeHost(str(kubelet)) as host:
        host.make_folders(TARGET)
        target = str(kubelet.joinpath(*TARGET))
        run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", target)
        report = OwnershipReport()
        host.give_to_group(TARGET, 2000, unless_root_is=False, report=report, should_stop=lambda: False)
        run("umount", target)

    assert report.remarks.count == 1


def test_another_mount_of_the_same_folder_is_seen(kubelet: Path):
    other = ("pods", "u2", "mount")
    with LinuxVolumeHost(str(kubelet)) as host:
        host.make_folders(TARGET)
        host.make_folders(other)
        run("mount", "-t", "tmpfs", "tmpfs", kubelet.joinpath(*TARGET))
        run("mount", "--bind", kubelet.joinpath(*TARGET), kubelet.joinpath(*other))

        assert host.mounted_elsewhere(TARGET) == (str(kubelet.joinpath(*other)),)
