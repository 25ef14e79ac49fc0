from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import SOAK
from orlop.host.host_errors import HostError
from orlop.host.linux_node_host import LinuxNodeHost, LinuxWorkdir
from orlop.host.mounts.linux_kubelet_dir import LinuxKubeletDir
from orlop.host.mounts.mounts import MountOptions
from support.afterlife.node_worlds import live, retained, trashed
from support.host.kernel_rooms import (
    SHUT_DOWN,
    WITHOUT_FLUSHING_THE_LOG,
    descriptor,
    disk_image,
    mount_points_of,
    other_namespace,
    run,
    swapped_again_and_again,
)

ENOUGH = 2_000 if SOAK else 30
PLAIN = MountOptions()
TARGET = ("pod", "mount")


@pytest.fixture
def host(room: Path) -> Iterator[LinuxNodeHost]:
    (room / "work").mkdir()
    (room / "kubelet").mkdir()
    with LinuxNodeHost(str(room / "work"), str(room / "kubelet")) as host:
        yield host


def test_no_other_user_reaches_the_folders_while_pods_of_any_user_write_to_them(host: LinuxNodeHost, room: Path):
    host.workdir.create(live("a"), b"", 0o777)

    for shelf in ("live", "retained", "trash"):
        assert stat.S_IMODE((room / "work" / shelf).stat().st_mode) == 0o700
    assert stat.S_IMODE((room / "work" / "live" / "a").stat().st_mode) == 0o777


def test_a_directory_that_is_missing_is_named_and_not_made_up(tmp_path: Path):
    (tmp_path / "work").mkdir()

    with pytest.raises(HostError, match=f"The folder {tmp_path}/missing cannot be opened"):
        LinuxWorkdir(str(tmp_path / "missing"))
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(HostError, match="cannot be opened"):
        LinuxNodeHost(str(tmp_path / "work"), str(tmp_path / "missing"))

    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert not (tmp_path / "missing").exists()


def test_all_descriptors_are_given_back(room: Path):
    (room / "work").mkdir()
    (room / "kubelet" / "pod").mkdir(parents=True)
    before = sorted(Path("/proc/self/fd").iterdir())

    with LinuxNodeHost(str(room / "work"), str(room / "kubelet")) as host:
        host.workdir.create(live("a"), b"", 0o777)
        host.kubelet_dir.make_target(TARGET)
        host.bind(live("a"), TARGET, PLAIN)
        host.workdir.mounted_folders()
        host.kubelet_dir.unmount(TARGET)
        host.workdir.move(live("a"), retained("a"))

    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_kubelets_directory_may_itself_be_a_link_and_has_both_paths(room: Path):
    (room / "real" / "pod").mkdir(parents=True)
    (room / "link").symlink_to("real")
    kubelet_dir = LinuxKubeletDir(str(room / "link"))

    assert kubelet_dir.paths == (f"{room}/link", f"{room}/real")
    (room / "link").unlink()
    (room / "link").symlink_to("/etc")
    assert kubelet_dir.names_in(()) == {"pod"}
    kubelet_dir.close()


def test_a_kubelet_that_shares_its_directory_later_is_noticed(room: Path):
    (room / "kubelet").mkdir()
    run("mount", "--make-private", room)
    kubelet_dir = LinuxKubeletDir(str(room / "kubelet"))
    assert not kubelet_dir.is_shared()

    run("mount", "--bind", room / "kubelet", room / "kubelet")
    run("mount", "--make-shared", room / "kubelet")

    assert kubelet_dir.is_shared()
    (room / "kubelet" / "pod").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", room / "kubelet" / "pod")
    (room / "kubelet" / "pod" / "inside").mkdir()
    assert kubelet_dir.names_in(("pod",)) == {"inside"}
    kubelet_dir.close()


def test_another_directory_mounted_over_kubelets_is_not_taken_for_it(room: Path):
    (room / "kubelet").mkdir()
    run("mount", "--make-private", room)
    kubelet_dir = LinuxKubeletDir(str(room / "kubelet"))

    run("mount", "-t", "tmpfs", "tmpfs", room / "kubelet")
    run("mount", "--make-shared", room / "kubelet")

    assert not kubelet_dir.is_shared()
    kubelet_dir.close()


