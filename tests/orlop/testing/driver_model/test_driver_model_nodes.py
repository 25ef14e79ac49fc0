"""The node service of the model. `way`: with and without a socket between."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.csi.error_codes import (
    AlreadyExists,
    FailedPrecondition,
    NotFound,
    OutOfRange,
)
from orlop.testing.driver_model import GIBIBYTE
from support.csi.csi_drivers import (
    BLOCK,
    EVERYWHERE,
    MANY_PODS,
    MOUNT,
    ON_NODE_1,
    ONE_POD,
    PUBLISH,
    STAGE,
    Way,
    create,
    in_process_bench,
    publish,
    without,
)


async def test_the_whole_life_of_a_volume_each_step_twice(way: Way):
    async with way() as bench:
        volume = await create(bench)
        for _ in range(2):
            await publish(bench, volume)
        stats = await bench.call("NodeGetVolumeStats", volumeId=volume, volumePath="/target/")
        assert stats["usage"][0]["total"] == str(GIBIBYTE)
        for method, path in (("NodeUnpublishVolume", "targetPath"), ("NodeUnstageVolume", "stagingTargetPath")):
            for _ in range(2):
                await bench.call(method, volumeId=volume, **{path: PUBLISH[path]})
        for _ in range(2):
            await bench.call("ControllerUnpublishVolume", volumeId=volume, nodeId="node-1")
        for _ in range(2):
            await bench.call("DeleteVolume", volumeId=volume)
        assert len(bench.storage.volumes) == 0


async def test_no_step_can_be_left_out(way: Way):
    async with way() as bench:
        volume = await create(bench)
        with pytest.raises(FailedPrecondition, match="is not attached to node-1"):
            await bench.call("NodeStageVolume", volumeId=volume, **STAGE)
        await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1)
        with pytest.raises(FailedPrecondition, match="is not staged at /staging"):
            await bench.call("NodePublishVolume", volumeId=volume, **PUBLISH)
        with pytest.raises(FailedPrecondition, match="staging_target_path is missing"):
            await bench.call("NodePublishVolume", volumeId=volume, targetPath="/target", volumeCapability=MOUNT)
        await bench.call("NodeStageVolume", volumeId=volume, **STAGE)
        await bench.call("NodePublishVolume", volumeId=volume, **PUBLISH)
        with pytest.raises(FailedPrecondition, match="still published at /target"):
            await bench.call("NodeUnstageVolume", volumeId=volume, stagingTargetPath="/staging")


async def test_a_driver_that_neither_attaches_nor_stages_just_publishes(way: Way):
    on = {"controller": ["CREATE_DELETE_VOLUME"], "node": []}
    async with way(capabilities=on) as bench:
        volume = await create(bench)
        await bench.call("NodePublishVolume", volumeId=volume, targetPath="/target", volumeCapability=MOUNT)


async def test_what_is_staged_or_published_in_another_way_already_exists(way: Way):
    async with way() as bench:
        volume = await create(bench)
        await publish(bench, volume)
        with pytest.raises(AlreadyExists, match="is staged at /staging"):
            await bench.call("NodeStageVolume", volumeId=volume, **STAGE | {"volumeCapability": EVERYWHERE})
        with pytest.raises(AlreadyExists, match="is published at /target"):
            await bench.call("NodePublishVolume", volumeId=volume, **PUBLISH, readonly=True)
        with pytest.raises(FailedPrecondition, match="another access type"):
            await bench.call("NodePublishVolume", volumeId=volume, **PUBLISH | {"volumeCapability": BLOCK})


@pytest.mark.parametrize(
    ("capability", "shared"), [(MOUNT, False), (ONE_POD, False), (MANY_PODS, True), (EVERYWHERE, True)]
)
async def test_the_access_mode_says_whether_a_node_has_a_volume_in_two_places(capability: dict[str, Any], shared: bool):  # noqa: FBT001
    async with in_process_bench() as bench:
        volume = await create(bench)
        await publish(bench, volume, capability)
        second = bench.call(
            "NodePublishVolume", volumeId=volume, **PUBLISH | {"volumeCapability": capability, "targetPath": "/other"}
        )
        if shared:
            await second
        else:
            with pytest.raises(FailedPrecondition, match="is published at /target"):
                await second


async def test_stats_and_growth_are_only_for_where_the_volume_is(way: Way):
    async with way() as bench:
        volume = await create(bench)
        await publish(bench, volume)
        for method in ("NodeGetVolumeStats", "NodeExpandVolume"):
            with pytest.raises(NotFound, match="is not at /elsewhere"):
                await bench.call(method, volumeId=volume, volumePath="/elsewhere")
        wanted = {"requiredBytes": 2 * GIBIBYTE}
        grown = await bench.call("NodeExpandVolume", volumeId=volume, volumePath="/staging", capacityRange=wanted)
        assert grown == {"capacityBytes": str(2 * GIBIBYTE)}
        assert await bench.call("NodeExpandVolume", volumeId=volume, volumePath="/target") == grown
        with pytest.raises(OutOfRange, match="cannot shrink"):
            await bench.call("NodeExpandVolume", volumeId=volume, volumePath="/target", capacityRange={"limitBytes": 5})
        with pytest.raises(OutOfRange, match="can never fit"):
            await bench.call(
                "NodeExpandVolume", volumeId=volume, volumePath="/target", capacityRange={"requiredBytes": 1 << 60}
            )


async def test_the_node_tells_its_name_its_limit_and_its_place(way: Way):
    async with way(node={"id": "n7", "maxVolumes": 3, "topology": {"zone": "a"}}) as bench:
        assert await bench.call("NodeGetInfo") == {
            "nodeId": "n7",
            "maxVolumesPerNode": "3",
            "accessibleTopology": {"segments": {"zone": "a"}},
        }
    async with way(**without("plugin", "VOLUME_ACCESSIBILITY_CONSTRAINTS")) as bench:
        assert await bench.call("NodeGetInfo") == {"nodeId": "node-1"}


async def test_an_ephemeral_volume_lives_as_long_as_it_is_published(way: Way):
    inline = {
        "volumeId": "csi-1",
        "targetPath": "/target",
        "volumeCapability": MOUNT,
        "volumeContext": {"csi.storage.k8s.io/ephemeral": "true"},
    }
    async with way() as bench:
        for _ in range(2):
            await bench.call("NodePublishVolume", **inline)
        assert [volume.id for volume in bench.storage.volumes] == ["csi-1"]
        for _ in range(2):
            await bench.call("NodeUnpublishVolume", volumeId="csi-1", targetPath="/target")
        assert len(bench.storage.volumes) == 0
        await bench.call("NodePublishVolume", **inline)
        assert len(bench.storage.volumes) == 1


async def test_a_driver_that_cannot_create_volumes_takes_any_that_is_named(way: Way):
    async with way(capabilities={"controller": ["PUBLISH_UNPUBLISH_VOLUME"]}) as bench:
        await publish(bench, "made-elsewhere")
        assert [volume.id for volume in bench.storage.volumes] == ["made-elsewhere"]


async def test_drivers_of_two_nodes_can_have_the_same_storage():
    async with (
        in_process_bench({"node": {"id": "node-1"}}) as one,
        in_process_bench({"node": {"id": "node-2"}}, storage=one.storage) as other,
    ):
        volume = await create(one)
        await publish(one, volume)
        with pytest.raises(FailedPrecondition, match="is not attached to node-2"):
            await other.call("NodeStageVolume", volumeId=volume, **STAGE)
        with pytest.raises(NotFound, match="is not at /target"):
            await other.call("NodeGetVolumeStats", volumeId=volume, volumePath="/target")
