"""DriveRequests: carried out once, whatever dies or fails meanwhile, and never on a disk that was not shown."""

from __future__ import annotations

import errno
from itertools import product
from typing import Any

import msgspec
import pytest

from orlop.driver.persistent.upkeep.drive_opening import RESTORE_ADVICE
from orlop.driver.persistent.upkeep.drive_state_rules import CALL_RECOVERY_SECONDS
from orlop.driver.persistent.upkeep.drive_task_rules import derived_drive_id
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import EVENT
from orlop.records.api_record import new_object
from orlop.records.drive import DRIVE, DriveSpec
from orlop.records.drive_record import MIB, DriveType, decode_drive
from orlop.records.drive_request import DRIVE_REQUEST, RequestedDevice, RequestedFolder
from orlop.testing.fake_host import FakeDisk, FakeDrive, FakeMachine
from orlop.testing.kill_points import KillMoment, KillPoints, explore_kills
from support.drives.reporting_nodes import ReportingWorld, put_volume, volume_on_disk
from support.drives.watched_nodes import GIB, ID, NODE, OTHER, ROOT, drive_disk, folder_drive, machine_with, record

pytestmark = pytest.mark.virtual_time
Object = dict[str, Any]


async def shown(world: ReportingWorld, *names: str, force: bool = False) -> tuple[RequestedDevice, ...]:
    """The devices as NodeDevices shows them."""
    await world.until(lambda: have_all(world, names))
    devices = await world.devices()
    return tuple(RequestedDevice(name=name, fingerprint=devices[name]["fingerprint"], force=force) for name in names)


async def have_all(world: ReportingWorld, names: tuple[str, ...]) -> bool:
    return set(names) <= set(await world.devices())


async def new_drive(world: ReportingWorld, status: Object, number: int = 0) -> str:
    drive = status["results"][number]["drive"]
    await world.until(lambda: world.is_ready(drive))
    return str(drive)


