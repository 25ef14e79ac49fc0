"""What every node host promises of folders whose content is in an image, asked of the fake one and of this kernel's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from orlop.host.block import image_files
from orlop.host.block.image_files import ImageShape
from orlop.host.block.image_formats import MIB
from orlop.host.host_errors import HostError
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.mounts.mounts import MountOptions
from orlop.host.node_host import FolderState, NodeHost
from support.afterlife.node_worlds import FakeWorld, LinuxWorld, NodeWorld, live, retained, trashed
from support.waiting import eventually_there

PLAIN = MountOptions()
POD = ("pods", "uid-1", "volumes", "kubernetes.io~csi", "scratch")
TARGET = (*POD, "mount")
OTHER = (*POD, "other")
SIZE = 16 * MIB
EXT4 = ImageShape(SIZE, "ext4", keeps_space=True)


@pytest.fixture(params=["fake", "linux"])
def world(request: pytest.FixtureRequest) -> Iterator[NodeWorld]:
    if request.param == "fake":
        yield FakeWorld()
        return
    room = request.getfixturevalue("room")
    with ExitStack() as clean_up:
        yield LinuxWorld(room, clean_up)


@pytest.fixture
def host(world: NodeWorld) -> Iterator[NodeHost]:
    world.kubelet_makes(TARGET)
    world.kubelet_makes(OTHER)
    host = world.host()
    yield host
    for target in (TARGET, OTHER):
        host.kubelet_dir.unmount(target)


def reason(call: Callable[..., object], *arguments: object) -> int | None:
    with pytest.raises(HostError) as caught:
        call(*arguments)
    assert str(caught.value).endswith(".")
    return caught.value.errno


def mounted(host: NodeHost, options: MountOptions = PLAIN) -> None:
    host.workdir.create(live("a"), b"record", 0o700, None, EXT4)
    host.mount_image(live("a"), "ext4", TARGET, options)


def wait_until_detached(host: NodeHost) -> None:
    """Programs that list all loop devices have each one open for a moment, which keeps it attached."""
    eventually_there(lambda: not host.workdir.mounted_folders())


def shows(host: NodeHost, name: str) -> bool:
    found = host.kubelet_dir.mounted_at(TARGET)
    assert found is not None
    return host.workdir.is_shown_by(live(name), found.root)


def test_images_can_be_made_here(host: NodeHost):
    assert host.workdir.why_no_images() is None


def test_a_folder_has_its_record_and_its_image_when_it_has_its_name(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"record", 0o700, None, EXT4)

    assert host.workdir.read_record(live("a")) == b"record"
    assert world.mode(live("a")) == 0o700
    host.mount_image(live("a"), "ext4", TARGET, PLAIN)


def test_an_image_takes_all_of_its_space_at_once(world: NodeWorld, host: NodeHost):
    mounted(host)
    before = host.workdir.measure(live("a"), lambda: False)

    world.tenant_writes_at(TARGET, "file", bytes(MIB))

    assert SIZE <= before.bytes < SIZE + MIB
    assert host.workdir.measure(live("a"), lambda: False) == before


def test_what_does_not_fit_is_refused_and_leaves_nothing(host: NodeHost):
    too_large = ImageShape(1 << 60, "ext4", keeps_space=True)

    assert reason(host.workdir.create, live("a"), b"record", 0o700, None, too_large) == errno.ENOSPC

    listing = host.workdir.listing(FolderState.LIVE)
    assert (listing.folders, listing.half_made) == ((), ())


def test_a_half_made_folder_is_removed_with_its_image(world: NodeWorld, host: NodeHost):
    world.leave_half_made_with_image(live("a"))
    world.leave_half_made_with_image(live("b"))

    assert host.workdir.remove_half_made(live("a"))
    host.workdir.create(live("b"), b"record", 0o700, None, EXT4)

    assert host.workdir.listing(FolderState.LIVE).half_made == ()


def test_the_file_system_is_a_wall_and_what_is_in_it_stays(world: NodeWorld, host: NodeHost):
    mounted(host)
    world.tenant_writes_at(TARGET, "file", b"content")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - by its number
        world.tenant_writes_at(TARGET, "large", bytes(SIZE + 1))
    assert caught.value.errno == errno.ENOSPC

    assert host.kubelet_dir.unmount(TARGET) == 1
    host.mount_image(live("a"), "ext4", TARGET, PLAIN)

    assert world.tenant_reads_at(TARGET, "file") == b"content"


def test_the_room_of_a_target_is_that_of_the_file_system(host: NodeHost):
    mounted(host)

    room = host.kubelet_dir.room_at(TARGET)

    assert 10 * MIB < room.free_bytes <= room.total_bytes <= SIZE
    assert 0 < room.free_inodes <= room.total_inodes
    assert reason(host.kubelet_dir.room_at, (*POD, "missing")) == errno.ENOENT


def test_two_targets_show_one_file_system_one_of_them_read_only(world: NodeWorld, host: NodeHost):
    mounted(host)
    host.mount_image(live("a"), "ext4", OTHER, MountOptions(read_only=True))

    world.tenant_writes_at(TARGET, "file", b"content")

    assert world.tenant_reads_at(OTHER, "file") == b"content"
    with pytest.raises(OSError) as caught:  # noqa: PT011 - by its number
        world.tenant_writes_at(OTHER, "file", b"")
    assert caught.value.errno == errno.EROFS


def test_a_mount_has_its_options(host: NodeHost):
    options = MountOptions(no_exec=True, read_only=True)
    mounted(host, options)

    found = host.kubelet_dir.mounted_at(TARGET)

    assert found is not None
    assert found.options.fulfil(options)
    assert not found.is_removed


def test_a_mount_shows_its_own_folder_alone(world: NodeWorld, host: NodeHost):
    mounted(host)
    host.workdir.create(live("b"), b"record", 0o700, None, EXT4)
    host.workdir.create(live("c"), b"record", 0o777)

    assert (shows(host, "a"), shows(host, "b"), shows(host, "c")) == (True, False, False)
    world.mount_something_else(TARGET)
    assert not shows(host, "a")
    assert reason(host.workdir.is_shown_by, live("missing"), host.workdir.identity(live("a"))) == errno.ENOENT


def test_a_bound_folder_is_shown_whatever_its_files_are_called(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"record", 0o777)
    world.tenant_writes(live("a"), "image", b"a file of the tenant")
    host.bind(live("a"), TARGET, PLAIN)

    assert shows(host, "a")
    assert host.workdir.mounted_folders() == {live("a")}


def test_a_folder_is_mounted_as_long_as_its_image_is(world: NodeWorld, host: NodeHost):
    assert host.workdir.mounted_folders() == frozenset()
    mounted(host)
    end = world.copy_mounts_elsewhere()

    assert host.kubelet_dir.unmount(TARGET) == 1
    assert host.workdir.mounted_folders() == {live("a")}
    assert host.workdir.snapshot_mounts().is_mounted(live("a"), has_image=True)
    assert not host.workdir.snapshot_mounts().is_mounted(live("a"), has_image=False)
    assert not host.workdir.snapshot_mounts().is_mounted(live("b"), has_image=True)
    host.workdir.move(live("a"), retained("a"))
    assert host.workdir.mounted_folders() == {retained("a")}

    end()
    wait_until_detached(host)
    assert not host.workdir.snapshot_mounts().is_mounted(retained("a"), has_image=True)


def test_an_image_that_is_removed_while_it_is_mounted_can_be_unmounted(world: NodeWorld, host: NodeHost):
    mounted(host)
    world.remove_image_by_hand(live("a"))

    found = host.kubelet_dir.mounted_at(TARGET)

    assert found is not None
    assert found.is_removed
    assert host.kubelet_dir.unmount(TARGET) == 1
    wait_until_detached(host)


def test_what_cannot_be_mounted_is_refused(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"record", 0o700, None, EXT4)
    host.workdir.create(live("b"), b"record", 0o777)

    assert reason(host.mount_image, live("b"), "ext4", TARGET, PLAIN) == errno.ENOENT
    assert reason(host.mount_image, live("c"), "ext4", TARGET, PLAIN) == errno.ENOENT
    assert reason(host.mount_image, live("a"), "ext4", (*POD, "missing"), PLAIN) == errno.ENOENT
    wait_until_detached(host)


def test_an_image_is_erased_with_its_folder(world: NodeWorld, host: NodeHost):
    mounted(host)
    host.kubelet_dir.unmount(TARGET)
    host.workdir.move(live("a"), trashed("a"))

    world.erase("a")

    assert host.workdir.names_in_trash() == frozenset()


# ---- on this kernel alone --------------------------------------------------------------------------------------------


@pytest.fixture
def linux(room, tmp_path) -> Iterator[LinuxNodeHost]:  # type: ignore[no-untyped-def]
    with ExitStack() as clean_up:
        world = LinuxWorld(room, clean_up)
        world.kubelet_makes(TARGET)
        host = world.host()
        assert isinstance(host, LinuxNodeHost)
        yield host
        host.kubelet_dir.unmount(TARGET)


@pytest.mark.parametrize("shape", [EXT4, ImageShape(300 * MIB, "xfs", keeps_space=False)], ids=["ext4", "xfs"])
@pytest.mark.parametrize("is_mounted", [False, True])
def test_the_content_of_an_image_is_read_where_nobody_sees_it(
    linux: LinuxNodeHost, shape: ImageShape, *, is_mounted: bool
):
    linux.workdir.create(live("a"), b"record", 0o700, None, shape)
    linux.mount_image(live("a"), shape.file_system, TARGET, PLAIN)
    written = os.open(os.path.join(linux.kubelet_dir.paths[0], *TARGET, "file"), os.O_CREAT | os.O_WRONLY)  # noqa: PTH118
    os.write(written, b"content")
    os.close(written)
    if not is_mounted:
        linux.kubelet_dir.unmount(TARGET)

    with linux.workdir.opened_content(live("a"), shape.file_system) as content:
        if not is_mounted:
            assert linux.kubelet_dir.mounted_at(TARGET) is None
            # A pod may mount it meanwhile.
            linux.mount_image(live("a"), shape.file_system, TARGET, PLAIN)
            linux.kubelet_dir.unmount(TARGET)
        assert linux.workdir.mounted_folders() == {live("a")}
        assert linux.workdir.holds(content)
        file = os.open("file", os.O_RDONLY, dir_fd=content)
        assert os.read(file, 100) == b"content"
        os.close(file)
        for change in (lambda: os.mkdir("new", dir_fd=content), lambda: os.unlink("file", dir_fd=content)):
            with pytest.raises(OSError) as caught:  # noqa: PT011 - by its number
                change()
            assert caught.value.errno == errno.EROFS

    linux.kubelet_dir.unmount(TARGET)
    wait_until_detached(linux)


def test_the_root_of_an_image_has_the_mode_that_was_asked_for(linux: LinuxNodeHost):
    for name, kind, size in (("a", "ext4", SIZE), ("b", "xfs", 300 * MIB)):
        for mode in (0o750, 0o777):
            linux.workdir.create(live(f"{name}{mode}"), b"", 0o700, None, ImageShape(size, kind, False, mode))
            with linux.workdir.opened_content(live(f"{name}{mode}"), kind) as root:
                assert os.fstat(root).st_mode & 0o7777 == mode


def test_a_damaged_file_system_is_not_mounted(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"record", 0o700, None, EXT4)
    world.damage_image(live("a"))

    assert reason(host.mount_image, live("a"), "ext4", TARGET, PLAIN) in {errno.EUCLEAN, errno.EINVAL}
    assert host.workdir.mounted_folders() == frozenset()


def test_without_loop_devices_or_mkfs_no_image_can_be_made_and_the_sentence_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(image_files, "CONTROL", os.devnull)
    monkeypatch.setattr(image_files, "find_program", {"mkfs.ext4": "/sbin/mkfs.ext4"}.get)
    assert "mkfs.xfs. Install" in (image_files.why_no_images() or "")
    monkeypatch.setattr(image_files, "CONTROL", "/no/loop-control")
    assert "/no/loop-control cannot be opened" in (image_files.why_no_images() or "")
