"""The disks of this kernel: hostile names and links, who uses a disk, and what is wiped and what never is."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from orlop.foundation.clock import SystemClock
from orlop.host.host_errors import HostError
from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind
from orlop.host.static_disks.linux_static_host import LinuxStaticHost
from support.host.block_devices import block_device
from support.host.disks import LoopDisk, loop_disk
from support.host.kernel_rooms import descriptor, mount_room, other_namespace, run
from support.waiting import eventually_there

MIB = 1 << 20
SIZE = 8 * MIB


@pytest.fixture
def host() -> LinuxStaticHost:
    return LinuxStaticHost(SystemClock(), Random(1), os.environ)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with loop_disk(tmp_path / "disk.img", SIZE) as made:
        yield made


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    with mount_room(tmp_path / "room") as made:
        (made / "disks").mkdir()
        yield made


def seen(host: LinuxStaticHost, room: Path) -> dict[str, DiskEntry]:
    return {each.name: each for each in host.survey(str(room / "disks"), lambda _name: True)}


def reason(call: Callable[[], object]) -> HostError:
    with pytest.raises(HostError) as caught:
        call()
    return caught.value


def run_output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def hold(host: LinuxStaticHost, room: Path, name: str) -> None:
    with host.held_device(str(room / "disks"), name, ""):
        pass


def empty(host: LinuxStaticHost, room: Path, name: str) -> None:
    host.empty_folder(str(room / "disks"), name, "", threading.Event())


# ---- links and names -------------------------------------------------------------------------------------------------


def test_only_links_to_devices_in_dev_are_followed(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    disks, victim = room / "disks", room / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    by_id = room / "by-id"
    by_id.symlink_to(disk.path)
    number = disk.path.stat().st_rdev
    os.mknod(room / "node", 0o60600, number)
    os.mkfifo(disks / "fifo")
    for name, target in {
        "device": disk.path,
        "device-by-id": by_id,
        "folder": victim,
        "file": victim / "precious",
        "up": "../victim",
        "root": "/",
        "nothing": "/does/not/exist",
        "itself": "itself",
        "node-elsewhere": room / "node",
        "terminal": "/dev/null",
        "fifo-link": disks / "fifo",
        "descriptor": "/proc/self/fd/0",
    }.items():
        (disks / name).symlink_to(target)

    entries = seen(host, room)

    assert {name for name, each in entries.items() if each.kind is EntryKind.DEVICE} == {"device", "device-by-id"}
    assert entries["device"].place == entries["device-by-id"].place
    assert entries["nothing"].kind is EntryKind.UNREADABLE
    assert entries["itself"].kind is EntryKind.UNREADABLE
    assert {entries[name].kind for name in entries} == {EntryKind.DEVICE, EntryKind.OTHER, EntryKind.UNREADABLE}
    for name in entries.keys() - {"device", "device-by-id"}:
        reason(lambda name=name: hold(host, room, name))  # type: ignore[misc]
        reason(lambda name=name: empty(host, room, name))  # type: ignore[misc]
    assert (victim / "precious").exists()


def test_a_device_file_in_the_folder_itself_is_a_device(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    os.mknod(room / "disks/node", 0o60600, disk.path.stat().st_rdev)

    assert seen(host, room)["node"].bytes == SIZE


def test_names_that_attack_are_just_names(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    names = ["-rf", " ", "a b", "new\nline", "$(reboot)", "\x1b[2J", os.fsdecode(b"\xff\xfe"), "x" * 255, "..data"]
    for name in names:
        (room / "disks" / name).symlink_to(disk.path)
    with socket.socket(socket.AF_UNIX) as listener, descriptor(room / "disks") as folder:
        listener.bind(f"/proc/self/fd/{folder}/socket")

    entries = seen(host, room)

    assert entries.keys() == {*names, "socket"}
    assert all(entries[name].kind is EntryKind.DEVICE for name in names)
    assert entries["socket"].kind is EntryKind.OTHER


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "nul\0"])
def test_no_name_leads_out_of_the_folder(host: LinuxStaticHost, room: Path, name: str):
    assert host.entry(str(room / "disks"), name).kind is EntryKind.UNREADABLE
    assert reason(lambda: empty(host, room, name)).errno == errno.EINVAL
    assert reason(lambda: hold(host, room, name)).errno == errno.ENODEV


def test_a_link_that_replaces_a_mounted_disk_is_not_emptied(host: LinuxStaticHost, room: Path):
    victim = room / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    (room / "disks/a").symlink_to(victim)

    reason(lambda: empty(host, room, "a"))

    assert (victim / "precious").exists()


def test_two_folders_of_one_file_system_are_told_apart(host: LinuxStaticHost, room: Path):
    run("mount", "-t", "tmpfs", "tmpfs", room / "disks")
    for name in ("a", "b"):
        (room / f"disks/{name}").mkdir()
    run("mount", "--bind", room / "disks/a", room / "disks/a")

    entries = seen(host, room)

    assert (entries["a"].kind, entries["b"].kind) == (EntryKind.MOUNT, EntryKind.FOLDER)
    assert entries["a"].place != entries["b"].place


# ---- uses ------------------------------------------------------------------------------------------------------------


def test_a_device_that_a_process_has_open_is_in_use(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    (room / "disks/a").symlink_to(disk.path)
    with descriptor(disk.path, os.O_RDONLY) as opened:
        sleeper = subprocess.Popen(["sleep", "1000"], pass_fds=[opened])
    try:
        error = reason(lambda: hold(host, room, "a"))
    finally:
        sleeper.kill()
        sleeper.wait()

    assert error.errno == errno.EBUSY
    assert f"the process {sleeper.pid} (sleep) has it open" in str(error)
    hold(host, room, "a")


def test_a_device_under_a_loop_device_is_in_use(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    (room / "disks/a").symlink_to(disk.path)
    run("mkfs.ext4", "-q", disk.path)
    told = run_output("losetup", "--find", "--show", str(disk.path))
    try:
        assert f"the loop device {Path(told).name} is attached to it" in str(reason(lambda: hold(host, room, "a")))
    finally:
        run("losetup", "--detach", told)
    hold(host, room, "a")


def test_a_device_whose_file_is_bound_for_a_pod_is_in_use(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    (room / "disks/a").symlink_to(disk.path)
    (room / "bound").touch()
    run("mount", "--bind", disk.path, room / "bound")

    assert f"its file is bound to {room}/bound" in str(reason(lambda: hold(host, room, "a")))


def test_a_volume_that_kubelet_mounted_is_offered_but_never_wiped(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    (room / "disks/a").symlink_to(disk.path)
    run("mkfs.ext4", "-q", disk.path)
    point = room / "plugins/kubernetes.io/local-volume/mounts/local-pv-1"
    point.mkdir(parents=True)
    run("mount", disk.path, point)

    assert seen(host, room)["a"].used_by == ()
    assert f"it is mounted at {point}" in str(reason(lambda: hold(host, room, "a")))

    run("umount", point)
    (room / "data").mkdir()
    run("mount", disk.path, room / "data")
    assert seen(host, room)["a"].used_by == (f"it is mounted at {room}/data",)


def test_a_copy_of_the_admins_mount_in_another_namespace_is_no_use(host: LinuxStaticHost, room: Path):
    point = room / "disks/a"
    point.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", point)
    (point / "old").touch()
    with other_namespace("private"):
        empty(host, room, "a")

    assert list(point.iterdir()) == []


def test_a_part_of_a_folder_that_is_mounted_is_a_use_of_it(host: LinuxStaticHost, room: Path):
    point = room / "disks/a"
    point.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", point)
    (point / "sub").mkdir()
    (room / "elsewhere").mkdir()
    run("mount", "--bind", point / "sub", room / "elsewhere")

    assert f"it is mounted at {room}/elsewhere" in str(reason(lambda: empty(host, room, "a")))
    assert (point / "sub").exists()


# ---- wiping ----------------------------------------------------------------------------------------------------------


def test_random_data_replaces_what_was_there(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    (room / "disks/a").symlink_to(disk.path)
    disk.write(0, b"old!" * 1024)
    with host.held_device(str(room / "disks"), "a", "") as device:
        device.overwrite_randomly(0, SIZE)
        device.flush()

    content = disk.path.read_bytes()
    assert b"old!" not in content
    assert len({content[at : at + 4096] for at in range(0, SIZE, 4096)}) == SIZE // 4096


def test_a_command_that_fails_is_an_error_with_its_last_line(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    (room / "disks/a").symlink_to(disk.path)
    words = ["sh", "-c", "echo first; echo the disk is bad >&2; exit 3"]
    error = reason(lambda: host.run_cleaner(str(room / "disks"), "a", "", words, threading.Event()))

    assert error.errno == errno.EIO
    assert "exit code 3: the disk is bad" in str(error)


def test_a_command_that_is_missing_is_an_error(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    (room / "disks/a").symlink_to(disk.path)
    missing = ["/opt/no-such-cleaner"]
    error = reason(lambda: host.run_cleaner(str(room / "disks"), "a", "", missing, threading.Event()))

    assert error.errno == errno.ENOENT


def test_a_command_that_is_stopped_ends_with_all_it_has_started(host: LinuxStaticHost, room: Path, disk: LoopDisk):
    (room / "disks/a").symlink_to(disk.path)
    stop, started = threading.Event(), room / "started"
    script = f"sleep 1000 & echo $! > {started}; wait"
    errors: list[HostError] = []

    def clean() -> None:
        words = ["sh", "-c", script]
        errors.append(reason(lambda: host.run_cleaner(str(room / "disks"), "a", "", words, stop)))

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    eventually_there(lambda: started.exists() and bool(started.read_text().strip()))
    child = started.read_text().strip()
    stop.set()
    cleaner.join()

    assert errors[0].errno == errno.ECANCELED
    eventually_there(lambda: not is_running(child))


def test_a_disk_that_was_taken_and_another_put_in_is_recognized(host: LinuxStaticHost, room: Path, tmp_path: Path):
    with block_device(tmp_path / "one", SIZE) as one, block_device(tmp_path / "two", SIZE) as two:
        (room / "disks/a").symlink_to(one)
        released = seen(host, room)["a"].identity
        (room / "disks/a").unlink()
        (room / "disks/a").symlink_to(two)

        error = reason(lambda: host.held_device(str(room / "disks"), "a", released).__enter__())

    assert error.errno == errno.ENODEV
    assert "not the disk that was released" in str(error)


@pytest.mark.parametrize("place", ["kubernetes.io~local-volume/pv1", "kubernetes.io~csi/pv1/mount"])
def test_a_mounted_disk_that_a_pod_has_is_not_emptied(host: LinuxStaticHost, room: Path, disk: LoopDisk, place: str):
    run("mkfs.ext4", "-q", disk.path)
    (room / "disks/disk1").mkdir()
    run("mount", disk.path, room / "disks/disk1")
    (room / "disks/disk1/x").write_text("precious")
    pod = room / "kubelet/pods/u1/volumes" / place
    pod.mkdir(parents=True)
    run("mount", "--bind", room / "disks/disk1", pod)

    refused = reason(lambda: empty(host, room, "disk1"))
    assert refused.errno == errno.EBUSY
    assert str(pod) in str(refused)
    run("umount", pod)
    empty(host, room, "disk1")
    assert not (room / "disks/disk1/x").exists()
