"""The objects of a node follow its drives: on virtual time, with the rights and the policy of a node."""

from __future__ import annotations

import errno
from random import Random

import pytest

from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import collecting_log
from orlop.kube.kinds import EVENT
from orlop.records.api_record import new_object
from orlop.records.drive import DRIVE, DriveSpec
from orlop.records.drive_record import DriveState, DriveType
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec
from orlop.records.node_devices import NODE_DEVICES
from orlop.records.volume import VOLUME
from orlop.records.volume_record import VolumeTarget
from orlop.testing.fake_host import FakeDisk, FakeMachine
from support.drives.drive_worlds import accept_any_field
from support.drives.reporting_nodes import (
    STAGED,
    UID,
    VOLUME_ID,
    ReportingWorld,
    put_volume,
    volume_on_disk,
)
from support.drives.watched_nodes import (
    GIB,
    ID,
    NODE,
    OTHER,
    ROOT,
    drive_disk,
    folder_drive,
    machine_with,
)

pytestmark = pytest.mark.virtual_time

# ---- devices ---------------------------------------------------------------------------------------------------------


async def test_every_device_is_reported_with_why_it_cannot_be_a_drive():
    machine = machine_with(sda=drive_disk(), sdb=FakeDisk(100 * GIB, serial="S1"), sdc=FakeDisk(GIB // 4))
    machine.disks["sdd"] = drive_disk(OTHER, node="n2")

    async with ReportingWorld() as world, world.node(machine):
        await world.until(world.is_ready)
        await world.settle(5)
        devices = await world.devices()
        obj = await world.find(NODE_DEVICES, NODE)

    assert devices["sdb"]["serial"] == "S1"
    assert devices["sdb"]["size"] == "100Gi"
    assert devices["sdb"]["fingerprint"]
    assert "unusable" not in devices["sdb"]
    assert "too small" in devices["sdc"]["unusable"][0]
    assert devices["sda"]["drive"] == ID
    assert devices["sda"]["unusable"] == [f"it is the drive {ID}"]
    assert devices["sda"]["fileSystem"] == "xfs"
    assert "which this node does not use" in devices["sdd"]["unusable"][-1]
    assert obj is not None
    assert {name: obj["status"][name] for name in ("count", "usable", "drives")} == {
        "count": 4,
        "usable": 1,
        "drives": 1,
    }


async def test_a_disk_that_comes_or_goes_is_reported_within_a_second():
    machine = machine_with()

    async with ReportingWorld() as world, world.node(machine) as node:
        await world.settle(5)
        machine.plug_disk("sdb", FakeDisk())
        node.watch.wake()
        await world.settle(1)
        assert set(await world.devices()) == {"sdb"}

        machine.pull_disk("sdb")
        node.watch.wake()
        await world.settle(1)
        assert await world.devices() == {}


# ---- drives ----------------------------------------------------------------------------------------------------------


async def test_a_new_drive_gets_an_object_without_allocations_that_says_what_it_is():
    machine = machine_with(sdb=drive_disk())
    folder_drive(machine, f"{ROOT}/a", OTHER)

    async with ReportingWorld() as world, world.node(machine):
        await world.until(world.is_ready)
        await world.until(lambda: world.is_ready(OTHER))
        disk, folder = await world.find(DRIVE, ID), await world.find(DRIVE, OTHER)

    assert disk is not None
    assert disk["spec"] == {"nodeName": NODE, "type": "Disk", "tier": "default", "allocations": []}
    status = disk["status"]
    assert (status["capacity"], status["free"], status["allocated"], status["volumes"]) == ("10Gi", "10Gi", "0", 0)
    assert status["backings"] == ["directory", "image"]
    assert status["reflink"] is True
    assert status["device"]["path"] == "/dev/sdb"
    assert status["allocationsRestored"] is True
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [("Ready", "True")]
    assert folder is not None
    assert folder["status"]["path"] == f"{ROOT}/a"
    assert folder["status"]["backings"] == ["image"]


async def test_a_new_drive_has_no_state_before_its_volumes_were_read():
    machine = machine_with(sdb=drive_disk())
    machine.faults.fail("list_volumes", errno.EAGAIN)

    async with ReportingWorld() as world, world.node(machine):
        await world.until(world.is_ready)
        await world.settle(5)
        events = await world.events()

    assert events == [("Drive", ID, "DriveReady")]


async def test_a_lost_drive_keeps_what_was_known_of_it_and_its_volumes_and_claims_are_told():
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk())

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.until(lambda: world.find(DRIVE, ID))
            await world.allocate(VOLUME_ID)
            await world.until(world.is_ready)

            machine.pull_disk("sdb")
            node.watch.wake()
            await world.settle(2)
            status = await world.status()
            assert (status["state"], status["capacity"], status["free"]) == ("Lost", "10Gi", "9Gi")
            assert "not there" in status["message"]
            assert await world.phase() == "Lost"
            assert (await world.volume())["condition"]["abnormal"] is True
        events = await world.events()
    assert ("Drive", ID, "DriveLost") in events
    assert ("Volume", VOLUME_ID, "DriveLost") in events
    assert ("PersistentVolumeClaim", "data", "DriveLost") in events


async def test_a_drive_in_one_state_gets_an_event_for_each_new_reason_and_one_for_a_repeated_one():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world:
        async with world.node(machine) as node:
            await world.until(world.is_ready)
            machine.disks["sdb"].wrong_options = "It lacks the option 'prjquota'."
            node.watch.wake()
            await world.settle(2)
            machine.disks["sdb"].wrong_options = "It lacks the option 'nodev'."
            node.watch.wake()
            await world.settle(2)
            machine.disks["sdb"].wrong_options = "It lacks the option 'prjquota'."
            node.watch.wake()
            await world.settle(2)
        notes = [each["note"] for each in (await world.client.list(EVENT)).items if each["reason"] == "DriveError"]

    assert sorted(notes) == [f"The drive is Error. It lacks the option '{each}'." for each in ("nodev", "prjquota")]


async def test_an_object_that_names_another_node_than_that_of_its_drive_gets_an_event():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world:
        await world.create(DRIVE, new_object("Drive", ID, DriveSpec(node_name="n2", type=DriveType.DISK)))
        async with world.node(machine):
            await world.settle(300)
        found = [each for each in (await world.client.list(EVENT)).items if each["regarding"]["kind"] == "Drive"]

    assert [(each["regarding"]["name"], each["reason"]) for each in found] == [(ID, "DriveOfAnotherNode")]


async def test_an_object_that_the_node_cannot_read_gets_an_event_and_its_drive_goes_on():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine):
            await world.until(world.is_ready)
            await world.allocate(VOLUME_ID)
            for kind in (DRIVE, VOLUME, DRIVE_REQUEST):
                await accept_any_field(world.client, kind)
            await world.merge(DRIVE, ID, {"spec": {"tier": "lukewarm"}})
            await world.merge(VOLUME, VOLUME_ID, {"spec": {"backing": "tape", "persistentVolume": 7}})
            await world.create(DRIVE_REQUEST, new_object("DriveRequest", "r1", DriveRequestSpec(node_name=NODE)))
            await world.merge(DRIVE_REQUEST, "r1", {"spec": {"devices": "sdb"}})
            await world.settle(120)
            assert machine.mounted_drives == {ID: machine.disks["sdb"]}

            await world.merge(DRIVE, ID, {"spec": {"tier": "cold"}})
            await world.until(world.is_ready)
        found = [each for each in (await world.client.list(EVENT)).items if each["reason"] == "InvalidField"]

    notes = {each["regarding"]["kind"]: (each["type"], each["note"]) for each in found}
    assert len(found) == len(notes)
    assert set(notes) == {"Drive", "Volume", "PersistentVolumeClaim", "DriveRequest"}
    assert {type_ for type_, _ in notes.values()} == {"Warning"}
    for kind, field in {"Drive": "lukewarm", "Volume": "tape", "DriveRequest": "$.devices"}.items():
        assert field in notes[kind][1]


