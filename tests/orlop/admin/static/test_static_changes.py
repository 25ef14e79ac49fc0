"""What an operator decides about static volumes, beside a master that works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onenode.testing.api_server import api_server
from orlop.admin.refusals import ChangeRefused
from orlop.admin.static.static_changes import OperatedStaticVolumes
from orlop.foundation.clock import SystemClock
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.disk_step_rules import LeaveAlone, PatchVolume
from orlop.static_pv.master import NODE_GONE_SECONDS
from orlop.static_pv.master_rules import next_disk_step
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.node_disks_rules import VersionedVolume, read_node_report
from orlop.static_pv.static_volume_rules import AS_IS, WIPE, WIPE_FINALIZER, read_static_volume
from support.static_volumes.static_objects import CLASS
from support.static_volumes.static_views import disks
from support.static_volumes.static_worlds import StaticWorld

PV = volume_name("disk0", "n1", CLASS)


async def test_a_cluster_without_static_volumes_gets_a_sentence():
    async with api_server(SystemClock()) as server:
        with pytest.raises(ChangeRefused, match="Orlop's static volumes are not installed"):
            await OperatedStaticVolumes(server.client()).read()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("how", "is_clean"), [(WIPE, True), (AS_IS, False)])
async def test_a_retained_disk_is_offered_again_as_it_was_decided(how: str, is_clean: bool):  # noqa: FBT001 - an example
    async with StaticWorld("n1", reclaimPolicy="Retain") as world, world.master():
        world.kubernetes.want("c")
        await world.settle(30.0)
        world.kubernetes.unwant("c")
        await world.settle(30.0)

        await OperatedStaticVolumes(world.client).release(PV, how)
        await world.settle(30.0)

        assert await world.phases() == {PV: "Available"}
        assert (world.nodes["n1"].disks["disk0"].data == "") == is_clean


@pytest.mark.virtual_time
async def test_a_wipe_that_never_succeeds_is_given_up():
    async with StaticWorld("n1") as world, world.master():
        world.kubernetes.want("c")
        await world.settle(30.0)
        world.nodes["n1"].disks["disk0"].failures = 10**6
        world.kubernetes.unwant("c")
        await world.settle(30.0)
        before = (await world.volumes())[PV]["metadata"]["uid"]

        await OperatedStaticVolumes(world.client).release(PV, AS_IS)
        await world.settle(30.0)

        after = (await world.volumes())[PV]
        assert after["metadata"]["uid"] != before
        assert after["status"]["phase"] == "Available"
        assert (await world.report("n1") or {})["spec"]["deleteOperations"] == []


@pytest.mark.virtual_time
async def test_a_node_that_is_gone_for_good_is_forgotten():
    async with StaticWorld("n1", disks=2) as world, world.master():
        for claim in ("a", "b"):
            world.kubernetes.want(claim)
        await world.settle(30.0)
        world.kubernetes.unwant("a")
        world.nodes.pop("n1")
        await world.delete(NODE, "n1")
        await world.settle(2 * NODE_GONE_SECONDS)
        assert len(await world.volumes()) == 2

        await OperatedStaticVolumes(world.client).forget("n1")
        await world.settle(30.0)
        assert len(await world.volumes()) == 1

        world.kubernetes.unwant("b")
        await world.settle(30.0)
        assert await world.volumes() == {}


@pytest.mark.virtual_time
async def test_a_master_that_still_sees_the_former_report_does_not_take_a_volume_over_again():
    async with StaticWorld("n1") as world:
        async with world.master():
            world.kubernetes.want("c")
            await world.settle(30.0)
            (report,) = (await world.client.list(PROVISIONER_STATUS)).items
        world.nodes.pop("n1")
        await OperatedStaticVolumes(world.client).hand_back("n1")
        volume = (await world.volumes())[PV]
        assert WIPE_FINALIZER not in (volume["metadata"].get("finalizers") or [])
        facts = read_static_volume(volume)
        assert facts is not None

        views = {uid: replace(read_node_report(report), uid=uid) for uid in (report["metadata"]["uid"], "another")}
        seen = VersionedVolume(facts, volume["metadata"]["resourceVersion"])
        steps = {uid: next_disk_step(replace(disks(view), volumes={PV: seen}), PV) for uid, view in views.items()}
        assert isinstance(steps[report["metadata"]["uid"]], LeaveAlone)
        assert isinstance(steps["another"], PatchVolume)


@pytest.mark.virtual_time
async def test_volumes_are_handed_back_while_the_master_runs_and_taken_over_again():
    async with StaticWorld("n1") as world, world.master():
        await world.settle(30.0)
        node = world.nodes.pop("n1")
        await OperatedStaticVolumes(world.client).hand_back("n1")
        await world.settle(400.0)
        assert WIPE_FINALIZER not in ((await world.volumes())[PV]["metadata"].get("finalizers") or [])

        world.nodes["n1"] = node
        await world.settle(30.0)
        assert WIPE_FINALIZER in (await world.volumes())[PV]["metadata"]["finalizers"]
        await world.delete(PERSISTENT_VOLUME, PV)
        await world.settle(30.0)
        assert await world.phases() == {PV: "Available"}
