"""What a kubelet has of its machine for raw block volumes: one suite, on a fake machine and on this kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from onenode.host.linux_volume_host import LinuxVolumeHost
from onenode.host.volume_host import Names, VolumeHost
from onenode.testing.fake_kubelet_machine import FakeKubeletMachine
from onenode.testing.fake_volume_host import FakeVolumeHost
from orlop.host.block import loop_devices
from orlop.host.host_errors import HostError
from support.host.block_devices import block_device, loops_about, publish_device, unpublish_device
from support.host.kernel_rooms import mount_room

PUBLISHED = ("publish", "pv1", "u1")
FILE = ("pv1", "dev", "u1")
LINK = ("pods", "u1", "volumeDevices", "kubernetes.io~csi", "pv1")


class Place(Protocol):
    host: VolumeHost

    def publish(self, target: Names, number: int = 0) -> None: ...

    def unpublish(self, target: Names) -> None: ...

    def loops(self) -> list[str]:
        """What loop devices hold, below kubelet's directory."""

    def target_of(self, link: Names) -> str: ...


class FakePlace:
    def __init__(self) -> None:
        self._machine = FakeKubeletMachine()
        self.host: VolumeHost = FakeVolumeHost(self._machine)

    def publish(self, target: Names, number: int = 0) -> None:
        self._machine.place_device(target, number)

    def unpublish(self, target: Names) -> None:
        self._machine.take_device(target)

    def loops(self) -> list[str]:
        return sorted(self._machine.loops.values())

    def target_of(self, link: Names) -> str:
        return self._machine.links[link]


class LinuxPlace:
    def __init__(self, room: Path, host: LinuxVolumeHost, devices: list[Path]) -> None:
        self._room = room
        self._devices = devices
        self.host: VolumeHost = host

    def publish(self, target: Names, number: int = 0) -> None:
        publish_device(self._devices[number], self._room.joinpath(*target))

    def unpublish(self, target: Names) -> None:
        unpublish_device(self._room.joinpath(*target))

    def loops(self) -> list[str]:
        return loops_about(self._room)

    def target_of(self, link: Names) -> str:
        return str(self._room.joinpath(*link).readlink())