async def test_a_drive_that_cannot_be_removed_yet_has_an_event_with_what_prevents_it():
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk())

    async with ReportingWorld() as world:
        async with world.node(machine):
            await world.until(lambda: world.find(DRIVE, ID))
            # Its object was lost, and does not list the volume yet.
            await world.merge(DRIVE, ID, {"spec": {"removing": True}})
            await world.settle(60)
        found = [each for each in (await world.client.list(EVENT)).items if each["reason"] == "DriveRemoving"]

    assert [(each["type"], "holds 1 volumes" in each["note"]) for each in found] == [("Warning", True)]


async def test_a_call_of_kubelet_that_fails_has_an_event_on_the_volume_and_its_claim():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.until(world.is_ready)
            for _ in range(20):
                node.call_failed(VOLUME_ID, "NodeStageVolume", "the volume is damaged")
                await world.settle(10)
            node.call_failed("pvc-unknown", "NodeStageVolume", "the volume is damaged")
        found = [
            (each["regarding"]["kind"], each["note"])
            for each in (await world.client.list(EVENT)).items
            if each["reason"] == "NodeStageVolumeFailed"
        ]

    note = "NodeStageVolume failed: the volume is damaged"
    assert sorted(found) == [("PersistentVolumeClaim", note), ("Volume", note)]


