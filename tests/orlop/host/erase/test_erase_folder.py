from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from orlop.host.erase import erase_folder as entry_module
from orlop.host.erase import unlink_walk
from orlop.host.erase.erase_folder import erase_folder, names_in_trash
from orlop.host.erase.obstacles import Obstacles
from orlop.host.host_errors import HostError
from support.host.deep_trees import dig
from support.host.descriptors import folder_descriptor, opened
from support.host.file_systems import MOUNTS
from support.host.kernel_rooms import disk_image
from support.host.trees import TREES, Folder, plant, seen
from support.random_tests import FEW


def erase(trash: Path, name: str = "gone", **options: Any) -> entry_module.Erasure:
    with folder_descriptor(trash) as descriptor:
        return erase_folder(descriptor, name, options.pop("stop", threading.Event()), **options)


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def some_tree(place: Path, folders: int = 3, files: int = 4) -> None:
    place.mkdir()
    for number in range(folders):
        (place / f"folder-{number}").mkdir()
        for file in range(files):
            (place / f"folder-{number}" / f"file-{file}").write_bytes(b"x")


@contextmanager
def bound(source: Path, place: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", source, place], check=True)
    try:
        yield
    finally:
        while subprocess.run(["mountpoint", "-q", place], check=False).returncode == 0:
            subprocess.run(["umount", place], check=True)


# ---- what goes, and what stays ---------------------------------------------------------------------------------------


def test_a_folder_goes_with_all_that_is_in_it_and_its_neighbours_stay(disk: Path):
    some_tree(disk / "gone")
    some_tree(disk / "beside")
    before = seen(disk / "beside")

    erasure = erase(disk)

    assert erasure.is_complete
    assert erasure.removed == 1 + 3 + 12
    assert names(disk) == {"beside"}
    assert seen(disk / "beside") == before


def test_a_folder_that_is_gone_already_is_erased(tmp_path: Path):
    erasure = erase(tmp_path)

    assert erasure.is_complete
    assert erasure.removed == 0


def test_a_file_and_a_link_in_the_trash_go_too(tmp_path: Path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("kept")

    assert erase(tmp_path, "file").is_complete
    assert erase(tmp_path, "link").is_complete
    assert names(tmp_path) == {"kept"}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "../beside", "a\0b", "x" * 256, "x" * 250])
def test_a_name_that_is_no_entry_of_the_trash_is_refused(tmp_path: Path, name: str):
    (tmp_path / "beside").mkdir()

    with pytest.raises(HostError, match=r"not the name of one entry|cannot be a name"):
        erase(tmp_path, name)
    assert names(tmp_path) == {"beside"}


@MOUNTS
@settings(parent=FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES, beside=TREES)
def test_a_random_tree_is_erased_entirely_and_nothing_beside_it_is_touched(tmpfs: Path, tree: Folder, beside: Folder):
    plant(tree, os.fsencode(tmpfs / "gone"))
    plant(beside, os.fsencode(tmpfs / "beside"))
    before = seen(tmpfs / "beside")

    erasure = erase(tmpfs)

    assert erasure.is_complete, erasure.left
    assert names(tmpfs) == {"beside"}
    assert seen(tmpfs / "beside") == before
    shutil.rmtree(tmpfs / "beside")


# ---- the hostile trees of the table of attacks -----------------------------------------------------------------------


@MOUNTS
def test_a_victim_bound_into_the_folder_from_the_same_file_system_is_detached_and_untouched(disk: Path):
    some_tree(disk / "victim")
    before = seen(disk / "victim")
    (disk / "gone" / "deep" / "mount").mkdir(parents=True)
    with bound(disk / "victim", disk / "gone" / "deep" / "mount"):
        erasure = erase(disk)

        assert erasure.is_complete, erasure.left
        assert erasure.mounts_detached == 1
        assert names(disk) == {"victim"}
        assert seen(disk / "victim") == before


@MOUNTS
def test_a_victim_bound_on_the_folder_itself_is_detached_and_untouched(disk: Path):
    some_tree(disk / "victim")
    before = seen(disk / "victim")
    some_tree(disk / "gone")
    with bound(disk / "victim", disk / "gone"):
        erasure = erase(disk)

        assert erasure.is_complete, erasure.left
        assert names(disk) == {"victim"}
        assert seen(disk / "victim") == before


@MOUNTS
def test_a_file_bound_on_a_file_and_a_stack_of_binds_are_detached(disk: Path):
    (disk / "victim").mkdir()
    (disk / "victim" / "file").write_text("kept")
    (disk / "gone" / "stack").mkdir(parents=True)
    (disk / "gone" / "file").write_text("gone")
    with bound(disk / "victim" / "file", disk / "gone" / "file"), bound(disk / "victim", disk / "gone" / "stack"):
        for _ in range(11):
            subprocess.run(["mount", "--bind", disk / "victim", disk / "gone" / "stack"], check=True)

        erasure = erase(disk)

        assert erasure.is_complete, erasure.left
        assert erasure.mounts_detached == 13
        assert names(disk) == {"victim"}
        assert (disk / "victim" / "file").read_text() == "kept"


