from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SOAK
from orlop.host.host_errors import HostError
from orlop.host.mounts import mount_table
from orlop.host.mounts.mount_table import FolderInFileSystem
from support.host.disks import GIB, loop_disk
from support.host.kernel_rooms import descriptor, mount_room, other_namespace, run, shut_down

MANY = 5_000 if SOAK else 300


def mounted_anywhere(folder: Path) -> bool:
    seen = mount_table.read_all_namespaces()
    with descriptor(folder, os.O_PATH) as opened:
        return seen.mounted_folders().holds(seen.folder_of(opened))


@pytest.fixture
def folder(room: Path) -> Path:
    (room / "target").mkdir()
    (room / "folder" / "sub").mkdir(parents=True)
    return room / "folder"


def test_a_folder_nobody_has_mounted_is_not_mounted(folder: Path):
    assert not mounted_anywhere(folder)


def test_a_folder_bound_here_is_mounted_until_it_is_unmounted(folder: Path):
    target = folder.parent / "target"

    run("mount", "--bind", folder, target)
    assert mounted_anywhere(folder)
    run("umount", target)
    assert not mounted_anywhere(folder)


def test_a_subfolder_or_a_file_bound_somewhere_counts_for_the_folder(folder: Path):
    target = folder.parent / "target"
    (folder / "file").write_text("")
    (folder.parent / "spot").write_text("")

    run("mount", "--bind", folder / "sub", target)
    assert mounted_anywhere(folder)
    run("umount", target)
    run("mount", "--bind", folder / "file", folder.parent / "spot")
    assert mounted_anywhere(folder)


def test_a_mount_hidden_below_another_is_found(folder: Path):
    target = folder.parent / "target"

    run("mount", "--bind", folder, target)
    run("mount", "-t", "tmpfs", "tmpfs", target)

    assert mounted_anywhere(folder)


def test_a_mount_that_only_another_namespace_has_is_found(folder: Path):
    target = folder.parent / "target"
    run("mount", "--bind", folder / "sub", target)
    with other_namespace("private"):
        run("umount", target)
        assert mounted_anywhere(folder)
    assert not mounted_anywhere(folder)


