"""Volumes of the model: made, listed, grown, attached. `way`: with and without a socket between."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.csi.error_codes import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from orlop.csi.proto import csi_pb2
from orlop.testing.driver_model import GIBIBYTE
from support.csi.csi_drivers import (
    BLOCK,
    CREATE,
    EVERYWHERE,
    ON_NODE_1,
    Bench,
    Way,
    create,
    in_process_bench,
    publish,
    without,
)


async def test_creating_a_volume_again_gives_the_same_one(way: Way):
    async with way() as bench:
        fields = {**CREATE, "capacityRange": {"requiredBytes": 5 * GIBIBYTE}, "parameters": {"tier": "fast"}}
        first = await bench.call("CreateVolume", **fields)
        assert await bench.call("CreateVolume", **fields) == first
        assert first["volume"]["volumeId"] != "a"
        assert first["volume"]["capacityBytes"] == str(5 * GIBIBYTE)
        assert len(bench.storage.volumes) == 1


INCOMPATIBLE: list[tuple[dict[str, Any], str]] = [
    ({"capacityRange": {"requiredBytes": 2 * GIBIBYTE}}, "size"),
    ({"capacityRange": {"limitBytes": 5}}, "size"),
    ({"parameters": {"tier": "slow"}}, "parameters"),
    ({"mutableParameters": {"iops": "5"}}, "mutable_parameters"),
    ({"volumeCapabilities": [BLOCK]}, "access type"),
    ({"volumeContentSource": {"volume": {"volumeId": "vol-1"}}}, "volume_content_source"),
    ({"accessibilityRequirements": {"requisite": [{"segments": {"zone": "b"}}]}}, "topology"),
]


@pytest.mark.parametrize(("change", "difference"), INCOMPATIBLE, ids=[str(change) for change, _ in INCOMPATIBLE])
async def test_a_volume_of_the_name_that_is_another_one_is_refused(way: Way, change: dict[str, Any], difference: str):
    zone_a = {"accessibilityRequirements": {"requisite": [{"segments": {"zone": "a"}}]}}
    async with way() as bench:
        await create(bench, parameters={"tier": "fast"}, **zone_a)
        with pytest.raises(AlreadyExists, match=f"exists as vol-1, with another {difference}"):
            await create(bench, **{"parameters": {"tier": "fast"}, **zone_a, **change})


async def test_the_size_of_a_volume_is_what_was_asked_for_or_the_default_within_the_limit(way: Way):
    async def size(bench: Bench, name: str, **wanted: int) -> int:
        answer = await bench.call(
            "CreateVolume", **CREATE | {"name": name}, **({"capacityRange": wanted} if wanted else {})
        )
        return int(answer["volume"]["capacityBytes"])

    async with way() as bench:
        assert await size(bench, "a") == GIBIBYTE
        assert await size(bench, "b", requiredBytes=5) == 5
        assert await size(bench, "c", limitBytes=7) == 7
        assert await size(bench, "d", requiredBytes=5, limitBytes=7) == 5
        with pytest.raises(OutOfRange, match="at least 7 and at most 5 bytes"):
            await size(bench, "e", requiredBytes=7, limitBytes=5)


async def test_space_is_counted_and_runs_out(way: Way):
    async with way(capacity="3Gi") as bench:
        volume = await create(bench, capacityRange={"requiredBytes": 2 * GIBIBYTE})
        assert (await bench.call("GetCapacity"))["availableCapacity"] == str(GIBIBYTE)
        with pytest.raises(ResourceExhausted, match=f"{2 * GIBIBYTE} bytes are needed and {GIBIBYTE} are free"):
            await create(bench, "b", capacityRange={"requiredBytes": 2 * GIBIBYTE})
        with pytest.raises(OutOfRange, match="can never fit"):
            await create(bench, "c", capacityRange={"requiredBytes": 4 * GIBIBYTE})
        await bench.call("DeleteVolume", volumeId=volume)
        assert (await bench.call("GetCapacity"))["availableCapacity"] == str(3 * GIBIBYTE)


async def test_a_volume_is_in_the_place_that_is_liked_best(way: Way):
    zones = [{"segments": {"zone": zone}} for zone in "ab"]
    wanted = {"requisite": zones, "preferred": [zones[1]]}
    async with way() as bench:
        answer = await bench.call("CreateVolume", **CREATE, accessibilityRequirements=wanted)
        assert answer["volume"]["accessibleTopology"] == [{"segments": {"zone": "b"}}]
        anywhere = await bench.call("CreateVolume", **CREATE | {"name": "b"})
        assert "accessibleTopology" not in anywhere["volume"]


async def test_a_volume_from_another_is_at_least_as_large_and_names_it(way: Way):
    async with way() as bench:
        source = {"volume": {"volumeId": await create(bench, capacityRange={"requiredBytes": 2 * GIBIBYTE})}}
        answer = await bench.call("CreateVolume", **CREATE | {"name": "b"}, volumeContentSource=source)
        assert answer["volume"]["capacityBytes"] == str(2 * GIBIBYTE)
        assert answer["volume"]["contentSource"] == source
        with pytest.raises(OutOfRange, match="the source has"):
            await create(bench, "c", volumeContentSource=source, capacityRange={"requiredBytes": GIBIBYTE})


async def test_capabilities_are_confirmed_only_for_the_access_type_the_volume_was_made_for(way: Way):
    async with way() as bench:
        volume = await create(bench)
        yes = await bench.call("ValidateVolumeCapabilities", volumeId=volume, volumeCapabilities=[EVERYWHERE])
        assert yes["confirmed"]["volumeCapabilities"] == [EVERYWHERE]
        no = await bench.call("ValidateVolumeCapabilities", volumeId=volume, volumeCapabilities=[BLOCK])
        assert no == {"message": f"the volume {volume} was created for another access type"}


async def test_volumes_are_listed_in_pages(way: Way):
    async with way() as bench:
        for name in "abcde":
            await create(bench, name)
        first = await bench.call("ListVolumes", maxEntries=2)
        await bench.call("DeleteVolume", volumeId="vol-2")
        second = await bench.call("ListVolumes", maxEntries=2, startingToken=first["nextToken"])
        last = await bench.call("ListVolumes", maxEntries=2, startingToken=second["nextToken"])
        pages = [[entry["volume"]["volumeId"] for entry in page["entries"]] for page in (first, second, last)]
        assert pages == [["vol-1", "vol-2"], ["vol-3", "vol-4"], ["vol-5"]]
        assert "nextToken" not in last


@pytest.mark.parametrize("token", ["x", "-1", "0", "99", "1" * 5000, "¹"])
@pytest.mark.parametrize("method", ["ListVolumes", "ListSnapshots", "ControllerListVolumeHealth"])
async def test_a_token_that_was_never_given_out_is_refused(method: str, token: str):
    async with in_process_bench() as bench:
        await create(bench)
        with pytest.raises(Aborted, match="was never returned"):
            await bench.call(method, startingToken=token)


async def test_the_nodes_of_a_volume_are_listed_where_the_driver_can(way: Way):
    async with way() as bench:
        volume = await create(bench)
        await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1)
        (entry,) = (await bench.call("ListVolumes"))["entries"]
        assert entry["status"] == {"publishedNodeIds": ["node-1"]}
        assert (await bench.call("ControllerGetVolume", volumeId=volume))["status"] == entry["status"]
    async with way(**without("controller", "LIST_VOLUMES_PUBLISHED_NODES")) as bench:
        volume = await create(bench)
        await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1)
        (entry,) = (await bench.call("ListVolumes"))["entries"]
        assert entry["status"] == {}


async def test_a_volume_grows_and_never_shrinks(way: Way):
    async with way(capacity="3Gi") as bench:
        volume = await create(bench)
        grown = await bench.call(
            "ControllerExpandVolume", volumeId=volume, capacityRange={"requiredBytes": 2 * GIBIBYTE}
        )
        assert grown == {"capacityBytes": str(2 * GIBIBYTE), "nodeExpansionRequired": True}
        again = await bench.call("ControllerExpandVolume", volumeId=volume, capacityRange={"requiredBytes": GIBIBYTE})
        assert again == grown
        with pytest.raises(OutOfRange, match="cannot shrink"):
            await bench.call("ControllerExpandVolume", volumeId=volume, capacityRange={"limitBytes": GIBIBYTE})
        with pytest.raises(OutOfRange, match="can never fit"):
            await bench.call("ControllerExpandVolume", volumeId=volume, capacityRange={"requiredBytes": 4 * GIBIBYTE})
        await create(bench, "b")
        with pytest.raises(ResourceExhausted):
            await bench.call("ControllerExpandVolume", volumeId=volume, capacityRange={"requiredBytes": 3 * GIBIBYTE})


async def test_a_driver_that_expands_offline_only_refuses_a_volume_in_use(way: Way):
    async with way(**without("plugin", "VOLUME_EXPANSION_ONLINE")) as bench:
        volume = await create(bench)
        await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1)
        wanted = {"capacityRange": {"requiredBytes": 2 * GIBIBYTE}}
        with pytest.raises(FailedPrecondition, match="in use on node-1: it grows offline only"):
            await bench.call("ControllerExpandVolume", volumeId=volume, **wanted)
        await bench.call("ControllerUnpublishVolume", volumeId=volume, nodeId="node-1")
        assert (await bench.call("ControllerExpandVolume", volumeId=volume, **wanted))["capacityBytes"]


async def test_a_volume_is_modified_by_the_parameters_that_are_allowed(way: Way):
    async with way(mutableParameters=["iops"]) as bench:
        volume = await create(bench, mutableParameters={"iops": "1"})
        await bench.call("ControllerModifyVolume", volumeId=volume, mutableParameters={"iops": "2"})
        kept = bench.volume(volume)
        assert kept.mutable_parameters == {"iops": "2"}
        with pytest.raises(InvalidArgument, match="holds colour: allowed are iops"):
            await bench.call("ControllerModifyVolume", volumeId=volume, mutableParameters={"colour": "2"})


async def test_health_is_what_the_storage_says(way: Way):
    async with way() as bench:
        volume = await create(bench)
        await create(bench, "well")
        kept = bench.volume(volume)
        kept.health.append(
            csi_pb2.VolumeHealth.VolumeHealthEntry(status="DEGRADED", reason="Slow", message="it is slow")
        )
        told = {
            "volumeId": volume,
            "healthStatuses": [{"status": "DEGRADED", "reason": "Slow", "message": "it is slow"}],
        }
        assert await bench.call("ControllerGetVolumeHealth", volumeId=volume) == {"volumeHealth": told}
        assert await bench.call("NodeGetVolumeHealth", volumeId=volume) == {"volumeHealth": told}
        assert await bench.call("ControllerListVolumeHealth") == {"entries": [told]}
        assert await bench.call("NodeGetStorageHealth") == {}
        bench.storage.backend_health.append(
            csi_pb2.NodeGetStorageHealthResponse.StorageBackendHealth(status="STORAGE_UNREACHABLE")
        )
        assert await bench.call("NodeGetStorageHealth") == {"backendHealth": [{"status": "STORAGE_UNREACHABLE"}]}


async def test_attaching_and_detaching_can_be_repeated(way: Way):
    async with way() as bench:
        volume = await create(bench)
        context = await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1)
        assert context["publishContext"]
        assert await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1) == context
        for _ in range(2):
            await bench.call("ControllerUnpublishVolume", volumeId=volume, nodeId="node-1")
        kept = bench.volume(volume)
        assert kept.attached == {}


async def test_detaching_from_no_node_in_particular_detaches_from_all(way: Way):
    async with way() as bench:
        volume = await create(bench)
        for node in ("node-1", "node-2"):
            await bench.call("ControllerPublishVolume", volumeId=volume, nodeId=node, volumeCapability=EVERYWHERE)
        kept = bench.volume(volume)
        assert sorted(kept.attached) == ["node-1", "node-2"]
        await bench.call("ControllerUnpublishVolume", volumeId=volume)
        assert kept.attached == {}


async def test_a_volume_of_one_node_is_refused_to_a_second(way: Way):
    async with way() as bench:
        volume = await create(bench)
        await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1)
        with pytest.raises(FailedPrecondition, match="is attached to node-1"):
            await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1 | {"nodeId": "node-2"})
        with pytest.raises(AlreadyExists, match="with another capability or readonly flag"):
            await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1, readonly=True)
        with pytest.raises(InvalidArgument, match="created for another access type"):
            await bench.call("ControllerPublishVolume", volumeId=volume, nodeId="node-1", volumeCapability=BLOCK)


async def test_only_the_nodes_of_the_script_exist(way: Way):
    async with way(nodes=["node-1"]) as bench:
        volume = await create(bench)
        with pytest.raises(NotFound, match="there is no node node-2"):
            await bench.call("ControllerPublishVolume", volumeId=volume, **ON_NODE_1 | {"nodeId": "node-2"})


async def test_a_node_takes_so_many_volumes_and_no_more(way: Way):
    async with way(node={"maxVolumes": 1}) as bench:
        first, second = await create(bench, "a"), await create(bench, "b")
        await bench.call("ControllerPublishVolume", volumeId=first, **ON_NODE_1)
        with pytest.raises(ResourceExhausted, match="node-1"):
            await bench.call("ControllerPublishVolume", volumeId=second, **ON_NODE_1)
        await bench.call("ControllerUnpublishVolume", volumeId=first, nodeId="node-1")
        await bench.call("ControllerPublishVolume", volumeId=second, **ON_NODE_1)


async def test_a_volume_in_use_is_neither_deleted_nor_detached(way: Way):
    async with way() as bench:
        volume = await create(bench)
        await publish(bench, volume)
        with pytest.raises(FailedPrecondition, match="in use on node-1"):
            await bench.call("DeleteVolume", volumeId=volume)
        with pytest.raises(FailedPrecondition, match="still in use on node-1, at /target, /staging"):
            await bench.call("ControllerUnpublishVolume", volumeId=volume, nodeId="node-1")