async def test_chosen_disks_become_drives_and_each_has_a_result():
    machine = machine_with(sdb=FakeDisk(100 * GIB), sdc=FakeDisk(GIB // 4))

    async with ReportingWorld() as world, world.node(machine):
        await world.request(devices=await shown(world, "sdb", "sdc"))
        status = await world.ended()
        drive = await new_drive(world, status)
        capacity = (await world.status(drive))["capacityBytes"]

    assert status["state"] == "Error"
    assert status["message"] == "1 done, 1 failed."
    made, failed = status["results"]
    assert (made["target"], made["message"]) == ("sdb", "sdb was formatted with xfs.")
    assert failed["target"] == "sdc"
    assert "too small" in failed["error"]
    assert capacity == 99 * GIB
    assert machine.mounted_drives[drive] is machine.disks["sdb"]


async def test_a_folder_becomes_a_drive_with_its_space_set_aside():
    machine = FakeMachine(total_bytes=100 * GIB)
    machine.drives[f"{ROOT}/a"] = FakeDrive()

    async with ReportingWorld() as world, world.node(machine):
        await world.request(folder=RequestedFolder(path=f"{ROOT}/a", capacity_bytes=10 * GIB + 5))
        status = await world.ended()
        drive = await new_drive(world, status)
        assert (await world.status(drive))["capacityBytes"] == 10 * GIB

    assert machine.drives[f"{ROOT}/a"].reserve == 10 * GIB


@pytest.mark.parametrize(
    ("path", "capacity", "why"),
    [
        ("/etc", GIB, "does not lie below"),
        (f"{ROOT}/a", 1000 * GIB, "cannot be a drive of"),
        (f"{ROOT}/a", MIB - 1, "1Mi"),
    ],
)
async def test_a_folder_that_cannot_be_a_drive_is_refused_with_the_reason(path: str, capacity: int, why: str):
    machine = FakeMachine(total_bytes=100 * GIB)

    async with ReportingWorld() as world, world.node(machine):
        await world.request(folder=RequestedFolder(path=path, capacity_bytes=capacity))
        status = await world.ended()

    assert why in status["results"][0]["error"]
    assert not machine.drives


async def test_a_dry_run_is_dry():
    machine = machine_with(sdb=FakeDisk(), sdc=drive_disk(node="n2"))
    machine.known_drives.clear()
    machine.drives[f"{ROOT}/a"] = FakeDrive()

    async with ReportingWorld() as world, world.node(machine):
        await world.request("r1", devices=await shown(world, "sdb"), dry_run=True)
        await world.request("r2", folder=RequestedFolder(path=f"{ROOT}/a", capacity_bytes=GIB), dry_run=True)
        await world.request("r3", adopt=True, dry_run=True)
        results = [(await world.ended(name))["results"][0] for name in ("r1", "r2", "r3")]
        await world.settle(60)

    assert [result["message"].split(" would ")[1] for result in results] == [
        "be formatted with xfs.",
        "become a drive of 1Gi.",
        "be taken over, unless it was removed on purpose.",
    ]
    assert not any("drive" in result for result in results)
    assert machine.disks["sdb"].drive is None
    assert machine.drives[f"{ROOT}/a"].record is None
    assert machine.faults.calls("mount_disk") == 0


async def test_another_disk_that_got_the_name_since_is_not_formatted():
    machine = machine_with(sdb=FakeDisk(serial="A"))

    async with ReportingWorld() as world, world.node(machine) as node:
        devices = await shown(world, "sdb")
        machine.pull_disk("sdb")
        machine.plug_disk("sdb", FakeDisk(serial="B"))
        node.watch.wake()
        await world.request(devices=devices)
        status = await world.ended()

    assert "has changed since it was shown" in status["results"][0]["error"]
    assert machine.disks["sdb"].drive is None


async def test_of_two_requests_for_one_disk_one_makes_a_drive():
    machine = machine_with(sdb=FakeDisk())

    async with ReportingWorld() as world, world.node(machine):
        devices = await shown(world, "sdb", force=True)
        await world.request("r1", devices=devices)
        await world.request("r2", devices=devices)
        one, other = await world.ended("r1"), await world.ended("r2")
        made = [each for each in (one, other) if each["state"] == "Done"]
        assert len(made) == 1
        await new_drive(world, made[0])

    assert len(machine.mounted_drives) == 1


async def test_a_request_that_was_withdrawn_before_it_began_changes_nothing():
    machine = machine_with(sdb=FakeDisk())

    async with ReportingWorld() as world:
        async with world.node(machine):
            devices = await shown(world, "sdb")
        await world.request(devices=devices)
        await world.delete(DRIVE_REQUEST, "r1")
        async with world.node(machine):
            await world.settle(60)

    assert machine.disks["sdb"].drive is None


async def test_a_request_for_another_node_is_left_alone():
    machine = machine_with(sdb=FakeDisk())

    async with ReportingWorld() as world:
        async with world.node(machine):
            devices = await shown(world, "sdb")
        await world.request(devices=devices)
        async with world.node(machine, "n2"):
            await world.settle(60)
        assert await world.request_status() == {}

    assert machine.disks["sdb"].drive is None


# ---- adoption --------------------------------------------------------------------------------------------------------


async def test_drives_of_a_lost_node_are_adopted_with_what_is_on_them():
    machine = FakeMachine(total_bytes=100 * GIB)
    machine.disks["sdb"] = drive_disk(node="old")
    put_volume(machine.disks["sdb"].drive, volume_on_disk())
    folder_drive(machine, f"{ROOT}/a", "6d7f3c1e-0a0b-4c1d-8e2f-000000000002", node="old")

    async with ReportingWorld() as world, world.node(machine):
        await world.settle(10)
        assert await world.find(DRIVE, ID) is None

        await world.request(adopt=True)
        status = await world.ended()
        assert status["state"] == "Done"
        assert {result["target"] for result in status["results"]} == {"sdb", f"{ROOT}/a"}
        await world.settle(10)
        adopted = await world.status()
        assert [each["volume"] for each in adopted["unrecordedVolumes"]] == [volume_on_disk().volume_id]
        assert adopted["state"] == "Error"  # until the allocations are restored
        assert await world.is_ready("6d7f3c1e-0a0b-4c1d-8e2f-000000000002")

    disk = machine.disks["sdb"].drive
    assert disk is not None
    assert disk.record is not None
    assert decode_drive(disk.record).node_name == NODE


async def test_a_drive_that_another_node_has_is_not_adopted():
    machine = FakeMachine()
    machine.disks["sdb"] = drive_disk(node="n2")

    async with ReportingWorld() as world:
        await world.create(DRIVE, new_object("Drive", ID, DriveSpec(node_name="n2", type=DriveType.DISK)))
        async with world.node(machine):
            await world.settle(10)
            await world.request(adopt=True)
            status = await world.ended()

    assert "is of the node n2" in status["results"][0]["error"]
    assert machine.faults.calls("mount_disk") == 0


async def test_a_drive_is_not_adopted_while_the_watch_works_on_it():
    """Both would mount it, and one of them write the record that the other has read."""
    machine = FakeMachine()
    machine.disks["sdb"] = drive_disk(node="old")

    async with ReportingWorld() as world, world.node(machine) as node:
        await world.settle(10)
        async with node.watch.keys.hold(ID, "the watch of drives"):
            await world.request(adopt=True)
            await world.settle(60)
            assert not machine.mounted_drives
        status = await world.ended()
        await world.settle(10)

    assert status["state"] == "Done"
    assert machine.mounted_drives[ID] is machine.disks["sdb"]


async def test_a_drive_that_was_removed_on_purpose_is_not_left_mounted_by_an_adoption():
    machine = FakeMachine()
    machine.disks["sdb"] = drive_disk(content=record(node="old", removed=True))

    async with ReportingWorld() as world, world.node(machine):
        await world.settle(10)
        await world.request(adopt=True)
        status = await world.ended()
        assert not machine.mounted_drives

    assert [each["message"] for each in status["results"]] == ["sdb was removed on purpose, and is left as it is."]


async def test_a_disk_and_its_copy_are_not_adopted():
    """Which of the two has the latest data, nobody knows."""
    machine = FakeMachine()
    machine.disks.update(sdb=drive_disk(node="old"), sdc=drive_disk(node="old"))

    async with ReportingWorld() as world, world.node(machine):
        await world.settle(10)
        await world.request(adopt=True)
        status = await world.ended()
        await world.settle(60)

    assert "sdb and sdc have the same identity" in status["results"][0]["error"]
    assert machine.faults.calls("mount_disk") == 0


# ---- a record that is damaged ----------------------------------------------------------------------------------------


async def damage(world: ReportingWorld, machine: FakeMachine, content: bytes | None) -> None:
    """Make a drive Ready once, so that it has an object; then damage its record."""
    async with world.node(machine):
        await world.until(lambda: world.is_ready(ID))
    disk = machine.disks["sdb"].drive
    assert disk is not None
    disk.record = content


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", None], ids=["empty", "half", "binary", "missing"])
async def test_a_drive_whose_record_is_damaged_gets_it_again_with_its_volumes(content: bytes | None):
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk())
    disk = machine.disks["sdb"].drive
    assert disk is not None
    before = decode_drive(disk.record or b"")

    async with ReportingWorld() as world:
        await world.create(DRIVE, new_object("Drive", ID, DriveSpec(node_name=NODE, type=DriveType.DISK)))
        await world.allocate(volume_on_disk().volume_id)
        await damage(world, machine, content)
        async with world.node(machine):
            await world.settle(10)
            assert (await world.status())["state"] == "Error"
            assert (await world.status())["message"].endswith(RESTORE_ADVICE)

            await world.request("dry", adopt=True, dry_run=True)
            assert (await world.ended("dry"))["results"][0]["message"] == "sdb would get its record again."
            assert disk.record == content

            await world.request(adopt=True)
            assert (await world.ended())["results"][0]["message"] == "sdb has its record again."
            await world.settle(10)
            assert await world.is_ready(ID)
            await world.request("again", adopt=True)
            assert (await world.ended("again"))["message"] == "There is no drive to take over."

    after = decode_drive(disk.record or b"")
    assert msgspec.structs.replace(after, created_at=before.created_at) == before
    assert set(disk.volumes) == {volume_on_disk().volume_id}


async def test_an_empty_drive_whose_record_is_damaged_can_be_removed_after_its_record_was_written_anew():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world:
        await damage(world, machine, b"")
        await world.merge(DRIVE, ID, {"spec": {"removing": True}})
        async with world.node(machine) as node:
            await world.settle(60)
            assert not node.watch.has_released(ID)
            await world.request(adopt=True)
            assert (await world.ended())["state"] == "Done"
            await world.settle(60)
            assert node.watch.has_released(ID)
            assert not machine.mounted_drives


async def test_without_an_object_only_the_record_of_an_empty_drive_is_written_anew():
    machine = machine_with(sdb=drive_disk(content=b"{"), sdc=drive_disk(OTHER, content=b"{"))
    put_volume(machine.disks["sdc"].drive, volume_on_disk())

    async with ReportingWorld() as world, world.node(machine):
        await world.settle(10)
        await world.request(adopt=True)
        results = {each["target"]: each for each in (await world.ended())["results"]}
        assert results["sdb"]["drive"] == ID
        assert "holds 1 volumes" in results["sdc"]["error"]
        await world.settle(10)
        assert await world.is_ready(ID)
    other = machine.disks["sdc"].drive
    assert other is not None
    assert other.record == b"{"


async def test_a_record_of_a_newer_version_is_not_replaced():
    machine = machine_with(sdb=drive_disk(content=b'{"version": 99}'))

    async with ReportingWorld() as world, world.node(machine):
        await world.settle(10)
        await world.request(adopt=True)
        assert (await world.ended())["message"] == "There is no drive to take over."
    disk = machine.disks["sdb"].drive
    assert disk is not None
    assert disk.record == b'{"version": 99}'


async def test_a_drive_that_was_removed_on_purpose_is_left_as_it_is():
    machine = FakeMachine()
    machine.disks["sdb"] = drive_disk(content=record(removed=True))

    async with ReportingWorld() as world, world.node(machine):
        await world.settle(10)
        await world.request(adopt=True)
        status = await world.ended()
        assert "removed on purpose" in status["results"][0]["message"]
        await world.settle(60)

    assert not machine.mounted_drives
    assert not machine.known_drives


# ---- events ----------------------------------------------------------------------------------------------------------


async def test_the_result_for_each_disk_and_folder_is_an_event_on_the_request_and_on_the_devices_of_the_node():
    """`orlop drives` deletes its request; NodeDevices stays."""
    machine = machine_with(sdb=FakeDisk(100 * GIB), sdc=FakeDisk(GIB // 4), sdd=drive_disk(OTHER, node="old"))
    machine.disks["sde"] = drive_disk(content=record(removed=True))
    machine.total_bytes = 100 * GIB
    machine.drives[f"{ROOT}/a"] = FakeDrive()
    machine.known_drives.clear()

    async with ReportingWorld() as world:
        async with world.node(machine):
            devices = await shown(world, "sdb", "sdc")
            await world.request("r0", devices=devices[:1], dry_run=True)
            await world.ended("r0")
            await world.request("r1", devices=devices)
            await world.request("r2", folder=RequestedFolder(path=f"{ROOT}/a", capacity_bytes=GIB))
            await world.request("r3", adopt=True)
            for name in ("r1", "r2", "r3"):
                await world.ended(name)
        events = (await world.client.list(EVENT)).items

    about = {"r0", "r1", "r2", "r3", NODE}
    parts = [each for each in events if each["regarding"]["name"] in about and not each["reason"].startswith("Request")]
    results = {(each["regarding"]["name"], each["reason"], each["type"], each["note"]) for each in parts}
    small = next(note for _, reason, _, note in results if reason == "DriveRefused")
    assert small.startswith("sdc: ")
    assert "too small" in small
    expected = {
        ("r0", "NothingChanged", "Normal", "sdb would be formatted with xfs."),
        ("r1", "DeviceFormatted", "Normal", "sdb was formatted with xfs."),
        ("r1", "DriveRefused", "Warning", small),
        ("r2", "FolderMadeDrive", "Normal", f"{ROOT}/a was made a drive of 1Gi."),
        ("r3", "DriveAdopted", "Normal", "sdd was taken over."),
        ("r3", "NothingChanged", "Normal", "sde was removed on purpose, and is left as it is."),
    }
    assert results == expected | {(NODE, *rest) for _, *rest in expected}
    assert {each["regarding"]["kind"] for each in parts} == {"DriveRequest", "NodeDevices"}
    assert all(each["regarding"].get("uid") for each in parts)


# ---- faults ----------------------------------------------------------------------------------------------------------


async def test_a_request_is_carried_out_whatever_is_killed_meanwhile():
    async with ReportingWorld() as world:
        numbers = iter(range(1000))

        def build() -> tuple[FakeMachine, str]:
            machine = machine_with(sdb=FakeDisk(100 * GIB))
            machine.total_bytes = 100 * GIB
            machine.drives[f"{ROOT}/a"] = FakeDrive()
            return machine, f"r{next(numbers)}"

        async def run(made: tuple[FakeMachine, str], points: KillPoints) -> None:
            machine, name = made
            async with world.node(machine, points=points):
                if not await world.find(DRIVE_REQUEST, name):
                    await world.settle(3)
                    await world.request(name, devices=await shown(world, "sdb"))
                    folder = RequestedFolder(path=f"{ROOT}/a", capacity_bytes=GIB)
                    await world.request(f"{name}-f", folder=folder)
                for each in (name, f"{name}-f"):
                    status = await world.ended(each)
                    assert status["state"] == "Done", status
                    await new_drive(world, status)

        def check(made: tuple[FakeMachine, str]) -> None:
            machine, _ = made
            assert len(machine.mounted_drives) == 1
            assert machine.drives[f"{ROOT}/a"].reserve == GIB

        explored = await explore_kills(build, run, check)
    assert explored.runs >= 12


ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.ENODEV, errno.EBUSY)
WAYS = [(KillMoment.AFTER, errno.EIO), *((KillMoment.BEFORE, number) for number in ERRORS)]


@pytest.mark.parametrize("kind", ["disk", "folder"])
async def test_whatever_host_call_fails_the_result_has_the_error_and_repeating_the_request_ends_in_a_drive(kind: str):
    expected = machine_to_fill()
    async with ReportingWorld() as world, world.node(expected):
        before = expected.faults.all_calls()
        await make_one(world, kind, "r")
    called = sorted(expected.faults.all_calls() - before)
    assert {"disk": "make_disk_drive", "folder": "make_folder_drive"}[kind] in called
    assert len(called) >= 5

    failed = 0
    for function, (moment, number) in product(called, WAYS):
        machine = machine_to_fill()
        async with ReportingWorld() as world, world.node(machine):
            await world.until(lambda: have_all(world, ("sdb",)))
            machine.faults.fail(function, number, moment=moment)
            status = await made(world, kind, "r")
            if status["state"] == "Error":
                failed += 1
                assert "as requested" in status["results"][0]["error"], (function, moment, number)
                machine.faults.forget()
                await world.settle(60)
                # Refused, if the failed call took effect: then the drive is there.
                await made(world, kind, "again", force=True)
            await world.settle(CALL_RECOVERY_SECONDS + 60)
            (drive,) = (await world.client.list(DRIVE)).items
            assert drive["status"]["state"] == "Ready", (function, moment, number)
    assert failed > len(ERRORS)


def machine_to_fill() -> FakeMachine:
    machine = machine_with(sdb=FakeDisk(100 * GIB))
    machine.total_bytes = 100 * GIB
    machine.drives[f"{ROOT}/a"] = FakeDrive()
    return machine


async def make_one(world: ReportingWorld, kind: str, name: str, *, force: bool = False) -> Object:
    status = await made(world, kind, name, force=force)
    assert status["state"] == "Done", status
    await new_drive(world, status)
    return status


async def made(world: ReportingWorld, kind: str, name: str, *, force: bool = False) -> Object:
    """Request a drive; return what came of it."""
    if kind == "disk":
        await world.request(name, devices=await shown(world, "sdb", force=force))
    else:
        await world.request(name, folder=RequestedFolder(path=f"{ROOT}/a", capacity_bytes=GIB))
    return await world.ended(name)


def test_the_id_of_a_drive_is_the_same_for_the_same_request_and_another_for_another():
    ids = {derived_drive_id(uid, target) for uid in ("a", "b") for target in ("sdb", "sdc")}

    assert len(ids) == 4
    assert derived_drive_id("a", "sdb") in ids


async def test_a_request_can_be_withdrawn_only_until_the_node_acts():
    """The first status is stored before the first disk is changed: who finds none may delete the request."""
    machine = machine_with(sdb=FakeDisk(100 * GIB))
    states: list[tuple[str, bool]] = []

    async with ReportingWorld() as world:

        class Watched(KillPoints):
            def effect(self, name: str) -> object:  # type: ignore[override]
                if "sdb" in name:
                    states.append(("Pending" if has_written else "", machine.disks["sdb"].drive is not None))
                return super().effect(name)

        has_written: list[bool] = []

        async def before(request: HttpRequest) -> None:
            if request.method == "PATCH" and "driverequests" in request.path:
                has_written.append(b"Pending" in (request.body or b""))

        world.wire.before = before
        async with world.node(machine, points=Watched()):
            await world.request(devices=await shown(world, "sdb"))
            assert (await world.ended())["state"] == "Done"

    assert has_written[0]
    assert states
    assert states[0] == ("Pending", False)