async def test_an_event_about_a_claim_has_its_uid_so_that_kubectl_describe_shows_it():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.until(world.is_ready)
            machine.pull_disk("sdb")
            node.watch.wake()
            await world.settle(2)
        found = (await world.client.list(EVENT)).items
    about = [each["regarding"] for each in found if each["regarding"]["kind"] == "PersistentVolumeClaim"]
    assert {(each["namespace"], each["uid"]) for each in about} == {("team", UID)}


async def test_a_drive_whose_object_was_lost_is_not_ready_until_its_allocations_are_back():
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk(volume_claim_id="c1", access_mode="ReadWriteOncePod"))

    async with ReportingWorld() as world, world.node(machine):
        await world.until(lambda: world.find(DRIVE, ID))
        await world.settle(10)
        status = await world.status()
        assert status["state"] == "Error"
        assert status["allocationsRestored"] is False
        assert "1 volumes that this object does not list" in status["message"]
        (missing,) = status["unrecordedVolumes"]
        assert missing["volume"] == VOLUME_ID
        assert (missing["bytes"], missing["claimNamespace"], missing["claimName"]) == (GIB, "team", "data")
        assert missing["accessMode"] == "ReadWriteOncePod"

        await world.allocate(VOLUME_ID)
        await world.until(world.is_ready)
        status = await world.status()
        assert status["allocationsRestored"] is True
        assert [each["volume"] for each in status["unrecordedVolumes"]] == [VOLUME_ID]


async def test_a_volume_is_unrecorded_until_an_object_describes_it_and_a_reservation_does_not():
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk())

    async with ReportingWorld() as world, world.node(machine):
        await world.until(lambda: world.find(DRIVE, ID))
        await world.allocate(VOLUME_ID)
        await world.until(world.is_ready)
        await world.add_volume(reservation_only=True)
        await world.settle(10)
        assert [each["volume"] for each in (await world.status())["unrecordedVolumes"]] == [VOLUME_ID]

        await world.merge(VOLUME, VOLUME_ID, {"metadata": {"finalizers": None}})
        await world.delete(VOLUME, VOLUME_ID)
        await world.add_volume()
        await world.settle(10)
        status = await world.status()
        assert "unrecordedVolumes" not in status
        assert status["state"] == "Ready"


async def test_an_object_that_somebody_deletes_is_made_again_and_a_status_that_somebody_changes_is_repaired():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world, world.node(machine):
        await world.until(world.is_ready)
        await world.delete(DRIVE, ID)
        await world.until(world.is_ready)

        await world.merge(DRIVE, ID, {"status": {"capacityBytes": 1, "message": "nonsense"}}, subresource="status")
        await world.settle(2)
        status = await world.status()
        assert status["capacityBytes"] == 10 * GIB
        assert "message" not in status

        await world.delete(NODE_DEVICES, NODE)
        await world.until(lambda: world.find(NODE_DEVICES, NODE))


async def test_while_the_api_server_is_away_drives_work_and_everything_is_written_afterwards():
    machine = machine_with()
    machine.known_drives.add(ID)

    async with ReportingWorld() as world, world.node(machine) as node:
        await world.settle(5)
        world.cut()
        machine.plug_disk("sdb", drive_disk())
        node.watch.wake()
        await world.settle(60)
        assert node.table.open_drive(ID) is not None
        assert await world.find(DRIVE, ID) is None

        world.mend()
        await world.until(world.is_ready)


async def test_a_drive_object_of_another_node_is_left_alone_and_its_disk_is_not_used():
    machine = FakeMachine()
    machine.disks["sdb"] = drive_disk(node="n2")

    async with ReportingWorld() as world:
        await world.create(DRIVE, new_object("Drive", ID, DriveSpec(node_name="n2", type=DriveType.DISK)))
        before = await world.find(DRIVE, ID)
        async with world.node(machine):
            await world.settle(120)
        assert await world.find(DRIVE, ID) == before
        assert not machine.mounted_drives


async def test_a_forged_object_of_a_drive_that_is_not_there_is_lost_and_harms_no_other():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world:
        await world.create(DRIVE, new_object("Drive", OTHER, DriveSpec(node_name=NODE, type=DriveType.DISK)))
        async with world.node(machine):
            await world.until(world.is_ready)
            assert await world.state(OTHER) == "Lost"


