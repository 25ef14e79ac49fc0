"""A worker lists the disks of its node and wipes released ones: on virtual time, with a worker's rights and policy."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import EVENT
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.provisioner_status import CONFIGURATION_VALID, DISCOVERED, PROVISIONER_STATUS
from orlop.static_pv.configuration_watch import StaticMachine
from orlop.static_pv.disk_watch import PERIOD_SECONDS
from orlop.static_pv.wiping import WipeLimits
from orlop.testing.fake_host import FakeMachine, FakeStaticDisk, FakeStaticHost
from support.api.api_wires import refusal
from support.drives.watched_nodes import right_here
from support.static_workers import CONFIG, FILES, FOLDER, GIB, NODE, SPACE, WorkerWorld, machine_with, operation

pytestmark = pytest.mark.virtual_time
T = TypeVar("T")


def device(size: int = 100 * GIB, identity: str = "wwn:1") -> FakeStaticDisk:
    return FakeStaticDisk(EntryKind.DEVICE, size, identity, data={0, size // 2, size - 4096})


def mount(size: int = 50 * GIB, identity: str = "fs:1") -> FakeStaticDisk:
    return FakeStaticDisk(EntryKind.MOUNT, size, identity, names={"a", "b", "c"}, file_system="xfs")


def disks_of(machine: FakeMachine) -> dict[str, FakeStaticDisk]:
    return machine.static_folders[FOLDER]


# ---- discovery -------------------------------------------------------------------------------------------------------


async def test_every_disk_of_the_node_is_listed_in_an_object_of_its_own():
    async with WorkerWorld() as world, world.worker(machine_with(a=mount(), b=device())):
        listed = await world.until(world.listed)
        obj = await world.object()

    assert obj["spec"] == {"nodeName": NODE, "deleteOperations": []}
    assert {entry: each["capacity"] for entry, each in listed.items()} == {"a": "50Gi", "b": "100Gi"}
    assert listed["a"]["fileSystem"] == "xfs"
    assert listed["a"]["identity"] == "fs:1"
    assert "device" not in listed["a"]
    assert listed["b"]["device"] is True
    assert "/" not in str(list(listed.values()))
    assert obj["status"]["disks"] == 2
    assert [each["status"] for each in obj["status"]["conditions"]] == ["True", "True"]


async def test_a_node_without_disks_is_known_to_have_none():
    async with WorkerWorld() as world, world.worker(machine_with()):
        await world.until(lambda: world.condition(DISCOVERED))
        status = await world.status()

    assert status["localVolumes"] == []
    assert status["disks"] == 0


async def test_an_object_that_vanishes_is_made_again():
    async with WorkerWorld() as world, world.worker(machine_with(a=mount())):
        await world.until(world.listed)
        await world.client.delete(PROVISIONER_STATUS, ObjectName(SPACE, NODE))

        assert await world.until(world.listed)


async def test_a_disk_that_comes_grows_and_goes_is_noticed():
    machine = machine_with()
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(lambda: world.condition(DISCOVERED))
        disks_of(machine)["a"] = device(20 * GIB)
        assert (await world.until(world.listed))["a"]["capacity"] == "20Gi"

        disks_of(machine)["a"].bytes = 30 * GIB
        await world.until(lambda: _capacity(world, "a", "30Gi"))

        del disks_of(machine)["a"]
        await world.until(lambda: _is_gone(world, "a"))


async def _capacity(world: WorkerWorld, entry: str, capacity: str) -> bool:
    return (await world.listed()).get(entry, {}).get("capacity") == capacity


async def _is_gone(world: WorkerWorld, entry: str) -> bool:
    return entry not in await world.listed()


async def test_what_cannot_be_offered_is_reported_with_an_event():
    used = FakeStaticDisk(EntryKind.DEVICE, GIB, used_by=("it is swap space in use",), offered_though_used=False)
    machine = machine_with(folder=FakeStaticDisk(EntryKind.FOLDER), file=FakeStaticDisk(EntryKind.OTHER), used=used)
    machine.static_folders[FOLDER]["bad\nname"] = device()
    async with WorkerWorld() as world, world.worker(machine):
        problems = await world.until(world.problems)
        await world.settle(5)
        events = await world.events()

    assert problems == {
        "folder": "NotMounted",
        "file": "NotADisk",
        "used": "InUse",
        r"'bad\nname'": "InvalidName",
    }
    assert {reason for reason, _ in events} == {f"Disk{reason}" for reason in problems.values()}


async def test_a_folder_that_cannot_be_read_keeps_its_volumes():
    machine = machine_with(a=mount())
    async with WorkerWorld() as world, world.worker(machine):
        before = await world.until(world.listed)
        machine.faults.fail("survey_disks", errno.EIO, times=1000)
        await world.until(lambda: _is_unread(world))

        assert await world.listed() == before

        machine.faults.forget()
        await world.until(lambda: _is_read(world))
        assert await world.problems() == {}


async def _is_unread(world: WorkerWorld) -> bool:
    return (await world.condition(DISCOVERED)).get("status") == "False"


async def _is_read(world: WorkerWorld) -> bool:
    return (await world.condition(DISCOVERED)).get("status") == "True"


async def test_a_folder_that_cannot_be_read_after_a_restart_keeps_its_volumes():
    machine = machine_with(a=mount())
    async with WorkerWorld() as world:
        async with world.worker(machine):
            before = await world.until(world.listed)
        machine.faults.fail("survey_disks", errno.EIO, times=1000)
        async with world.worker(machine):
            await world.until(lambda: _is_unread(world))

            assert await world.listed() == before


async def test_what_a_pod_makes_of_its_disk_does_not_unlist_it():
    machine = machine_with(a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        disks_of(machine)["a"].used_by, disks_of(machine)["a"].offered_though_used = ("it is in use by dm-0",), False
        await world.settle(30)

        assert list(await world.listed()) == ["a"]
        assert await world.problems() == {}


# ---- the configuration -----------------------------------------------------------------------------------------------


async def test_another_configuration_is_used_without_a_restart():
    machine = machine_with(a=mount())
    machine.static_folders["/mnt/slow"] = {"s": mount(identity="fs:2")}
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        machine.configuration_files[CONFIG] = {"storageClassMap": "slow:\n  hostDir: /mnt/slow\n"}
        await world.until(lambda: _is_gone(world, "a"))

        assert list(await world.listed()) == ["s"]


async def test_a_wrong_configuration_keeps_the_one_before_and_is_reported():
    machine = machine_with(a=mount())
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        machine.configuration_files[CONFIG] = {"storageClassMap": "fast: [\n"}
        await world.until(lambda: _has_fault(world))
        disks_of(machine)["b"] = device()
        await world.settle(30)
        condition, events = await world.condition(CONFIGURATION_VALID), await world.events()

        assert set(await world.listed()) == {"a", "b"}
        assert "The configuration before is in use." in condition["message"]
        assert [reason for reason, _ in events] == ["ConfigurationInvalid"]

        machine.configuration_files[CONFIG] = dict(FILES)
        await world.until(lambda: _has_no_fault(world))
        await world.settle(5)
        assert "ConfigurationValid" in {reason for reason, _ in await world.events()}


async def _has_fault(world: WorkerWorld) -> bool:
    return (await world.condition(CONFIGURATION_VALID)).get("status") == "False"


async def _has_no_fault(world: WorkerWorld) -> bool:
    return (await world.condition(CONFIGURATION_VALID)).get("status") == "True"


async def test_without_any_usable_configuration_the_disks_stay_unknown():
    async with WorkerWorld() as world, world.worker(machine_with(files={})):
        await world.until(lambda: _has_fault(world))
        await world.settle(30)

        assert "localVolumes" not in await world.status()


# ---- wiping ----------------------------------------------------------------------------------------------------------


async def test_a_released_device_is_zeroed_and_the_entry_goes_with_its_operation():
    machine = machine_with(a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.wiped(operation("a", identity="wwn:1"))
        done = await world.deletion()
        assert disks_of(machine)["a"].data == set()

        await world.request()
        await world.until(lambda: _has_no_deletion(world))

    assert (done["progress"], done["attempts"], done["method"]) == (100, 1, "zero")
    assert done["bytesDone"] == done["bytesTotal"] == 100 * GIB
    assert done["startTime"]
    assert done["endTime"]


async def _has_no_deletion(world: WorkerWorld) -> bool:
    return not (await world.status()).get("deleteStatuses")


async def test_a_released_file_system_is_emptied():
    machine = machine_with(a=mount())
    async with WorkerWorld() as world, world.worker(machine):
        await world.wiped(operation("a", identity="fs:1"))
        assert disks_of(machine)["a"].names == set()
        assert (await world.deletion())["method"] == "files"


async def test_a_folder_of_a_stated_size_is_listed_and_emptied():
    files = {"storageClassMap": f"fast:\n  hostDir: {FOLDER}\n  directories:\n    'd*': 5Gi\n"}
    machine = machine_with(files, d1=FakeStaticDisk(EntryKind.FOLDER, 100 * GIB, "fs:1:7", names={"x"}))
    async with WorkerWorld() as world, world.worker(machine):
        await world.wiped(operation("d1", identity="fs:1:7"))
        assert (await world.listed())["d1"]["capacityBytes"] == 5 * GIB
        assert disks_of(machine)["d1"].names == set()


async def test_the_admins_command_wipes_where_one_is_configured():
    command = f"fast:\n  hostDir: {FOLDER}\n  blockCleanerCommand: [/opt/clean, --deep]\n"
    machine = machine_with({"storageClassMap": command}, a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.wiped(operation("a"))
        assert (await world.deletion())["method"] == "command /opt/clean"
        assert disks_of(machine)["a"].data == set()


async def test_a_disk_in_use_is_not_wiped_until_it_is_free():
    machine = machine_with(a=device())
    disks_of(machine)["a"].used_by = ("it is mounted at /data",)
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        await world.request(operation("a"))
        await world.until(lambda: world.is_in("Error"))
        failed = await world.deletion()
        assert "it is mounted at /data" in failed["message"]
        assert failed["nextAttemptTime"]
        assert len(disks_of(machine)["a"].data) == 3

        disks_of(machine)["a"].used_by = ()
        await world.until(lambda: world.is_in("Complete"), within=120)
        await world.settle(5)
        events = [reason for reason, _ in await world.events()]

    assert (await_attempts := failed["attempts"]) == 1
    assert events.count("VolumeFailedDelete") >= await_attempts
    assert "VolumeWiped" in events


async def test_another_disk_in_the_place_of_the_released_one_is_not_wiped():
    machine = machine_with(a=device(identity="wwn:2"))
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        await world.request(operation("a", identity="wwn:1"))
        await world.until(lambda: world.is_in("Error"))
        await world.settle(600)

        assert len(disks_of(machine)["a"].data) == 3
        assert (await world.deletion())["attempts"] > 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"volume": "local-pv-1"}, "is not the volume of"),
        ({"storageClass": "other"}, "has no class other"),
        ({"entry": "gone", "volume": "local-pv-b99a3b0"}, "is not the volume of"),
    ],
)
async def test_an_operation_that_does_not_fit_the_configuration_wipes_nothing(wrong: dict[str, str], why: str):
    machine = machine_with(a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        await world.request(operation("a") | wrong)
        await world.until(lambda: world.is_in("Error"))

        assert why in (await world.deletion())["message"]
        assert len(disks_of(machine)["a"].data) == 3


async def test_a_disk_that_fails_is_tried_again_with_growing_delays():
    machine = machine_with(a=device())
    machine.faults.fail("flush", errno.EIO, times=4)
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        await world.request(operation("a"))
        await world.until(lambda: world.is_in("Complete"), within=600)

        assert (await world.deletion())["attempts"] == 5
        assert disks_of(machine)["a"].data == set()


async def test_so_many_disks_are_wiped_at_a_time_and_each_in_the_end():
    disks = {name: device(GIB, f"wwn:{name}") for name in "abcdef"}
    machine = machine_with(**disks)
    async with WorkerWorld() as world, world.worker(machine, limits=WipeLimits(workers=2)):
        await world.wiped(*(operation(name, uid=f"u-{name}") for name in disks))

        assert [each.data for each in disks.values()] == [set()] * 6


async def test_a_rate_limit_spreads_a_wipe_over_time_and_progress_is_seen():
    machine = machine_with(a=device(GIB))
    async with WorkerWorld() as world, world.worker(machine, limits=WipeLimits(bytes_per_second=GIB // 100)):
        await world.until(world.listed)
        started = world.clock.elapsed()
        await world.request(operation("a"))
        await world.until(lambda: _is_half_done(world), within=200)
        assert 40 < world.clock.elapsed() - started < 70
        await world.until(lambda: world.is_in("Complete"), within=200)

    assert 90 < world.clock.elapsed() - started < 120


async def _is_half_done(world: WorkerWorld) -> bool:
    return (await world.deletion()).get("progress", 0) >= 50


async def test_an_operation_that_is_gone_stops_its_wipe():
    machine = machine_with(a=device(GIB))
    async with WorkerWorld() as world, world.worker(machine, limits=WipeLimits(bytes_per_second=GIB // 100)):
        await world.until(world.listed)
        await world.request(operation("a"))
        await world.until(lambda: _is_half_done(world), within=200)
        await world.request()
        await world.until(lambda: _has_no_deletion(world))
        await world.settle(300)

        assert GIB - 4096 in disks_of(machine)["a"].data
        assert not disks_of(machine)["a"].is_held


async def test_a_wipe_resumes_where_the_process_before_was():
    machine = machine_with(a=device(GIB))
    slow = WipeLimits(bytes_per_second=GIB // 100)
    async with WorkerWorld() as world:
        async with world.worker(machine, limits=slow):
            await world.until(world.listed)
            await world.request(operation("a"))
            await world.until(lambda: _is_half_done(world), within=200)
        done = (await world.deletion())["bytesDone"]
        calls = machine.faults.calls("zero")
        async with world.worker(machine, limits=WipeLimits()):
            await world.until(lambda: world.is_in("Complete"))

    assert done >= GIB // 2
    assert machine.faults.calls("zero") - calls <= 9  # pieces of 64 MiB: the second half only
    assert disks_of(machine)["a"].data == set()


async def test_a_wipe_begins_anew_after_an_attempt_that_found_the_disk_in_use():
    machine = machine_with(a=device(GIB))
    slow = WipeLimits(bytes_per_second=GIB // 100)
    async with WorkerWorld() as world:
        async with world.worker(machine, limits=slow):
            await world.until(world.listed)
            await world.request(operation("a"))
            await world.until(lambda: _is_half_done(world), within=200)
        # An admin mistakes the disk for a free one, and frees it a few minutes later.
        disk = disks_of(machine)["a"]
        disk.used_by = ("it is mounted at /mnt/old",)
        disk.data.add(0)
        async with world.worker(machine):
            await world.until(lambda: world.is_in("Error"))
            disk.used_by = ()
            await world.until(lambda: world.is_in("Complete"), within=1200)

    assert disk.data == set()


async def test_a_wipe_of_another_disk_or_by_another_method_begins_anew():
    machine = machine_with(a=device(GIB, identity=""))
    slow = WipeLimits(bytes_per_second=GIB // 100)
    async with WorkerWorld() as world:
        async with world.worker(machine, limits=slow):
            await world.until(world.listed)
            await world.request(operation("a"))
            await world.until(lambda: _is_half_done(world), within=200)
        disks_of(machine)["a"] = device(GIB, identity="")  # plugged in anew
        async with world.worker(machine):
            await world.until(lambda: world.is_in("Complete"))

    assert disks_of(machine)["a"].data == set()


@pytest.mark.parametrize("is_requested", [True, False], ids=["with its operation", "without"])
async def test_after_a_restore_of_a_backup_a_wipe_is_not_repeated_on_newer_data(*, is_requested: bool):
    machine = machine_with(a=device(), b=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        backup = world.backup()
        if is_requested:
            await world.request(operation("a"))
            backup = world.backup()
        await world.wiped(operation("a"))
        await world.request()
        await world.until(lambda: _has_no_deletion(world))
        # Offered again, and used by another claim.
        disks_of(machine)["a"].data.add(0)

        await world.restore(backup)
        await world.settle(5)
        await world.request(operation("a"), operation("b", "u2"))
        await world.until(lambda: world.is_in("Error"))
        await world.until(lambda: world.is_in("Complete", "u2"))
        await world.settle(3600)

        assert disks_of(machine)["a"].data == {0}
        assert "may have newer data" in (await world.deletion())["message"]


async def test_a_volume_that_was_bound_again_by_hand_is_wiped_a_second_time():
    machine = machine_with(a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.wiped(operation("a"))
        await world.request()
        await world.until(lambda: _has_no_deletion(world))
        disks_of(machine)["a"].data.add(0)

        await world.wiped(operation("a"))

        assert disks_of(machine)["a"].data == set()


async def test_while_the_api_server_is_away_nothing_is_begun_and_nothing_is_lost():
    machine = machine_with(a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        world.cut()
        await world.request(operation("a"))
        await world.settle(60)
        assert len(disks_of(machine)["a"].data) == 3

        world.mend()
        await world.until(lambda: world.is_in("Complete"), within=300)


async def test_an_event_of_the_worker_is_about_its_own_object():
    machine = machine_with(a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.wiped(operation("a"))
        await world.settle(5)
        events = (await world.client.list(EVENT)).items

    assert {(each["regarding"]["kind"], each["regarding"]["name"]) for each in events} == {("ProvisionerStatus", NODE)}
    assert {each["reason"] for each in events} == {"VolumeDelete", "VolumeWiped"}


# ---- a cache that is behind, writes that fail, and a machine that hangs ----------------------------------------------


def before_the_worker_reads(world: WorkerWorld, change: Callable[[], Awaitable[None]]) -> None:
    """Make the change after the worker has recorded a wipe, before it reads its object to begin."""
    is_changed = False

    async def before(request: HttpRequest) -> None:
        nonlocal is_changed
        is_own = request.method == "GET" and request.path.endswith(f"/provisionerstatuses/{NODE}")
        if is_own and not is_changed and await world.is_in("InProgress"):
            is_changed = True
            await change()

    world.wire.before = before


async def test_a_wipe_that_was_withdrawn_unseen_is_not_begun():
    """The master may have offered the disk again by now, and a pod may use it."""
    machine = machine_with(a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        before_the_worker_reads(world, world.request)
        await world.request(operation("a"))
        await world.until(lambda: _has_no_deletion(world))
        await world.settle(60)

    assert machine.faults.calls("hold_device") == 0


async def test_a_wipe_that_was_completed_unseen_is_not_begun_again():
    machine = machine_with(a=device())

    async with WorkerWorld() as world, world.worker(machine):

        async def completed() -> None:
            status = {**await world.deletion(), "state": "Complete"}
            patch = JsonPatch().replace("status", "deleteStatuses", value=[status])
            await world.client.patch(PROVISIONER_STATUS, ObjectName(SPACE, NODE), patch, subresource="status")

        await world.until(world.listed)
        before_the_worker_reads(world, completed)
        await world.request(operation("a"))
        await world.until(lambda: world.is_in("Complete"))
        await world.settle(60)

    assert machine.faults.calls("hold_device") == 0


async def test_no_entry_is_written_for_an_operation_that_has_just_gone():
    """The master would take the entry for a wipe, and never offer the disk again."""
    machine = machine_with(a=device())
    is_withdrawn, seen = False, list[Any]()
    async with WorkerWorld() as world, world.worker(machine):

        async def before(request: HttpRequest) -> None:
            nonlocal is_withdrawn
            if is_withdrawn:
                seen.append(await world.deletion())
            elif b"InProgress" in request.body:
                is_withdrawn = True
                await world.request()

        await world.until(world.listed)
        world.wire.before = before
        await world.request(operation("a"))
        await world.settle(120)
        seen.append(await world.deletion())

    assert is_withdrawn
    assert seen == [{}] * len(seen)


async def test_a_wipe_whose_result_cannot_be_written_is_not_repeated():
    machine = machine_with(a=device())
    async with WorkerWorld() as world, world.worker(machine):
        await world.until(world.listed)
        until = world.clock.elapsed() + 60

        async def before(request: HttpRequest) -> HttpResponse | None:
            is_late = world.clock.elapsed() < until
            return refusal(500, "InternalError") if is_late and b"Complete" in request.body else None

        world.wire.before = before
        await world.request(operation("a"))
        await world.until(lambda: world.is_in("Complete"), within=300)

    assert machine.faults.calls("hold_device") == 1


async def test_operations_that_come_together_share_the_workers_and_the_disk():
    """Two operations are for one disk: an older volume of it, and the next."""
    disks = {name: device(GIB, f"wwn:{name}") for name in "abc"}
    machine = machine_with(**disks)
    at_once = set[int]()
    async with WorkerWorld() as world:
        limits = WipeLimits(workers=2, bytes_per_second=GIB // 10)
        async with world.worker(machine, limits=limits) as worker:
            await world.until(world.listed)
            await world.request(operation("a", "u1"), operation("a", "u2"), operation("b", "u3"), operation("c", "u4"))
            for _ in range(600):
                await world.settle(0.2)
                at_once.add(worker._wiping.counts()["running"])
            ended = [await world.deletion(f"u{number}") for number in range(1, 5)]

    assert max(at_once) == 2
    assert [(each["state"], each["attempts"]) for each in ended] == [("Complete", 1)] * 4


async def test_emptying_a_folder_stops_when_nobody_requests_it_any_more():
    stops: list[threading.Event] = []

    class Slow(FakeStaticHost):
        def empty_folder(self, _folder: str, _name: str, _identity: str, stop: threading.Event) -> None:
            stops.append(stop)

    async def hangs_while_emptying(work: Callable[[], T], /) -> T:
        result = work()
        if stops:
            await asyncio.Event().wait()
        return result

    machine = machine_with(a=mount())
    way = StaticMachine(Slow(machine), right_here, hangs_while_emptying)
    async with WorkerWorld() as world, world.worker(machine, way=way):
        await world.until(world.listed)
        await world.request(operation("a"))
        await world.settle(10)
        assert [each.is_set() for each in stops] == [False]
        await world.request()
        await world.settle(10)

    assert [each.is_set() for each in stops] == [True]


async def test_a_disk_that_is_added_while_its_folder_is_read_is_noticed_at_once():
    """The folder is watched before it is read, and a change during a pass causes the next one."""
    machine, watched = machine_with(), set[str]()

    class Busy(FakeStaticHost):
        def survey(self, folder: str, is_wanted: Callable[[str], bool]) -> tuple[DiskEntry, ...]:
            entries = super().survey(folder, is_wanted)
            if "a" not in disks_of(machine):
                disks_of(machine)["a"] = device()
                if folder in watched:
                    worker._disks.wake()
            return entries

    way = StaticMachine(Busy(machine), right_here, right_here, watched.add)
    async with WorkerWorld() as world, world.worker(machine, way=way) as worker:
        await world.until(lambda: world.condition(DISCOVERED))
        started = world.clock.elapsed()
        await world.until(world.listed)
        assert world.clock.elapsed() - started < PERIOD_SECONDS / 2


async def test_a_folder_that_hangs_is_read_by_one_thread_only():
    """A hanging thread cannot be ended: a new call at each pass would use up all threads."""
    machine, surveys = machine_with(a=mount()), 0

    class Hanging(FakeStaticHost):
        def survey(self, folder: str, is_wanted: Callable[[str], bool]) -> tuple[DiskEntry, ...]:
            nonlocal surveys
            surveys += 1
            return super().survey(folder, is_wanted)

    async def hangs_in_surveys(work: Callable[[], T], /) -> T:
        before = surveys
        result = work()
        if surveys > before:
            await asyncio.Event().wait()
        return result

    way = StaticMachine(Hanging(machine), hangs_in_surveys, right_here)
    async with WorkerWorld() as world, world.worker(machine, way=way):
        await world.until(lambda: _is_unread(world), within=300)
        await world.settle(300)

    assert surveys == 1