def test_links_out_of_the_folder_are_removed_and_never_followed(disk: Path):
    some_tree(disk / "victim")
    before = seen(disk / "victim")
    (disk / "gone").mkdir()
    (disk / "gone" / "folder").symlink_to(disk / "victim")
    (disk / "gone" / "relative").symlink_to("../victim")
    (disk / "gone" / "file").symlink_to(disk / "victim" / "folder-0" / "file-0")
    (disk / "gone" / "up").symlink_to("..")

    assert erase(disk).is_complete
    assert seen(disk / "victim") == before


def test_a_folder_swapped_for_a_link_during_the_walk_never_leads_to_the_victim(disk: Path):
    some_tree(disk / "victim", folders=1, files=50)
    before = seen(disk / "victim")
    ended = threading.Event()

    def swap(trap: Path, link: Path) -> None:
        aside = trap.with_name("aside")
        while not ended.is_set():
            try:
                trap.rename(aside)
                link.rename(trap)
                trap.rename(link)
                aside.rename(trap)
            except OSError:
                return

    for attempt in range(60 if not os.environ.get("ORLOP_SOAK") else 1_000):
        name = f"gone-{attempt}"
        some_tree(disk / name, folders=10, files=10)
        trap, link = disk / name / "folder-5" / "trap", disk / name / "folder-5" / "link"
        some_tree(trap)
        link.symlink_to(disk / "victim")
        swapper = threading.Thread(target=swap, args=(trap, link))
        swapper.start()
        erase(disk, name)
        ended.set()
        swapper.join()
        ended.clear()
        assert erase(disk, name).is_complete
    assert seen(disk / "victim") == before
    assert names(disk) == {"victim"}


LEVELS = 20_000 if os.environ.get("ORLOP_SOAK") else 5_000


def test_thousands_of_levels_go_with_few_descriptors(disk: Path):
    dig(disk / "gone", LEVELS)
    most = 0

    def look() -> float:
        nonlocal most
        most = max(most, len(opened()))
        return 0.0

    before = len(opened())
    erasure = erase(disk, pause_seconds=look)

    assert erasure.is_complete, erasure.left
    assert erasure.removed >= LEVELS + 2
    assert most - before <= unlink_walk.MOST_OPEN + 20
    assert names(disk) == set()


