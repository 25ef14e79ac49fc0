"""Pods and the volume manager joined, on virtual time: a pod runs when its volumes are there, and they outlast it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onenode.containers.container_request import VolumePlace
from onenode.kubelet.volumes.volume_paths import BLOCK_ROOT
from orlop.kube.client import DeleteOptions
from orlop.kube.kinds import POD
from orlop.kube.objects import ObjectName, uid
from support.api.api_objects import container
from support.kubelet.joined_nodes import node_with_driver

pytestmark = pytest.mark.virtual_time
PUBLISH, UNPUBLISH = "NodePublishVolume", "NodeUnpublishVolume"


async def test_a_pod_runs_once_its_volume_is_mounted_and_goes_once_it_is_not():
    async with node_with_driver() as (node, world), node.running():
        world.play({PUBLISH: [{"delay": "5s"}]})
        made = await node.make()
        await node.settle(3)
        before = (await node.phase(), list(node.containers.began))
        await node.settle(3)
        (running,) = node.containers.running()

        assert before == ("Pending", [])
        assert await node.phase() == "Running"
        assert running.wanted.volumes[0] == ("pods", uid(made), "volumes", "kubernetes.io~csi", "scratch", "mount")

        await node.delete()
        await node.settle(3)
        assert await node.is_gone()
        assert world.calls() == [PUBLISH, UNPUBLISH]
        assert world.left() == []


async def test_a_pod_with_devices_runs_once_they_are_mapped_and_both_of_its_containers_have_them():
    async with node_with_driver(volumeLifecycleModes=["Persistent"]) as (node, world), node.running():
        await world.bound_claim(volumeMode="Block")
        uses = {"command": ["sleep", "100000"], "volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}]}
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}}
        both = [container("one", **uses), container("other", **uses)]
        made = await world.pod("p", volume, containers=both, automountServiceAccountToken=False)
        await node.settle(3)
        device = (*BLOCK_ROOT, "pv1", "dev", uid(made))

        assert await node.phase() == "Running"
        assert [one.wanted.volumes for one in node.containers.running()] == [(device,), (device,)]
        places = {one.wanted.request.root.volumes for one in node.containers.running()}
        assert places == {(VolumePlace("/dev/xvda", read_only=True, is_device=True),)}

        await node.delete()
        await node.settle(10)
        assert await node.is_gone()
        assert world.left() == []


async def test_a_node_that_comes_back_publishes_again_and_takes_nothing_from_a_pod_before_it_knows_all_pods():
    async with node_with_driver() as (node, world):
        async with node.running():
            await node.make()
            await node.settle()
        world.way.is_away = True
        async with node.running():
            await node.settle(30)
            assert world.calls(UNPUBLISH) == []
            world.way.is_away = False
            await node.settle(60)

            assert await node.phase() == "Running"
            assert world.calls() == [PUBLISH, PUBLISH]
            assert len(node.containers.running()) == 1


async def test_what_a_pod_left_that_went_while_nobody_was_here_is_unmounted():
    async with node_with_driver() as (node, world):
        async with node.running():
            await node.make()
            await node.settle()
        await world.client.delete(POD, ObjectName("default", "p"), DeleteOptions(grace_seconds=0))
        async with node.running():
            await node.settle(10)

            assert world.calls() == [PUBLISH, UNPUBLISH]
            assert world.left() == []


async def test_a_pod_that_was_being_deleted_is_brought_to_its_end_by_the_next_life():
    async with node_with_driver() as (node, world):
        async with node.running():
            await node.make()
            await node.settle()
        await node.delete()
        async with node.running():
            await node.settle(10)

            assert await node.is_gone()
            assert world.calls() == [PUBLISH, UNPUBLISH]
            assert world.left() == []


async def test_a_part_of_a_volume_is_mounted_for_a_container_when_those_before_it_have_ended():
    async with node_with_driver() as (node, world), node.running():
        mount = {"name": "scratch", "mountPath": "/work", "subPathExpr": "of/$(HOSTNAME)"}
        first = container("first", command=["sleep", "10"], volumeMounts=[{"name": "scratch", "mountPath": "/s"}])
        made = await node.make("p", mount, initContainers=[first])
        target = ("pods", uid(made), "volume-subpaths", "scratch", "main", "0")
        await node.settle(5)
        before = world.machine.mounts.get(target)
        await node.settle(10)
        (running,) = node.containers.running()

        assert not before
        assert running.wanted.volumes[0] == target

        await node.delete()
        await node.settle(3)
        assert world.left() == []


@pytest.mark.parametrize(
    ("mount", "told"),
    [
        ({"subPathExpr": "$(UP)/x"}, "unable to provision SubPath `../x`: must not contain '..'"),
        ({"subPathExpr": "$(ROOT)"}, "error SubPath `/etc` must not be an absolute path"),
        ({"subPathExpr": "$(NOT_THERE)"}, 'missing value for "NOT_THERE"'),
    ],
    ids=["up", "absolute", "missing"],
)
async def test_a_part_that_leads_elsewhere_is_refused_in_kubelets_words(mount: dict[str, Any], told: str):
    async with node_with_driver() as (node, _world), node.running():
        environment = [{"name": "UP", "value": ".."}, {"name": "ROOT", "value": "/etc"}]
        one = container(
            command=["sleep", "1"], env=environment, volumeMounts=[{"name": "scratch", "mountPath": "/w", **mount}]
        )
        await node.make(containers=[one])
        await node.settle()
        (found,) = (await node.status())["containerStatuses"]

        assert found["state"]["waiting"] == {"reason": "CreateContainerConfigError", "message": told}


async def test_a_driver_that_asks_for_it_publishes_again_while_a_pod_runs():
    async with node_with_driver(requiresRepublish=True) as (node, world), node.running():
        await node.make()
        await node.settle(400)
        times = len(world.calls(PUBLISH))
        await node.delete()
        await node.settle(400)

        assert 4 <= times <= 8
        assert len(world.calls(PUBLISH)) == times


async def test_a_claim_that_is_missing_is_told_once_for_each_try():
    async with node_with_driver() as (node, world):
        async with node.running():
            await node.make(volumes=[{"name": "scratch", "persistentVolumeClaim": {"claimName": "c"}}])
            await node.settle(5)
        told = [event for event in await world.events() if event.startswith("FailedMount")]

        assert told == [
            (
                "FailedMount: Unable to attach or mount volumes: unmounted volumes=[scratch], unattached volumes=[], "
                "failed to process volumes=[scratch]: error processing PVC default/c: failed to fetch PVC from API "
                'server: persistentvolumeclaims "c" not found'
            )
        ]


async def test_a_pod_that_is_deleted_while_its_volume_is_still_awaited_leaves_nothing():
    async with node_with_driver() as (node, world), node.running():
        world.play({PUBLISH: [{"delay": "20s"}]})
        await node.make()
        await node.settle(5)
        await node.delete()
        await node.settle(60)
        await asyncio.sleep(0)

        assert await node.is_gone()
        assert node.containers.began == []
        assert world.left() == []
