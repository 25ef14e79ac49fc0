"""The master and the workers of several nodes, with the rights of their accounts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orlop.kube.client import MergePatch
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.master import NODE_GONE_SECONDS
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.static_volume_rules import AS_IS, EVER_BOUND, RELEASE, WIPE, WIPE_FINALIZER, release_note
from support.static_volumes.static_objects import CLASS, CONFIGURATION, GIB, SPACE, class_object, node_object
from support.static_volumes.static_worlds import StaticWorld

pytestmark = pytest.mark.virtual_time
PV = volume_name("disk0", "n1", CLASS)


def counted(world: StaticWorld, line: str, render: str) -> float:
    found = [each for each in render.splitlines() if each.startswith(line)]
    return sum(float(each.rpartition(" ")[2]) for each in found)


async def test_every_listed_disk_is_offered_once_and_comes_back_wiped():
    async with StaticWorld("n1", "n2", "n3", disks=4) as world, world.master() as running:
        for number in range(5):
            world.kubernetes.want(f"c{number}")
        await world.settle(60.0)
        first = await world.volumes()
        assert len(first) == 12
        assert sorted((await world.phases()).values()).count("Bound") == 5
        dirty = [disk for node in world.nodes.values() for disk in node.disks.values() if disk.data]
        assert len(dirty) == 5

        for number in range(5):
            world.kubernetes.unwant(f"c{number}")
        await world.settle(120.0)

        again = await world.volumes()
        assert set((await world.phases()).values()) == {"Available"}
        assert again.keys() == first.keys()
        others = [name for name in first if first[name]["metadata"]["uid"] != again[name]["metadata"]["uid"]]
        assert len(others) == 5
        assert not any(disk.data for node in world.nodes.values() for disk in node.disks.values())
        rendered = running.metrics.render("")[0].decode()
        assert counted(world, 'local_volume_provisioner_apiserver_requests_total{method="create"}', rendered) == 17
        assert counted(world, 'orlop_static_volumes{phase="Available"}', rendered) == 12
        assert len(await world.events("VolumeDelete")) == 5


async def test_a_master_that_starts_late_handles_everything_that_has_happened():
    async with StaticWorld("n1") as world:
        world.kubernetes.want("c")
        async with world.master():
            await world.settle(30.0)
        world.kubernetes.unwant("c")
        await world.settle(30.0)
        assert await world.phases() == {PV: "Released"}

        async with world.master():
            await world.settle(30.0)

        assert await world.phases() == {PV: "Available"}
        assert world.nodes["n1"].disks["disk0"].data == ""


async def test_volumes_of_todays_product_are_taken_over_as_they_are():
    async with StaticWorld("n1") as world:
        async with world.master():
            await world.settle(30.0)
            made = (await world.volumes())[PV]
        await world.client.patch(
            PERSISTENT_VOLUME, ObjectName(None, PV), MergePatch({"metadata": {"finalizers": None}})
        )
        await world.client.delete(PERSISTENT_VOLUME, ObjectName(None, PV))
        theirs = {"apiVersion": "v1", "kind": "PersistentVolume", "spec": made["spec"], "metadata": {"name": PV}}
        theirs["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": "local-volume-provisioner-n1"}
        before = await world.client.create(PERSISTENT_VOLUME, theirs)

        async with world.master():
            await world.settle(30.0)

        after = (await world.volumes())[PV]
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["spec"] == before["spec"]
        assert WIPE_FINALIZER in after["metadata"]["finalizers"]


async def test_a_claim_that_came_and_went_before_it_was_noted_is_remembered():
    async with StaticWorld("n1") as world, world.master() as running:
        await world.settle(30.0)
        facts_before = running.view.volumes_of("n1")[PV].facts
        # As events of a watch that come together: the master sees both states, and decides after the second.
        for reference in ({"namespace": "default", "name": "c", "uid": "c1"}, None):
            name = ObjectName(None, PV)
            await world.client.patch(PERSISTENT_VOLUME, name, MergePatch({"spec": {"claimRef": reference}}))
        await world.settle(5.0)

        assert not facts_before.was_ever_bound
        assert (await world.volumes())[PV]["metadata"]["annotations"][EVER_BOUND] == "true"
        assert running.view.seen_bound == set()


@pytest.mark.parametrize("to", ["n1", "n2"])
async def test_the_disk_of_a_claim_that_is_mounted_elsewhere_is_offered_to_nobody(to: str):
    async with StaticWorld("n1", "n2") as world, world.master():
        del world.nodes["n2"].disks["disk0"]
        world.kubernetes.want("c")
        await world.settle(60.0)
        disk = world.nodes["n1"].disks.pop("disk0")
        owner = disk.data
        world.nodes[to].disks["moved"] = replace(disk, entry="moved")
        await world.settle(400.0)

        assert await world.phases() == {PV: "Bound"}
        assert world.nodes[to].disks["moved"].data == owner != ""
        assert any(f"it is the disk of the volume {PV}" in note for note in await world.events("DiskRefused"))

        del world.nodes[to].disks["moved"]
        world.nodes["n1"].disks["disk0"] = disk
        world.kubernetes.unwant("c")
        await world.settle(60.0)
        assert (await world.phases(), disk.data) == ({PV: "Available"}, "")


@pytest.mark.parametrize(
    ("identity", "count"), [("wwn:moved", 1), ("fs:cloned", 2), ("serial:QEMU HARDDISK:drive-scsi1", 2)]
)
async def test_a_disk_that_two_nodes_list_is_offered_twice_only_if_its_identity_may_repeat(identity: str, count: int):
    """The report of a node that is down still lists its disks, and one of them may be in another machine by now."""
    async with StaticWorld("n1", "n2") as world, world.master():
        del world.nodes["n2"].disks["disk0"]
        world.nodes["n1"].disks["disk0"].identity = identity
        world.kubernetes.want("c")
        await world.settle(60.0)
        worker = world.nodes["n1"].worker
        worker.is_there = lambda: False
        world.nodes["n2"].disks["moved"] = replace(world.nodes["n1"].disks["disk0"], entry="moved")
        await world.settle(400.0)

        assert len(await world.volumes()) == count


async def test_a_failing_disk_is_reported_and_does_not_delay_the_others():
    async with StaticWorld("n1", disks=2) as world, world.master():
        world.kubernetes.want("a")
        world.kubernetes.want("b")
        await world.settle(30.0)
        world.nodes["n1"].disks["disk0"].failures = 10**6
        world.kubernetes.unwant("a")
        world.kubernetes.unwant("b")
        await world.settle(60.0)

        volumes = await world.volumes()
        assert "deletionTimestamp" in volumes[PV]["metadata"]
        assert "deletionTimestamp" not in volumes[volume_name("disk1", "n1", CLASS)]["metadata"]
        assert any(f'Error cleaning PV "{PV}": it failed' in note for note in await world.events("VolumeFailedDelete"))


async def test_a_retained_volume_that_is_deleted_waits_for_an_admin():
    async with StaticWorld("n1", reclaimPolicy="Retain") as world, world.master():
        world.kubernetes.want("c")
        await world.settle(30.0)
        world.kubernetes.unwant("c")
        await world.delete(PERSISTENT_VOLUME, PV)
        await world.settle(30.0)

        (note,) = await world.events("VolumeRetained")
        assert f"orlop static release {PV} --wipe, or --as-is" in note
        assert world.nodes["n1"].disks["disk0"].data
        deleted = (await world.volumes())[PV]["metadata"]["deletionTimestamp"]
        annotations = {"metadata": {"annotations": {RELEASE: release_note(WIPE, deleted)}}}
        await world.merge(PERSISTENT_VOLUME, PV, annotations)
        await world.settle(30.0)
        assert world.nodes["n1"].disks["disk0"].data == ""
        assert await world.phases() == {PV: "Available"}


@pytest.mark.parametrize("note", [AS_IS, WIPE, release_note(AS_IS, "2026-01-01T00:00:00Z"), release_note(AS_IS, "")])
async def test_a_release_that_was_noted_before_the_deletion_does_not_count(note: str):
    """A claim may have written other data since the release was noted."""
    async with StaticWorld("n1", reclaimPolicy="Retain") as world, world.master():
        world.kubernetes.want("c")
        await world.settle(30.0)
        await world.merge(PERSISTENT_VOLUME, PV, {"metadata": {"annotations": {RELEASE: note}}})
        world.kubernetes.unwant("c")
        await world.delete(PERSISTENT_VOLUME, PV)
        await world.settle(30.0)

        assert world.nodes["n1"].disks["disk0"].data
        assert "deletionTimestamp" in (await world.volumes())[PV]["metadata"]
        assert await world.events("VolumeRetained")


async def test_a_disk_that_cannot_be_offered_is_reported_on_its_node_and_offered_when_it_can():
    async with StaticWorld("n1") as world, world.master():
        await world.delete(STORAGE_CLASS, CLASS)
        await world.delete(PERSISTENT_VOLUME, PV) if await world.volume(PV) else None
        await world.settle(30.0)
        assert await world.volumes() == {}
        assert any("there is no StorageClass" in note for note in await world.events("StorageClassMissing"))

        await world.create(STORAGE_CLASS, class_object())
        await world.settle(5.0)
        assert PV in await world.volumes()


async def test_without_a_configuration_nothing_is_done_and_with_one_everything():
    async with StaticWorld("n1") as world:
        world.configuration = None
        async with world.master() as running:
            await world.settle(30.0)
            assert await world.volumes() == {}

            world.configuration = CONFIGURATION
            running.master.enqueue_all()
            await world.settle(5.0)
            assert PV in await world.volumes()


async def test_a_disk_that_grows_grows_its_volume_while_nobody_has_it():
    async with StaticWorld("n1") as world, world.master():
        await world.settle(30.0)
        world.nodes["n1"].disks["disk0"].capacity = 40 * GIB
        await world.settle(30.0)
        assert (await world.volumes())[PV]["spec"]["capacity"] == {"storage": "40Gi"}

        world.kubernetes.want("c")
        await world.settle(30.0)
        world.nodes["n1"].disks["disk0"].capacity = 80 * GIB
        await world.settle(30.0)
        assert (await world.volumes())[PV]["spec"]["capacity"] == {"storage": "40Gi"}
        assert len(await world.events("DiskGrown")) == 1


# ---- nodes that are gone ---------------------------------------------------------------------------------------------


async def test_of_a_deleted_node_everything_goes_that_nobody_used_and_the_rest_waits():
    async with StaticWorld("n1", "n2", disks=2) as world, world.master():
        world.kubernetes.want("c")
        await world.settle(30.0)
        (bound,) = [name for name, phase in (await world.phases()).items() if phase == "Bound"]
        node = next(
            each
            for each in world.nodes
            if any(volume_name(entry, each, CLASS) == bound for entry in ("disk0", "disk1"))
        )
        gone = world.nodes.pop(node)
        await world.delete(NODE, node)
        await world.settle(NODE_GONE_SECONDS / 2)
        assert len(await world.volumes()) == 4
        await world.settle(NODE_GONE_SECONDS)

        assert await world.report(node) is None
        left = await world.volumes()
        assert bound in left
        assert len(left) == 3
        assert len(await world.events("NodeLost")) == 1

        world.kubernetes.unwant("c")
        await world.settle(60.0)
        assert any(disk.data for disk in gone.disks.values())
        await world.create(NODE, node_object(node))
        world.nodes[node] = gone
        await world.settle(120.0)
        assert set((await world.phases()).values()) == {"Available"}
        assert len(await world.volumes()) == 4
        assert not any(disk.data for disk in gone.disks.values())


async def test_a_worker_that_still_runs_keeps_its_status_for_a_while_each_time():
    async with StaticWorld("n1") as world, world.master():
        await world.settle(30.0)
        await world.delete(NODE, "n1")
        deleted = 0
        for _ in range(100):
            await world.settle(1.0)
            deleted += await world.report("n1") is None
        assert 0 < deleted <= 100 / NODE_GONE_SECONDS * 3


async def bind_claim(world: StaticWorld) -> None:
    """Make the object of a claim that is bound to the volume, without the finalizer that would keep it."""
    world.kubernetes.want("c")
    await world.settle(30.0)
    reference = (await world.volumes())[PV]["spec"]["claimRef"]
    claim = {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": CLASS,
            "volumeName": PV,
        },
    }
    made = await world.create(PERSISTENT_VOLUME_CLAIM, claim)
    world.kubernetes.claims["c"].uid = made["metadata"]["uid"]
    changes = {"spec": {"claimRef": {**reference, "uid": made["metadata"]["uid"]}}}
    await world.merge(PERSISTENT_VOLUME, PV, changes)
    await world.merge(PERSISTENT_VOLUME_CLAIM, "c", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("delay", [0.0, 300.0])
async def test_claims_of_a_lost_node_are_deleted_only_where_a_delay_is_set(delay: float):
    async with StaticWorld("n1") as world, world.master(lost_claim_delay=delay):
        await bind_claim(world)
        world.nodes.pop("n1")
        await world.delete(NODE, "n1")
        await world.settle(200.0)
        assert await world.find(PERSISTENT_VOLUME_CLAIM, "c") is not None
        await world.settle(200.0)

        assert (await world.find(PERSISTENT_VOLUME_CLAIM, "c") is None) == bool(delay)
        assert len(await world.events("ReferencedNodeDeleted")) == bool(delay)
        assert PV in await world.volumes()


async def test_a_claim_that_names_another_volume_by_now_is_not_deleted_with_the_node():
    async with StaticWorld("n1") as world, world.master(lost_claim_delay=60.0):
        await bind_claim(world)
        claim = await world.find(PERSISTENT_VOLUME_CLAIM, "c")
        assert claim is not None
        world.nodes.pop("n1")
        await world.delete(NODE, "n1")
        await world.delete(PERSISTENT_VOLUME_CLAIM, "c")
        meta = {"name": "c", "namespace": "default"}
        made = await world.create(
            PERSISTENT_VOLUME_CLAIM, {"metadata": meta, "spec": {**claim["spec"], "volumeName": "pv-other"}}
        )
        world.kubernetes.claims["c"].uid = made["metadata"]["uid"]
        reference = (await world.volumes())[PV]["spec"]["claimRef"]
        changes = {"spec": {"claimRef": {**reference, "uid": made["metadata"]["uid"]}}}
        await world.merge(PERSISTENT_VOLUME, PV, changes)
        await world.merge(PERSISTENT_VOLUME_CLAIM, "c", {"metadata": {"finalizers": None}})
        await world.settle(400.0)
        assert (await world.phases())[PV] == "Bound"

        assert await world.find(PERSISTENT_VOLUME_CLAIM, "c") is not None


async def test_nothing_is_deleted_for_a_node_that_only_the_cache_lacks():
    async with StaticWorld("n1") as world, world.master(lost_claim_delay=60.0) as running:
        await bind_claim(world)
        report = await world.report("n1")
        assert report is not None

        def of_stale_cache(_name: ObjectName) -> None:
            """The cache of Nodes lags behind the others."""

        running.view.nodes.get = of_stale_cache  # type: ignore[method-assign]
        running.master.enqueue_all()
        await world.settle(400.0)

        assert await world.find(PERSISTENT_VOLUME_CLAIM, "c") is not None
        found = await world.report("n1")
        assert found is not None
        assert found["metadata"]["uid"] == report["metadata"]["uid"]


async def test_a_report_that_cannot_be_read_stops_nothing_but_its_node():
    async with StaticWorld("n1", "n2") as world:
        await world.settle(10.0)
        report = await world.report("n1")
        assert report is not None
        world.nodes.pop("n1")
        await world.client.delete(PROVISIONER_STATUS, ObjectName(SPACE, "n1"))
        await world.put(PROVISIONER_STATUS, report | {"status": {"localVolumes": 7}})
        async with world.master():
            await world.settle(30.0)
            assert len(await world.volumes()) == 1


async def test_a_class_that_is_configured_no_more_withdraws_what_nobody_used():
    async with StaticWorld("n1") as world, world.master() as running:
        await world.settle(30.0)
        world.configuration = replace(CONFIGURATION, classes=())
        world.nodes["n1"].disks.clear()
        running.master.enqueue_all()
        await world.settle(30.0)
        assert await world.volumes() == {}
