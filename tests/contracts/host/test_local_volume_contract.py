"""Folders and disks of the machine that become local volumes: one suite, on a fake machine and on this kernel."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from onenode.host.linux_volume_host import LinuxVolumeHost
from onenode.host.payload_files import FileKind, HostPath
from onenode.host.volume_host import VolumeHost
from onenode.testing.fake_kubelet_machine import FakeKubeletMachine
from onenode.testing.fake_volume_host import FakeVolumeHost
from orlop.host.host_errors import HostError
from orlop.host.mounts.mounts import MountOptions
from support.host.block_devices import block_device
from support.host.kernel_rooms import mount_room, run

STAGED = ("plugins", "disk")
TARGET = ("pods", "u1", "mount")
PLAIN = MountOptions(no_suid=False, no_devices=False)


@dataclass(frozen=True)
class Machine:
    """A folder, a file and a blank disk of the machine."""

    host: VolumeHost
    folder: HostPath
    file: HostPath
    disk: HostPath


@pytest.fixture(params=["fake", "linux"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    if request.param == "linux":
        with linux_machine(tmp_path) as found:
            yield found
        return
    fake = FakeKubeletMachine()
    fake.host_files |= {"/mnt/a": FileKind.FOLDER, "/mnt/f": FileKind.FILE, "/dev/sdb": FileKind.BLOCK_DEVICE}
    found = Machine(FakeVolumeHost(fake), HostPath("/mnt/a"), HostPath("/mnt/f"), HostPath("/dev/sdb"))
    make_parents(found.host)
    yield found


@pytest.fixture
def linux(tmp_path: Path) -> Iterator[Machine]:
    with linux_machine(tmp_path) as found:
        yield found


@contextmanager
def linux_machine(path: Path) -> Iterator[Machine]:
    with (
        mount_room(path / "room") as room,
        block_device(path / "image", 32 << 20) as device,
        LinuxVolumeHost(str(room)) as host,
    ):
        (path / "a").mkdir()
        (path / "f").write_text("x")
        make_parents(host)
        yield Machine(host, HostPath(str(path / "a")), HostPath(str(path / "f")), HostPath(str(device)))
        for target in (TARGET, STAGED):
            host.unmount(target)


def make_parents(host: VolumeHost) -> None:
    for names in (STAGED, TARGET):
        host.make_folders(names[:-1])


def file_system_on(disk: HostPath) -> str:
    words = ["blkid", "-p", "-o", "value", "-s", "TYPE", disk.path]
    return subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()


def test_the_kind_of_a_file_of_the_machine_is_returned(machine: Machine):
    host = machine.host

    assert host.kind_at(machine.folder) is FileKind.FOLDER
    assert host.kind_at(machine.file) is FileKind.FILE
    assert host.kind_at(machine.disk) is FileKind.BLOCK_DEVICE
    assert host.kind_at(HostPath("/nowhere/at/all")) is None


def test_a_folder_is_bound_once_and_unmounted(machine: Machine):
    machine.host.bind(machine.folder, TARGET, PLAIN)
    machine.host.bind(machine.folder, TARGET, PLAIN)
    assert machine.host.is_mounted(TARGET)

    machine.host.unmount(TARGET)
    assert not machine.host.is_mounted(TARGET)
    assert machine.host.remove_folder(TARGET)


def test_a_folder_that_is_missing_is_not_bound(machine: Machine):
    with pytest.raises(HostError) as refused:
        machine.host.bind(HostPath("/nowhere/at/all"), TARGET, PLAIN)

    assert refused.value.errno == errno.ENOENT
    assert not machine.host.is_mounted(TARGET)


def test_a_blank_disk_is_formatted_mounted_and_bound_and_is_not_formatted_again(machine: Machine):
    host = machine.host
    host.mount_disk(machine.disk, STAGED, "", ())
    host.bind(STAGED, TARGET, PLAIN)

    assert host.is_mounted(STAGED)
    assert set(host.mounted_elsewhere(STAGED)) == {host.path_of(TARGET)}
    for target in (TARGET, STAGED):
        host.unmount(target)
    host.mount_disk(machine.disk, STAGED, "ext4", ())
    assert host.is_mounted(STAGED)


def test_a_disk_with_another_file_system_is_refused(machine: Machine):
    machine.host.mount_disk(machine.disk, STAGED, "ext4", ())
    machine.host.unmount(STAGED)

    with pytest.raises(HostError, match='failed to mount the volume as "xfs", it already contains ext4'):
        machine.host.mount_disk(machine.disk, STAGED, "xfs", ())
    assert not machine.host.is_mounted(STAGED)


def test_a_blank_disk_is_not_formatted_to_be_read_only(machine: Machine):
    with pytest.raises(HostError, match=r"cannot mount unformatted disk .* as read-only"):
        machine.host.mount_disk(machine.disk, STAGED, "", ("ro",))

    assert not machine.host.is_mounted(STAGED)


def test_a_plain_file_is_not_mounted_as_a_disk(machine: Machine):
    with pytest.raises(HostError) as refused:
        machine.host.mount_disk(machine.file, STAGED, "", ())

    assert refused.value.errno == errno.ENOTBLK


# ---- of the kernel alone ---------------------------------------------------------------------------------------------


def test_files_of_a_folder_are_seen_and_written_through_its_bind(linux: Machine):
    linux.host.bind(linux.folder, TARGET, PLAIN)
    (Path(linux.host.path_of(TARGET)) / "hello").write_text("world")

    assert (Path(linux.folder.path) / "hello").read_text() == "world"


def test_a_bind_has_its_own_options_and_its_folder_stays_as_it_is(linux: Machine):
    linux.host.bind(linux.folder, TARGET, MountOptions(no_suid=False, no_devices=False, read_only=True))

    with pytest.raises(OSError, match="Read-only"):
        (Path(linux.host.path_of(TARGET)) / "hello").write_text("world")
    (Path(linux.folder.path) / "hello").write_text("world")


def test_data_of_a_disk_outlive_its_mount_and_its_options_are_those_of_the_volume(linux: Machine):
    linux.host.mount_disk(linux.disk, STAGED, "", ("noatime", "data=ordered", "defaults"))
    (Path(linux.host.path_of(STAGED)) / "hello").write_text("world")
    mounted = next(line for line in Path("/proc/self/mounts").read_text().splitlines() if linux.disk.path in line)
    linux.host.unmount(STAGED)
    linux.host.mount_disk(linux.disk, STAGED, "", ("ro",))

    assert file_system_on(linux.disk) == "ext4"
    assert "noatime" in mounted
    assert (Path(linux.host.path_of(STAGED)) / "hello").read_text() == "world"
    with pytest.raises(OSError, match="Read-only"):
        (Path(linux.host.path_of(STAGED)) / "hello").write_text("other")


def test_an_option_that_the_file_system_does_not_know_is_an_error(linux: Machine):
    with pytest.raises(HostError, match="cannot be mounted as ext4"):
        linux.host.mount_disk(linux.disk, STAGED, "", ("colour=blue",))
    assert not linux.host.is_mounted(STAGED)


@pytest.mark.parametrize("made", ["partitions", "swap"])
def test_a_disk_that_holds_something_else_is_neither_formatted_nor_mounted(linux: Machine, made: str):
    if made == "swap":
        run("mkswap", linux.disk.path)
    else:
        with Path(linux.disk.path).open("r+b") as disk:
            disk.seek(512)
            disk.write(b"EFI PART")

    with pytest.raises(HostError, match="it already contains unknown data, probably partitions"):
        linux.host.mount_disk(linux.disk, STAGED, "ext4", ())
    assert not linux.host.is_mounted(STAGED)
    with Path(linux.disk.path).open("rb") as disk:
        disk.seek(1024 + 0x38)
        assert disk.read(2) != b"\x53\xef"


def test_a_blank_disk_that_somebody_claims_is_not_formatted(linux: Machine):
    claimed = os.open(linux.disk.path, os.O_RDWR | os.O_EXCL)
    try:
        with pytest.raises(HostError) as refused:
            linux.host.mount_disk(linux.disk, STAGED, "", ())
    finally:
        os.close(claimed)

    assert refused.value.errno == errno.EBUSY
    assert file_system_on(linux.disk) == ""


def test_a_file_system_type_that_is_not_a_name_runs_no_program(linux: Machine):
    with pytest.raises(HostError, match="is no type of file system"):
        linux.host.mount_disk(linux.disk, STAGED, "../../bin/sh", ())