def test_a_working_directory_that_is_mounted_itself_makes_no_folder_mounted(host: LinuxNodeHost, room: Path):
    host.workdir.create(live("a"), b"", 0o777)
    for name, source in (("view", "work"), ("shelf", "work/live")):
        (room / name).mkdir()
        run("mount", "--bind", room / source, room / name)

    assert host.workdir.mounted_folders() == frozenset()


def test_a_process_behind_a_bind_of_the_working_directory_sees_the_same(host: LinuxNodeHost, room: Path):
    (room / "view").mkdir()
    (room / "kubelet" / "pod" / "mount").mkdir(parents=True)
    run("mount", "--bind", room / "work", room / "view")
    host.workdir.create(live("a"), b"", 0o777)

    with LinuxNodeHost(str(room / "view"), str(room / "kubelet")) as inside:
        inside.bind(live("a"), TARGET, PLAIN)
        assert inside.workdir.mounted_folders() == host.workdir.mounted_folders() == {live("a")}


def test_what_an_erasure_moved_aside_belongs_to_its_folder(host: LinuxNodeHost, room: Path):
    rest = room / "work/trash/.rest-gone/0"
    rest.mkdir(parents=True)
    (room / "spot").mkdir()
    run("mount", "--bind", rest, room / "spot")

    assert host.workdir.names_in_trash() == {"gone"}
    assert host.workdir.mounted_folders() == {trashed("gone")}


def test_what_another_namespace_mounts_after_us_is_seen(host: LinuxNodeHost, room: Path):
    (room / "kubelet" / "pod" / "mount").mkdir(parents=True)
    host.workdir.create(live("a"), b"", 0o777)
    host.bind(live("a"), TARGET, PLAIN)

    with other_namespace("private"):
        assert host.kubelet_dir.unmount(TARGET) == 1
        assert host.workdir.mounted_folders() == {live("a")}


def test_a_folder_covered_by_a_mount_is_not_bound_instead_of_it(host: LinuxNodeHost, room: Path):
    host.workdir.create(live("a"), b"", 0o777)
    (room / "kubelet" / "pod" / "mount").mkdir(parents=True)
    run("mount", "-t", "tmpfs", "tmpfs", room / "work" / "live" / "a")

    with pytest.raises(HostError, match="a mount is in the way") as caught:
        host.bind(live("a"), TARGET, PLAIN)
    assert caught.value.errno == errno.EXDEV


def links_in_the_way(room: Path) -> Path:
    """A pod folder that is a link to somebody else's, who has something mounted and something to lose."""
    victim = room / "victim"
    (victim / "mount").mkdir(parents=True)
    run("mount", "-t", "tmpfs", "tmpfs", victim / "mount")
    (victim / "mount" / "treasure").write_text("x")
    (victim / "empty").mkdir()
    (room / "kubelet" / "pod").symlink_to(victim)
    return victim


ACTS: dict[str, Callable[[LinuxNodeHost], object]] = {
    "make_target": lambda host: host.kubelet_dir.make_target(("pod", "new")),
    "remove_target": lambda host: host.kubelet_dir.remove_target(("pod", "empty")),
    "mounted_at": lambda host: host.kubelet_dir.mounted_at(TARGET),
    "unmount": lambda host: host.kubelet_dir.unmount(TARGET),
    "names_in": lambda host: host.kubelet_dir.names_in(("pod",)),
    "bind": lambda host: host.bind(live("a"), ("pod", "empty"), PLAIN),
}


@pytest.mark.parametrize("act", ACTS)
def test_nothing_acts_through_a_link(host: LinuxNodeHost, room: Path, act: str):
    victim = links_in_the_way(room)
    host.workdir.create(live("a"), b"", 0o777)
    mounted = mount_points_of("self")

    with pytest.raises(HostError, match=r"symbolic link is in the way|no folder is in the way"):
        ACTS[act](host)

    assert sorted(path.name for path in victim.iterdir()) == ["empty", "mount"]
    assert mount_points_of("self") == mounted