def test_a_deep_tree_on_a_full_disk_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where nothing can be moved aside, it is erased in place."""
    dig(tmp_path / "gone", 300)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unlink_walk.UnlinkWalk, "_rename", full)

    assert erase(tmp_path).is_complete
    assert names(tmp_path) == set()


def with_flags(place: Path, *flags: str) -> None:
    subprocess.run(["chattr", *flags, place], check=True)


@MOUNTS
@pytest.mark.parametrize("flag", ["+i", "+a", "+ia"])
def test_immutable_and_append_only_files_and_folders_go(disk: Path, flag: str):
    some_tree(disk / "gone")
    try:
        with_flags(disk / "gone" / "folder-0" / "file-0", flag)
    except subprocess.CalledProcessError:
        pytest.skip("this file system has no such flags")
    with_flags(disk / "gone" / "folder-1", flag)
    with_flags(disk / "gone", flag)

    erasure = erase(disk)

    assert erasure.is_complete, erasure.left
    assert names(disk) == set()


def test_an_obstacle_that_another_thread_has_removed_in_between_is_none(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    tries = iter([PermissionError(errno.EPERM, "as if the folder were append-only"), None])

    def remove() -> None:
        if (error := next(tries)) is not None:
            raise error
        (tmp_path / "folder").rmdir()

    with folder_descriptor(tmp_path) as folder:
        Obstacles().overcome(folder, "folder", remove)

    assert names(tmp_path) == set()


def test_what_the_kernel_refuses_for_good_is_raised(tmp_path: Path):
    (tmp_path / "folder").mkdir()

    def remove() -> None:
        raise PermissionError(errno.EPERM, "always")

    with folder_descriptor(tmp_path) as folder, pytest.raises(PermissionError, match="always"):
        Obstacles().overcome(folder, "folder", remove)


@MOUNTS
def test_fifos_devices_and_sockets_go_unopened(disk: Path):
    (disk / "gone").mkdir()
    os.mkfifo(disk / "gone" / "fifo")
    os.mknod(disk / "gone" / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod(disk / "gone" / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    os.mknod(disk / "gone" / "socket", stat.S_IFSOCK | 0o600)

    assert erase(disk).is_complete
    assert names(disk) == set()


def test_names_that_are_not_utf8_go(disk: Path):
    (disk / "gone").mkdir()
    at = os.fsencode(disk / "gone")
    os.mkdir(at + b"/\xff\xfe folder")  # noqa: PTH102 - no text
    os.close(os.open(at + b"/\xff\xfe folder/\xc3\x28", os.O_CREAT | os.O_WRONLY))
    os.close(os.open(at + b"/new\nline\x1b[31m", os.O_CREAT | os.O_WRONLY))

    assert erase(disk).is_complete
    assert names(disk) == set()


ERASE_AS_NOBODY = """
import ctypes, os, sys, threading
from orlop.host.erase.erase_folder import erase_folder
trash = os.open(sys.argv[1], os.O_RDONLY)
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1)  # a process that was root may not look at its own descriptors otherwise
print(erase_folder(trash, "gone", threading.Event()))
"""


@MOUNTS
def test_folders_without_permissions_go_also_for_an_owner_who_has_to_heed_them(tmpfs: Path):
    some_tree(tmpfs / "gone")
    for place in [tmpfs, *sorted(tmpfs.rglob("*"), reverse=True)]:
        os.chown(place, 65534, 65534)
    for place in [tmpfs / "gone" / "folder-0", tmpfs / "gone" / "folder-1", tmpfs / "gone"]:
        place.chmod(0)

    ended = subprocess.run([sys.executable, "-c", ERASE_AS_NOBODY, tmpfs], capture_output=True, text=True, check=True)

    assert "left_count=0" in ended.stdout
    assert names(tmpfs) == set()


@MOUNTS
def test_folders_without_permissions_go(disk: Path):
    some_tree(disk / "gone")
    (disk / "gone" / "folder-0").chmod(0)
    (disk / "gone").chmod(0)

    assert erase(disk).is_complete
    assert names(disk) == set()


# ---- tenants that still write ----------------------------------------------------------------------------------------


@contextmanager
def writer(place: Path) -> Iterator[threading.Event]:
    """Makes files and folders below a folder it has open, as fast as it can, until told to end."""
    ended = threading.Event()
    descriptor = os.open(place, os.O_RDONLY)

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            try:
                os.close(os.open(f"file-{number}", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
                os.mkdir(f"folder-{number}", dir_fd=descriptor)
            except OSError:
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        thread.join()
        os.close(descriptor)


def test_a_writer_that_never_ends_is_reported_and_does_not_hold_us_up(tmpfs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unlink_walk, "MOST_STEPS_OF_A_SWEEP", 500)
    some_tree(tmpfs / "gone")
    with writer(tmpfs / "gone" / "folder-1"):
        first = erase(tmpfs)
        assert not (tmpfs / "gone" / "folder-0").exists()
        assert not (tmpfs / "gone" / "folder-2").exists()

    monkeypatch.undo()
    assert first.is_complete or "a process writes into it" in first.left[0].reason
    assert erase(tmpfs).is_complete
    assert names(tmpfs) == set()


WRITE_AS_TENANT = """
import os, sys
os.chdir(sys.argv[1])
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
print("ready", flush=True)
number = 0
while True:
    number += 1
    try:
        os.close(os.open(f"file-{number}", os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        print(error.errno, flush=True)
        break
"""


@MOUNTS
def test_a_tenant_that_still_writes_into_its_own_folder_is_shut_out(disk: Path):
    (disk / "gone" / "own").mkdir(parents=True)
    os.chown(disk / "gone" / "own", 1000, 1000)
    command = [sys.executable, "-c", WRITE_AS_TENANT, disk / "gone" / "own"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tenant:
        assert tenant.stdout is not None
        assert tenant.stdout.readline() == "ready\n"

        erasure = erase(disk)

        refused = int(tenant.stdout.readline())
    assert erasure.is_complete, erasure.left
    assert names(disk) == set()
    assert refused in {2, 13}


# ---- what cannot be erased -------------------------------------------------------------------------------------------


def test_what_cannot_be_erased_is_reported_and_the_rest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    some_tree(tmp_path / "gone")
    unlink = os.unlink

    def refuse_one(name: str | bytes, *, dir_fd: int | None = None) -> None:
        if os.fsdecode(name) == "file-2" and (
            dir_fd is None or Path(f"/proc/self/fd/{dir_fd}").readlink().name == "folder-1"
        ):
            raise OSError(5, "Input/output error")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse_one)
    erasure = erase(tmp_path)
    monkeypatch.undo()

    assert [(left.path, left.reason) for left in erasure.left] == [("folder-1/file-2", "Input/output error.")]
    assert erasure.left_count == 1
    assert not erasure.is_complete
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {
        "gone",
        "gone/folder-1",
        "gone/folder-1/file-2",
    }
    assert erase(tmp_path).is_complete
    assert names(tmp_path) == set()


def test_a_thousand_refusals_are_counted_and_a_hundred_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    some_tree(tmp_path / "gone", folders=10, files=100)

    def refuse(_name: bytes, *, dir_fd: int) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "unlink", refuse)
    erasure = erase(tmp_path)
    monkeypatch.undo()

    assert erasure.left_count == 1_000
    assert len(erasure.left) == 100


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_a_disk_that_fails_is_told_as_a_sentence(tmp_path: Path, file_system: str):
    with disk_image(tmp_path / "room", file_system) as disk:
        some_tree(disk.folder / "gone")
        with folder_descriptor(disk.folder) as trash:
            disk.lose_power()
            told = what_is_told(trash)
        disk.switch_off()
        disk.switch_on()

        assert "Input/output error" in told


def what_is_told(trash: int) -> str:
    try:
        return str(erase_folder(trash, "gone", threading.Event()).left)
    except HostError as error:
        return str(error)


def test_an_error_of_ours_ends_every_worker_and_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    some_tree(tmp_path / "gone")

    def break_down(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(os, "unlink", break_down)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        erase(tmp_path)


# ---- stopping, dying, pausing ----------------------------------------------------------------------------------------


class StopAfter(threading.Event):
    """Set from the so-manieth look on."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def is_set(self) -> bool:
        self._looks -= 1
        return self._looks < 0


def test_it_stops_between_any_two_steps_and_goes_on_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unlink_walk, "MOST_OPEN", 4)
    looks = 0
    while True:
        some_tree(tmp_path / "gone")
        dig(tmp_path / "gone" / "deep", 12)
        (tmp_path / "beside").mkdir(exist_ok=True)

        stopped = erase(tmp_path, stop=StopAfter(looks), threads=1).stopped
        assert names(tmp_path) <= {"gone", "beside", ".rest-gone"}
        assert stopped or names(tmp_path) == {"beside"}

        again = erase(tmp_path)
        assert again.is_complete, (looks, again)
        assert names(tmp_path) == {"beside"}, looks
        if not stopped:
            break
        looks += 1
    assert looks > 30


ERASE_FOR_EVER = """
import os, sys, threading
from orlop.host.erase import unlink_walk
from orlop.host.erase.erase_folder import erase_folder
unlink_walk.MOST_OPEN = 4
steps = int(sys.argv[2])
def die():
    global steps
    steps -= 1
    if steps < 0:
        os.kill(os.getpid(), 9)
def deadly(act):
    def call(*arguments, **options):
        act(*arguments, **options)
        die()
    return call
for place, name in ((os, "unlink"), (os, "rmdir"), (os, "mkdir"), (unlink_walk, "renameat2")):
    setattr(place, name, deadly(getattr(place, name)))
erase_folder(os.open(sys.argv[1], os.O_RDONLY), "gone", threading.Event())
"""


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9, 14, 20, 27])
def test_a_process_that_is_killed_leaves_what_the_next_one_erases(tmp_path: Path, steps: int):
    some_tree(tmp_path / "gone")
    dig(tmp_path / "gone" / "deep", 12)

    died = subprocess.run([sys.executable, "-c", ERASE_FOR_EVER, tmp_path, str(steps)], check=False)

    assert died.returncode == -9
    assert names(tmp_path) <= {"gone", ".rest-gone"}
    with folder_descriptor(tmp_path) as trash:
        assert names_in_trash(trash) == ["gone"]
    assert erase(tmp_path).is_complete
    assert names(tmp_path) == set()


def test_what_a_killed_erasure_moved_aside_is_not_taken_for_what_the_next_one_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(unlink_walk, "MOST_OPEN", 2)
    for number in range(6):
        dig(tmp_path / f"left-{number}", number)
    (tmp_path / ".rest-gone").mkdir()
    for number in range(6):
        (tmp_path / f"left-{number}").rename(tmp_path / ".rest-gone" / str(number))
    dig(tmp_path / "gone", 20)

    assert erase(tmp_path).left == ()
    assert names(tmp_path) == set()


def test_pressure_makes_it_pause_and_a_stop_ends_the_pause(tmp_path: Path):
    some_tree(tmp_path / "gone", folders=1, files=600)
    stop = threading.Event()

    def press() -> float:
        stop.set()
        return 3_600.0

    erasure = erase(tmp_path, stop=stop, pause_seconds=press)

    assert erasure.stopped
    assert 256 <= erasure.removed < 600
    assert erase(tmp_path).is_complete


def test_a_folder_with_more_subfolders_than_are_remembered_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unlink_walk, "MOST_SUBFOLDERS_AT_ONCE", 7)
    some_tree(tmp_path / "gone", folders=50, files=1)

    assert erase(tmp_path).removed == 101
    assert names(tmp_path) == set()