def test_a_chrooted_process_does_not_hide_the_rest_of_its_namespace(folder: Path, tmp_path: Path):
    jail, target = tmp_path / "jail", folder.parent / "target"
    jail.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", jail)
    for name in ("bin", "lib", "lib64", "usr"):
        (jail / name).mkdir()
        if Path("/", name).is_dir():
            run("mount", "--bind", Path("/", name), jail / name)
    run("mount", "--bind", folder, target)
    try:
        with other_namespace("private", chrooted=jail) as chrooted:
            run("umount", target)
            inside = f"nsenter --mount=/proc/{chrooted}/ns/mnt sh -c 'echo ready; read word'"
            with subprocess.Popen(inside, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as free:  # noqa: S602 - no input of others
                assert free.stdout
                assert free.stdin
                assert free.stdout.readline() == b"ready\n"
                assert mounted_anywhere(folder)
                free.stdin.close()
    finally:
        run("umount", "--recursive", "--lazy", jail)


def test_the_folder_is_found_by_the_name_it_has_now(folder: Path):
    run("mount", "--bind", folder / "sub", folder.parent / "target")

    renamed = folder.rename(folder.parent / "renamed to")
    folder.mkdir()

    assert mounted_anywhere(renamed)
    assert not mounted_anywhere(folder)


def test_a_folder_made_anew_is_not_taken_for_the_deleted_one_that_is_still_mounted(folder: Path):
    run("mount", "--bind", folder / "sub", folder.parent / "target")
    (folder / "sub").rmdir()
    (folder / "sub").mkdir()

    assert not mounted_anywhere(folder / "sub")


@pytest.mark.parametrize("name", ["with space", "tab\there", "line\nbreak", "back\\slash", "back\\040", "ü", "\udcff"])
def test_any_name_is_compared_rightly(folder: Path, name: str):
    odd = folder / name
    odd.mkdir()
    run("mount", "--bind", odd, folder.parent / "target")

    assert mounted_anywhere(odd)
    assert mounted_anywhere(folder)
    assert not mounted_anywhere(folder / "sub")


def test_the_folder_is_told_from_its_file_systems_root_whatever_it_is_mounted_on(room: Path):
    (room / "disk").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", room / "disk")
    (room / "disk" / "deep" / "er").mkdir(parents=True)
    (room / "view").mkdir()
    run("mount", "--bind", room / "disk" / "deep", room / "view")

    seen = mount_table.read_all_namespaces()
    with descriptor(room / "disk" / "deep" / "er") as direct, descriptor(room / "view" / "er") as bound:
        assert seen.folder_of(direct) == seen.folder_of(bound)
        device = os.fstat(direct).st_dev
        assert seen.folder_of(direct) == FolderInFileSystem(f"{os.major(device)}:{os.minor(device)}", "/deep/er")


def test_a_deleted_folder_has_no_place(folder: Path):
    with descriptor(folder / "sub") as opened:
        (folder / "sub").rmdir()
        with pytest.raises(HostError, match="was deleted"):
            mount_table.read_all_namespaces().folder_of(opened)


def test_whether_a_mount_is_shared_is_told(room: Path):
    with descriptor(room) as opened:
        assert mount_table.mount_of(opened).is_shared
        run("mount", "--make-private", room)
        assert not mount_table.mount_of(opened).is_shared


def test_a_folder_whose_mount_is_gone_is_an_error(room: Path):
    (room / "disk").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", room / "disk")
    with descriptor(room / "disk") as opened:
        run("umount", "--lazy", room / "disk")
        with pytest.raises(HostError, match="not in our mount table") as caught:
            mount_table.mount_of(opened)
    assert caught.value.errno == errno.ENOENT


def test_among_many_mounts_each_is_told_apart(room: Path):
    (room / "points").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", room / "points")
    for number in range(MANY):
        (room / "points" / f"f{number}").mkdir()
        (room / "points" / f"t{number}").mkdir()
    script = "".join(f"mount --bind f{number} t{number}\n" for number in range(0, MANY, 2))
    subprocess.run(["sh", "-e"], input=script.encode(), cwd=room / "points", check=True)

    seen = mount_table.read_all_namespaces()
    with descriptor(room / "points") as opened:
        base = seen.folder_of(opened)
    mounted = seen.mounted_folders()

    assert [number for number in range(MANY) if mounted.holds(base.below(f"f{number}"))] == list(range(0, MANY, 2))
    assert mounted.names_below(base, 1) == {(f"f{number}",) for number in range(0, MANY, 2)}


def pretend_process(proc: Path, name: str, namespace: str, table: str | None, root: str = "/") -> None:
    (proc / name / "ns").mkdir(parents=True)
    (proc / name / "ns" / "mnt").symlink_to(namespace)
    (proc / name / "root").symlink_to(root)
    if table is not None:
        (proc / name / "mountinfo").write_text(table)


def test_one_process_is_read_for_each_namespace_or_each_root_until_one_sees_the_whole(tmp_path: Path):
    pretend_process(tmp_path, "1", "mnt:[1]", "first")
    pretend_process(tmp_path, "9", "mnt:[1]", "first again")
    pretend_process(tmp_path, "10", "mnt:[1]", "a part of the first", "/jail")
    pretend_process(tmp_path, "11", "mnt:[2]", "a part of the second", "/jail")
    pretend_process(tmp_path, "12", "mnt:[2]", "another part", "/cell")
    pretend_process(tmp_path, "13", "mnt:[2]", "the second")
    pretend_process(tmp_path, "14", "mnt:[2]", "another part again", "/box")
    pretend_process(tmp_path, "15", "mnt:[3]", "ours")
    (tmp_path / "self").symlink_to("15")

    seen = mount_table.read_all_namespaces(str(tmp_path))

    assert (seen.own, seen.others) == (b"ours", (b"first", b"a part of the second", b"another part", b"the second"))
    assert seen.forbidden == ()


def test_a_process_that_ended_is_replaced_by_another_of_its_namespace(tmp_path: Path):
    pretend_process(tmp_path, "self", "mnt:[0]", "ours")
    pretend_process(tmp_path, "1", "mnt:[1]", None)
    (tmp_path / "2").mkdir()
    pretend_process(tmp_path, "3", "mnt:[1]", "read")

    assert mount_table.read_all_namespaces(str(tmp_path)).others == (b"read",)


def test_where_nothing_can_be_read_nothing_is_said_to_be_unmounted(tmp_path: Path):
    with pytest.raises(HostError, match="Our own mount table cannot be read"):
        mount_table.read_all_namespaces(str(tmp_path))


def test_a_process_that_may_not_be_looked_at_is_told(room: Path):
    """As root without the right to trace sees a process of somebody who has it."""
    here = (
        "from orlop.host.mounts import mount_table; seen = mount_table.read_all_namespaces(); "
        f"print({os.getpid()} in seen.forbidden)"
    )
    without_tracing = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-all"]
    words = [*without_tracing, sys.executable, "-c", here]

    told = subprocess.run(words, check=True, capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)})

    assert told.stdout.strip() == "True"


def test_a_zombie_is_passed_over(folder: Path):
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as ended:
        assert ended.stdout
        assert ended.stdout.read() == b""
        assert not mounted_anywhere(folder)


def test_other_mounts_of_a_file_system_that_has_shut_down_are_found(tmp_path: Path):
    with mount_room(tmp_path / "room") as room, loop_disk(tmp_path / "disk.img", GIB // 2) as disk:
        staged, target = room / "staged", room / "target"
        staged.mkdir()
        target.mkdir()
        run("mkfs.xfs", "-q", disk.path)
        run("mount", disk.path, staged)
        run("mount", "--bind", staged, target)
        with descriptor(staged, os.O_PATH) as opened:
            shut_down(staged)
            with pytest.raises(OSError, match="Input/output error"):
                staged.stat()

            assert mount_table.other_mounts_of(opened) == (str(target),)
            assert mount_table.mount_of(opened).mount_point == str(staged)
        run("umount", target)
        run("umount", staged)
