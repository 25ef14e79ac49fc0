from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from conftest import SOAK
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, open_below
from orlop.host.mounts import mounts
from orlop.host.mounts.mounts import AccessTimes, MountOptions
from support.host.kernel_rooms import (
    descriptor,
    disk_image,
    mount_points_of,
    other_namespace,
    run,
    swapped_again_and_again,
)

ENOUGH = 3_000 if SOAK else 50
PLAIN = MountOptions()
READ_ONLY = MountOptions(read_only=True)


@pytest.fixture
def source(room: Path) -> Path:
    (room / "source").mkdir()
    (room / "target").mkdir()
    (room / "source" / "file").write_text("hello")
    return room / "source"


def bind(source: Path, target: Path, options: MountOptions = PLAIN) -> None:
    with descriptor(source, os.O_PATH) as from_here, descriptor(target, os.O_PATH) as to_there:
        mounts.bind(from_here, to_there, options)


def at(target: Path) -> mounts.MountedAt | None:
    with descriptor(target.parent, os.O_PATH) as parent:
        return mounts.mounted_at(parent, target.name)


def unmount(target: Path) -> int:
    with descriptor(target.parent, os.O_PATH) as parent:
        return mounts.unmount(parent, target.name)


def identity(path: Path) -> mounts.FileIdentity:
    found = path.stat()
    return mounts.FileIdentity(found.st_dev, found.st_ino)


def test_a_bound_folder_shows_what_its_source_holds(source: Path):
    target = source.parent / "target"

    bind(source, target)

    assert (target / "file").read_text() == "hello"
    (target / "new").write_text("x")
    assert (source / "new").read_text() == "x"


def test_what_is_mounted_at_a_target_is_told_with_its_options(source: Path):
    target = source.parent / "target"
    assert at(target) is None

    bind(source, target, MountOptions(read_only=True, no_exec=True, access_times=AccessTimes.NEVER))

    found = at(target)
    assert found is not None
    assert found.root == identity(source)
    assert found.options == MountOptions(read_only=True, no_exec=True, access_times=AccessTimes.NEVER)


@pytest.mark.parametrize(
    "options",
    [
        PLAIN,
        MountOptions(no_exec=True),
        MountOptions(no_symlinks=True, no_folder_access_times=True),
        MountOptions(access_times=AccessTimes.ALWAYS),
        MountOptions(access_times=AccessTimes.RELATIVE),
    ],
    ids=lambda options: ",".join(options.words()),
)
def test_each_option_reaches_the_kernel(source: Path, options: MountOptions):
    bind(source, source.parent / "target", options)

    found = at(source.parent / "target")
    assert found is not None
    assert found.options.fulfil(options)
    assert not found.options.fulfil(MountOptions(read_only=True))


def test_a_read_only_bind_cannot_be_written_while_its_source_can(source: Path):
    target = source.parent / "target"

    bind(source, target, READ_ONLY)

    with pytest.raises(OSError, match="Read-only file system"):
        (target / "new").write_text("x")
    (source / "new").write_text("x")


def test_a_file_is_bound_onto_a_file(source: Path):
    (source.parent / "spot").write_text("")

    bind(source / "file", source.parent / "spot")

    assert (source.parent / "spot").read_text() == "hello"
    assert unmount(source.parent / "spot") == 1


def test_mounts_made_later_on_the_source_do_not_appear_in_the_bind(source: Path):
    target = source.parent / "target"
    (source / "inside").mkdir()
    bind(source, target)

    run("mount", "-t", "tmpfs", "tmpfs", source / "inside")
    (source / "inside" / "secret").write_text("x")

    assert not (target / "inside" / "secret").exists()


def test_mounts_made_in_the_bind_do_not_appear_on_the_source(source: Path):
    target = source.parent / "target"
    (source / "inside").mkdir()
    bind(source, target)

    run("mount", "-t", "tmpfs", "tmpfs", target / "inside")
    (target / "inside" / "secret").write_text("x")

    assert not (source / "inside" / "secret").exists()


def test_what_is_mounted_below_the_source_already_is_not_bound_along(source: Path):
    (source / "inside").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", source / "inside")
    (source / "inside" / "secret").write_text("x")

    bind(source, source.parent / "target")

    assert list((source.parent / "target" / "inside").iterdir()) == []