async def test_a_removed_drive_is_reported_as_released_so_that_its_object_can_be_deleted():
    machine = machine_with(sdb=drive_disk())

    async with ReportingWorld() as world, world.node(machine) as node:
        await world.until(world.is_ready)
        await world.merge(DRIVE, ID, {"spec": {"removing": True}})

        async def is_released() -> bool:
            conditions = (await world.status()).get("conditions") or []
            return any(each["type"] == "Released" and each["status"] == "True" for each in conditions)

        await world.until(is_released)
        assert await world.state() == "Removing"
        assert not machine.mounted_drives

        await world.delete(DRIVE, ID)
        await world.settle(60)
        assert await world.find(DRIVE, ID) is None
        assert node.table.standings() == {}


# ---- volumes ---------------------------------------------------------------------------------------------------------


async def test_the_status_of_a_volume_says_where_it_is_mounted_and_how_full_it_is():
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk(backing="image"))

    async with ReportingWorld() as world:
        await world.add_volume(backing="image")
        async with world.node(machine) as node:
            await world.until(lambda: world.find(DRIVE, ID))
            await world.allocate(VOLUME_ID)
            await world.settle(5)
            assert await world.phase() == "Pending"

            drive = machine.disks["sdb"].drive
            assert drive is not None
            drive.volumes[VOLUME_ID].files["data"] = b"x" * 5000
            target = VolumeTarget(path="pods/u/mount", pod_namespace="team", pod_name="web-0", pod_uid="u")
            record = volume_on_disk(backing="image", staged=STAGED, published=(target,))
            node.index.put(record)
            await world.settle(2)
            status = await world.volume()

    assert status["phase"] == "Published"
    assert status["stagedPath"] == f"/var/lib/kubelet/{STAGED}"
    assert status["published"] == [
        {"path": "/var/lib/kubelet/pods/u/mount", "podNamespace": "team", "podName": "web-0", "podUID": "u"}
    ]
    assert (status["capacity"], status["capacityBytes"]) == ("1Gi", GIB)
    assert status["condition"] == {"abnormal": False}


async def test_the_metrics_of_a_node_are_those_of_its_drives_and_volumes():
    machine = machine_with(sdb=drive_disk())
    made = put_volume(machine.disks["sdb"].drive, volume_on_disk(project=7))
    made.files["data"] = b"x" * 5000
    made.project = 7

    async with ReportingWorld() as world, world.node(machine) as node:
        await world.until(lambda: world.find(DRIVE, ID))
        await world.allocate(VOLUME_ID)
        await world.until(world.is_ready)
        await world.settle(70)
        shown = Runtime(
            clock=world.clock,
            random=Random(1),
            log=collecting_log([]),
            metrics=Metrics("test", of_process=False),
        )
        node.register_metrics(shown)
        lines = shown.metrics.render()[0].decode().splitlines()

    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith(("orlop_drive", "orlop_volume")))
    assert {name: float(value) for name, value in values.items()} == {
        f'orlop_drive_capacity_bytes{{drive="{ID}"}}': 10.0 * GIB,
        f'orlop_drive_allocated_bytes{{drive="{ID}"}}': 1.0 * GIB,
        **{
            f'orlop_drive_state{{drive="{ID}",state="{each.value}"}}': float(each.value == "Ready")
            for each in DriveState
        },
        f'orlop_volume_capacity_bytes{{drive="{ID}",volume="{VOLUME_ID}"}}': 1.0 * GIB,
        f'orlop_volume_used_bytes{{drive="{ID}",volume="{VOLUME_ID}"}}': 5000.0,
    }


async def test_a_volume_object_that_differs_from_the_record_and_one_on_a_drive_of_nobody_are_marked():
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk(persistent_volume="another"))

    async with ReportingWorld() as world:
        await world.add_volume()
        await world.add_volume("pvc-2", drive=OTHER)
        async with world.node(machine):
            await world.until(world.phase)
            await world.until(lambda: world.phase("pvc-2"))
            other, nowhere = await world.volume(), await world.volume("pvc-2")

    assert "record on the drive is of another volume" in other["condition"]["message"]
    assert nowhere["phase"] == "Lost"
    assert f"no drive {OTHER}" in nowhere["condition"]["message"]


async def test_statuses_are_not_written_again_while_nothing_changes():
    machine = machine_with(sdb=drive_disk(), sdc=FakeDisk())

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine):
            await world.until(world.is_ready)
            await world.settle(10)
            written = len(world.wire.requests)
            await world.settle(600)
            assert world.wire.written(written) == []
