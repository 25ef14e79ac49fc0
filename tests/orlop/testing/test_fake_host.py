from __future__ import annotations

import errno

import pytest

from orlop.host.host_errors import HostError
from orlop.host.mounts.mounts import MountOptions
from orlop.host.node_host import FolderPlace, FolderState
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.kill_points import KillAt, Killed, KillMoment, KillPoints

A = FolderPlace(FolderState.LIVE, "a")
B = FolderPlace(FolderState.RETAINED, "b")
TARGET = ("pods", "u", "mount")


def machine_with_a_folder() -> FakeMachine:
    machine = FakeMachine()
    machine.kubelet_makes(TARGET)
    FakeNodeHost(machine).workdir.create(A, b"record", 0o777)
    return machine


def test_every_change_is_an_effect_with_a_name():
    machine, points = FakeMachine(), KillPoints()
    machine.kubelet_makes(TARGET[:-1])
    host = FakeNodeHost(machine, points)

    host.workdir.create(A, b"record", 0o777)
    host.kubelet_dir.make_target(TARGET)
    host.bind(A, TARGET, MountOptions())
    host.workdir.write_record(A, b"other")
    host.kubelet_dir.unmount(TARGET)
    host.kubelet_dir.remove_target(TARGET)
    host.workdir.move(A, B)

    assert points.seen == [
        "make live/a half",
        "name live/a",
        "make target pods/u/mount",
        "bind live/a at pods/u/mount",
        "write record of live/a",
        "unmount pods/u/mount",
        "remove target pods/u/mount",
        "move live/a to retained/b",
    ]


def test_a_process_killed_while_it_makes_a_folder_leaves_it_half_made():
    machine = FakeMachine()
    host = FakeNodeHost(machine, KillPoints(KillAt(1, KillMoment.AFTER)))

    with pytest.raises(Killed):
        host.workdir.create(A, b"record", 0o777)

    assert FakeNodeHost(machine).workdir.listing(FolderState.LIVE).half_made == ("a",)
    assert FakeNodeHost(machine).workdir.listing(FolderState.LIVE).folders == ()


def test_the_dead_change_and_learn_nothing_more():
    machine = machine_with_a_folder()
    host = FakeNodeHost(machine, KillPoints(KillAt(1, KillMoment.BEFORE)))
    with pytest.raises(Killed):
        host.workdir.move(A, B)

    with pytest.raises(Killed):
        host.bind(A, TARGET, MountOptions())
    with pytest.raises(Killed):
        host.workdir.read_record(A)

    assert FakeNodeHost(machine).workdir.read_record(A) == b"record"
    assert machine.mounts == {}


def test_a_call_fails_as_often_as_it_was_told_to_and_changes_nothing():
    machine = machine_with_a_folder()
    host = FakeNodeHost(machine)
    machine.faults.fail("bind", errno.EIO, times=2)

    for _ in range(2):
        with pytest.raises(HostError, match="The fake bind fails as requested: Input/output error") as caught:
            host.bind(A, TARGET, MountOptions())
        assert caught.value.errno == errno.EIO
        assert machine.mounts == {}
    host.bind(A, TARGET, MountOptions())

    assert len(machine.mounts[TARGET]) == 1


def test_a_call_can_fail_after_it_did_its_work():
    machine = machine_with_a_folder()
    machine.faults.fail("move", errno.EIO, moment=KillMoment.AFTER)

    with pytest.raises(HostError):
        FakeNodeHost(machine).workdir.move(A, B)

    assert B in machine.folders
    assert A not in machine.folders


def test_looking_can_fail_too_until_it_is_forgotten():
    machine = machine_with_a_folder()
    machine.faults.fail("listing", errno.EIO, times=99)
    with pytest.raises(HostError):
        FakeNodeHost(machine).workdir.listing(FolderState.LIVE)

    machine.faults.forget()

    assert FakeNodeHost(machine).workdir.listing(FolderState.LIVE).folders


def test_what_tenants_and_others_write_takes_room():
    machine = machine_with_a_folder()
    before = FakeNodeHost(machine).workdir.room()

    machine.folders[A].files["big"] = b"x" * 10_000
    machine.used_by_others = 1_000_000

    after = FakeNodeHost(machine).workdir.room()
    assert after.free_bytes == before.free_bytes - 3 * 4096 - 1_000_000
    assert after.free_inodes == before.free_inodes - 1


def test_a_pod_folder_that_kubelet_removes_takes_its_mounts_along():
    machine = machine_with_a_folder()
    FakeNodeHost(machine).bind(A, TARGET, MountOptions())

    machine.kubelet_removes(("pods", "u"))

    assert FakeNodeHost(machine).kubelet_dir.names_in(("pods",)) == frozenset()
    assert FakeNodeHost(machine).workdir.mounted_folders() == frozenset()