def test_peers_of_the_targets_mount_see_the_bind_and_its_end(source: Path):
    target = source.parent / "target"
    with other_namespace("unchanged") as peer, other_namespace("slave") as slave:
        bind(source, target)
        assert str(target) in mount_points_of(peer)
        assert str(target) in mount_points_of(slave)

        assert unmount(target) == 1
        assert str(target) not in mount_points_of(peer)
        assert str(target) not in mount_points_of(slave)


def test_stacked_mounts_are_all_taken_away(source: Path):
    target = source.parent / "target"
    for options in (PLAIN, READ_ONLY, PLAIN):
        bind(source, target, options)
    run("mount", "-t", "tmpfs", "tmpfs", target)

    assert unmount(target) == 4
    assert at(target) is None
    assert unmount(target) == 0


def test_unmounting_what_is_no_mount_or_missing_is_no_error(source: Path):
    room = source.parent
    (room / "file").write_text("")

    assert [unmount(room / name) for name in ("target", "missing", "file")] == [0, 0, 0]


def test_a_mount_in_use_stays_and_the_error_says_so(source: Path):
    target = source.parent / "target"
    bind(source, target)

    with descriptor(target), pytest.raises(HostError, match="target cannot be unmounted") as caught:
        unmount(target)

    assert caught.value.errno == errno.EBUSY
    assert at(target) is not None
    assert unmount(target) == 1


def test_a_link_to_a_mount_is_neither_seen_as_one_nor_unmounted(source: Path):
    target = source.parent / "target"
    bind(source, target)
    (source.parent / "link").symlink_to(target)

    assert at(source.parent / "link") is None
    assert unmount(source.parent / "link") == 0
    assert at(target) is not None


def test_a_bind_onto_a_file_or_of_a_vanished_folder_is_refused(source: Path):
    room = source.parent
    (room / "file").write_text("")
    (room / "gone").mkdir()

    with pytest.raises(HostError, match="cannot be attached"):
        bind(source, room / "file")

    with descriptor(room / "target", os.O_PATH) as target, descriptor(room / "gone", os.O_PATH) as gone:
        (room / "gone").rmdir()
        with pytest.raises(HostError, match="cannot be bound"):
            mounts.bind(gone, target, PLAIN)
        with descriptor(source, os.O_PATH) as held:
            (room / "target").rmdir()
            with pytest.raises(HostError, match="cannot be attached"):
                mounts.bind(held, target, PLAIN)


def test_a_bind_leaves_no_descriptor_open(source: Path):
    before = sorted(Path("/proc/self/fd").iterdir())

    bind(source, source.parent / "target")
    with pytest.raises(HostError):
        bind(source, source / "file")

    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_target_swapped_for_a_link_while_we_mount_and_unmount_harms_nobody(source: Path):
    room = source.parent
    victim = room / "victim"
    (victim / "mount").mkdir(parents=True)
    run("mount", "-t", "tmpfs", "tmpfs", victim / "mount")
    (victim / "mount" / "treasure").write_text("x")
    (room / "pod" / "mount").mkdir(parents=True)
    (room / "swap").symlink_to(victim)
    bound = refused = 0

    with descriptor(room) as root, swapped_again_and_again(room / "pod", room / "swap"):
        while min(bound, refused) < ENOUGH:
            try:
                parent = open_below(root, ("pod",), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED)
            except HostError:
                refused += 1
                continue
            with descriptor(source, os.O_PATH) as held:
                target = open_below(parent, ("mount",), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED)
                mounts.bind(held, target, PLAIN)
                os.close(target)
                bound += mounts.unmount(parent, "mount")
            os.close(parent)
            assert (victim / "mount" / "treasure").exists()

    assert mount_points_of("self").count(str(victim / "mount")) == 1


@pytest.mark.parametrize("kind", ["xfs", "ext4"])
def test_a_mount_of_a_file_system_that_failed_is_found_and_unmounted(tmp_path: Path, kind: str):
    with disk_image(tmp_path / "room", kind) as disk:
        target = tmp_path / "room" / "target"
        (disk.folder / "volume").mkdir()
        target.mkdir()
        bind(disk.folder / "volume", target)
        disk.lose_power()

        mounted = at(target)
        assert mounted is not None
        assert mounted.is_failed == (kind == "xfs")
        assert unmount(target) == 1
        assert at(target) is None
