"""How full volumes are, as their drivers say: asked seldom, never waited for long, told as kubelet tells it."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from onenode.kubelet.server.node_summary import NodeMeasured, NodeSummary, summary
from onenode.kubelet.volumes.mount_progress import VolumeInPod
from onenode.kubelet.volumes.volume_stats import (
    Amount,
    Measured,
    VolumeStats,
    VolumeUsage,
    usage_of,
    volume_stats,
)
from orlop.csi.proto import csi_pb2
from support.host.descriptors import folder_descriptor
from support.kubelet.kubelet_servers import ShownPods
from support.kubelet.volume_worlds import STAGED, VolumeWorld, in_thread

WITH_STATS = {"node": [*STAGED["node"], "GET_VOLUME_STATS"]}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
A_GIGABYTE = Amount(1 << 30, 1 << 20, (1 << 30) - (1 << 20))
"""With the one block that the driver's model writes."""
ASKED = "NodeGetVolumeStats"


@asynccontextmanager
async def stats_of(world: VolumeWorld):
    async with volume_stats(world.volumes.mounted_volumes, world.drivers, world.parts.runtime) as stats:
        yield stats


async def amounts(stats: VolumeStats) -> dict[tuple[str, ...], Amount | None]:
    return {volume.names: one.usage.bytes for volume, one in (await stats.current()).items()}


@pytest.mark.virtual_time
async def test_a_volume_of_a_pod_is_asked_about_at_most_once_a_minute():
    async with VolumeWorld(**WITH_STATS) as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim()
        pod = await world.claimed_pod()
        async with world.manager() as manager, stats_of(world) as stats:
            assert await amounts(stats) == {}
            await manager.wait_mounted(pod)
            assert await amounts(stats) == {("data",): A_GIGABYTE}
            await world.clock.sleep(59)
            await stats.current()
            assert len(world.requests(ASKED)) == 1
            await world.clock.sleep(1)
            await stats.current()
            await world.clock.sleep(1)
            assert len(world.requests(ASKED)) == 2
            assert world.requests(ASKED)[0].volume_id == "h1"
            assert world.requests(ASKED)[0].volume_path.endswith("/volumes/kubernetes.io~csi/pv1/mount")
            await manager.wait_unmounted(pod["metadata"]["uid"])
            assert await amounts(stats) == {}


@pytest.mark.virtual_time
async def test_a_driver_that_cannot_tell_is_not_asked():
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim()
        pod = await world.claimed_pod()
        async with world.manager() as manager, stats_of(world) as stats:
            await manager.wait_mounted(pod)

            assert await amounts(stats) == {}
            assert world.requests(ASKED) == []


@pytest.mark.virtual_time
async def test_a_driver_that_hangs_keeps_the_first_waiting_two_seconds_and_nobody_after():
    async with VolumeWorld(**WITH_STATS) as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim()
        pod = await world.claimed_pod()
        async with world.manager() as manager, stats_of(world) as stats:
            await manager.wait_mounted(pod)
            world.play({ASKED: [{"hang": True}]})
            began = world.clock.elapsed()
            assert await amounts(stats) == {}
            assert world.clock.elapsed() - began == 2.0
            for _ in range(3):
                assert await amounts(stats) == {}
            assert world.clock.elapsed() - began == 2.0
            assert len(world.requests(ASKED)) == 1
            await world.clock.sleep(130)  # it is given up
            assert await amounts(stats) == {("data",): A_GIGABYTE}


@pytest.mark.virtual_time
async def test_a_driver_that_fails_is_asked_again_after_a_minute():
    async with VolumeWorld(**WITH_STATS) as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim()
        pod = await world.claimed_pod()
        async with world.manager() as manager, stats_of(world) as stats:
            await manager.wait_mounted(pod)
            world.play({ASKED: [{"error": {"code": "INTERNAL"}}]})
            assert await amounts(stats) == {}
            assert await amounts(stats) == {}
            await world.clock.sleep(60)

            assert len(await amounts(stats)) == 1


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_the_condition_that_older_drivers_tell_is_read():
    abnormal = csi_pb2.NodeGetVolumeStatsResponse.FromString(b"\x12\x06\x08\x01\x12\x02no")
    normal = csi_pb2.NodeGetVolumeStatsResponse.FromString(b"\x12\x04\x12\x02ok")

    assert usage_of(abnormal) == VolumeUsage(None, None, abnormal=True)
    assert usage_of(normal) == VolumeUsage(None, None, abnormal=False)
    assert usage_of(csi_pb2.NodeGetVolumeStatsResponse()) is None


def test_a_summary_is_written_as_kubelets():
    volume = VolumeInPod("u", ("data",), "d", "h", "/x")
    measured = Measured(volume, VolumeUsage(Amount(10, 4, 6), Amount(5, 2, 3), abnormal=True), MOMENT)
    node = NodeMeasured("n1", MOMENT, MOMENT, Amount(100, 60, 40), Amount(9, 4, 5), None)
    pod = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]},
        "status": {
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}}],
        },
    }
    written = summary(node, [pod], [measured])

    assert written["node"] == {
        "nodeName": "n1",
        "startTime": "2026-01-01T00:00:00Z",
        "fs": {
            "time": "2026-01-01T00:00:00Z",
            "availableBytes": 40,
            "capacityBytes": 100,
            "usedBytes": 60,
            "inodesFree": 5,
            "inodes": 9,
            "inodesUsed": 4,
        },
    }
    assert written["pods"] == [
        {
            "podRef": {"name": "p", "namespace": "ns", "uid": "u"},
            "startTime": "2026-01-01T00:00:00Z",
            "containers": [{"name": "main", "startTime": "2026-01-01T00:00:01Z"}],
            "volume": [
                {
                    "time": "2026-01-01T00:00:00Z",
                    "availableBytes": 6,
                    "capacityBytes": 10,
                    "usedBytes": 4,
                    "inodesFree": 3,
                    "inodes": 5,
                    "inodesUsed": 2,
                    "name": "data",
                    "pvcRef": {"name": "c", "namespace": "ns"},
                    "volumeHealthStats": {"abnormal": True},
                }
            ],
        }
    ]


@pytest.mark.parametrize(
    ("source", "reference"),
    [({"csi": {}}, None), ({"ephemeral": {}}, "p-v"), ({"persistentVolumeClaim": {"claimName": "c"}}, "c")],
)
def test_a_volume_is_told_with_the_claim_it_came_by(source: dict[str, Any], reference: str | None):
    measured = Measured(VolumeInPod("u", ("v",), "d", "h", "/x"), VolumeUsage(Amount(), None, abnormal=None), MOMENT)
    node = NodeMeasured("n1", MOMENT, MOMENT, Amount(), Amount(), None)
    pod = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"volumes": [{"name": "v", **source}]},
    }
    (told,) = summary(node, [pod], [measured])["pods"][0]["volume"]

    assert (told.get("pvcRef") or {}).get("name") == reference
    assert "volumeHealthStats" not in told


@pytest.mark.virtual_time
async def test_a_node_tells_of_its_disk_and_its_memory(tmp_path: Path):
    async with VolumeWorld() as world:
        with folder_descriptor(tmp_path) as folder:
            async with world.manager(), stats_of(world) as stats:
                told = await NodeSummary("n1", folder, ShownPods(), stats, in_thread, world.clock)(True)

    disk = os.statvfs(tmp_path)
    assert told["node"]["fs"]["capacityBytes"] == disk.f_blocks * disk.f_frsize
    assert told["node"]["memory"]["availableBytes"] > 0
