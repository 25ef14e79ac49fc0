"""A cluster of many nodes on virtual time: thousands of pods with late-binding claims, some deleted, some refused."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from conftest import SOAK
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
from orlop.kube.objects import annotations, uid
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.api.api_objects import csi_node
from support.scheduling.fake_binder import DRIVER, SELECTED
from support.scheduling.scheduling_worlds import SchedulingWorld, scheduling_world

NODES, PODS = (300, 2_000) if SOAK else (20, 80)
LOCAL_VOLUMES = PODS // 4
LIMIT = 10
ALLOCATABLE = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "12"}
CONTAINERS = [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "300m"}}}]


async def make_cluster(w: SchedulingWorld) -> None:
    for number in range(NODES):
        await w.node(f"n{number}", ALLOCATABLE)
        limit = {"name": DRIVER, "nodeID": f"n{number}", "allocatable": {"count": LIMIT}}
        await w.client.create(CSI_NODE, csi_node(f"n{number}", limit))
    await w.late_class()
    for number in range(LOCAL_VOLUMES):
        await w.local_volume(f"v{number}", f"n{number % NODES}")


@pytest.mark.timeout(2400)
def test_every_pod_gets_a_node_with_its_volumes_and_no_limit_is_exceeded() -> None:
    async def run(_: VirtualClock) -> None:
        random = Random(20)
        async with scheduling_world() as w:
            await make_cluster(w)
            async with w.scheduling():
                for number in range(PODS):
                    await w.claim(f"c{number}")
                    w.binder.refuse[f"c{number}"] = random.choice([0, 0, 0, 0, 1])
                    await w.pod(f"p{number}", f"c{number}", containers=CONTAINERS)
                await w.settle(600)
                gone = random.sample(range(PODS), PODS // 10)
                for number in gone:
                    await w.delete(POD, f"p{number}")
                for number in range(PODS, PODS + len(gone)):
                    await w.claim(f"c{number}")
                    await w.pod(f"p{number}", f"c{number}", containers=CONTAINERS)
                await w.settle(600)
            await check(w)

    run_virtual(run)


async def check(w: SchedulingWorld) -> None:
    pods = (await w.client.list(POD)).items
    claims = {one["metadata"]["name"]: one for one in (await w.client.list(PERSISTENT_VOLUME_CLAIM)).items}
    volumes = {one["metadata"]["name"]: one for one in (await w.client.list(PERSISTENT_VOLUME)).items}
    assert [one["metadata"]["name"] for one in pods if not one["spec"].get("nodeName")] == []
    on = Counter(one["spec"]["nodeName"] for one in pods)
    assert max(on.values()) <= LIMIT, "each pod has one volume, and a node can attach ten"
    assert len(on) == NODES, "pods spread over all nodes"
    for one in pods:
        claim = claims[one["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]]
        volume = volumes[claim["spec"]["volumeName"]]
        assert volume["spec"]["claimRef"]["uid"] == uid(claim)
        term = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]
        assert term["matchExpressions"][0]["values"] == [one["spec"]["nodeName"]]
        assert annotations(claim).get(SELECTED, one["spec"]["nodeName"]) == one["spec"]["nodeName"]