@pytest.fixture(params=["fake", "linux"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "fake":
        made: Place = FakePlace()
        _folders(made.host)
        yield made
        return
    with (
        mount_room(tmp_path / "room") as room,
        block_device(tmp_path / "one") as one,
        block_device(tmp_path / "other") as other,
        LinuxVolumeHost(str(room)) as host,
    ):
        _folders(host)
        yield LinuxPlace(room, host, [one, other])
        for path in loops_about(room):
            loop_devices.release(path)


def _folders(host: VolumeHost) -> None:
    for names in (PUBLISHED, FILE, LINK):
        host.make_folders(names[:-1])


def test_a_device_that_a_driver_mounted_at_a_file_is_found_there(place: Place):
    place.publish(PUBLISHED)

    assert place.host.device_at(PUBLISHED) == place.host.path_of(PUBLISHED)


def test_nothing_a_plain_file_and_a_folder_are_no_devices(place: Place):
    with pytest.raises(HostError) as nothing:
        place.host.device_at(PUBLISHED)
    place.host.make_file(PUBLISHED)
    with pytest.raises(HostError, match=r"u1 is a plain file, and no block device") as file:
        place.host.device_at(PUBLISHED)
    with pytest.raises(HostError, match=r"pv1 is a folder, and no block device") as folder:
        place.host.mount_device(PUBLISHED[:-1], FILE)

    assert nothing.value.errno == errno.ENOENT
    assert (file.value.errno, folder.value.errno) == (errno.ENOTBLK, errno.ENOTBLK)
    assert not place.host.is_there(FILE)


def test_a_device_is_mounted_once_more_and_unmounted_and_the_file_stays(place: Place):
    place.publish(PUBLISHED)
    place.host.mount_device(PUBLISHED, FILE)
    place.host.mount_device(PUBLISHED, FILE)
    assert place.host.is_mounted(FILE)
    assert place.host.device_at(FILE) == place.host.path_of(FILE)
    with pytest.raises(HostError) as busy:
        place.host.remove_file(FILE)
    assert busy.value.errno == errno.EBUSY

    place.host.unmount(FILE)
    place.host.unmount(FILE)

    assert not place.host.is_mounted(FILE)
    assert place.host.is_there(FILE)
    assert place.host.remove_file(FILE)


def test_another_device_takes_the_place_of_the_one_before(place: Place):
    place.publish(PUBLISHED)
    place.host.mount_device(PUBLISHED, FILE)
    place.unpublish(PUBLISHED)
    place.publish(PUBLISHED, 1)

    place.host.mount_device(PUBLISHED, FILE)

    place.host.unmount(FILE)
    assert not place.host.is_mounted(FILE)


def test_a_device_is_held_once_found_again_and_released(place: Place):
    place.publish(PUBLISHED)
    place.host.mount_device(PUBLISHED, FILE)
    held = place.host.hold_device(FILE)

    assert place.host.hold_device(FILE) == held
    assert place.loops() == [place.host.path_of(FILE)]
    with pytest.raises(HostError) as busy:
        place.host.unmount(FILE)
    assert busy.value.errno == errno.EBUSY

    assert place.host.release_device(FILE)
    assert not place.host.release_device(FILE)
    assert place.loops() == []
    place.host.unmount(FILE)


def test_what_is_no_device_is_not_held(place: Place):
    place.host.make_file(FILE)

    with pytest.raises(HostError) as refused:
        place.host.hold_device(FILE)
    assert refused.value.errno == errno.ENOTBLK
    assert place.loops() == []


def test_one_device_is_held_for_each_of_its_files(place: Place):
    other = (*FILE[:-1], "u2")
    place.publish(PUBLISHED)
    for file in (FILE, other):
        place.host.mount_device(PUBLISHED, file)
        place.host.hold_device(file)

    assert place.loops() == [place.host.path_of(FILE), place.host.path_of(other)]
    assert place.host.release_device(FILE)
    assert place.loops() == [place.host.path_of(other)]


def test_a_link_is_made_replaced_and_removed_and_nothing_else_is(place: Place):
    place.host.link(LINK, "/dev/one")
    place.host.link(LINK, "/dev/other")

    assert place.target_of(LINK) == "/dev/other"
    assert place.host.names_in(LINK[:-1]) == frozenset({"pv1"})
    assert place.host.remove_link(LINK)
    assert not place.host.remove_link(LINK)
    place.host.make_file(FILE)
    assert not place.host.remove_link(FILE)
    assert place.host.is_there(FILE)


def test_files_and_links_need_their_folder(place: Place):
    for refused in (place.host.make_file, lambda names: place.host.link(names, "/dev/x")):
        with pytest.raises(HostError) as error:
            refused(("missing", "x"))
        assert error.value.errno == errno.ENOENT
    assert not place.host.remove_link(("missing", "x"))
    place.host.unmount(("missing", "x"))


# ---- on this kernel alone --------------------------------------------------------------------------------------------


@pytest.fixture
def linux(tmp_path: Path) -> Iterator[tuple[Path, LinuxVolumeHost, Path]]:
    """Kubelet's directory, the host of it, and a device."""
    with (
        mount_room(tmp_path / "room") as room,
        block_device(tmp_path / "one") as device,
        LinuxVolumeHost(str(room)) as host,
    ):
        _folders(host)
        yield room, host, device


def test_a_drivers_own_link_to_a_device_is_followed(linux: tuple[Path, LinuxVolumeHost, Path]):
    room, host, device = linux
    room.joinpath(*PUBLISHED).symlink_to(device)

    assert host.device_at(PUBLISHED) == str(device)
    host.mount_device(PUBLISHED, FILE)
    assert room.joinpath(*FILE).stat().st_rdev == device.stat().st_rdev
    host.unmount(FILE)


def test_what_holds_a_device_cannot_write_to_it(linux: tuple[Path, LinuxVolumeHost, Path]):
    room, host, device = linux
    publish_device(device, room.joinpath(*PUBLISHED))
    host.mount_device(PUBLISHED, FILE)
    holder = host.hold_device(FILE)
    try:
        with loop_devices.opened_holder(host.path_of(FILE)) as handle:
            assert os.fstat(handle).st_rdev == Path(holder).stat().st_rdev
        with pytest.raises(OSError):  # noqa: PT011 - to open or to write, as the kernel has it
            Path(holder).write_bytes(b"x" * 4096)
    finally:
        host.release_device(FILE)
    assert device.read_bytes()[:4096] == bytes(4096)


def test_what_nothing_holds_cannot_be_opened_by_its_holder(tmp_path: Path):
    with pytest.raises(HostError) as gone, loop_devices.opened_holder(str(tmp_path / "x")):
        pass
    assert gone.value.errno == errno.ENXIO
