"""What every node host promises, asked of the fake one and of the one on this kernel."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from orlop.host.erase.erase_folder import REST_PREFIX
from orlop.host.folders.folder_records import RecordedFolder, Stranger
from orlop.host.host_errors import HostError
from orlop.host.mounts.mounts import AccessTimes, MountOptions
from orlop.host.node_host import FolderState, NodeHost
from support.afterlife.node_worlds import FakeWorld, LinuxWorld, NodeWorld, live, retained, trashed

PLAIN = MountOptions()
POD = ("pods", "uid-1", "volumes", "kubernetes.io~csi", "scratch")
TARGET = (*POD, "mount")


@pytest.fixture(params=["fake", "linux"])
def world(request: pytest.FixtureRequest) -> Iterator[NodeWorld]:
    if request.param == "fake":
        yield FakeWorld()
        return
    room = request.getfixturevalue("room")
    with ExitStack() as clean_up:
        yield LinuxWorld(room, clean_up)


@pytest.fixture
def host(world: NodeWorld) -> NodeHost:
    return world.host()


@pytest.fixture
def target(world: NodeWorld, host: NodeHost) -> tuple[str, ...]:
    """One that can be mounted on, and a folder `live/a` to mount."""
    world.kubelet_makes(POD)
    host.kubelet_dir.make_target(TARGET)
    host.workdir.create(live("a"), b"record", 0o777)
    return TARGET


def reason(call: Callable[..., object], *arguments: object) -> int | None:
    with pytest.raises(HostError) as caught:
        call(*arguments)
    assert str(caught.value).endswith(".")
    return caught.value.errno


def never() -> bool:
    return False


# ---- folders and records ---------------------------------------------------------------------------------------------


def test_a_new_folder_has_its_record_and_its_mode(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"record", 0o1777)

    assert host.workdir.read_record(live("a")) == b"record"
    assert world.mode(live("a")) == 0o1777


def test_a_folder_that_is_there_is_not_made_again(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"first", 0o777)
    world.tenant_writes(live("a"), "file", b"x")

    assert reason(host.workdir.create, live("a"), b"second", 0o700) == errno.EEXIST

    assert host.workdir.read_record(live("a")) == b"first"
    assert world.tenant_reads(live("a"), "file") == b"x"
    assert host.workdir.listing(FolderState.LIVE).half_made == ()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(host: NodeHost, name: str):
    host.workdir.create(live("a"), b"", 0o777)

    assert reason(host.workdir.read_record, live(name)) == errno.EINVAL
    assert reason(host.workdir.write_record, live(name), b"") == errno.EINVAL
    assert reason(host.workdir.identity, live(name)) == errno.EINVAL


def test_a_record_is_replaced(host: NodeHost):
    host.workdir.create(live("a"), b"first", 0o777)

    host.workdir.write_record(live("a"), b"second")

    assert host.workdir.read_record(live("a")) == b"second"


def test_what_is_missing_is_said_to_be(host: NodeHost):
    workdir = host.workdir

    assert reason(workdir.read_record, live("a")) == errno.ENOENT
    assert reason(workdir.write_record, live("a"), b"") == errno.ENOENT
    assert reason(workdir.move, live("a"), retained("a")) == errno.ENOENT
    assert reason(workdir.identity, live("a")) == errno.ENOENT
    assert reason(workdir.measure, live("a"), never) == errno.ENOENT


def test_a_folder_moves_with_all_it_has_and_is_still_the_same(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"record", 0o777)
    world.tenant_writes(live("a"), "file", b"x")
    before = host.workdir.identity(live("a"))

    host.workdir.move(live("a"), retained("12h,a"))

    assert reason(host.workdir.read_record, live("a")) == errno.ENOENT
    assert host.workdir.read_record(retained("12h,a")) == b"record"
    assert world.tenant_reads(retained("12h,a"), "file") == b"x"
    assert host.workdir.identity(retained("12h,a")) == before


def test_a_move_replaces_nothing(host: NodeHost):
    host.workdir.create(live("a"), b"1", 0o777)
    host.workdir.create(retained("a"), b"2", 0o777)

    assert reason(host.workdir.move, live("a"), retained("a")) == errno.EEXIST

    assert host.workdir.read_record(live("a")) == b"1"
    assert host.workdir.read_record(retained("a")) == b"2"


def test_two_folders_are_told_apart(host: NodeHost):
    host.workdir.create(live("a"), b"", 0o777)
    host.workdir.create(live("b"), b"", 0o777)

    assert host.workdir.identity(live("a")) != host.workdir.identity(live("b"))


def test_each_shelf_lists_its_own(host: NodeHost):
    host.workdir.create(live("a"), b"1", 0o777)
    host.workdir.create(live("b"), b"2", 0o777)
    host.workdir.move(live("b"), retained("b"))

    assert host.workdir.listing(FolderState.LIVE).folders == (RecordedFolder("a", b"1"),)
    assert host.workdir.listing(FolderState.RETAINED).folders == (RecordedFolder("b", b"2"),)
    assert host.workdir.listing(FolderState.TRASH).folders == ()


def test_what_has_no_record_is_a_stranger_and_stays(world: NodeWorld, host: NodeHost):
    world.stand_on_shelf_without_record(live("odd"))
    world.stand_beside_the_shelves("lost+found")

    assert host.workdir.listing(FolderState.LIVE).folders == ()
    assert host.workdir.listing(FolderState.LIVE).strangers == (Stranger("odd", "it has no record"),)
    assert host.workdir.strangers() == {"lost+found"}
    assert reason(host.workdir.read_record, live("odd")) == errno.ENODATA


def test_synchronising_changes_nothing_that_can_be_seen(host: NodeHost):
    host.workdir.create(live("a"), b"1", 0o777)
    host.workdir.create(live("b"), b"2", 0o700)
    host.workdir.move(live("b"), retained("b"))
    before = [host.workdir.listing(state) for state in FolderState]

    host.workdir.synchronise()

    assert [host.workdir.listing(state) for state in FolderState] == before


def test_everything_in_the_trash_is_trash(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"1", 0o777)
    host.workdir.move(live("a"), trashed("a"))
    world.stand_on_shelf_without_record(trashed("odd"))

    assert host.workdir.names_in_trash() == {"a", "odd"}


def test_what_is_left_of_an_erased_folder_has_the_folders_name(world: NodeWorld, host: NodeHost):
    world.stand_on_shelf_without_record(trashed(REST_PREFIX + "a"))
    world.stand_on_shelf_without_record(trashed("b"))
    world.stand_on_shelf_without_record(trashed(REST_PREFIX + "b"))
    assert host.workdir.names_in_trash() == {"a", "b"}


def test_what_died_half_made_is_listed_can_be_removed_and_is_in_nobodys_way(world: NodeWorld, host: NodeHost):
    world.leave_half_made(live("a"))
    world.leave_half_made(live("b"))
    assert sorted(host.workdir.listing(FolderState.LIVE).half_made) == ["a", "b"]

    assert host.workdir.remove_half_made(live("a"))
    assert not host.workdir.remove_half_made(live("a"))
    host.workdir.create(live("b"), b"record", 0o777)

    assert host.workdir.listing(FolderState.LIVE).half_made == ()
    assert host.workdir.listing(FolderState.LIVE).folders == (RecordedFolder("b", b"record"),)


def test_another_process_finds_all_of_it(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"1", 0o777)

    assert world.host().workdir.listing(FolderState.LIVE) == host.workdir.listing(FolderState.LIVE)


# ---- room ------------------------------------------------------------------------------------------------------------


def test_there_is_room_on_the_disk(host: NodeHost):
    room = host.workdir.room()

    assert 0 < room.free_bytes <= room.total_bytes
    assert 0 < room.free_inodes <= room.total_inodes


def test_a_folder_takes_what_its_files_take(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"1", 0o777)
    before = host.workdir.measure(live("a"), never)

    world.tenant_writes(live("a"), "one", b"x" * 4096)
    world.tenant_writes(live("a"), "two", b"x" * 8000)
    after = host.workdir.measure(live("a"), never)

    assert after.inodes == before.inodes + 2
    assert after.bytes == before.bytes + 3 * 4096


def test_measuring_stops_when_asked_to(host: NodeHost):
    host.workdir.create(live("a"), b"1", 0o777)

    assert reason(host.workdir.measure, live("a"), lambda: True) == errno.ECANCELED


# ---- targets ---------------------------------------------------------------------------------------------------------


def test_kubelets_folder_is_shared(host: NodeHost):
    assert host.kubelet_dir.is_shared()


def test_kubelets_folder_has_the_path_it_was_given_by(world: NodeWorld, host: NodeHost):
    assert host.kubelet_dir.paths == (world.kubelet_path,)


def test_a_target_is_made_in_the_folder_that_kubelet_made(world: NodeWorld, host: NodeHost):
    assert reason(host.kubelet_dir.make_target, TARGET) == errno.ENOENT
    world.kubelet_makes(POD)

    assert host.kubelet_dir.make_target(TARGET)
    assert not host.kubelet_dir.make_target(TARGET)
    assert host.kubelet_dir.names_in(POD) == {"mount"}


def test_a_target_that_is_a_file_is_refused(world: NodeWorld, host: NodeHost):
    world.kubelet_makes(POD)
    world.kubelet_writes(TARGET)

    assert reason(host.kubelet_dir.make_target, TARGET) == errno.ENOTDIR
    assert reason(host.kubelet_dir.remove_target, TARGET) == errno.ENOTDIR
    assert host.kubelet_dir.mounted_at(TARGET) is None


def test_what_is_not_there_needs_no_removing_and_no_unmounting(world: NodeWorld, host: NodeHost):
    for _ in range(2):
        assert not host.kubelet_dir.remove_target(TARGET)
        assert host.kubelet_dir.unmount(TARGET) == 0
        assert host.kubelet_dir.mounted_at(TARGET) is None
        assert host.kubelet_dir.names_in(TARGET) is None
        world.kubelet_makes(POD)


def test_a_target_is_removed_only_when_it_is_empty_and_nothing_is_mounted(
    world: NodeWorld, host: NodeHost, target: tuple[str, ...]
):
    host.bind(live("a"), target, PLAIN)
    assert reason(host.kubelet_dir.remove_target, target) == errno.EBUSY
    host.kubelet_dir.unmount(target)
    world.kubelet_writes((*target, "file"))
    assert reason(host.kubelet_dir.remove_target, target) == errno.ENOTEMPTY

    assert host.kubelet_dir.names_in(target) == {"file"}


def test_an_empty_target_is_removed(host: NodeHost, target: tuple[str, ...]):
    assert host.kubelet_dir.remove_target(target)
    assert host.kubelet_dir.names_in(POD) == frozenset()


def test_kubelets_own_names_are_listed(world: NodeWorld, host: NodeHost):
    assert host.kubelet_dir.names_in(()) == frozenset()
    world.kubelet_makes(("pods", "one"))
    world.kubelet_makes(("pods", "two"))

    assert host.kubelet_dir.names_in(()) == {"pods"}
    assert host.kubelet_dir.names_in(("pods",)) == {"one", "two"}


# ---- mounts ----------------------------------------------------------------------------------------------------------


def test_a_bound_folder_is_seen_at_its_target(world: NodeWorld, host: NodeHost, target: tuple[str, ...]):
    world.tenant_writes(live("a"), "file", b"hello")

    host.bind(live("a"), target, PLAIN)

    assert world.tenant_reads_at(target, "file") == b"hello"
    mounted = host.kubelet_dir.mounted_at(target)
    assert mounted is not None
    assert mounted.root == host.workdir.identity(live("a"))
    assert mounted.options.fulfil(PLAIN)
    assert not mounted.is_removed


def test_a_folder_removed_while_it_is_mounted_is_told_so_and_can_be_unmounted(
    world: NodeWorld, host: NodeHost, target: tuple[str, ...]
):
    host.bind(live("a"), target, PLAIN)
    world.remove_by_hand(live("a"))

    mounted = host.kubelet_dir.mounted_at(target)
    assert mounted is not None
    assert mounted.is_removed
    assert host.kubelet_dir.unmount(target) == 1
    assert host.workdir.mounted_folders() == frozenset()


@pytest.mark.parametrize(
    "options",
    [
        MountOptions(read_only=True),
        MountOptions(no_exec=True, no_symlinks=True),
        MountOptions(access_times=AccessTimes.NEVER, no_folder_access_times=True),
        MountOptions(access_times=AccessTimes.ALWAYS),
    ],
    ids=lambda options: ",".join(options.words()),
)
def test_a_bind_has_the_options_it_was_made_with(host: NodeHost, target: tuple[str, ...], options: MountOptions):
    host.bind(live("a"), target, options)

    mounted = host.kubelet_dir.mounted_at(target)
    assert mounted is not None
    assert mounted.options.fulfil(options)
    assert not mounted.options.fulfil(MountOptions(read_only=not options.read_only))


def test_what_is_missing_cannot_be_bound(host: NodeHost, target: tuple[str, ...]):
    assert reason(host.bind, live("missing"), target, PLAIN) == errno.ENOENT
    assert reason(host.bind, live("a"), (*POD, "missing"), PLAIN) == errno.ENOENT
    assert host.kubelet_dir.mounted_at(target) is None


def test_something_else_mounted_there_is_not_taken_for_the_folder(
    world: NodeWorld, host: NodeHost, target: tuple[str, ...]
):
    host.bind(live("a"), target, PLAIN)
    world.mount_something_else(target)

    mounted = host.kubelet_dir.mounted_at(target)
    assert mounted is not None
    assert mounted.root != host.workdir.identity(live("a"))


def test_all_that_is_stacked_on_a_target_is_unmounted(world: NodeWorld, host: NodeHost, target: tuple[str, ...]):
    host.bind(live("a"), target, PLAIN)
    world.mount_something_else(target)
    host.bind(live("a"), target, PLAIN)

    assert host.kubelet_dir.unmount(target) == 3
    assert host.kubelet_dir.mounted_at(target) is None
    assert host.kubelet_dir.unmount(target) == 0


def test_a_mount_in_use_stays_and_can_be_unmounted_later(world: NodeWorld, host: NodeHost, target: tuple[str, ...]):
    host.bind(live("a"), target, PLAIN)
    stop_using_it = world.use(target)

    assert reason(host.kubelet_dir.unmount, target) == errno.EBUSY
    assert host.kubelet_dir.mounted_at(target) is not None
    stop_using_it()
    assert host.kubelet_dir.unmount(target) == 1


def test_a_folder_is_mounted_from_its_bind_to_its_unmounting(host: NodeHost, target: tuple[str, ...]):
    assert host.workdir.mounted_folders() == frozenset()
    host.bind(live("a"), target, PLAIN)
    assert host.workdir.mounted_folders() == {live("a")}
    host.kubelet_dir.unmount(target)
    assert host.workdir.mounted_folders() == frozenset()


def test_a_folder_below_another_mount_is_mounted_still(world: NodeWorld, host: NodeHost, target: tuple[str, ...]):
    host.bind(live("a"), target, PLAIN)
    world.mount_something_else(target)

    assert host.workdir.mounted_folders() == {live("a")}


def test_a_part_of_a_folder_mounted_in_another_namespace_counts(world: NodeWorld, host: NodeHost):
    host.workdir.create(live("a"), b"", 0o777)
    host.workdir.create(live("b"), b"", 0o777)

    unmount = world.mount_elsewhere(live("a"))
    assert host.workdir.mounted_folders() == {live("a")}
    unmount()
    assert host.workdir.mounted_folders() == frozenset()


def test_a_mounted_folder_that_is_moved_is_mounted_where_it_is_now(host: NodeHost, target: tuple[str, ...]):
    host.bind(live("a"), target, PLAIN)

    host.workdir.move(live("a"), retained("a"))
    host.workdir.create(live("a"), b"new", 0o777)

    assert host.workdir.mounted_folders() == {retained("a")}


def test_many_threads_work_side_by_side_on_different_folders(world: NodeWorld, host: NodeHost):
    world.kubelet_makes(POD)

    def one_life(number: int) -> None:
        name, mount = f"f{number}", (*POD, f"mount{number}")
        host.workdir.create(live(name), name.encode(), 0o777)
        host.kubelet_dir.make_target(mount)
        host.bind(live(name), mount, PLAIN)
        assert live(name) in host.workdir.mounted_folders()
        assert host.kubelet_dir.unmount(mount) == 1
        assert live(name) not in host.workdir.mounted_folders()
        host.kubelet_dir.remove_target(mount)
        host.workdir.move(live(name), retained(name))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one_life, range(40)))

    assert {folder.name for folder in host.workdir.listing(FolderState.RETAINED).folders} == {
        f"f{number}" for number in range(40)
    }
    assert host.kubelet_dir.names_in(POD) == frozenset()
    assert host.workdir.mounted_folders() == frozenset()