@pytest.mark.parametrize("act", ACTS)
def test_nothing_acts_through_a_link_that_is_swapped_in_while_it_acts(host: LinuxNodeHost, room: Path, act: str):
    victim = links_in_the_way(room)
    for name in ("mount", "empty"):
        (room / "kubelet" / "honest" / name).mkdir(parents=True)
    host.workdir.create(live("a"), b"", 0o777)
    done, refusals = 0, Counter[int | None]()

    with swapped_again_and_again(room / "kubelet" / "pod", room / "kubelet" / "honest"):
        while min(done, refusals.total()) < ENOUGH:
            try:
                ACTS[act](host)
                done += 1
            except HostError as error:
                refusals[error.errno] += 1

    assert set(refusals) <= {errno.ELOOP, errno.ENOTDIR}
    assert sorted(path.name for path in victim.iterdir()) == ["empty", "mount"]
    assert (victim / "mount" / "treasure").exists()
    assert mount_points_of("self").count(str(victim / "mount")) == 1
    assert str(victim / "empty") not in mount_points_of("self")


def test_a_folder_swapped_for_a_link_on_its_shelf_is_never_followed(host: LinuxNodeHost, room: Path):
    """Only root can do it there; so might a broken tool."""
    (room / "victim").mkdir()
    host.workdir.create(live("a"), b"mine", 0o777)
    (room / "work" / "live" / "link").symlink_to(room / "victim")
    read = refused = 0

    with swapped_again_and_again(room / "work" / "live" / "a", room / "work" / "live" / "link"):
        while min(read, refused) < ENOUGH:
            try:
                host.workdir.write_record(live("a"), b"mine")
                read += host.workdir.read_record(live("a")) == b"mine"
                host.workdir.measure(live("a"), lambda: False)
            except HostError:
                refused += 1

    assert os.listxattr(room / "victim") == []


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_a_disk_that_takes_no_changes_is_said_to_take_none(tmp_path: Path, file_system: str):
    with disk_image(tmp_path / "room", file_system) as disk:
        (disk.folder / "work").mkdir()
        workdir = LinuxWorkdir(str(disk.folder / "work"))
        before = workdir.why_not_writable()
        run("mount", "-o", "remount,ro", disk.folder)
        read_only = workdir.why_not_writable()
        run("mount", "-o", "remount,rw", disk.folder)
        after = workdir.why_not_writable()
        with descriptor(disk.folder) as opened:
            fcntl.ioctl(opened, SHUT_DOWN, struct.pack("=I", WITHOUT_FLUSHING_THE_LOG))
        dead = workdir.why_not_writable()
        workdir.close()

    assert (before, after) == (None, None)
    assert read_only == "The disk of the working directory is read-only."
    assert dead == "The disk of the working directory refuses changes: Input/output error."


def test_a_working_directory_that_was_deleted_or_unmounted_is_not_writable(tmp_path: Path):
    with disk_image(tmp_path / "room", "ext4") as disk:
        (disk.folder / "work").mkdir()
        workdir = LinuxWorkdir(str(disk.folder / "work"))
        before = workdir.why_not_writable()
        (disk.folder / "work/live").rmdir()
        without_shelf = workdir.why_not_writable() or ""
        (disk.folder / "work/live").mkdir()
        other = LinuxWorkdir(str(disk.folder / "work"))
        run("umount", "--lazy", disk.folder)
        unmounted = other.why_not_writable() or ""
        workdir.close()
        other.close()
        disk.switch_on()

    assert before is None
    assert without_shelf.startswith("The working directory is gone: its folder live was deleted.")
    assert "it was unmounted." in unmounted


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_what_is_mounted_on_a_disk_that_died_is_found_out_or_refused_with_a_sentence(tmp_path: Path, file_system: str):
    with disk_image(tmp_path / "room", file_system) as disk:
        workdir = LinuxWorkdir(str(disk.folder))
        workdir.create(live("a"), b"", 0o777)
        disk.lose_power()
        try:
            mounted = workdir.mounted_folders()
        except HostError:
            mounted = frozenset()
        finally:
            workdir.close()

        assert mounted == frozenset()
