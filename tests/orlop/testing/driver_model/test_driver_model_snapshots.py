"""Snapshots of the model, and what has changed between two of them. `way`: with and without a socket between."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.csi.error_codes import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OutOfRange,
)
from orlop.testing.driver_model import GIBIBYTE
from support.csi.csi_drivers import PUBLISH, Bench, Way, create, publish


async def snapshot(bench: Bench, volume: str, name: str) -> str:
    answer = await bench.call("CreateSnapshot", name=name, sourceVolumeId=volume)
    return str(answer["snapshot"]["snapshotId"])


async def test_creating_a_snapshot_again_gives_the_same_one(way: Way):
    async with way() as bench:
        volume, other = await create(bench, "a"), await create(bench, "b")
        first = await bench.call("CreateSnapshot", name="s", sourceVolumeId=volume)
        assert first["snapshot"]["readyToUse"]
        assert first["snapshot"]["sizeBytes"] == str(GIBIBYTE)
        assert await bench.call("CreateSnapshot", name="s", sourceVolumeId=volume) == first
        assert await bench.call("GetSnapshot", snapshotId=first["snapshot"]["snapshotId"]) == first
        with pytest.raises(AlreadyExists, match=f"of the volume {volume}"):
            await bench.call("CreateSnapshot", name="s", sourceVolumeId=other)


async def test_snapshots_are_found_by_volume_and_by_id(way: Way):
    async with way() as bench:
        volume, other = await create(bench, "a"), await create(bench, "b")
        ids = [
            await snapshot(bench, volume, "s1"),
            await snapshot(bench, other, "s2"),
            await snapshot(bench, volume, "s3"),
        ]

        async def found(**filters: Any) -> list[str]:
            listed = await bench.call("ListSnapshots", **filters)
            return [entry["snapshot"]["snapshotId"] for entry in listed.get("entries", [])]

        assert await found() == ids
        assert await found(sourceVolumeId=volume) == [ids[0], ids[2]]
        assert await found(snapshotId=ids[1]) == [ids[1]]
        assert await found(snapshotId="gone") == []
        assert await found(sourceVolumeId=volume, maxEntries=1) == [ids[0]]
        assert await found(sourceVolumeId=volume, startingToken="1") == [ids[2]]


async def test_a_snapshot_outlives_its_volume_and_fills_another(way: Way):
    async with way() as bench:
        volume = await create(bench)
        taken = await snapshot(bench, volume, "s")
        await bench.call("DeleteVolume", volumeId=volume)
        await create(bench, "b", volumeContentSource={"snapshot": {"snapshotId": taken}})
        await bench.call("DeleteSnapshot", snapshotId=taken)
        assert len(bench.storage.snapshots) == 0


async def test_a_group_of_snapshots_comes_and_goes_together(way: Way):
    async with way() as bench:
        volumes = [await create(bench, "a"), await create(bench, "b")]
        wanted = {"name": "g", "sourceVolumeIds": volumes, "parameters": {"tier": "fast"}}
        made = (await bench.call("CreateVolumeGroupSnapshot", **wanted))["groupSnapshot"]
        assert (await bench.call("CreateVolumeGroupSnapshot", **wanted))["groupSnapshot"] == made
        members = [each["snapshotId"] for each in made["snapshots"]]
        assert [each["groupSnapshotId"] for each in made["snapshots"]] == [made["groupSnapshotId"]] * 2
        named = {"groupSnapshotId": made["groupSnapshotId"], "snapshotIds": members}
        assert (await bench.call("GetVolumeGroupSnapshot", **named))["groupSnapshot"] == made
        with pytest.raises(InvalidArgument, match="can be deleted only with its group snapshot"):
            await bench.call("DeleteSnapshot", snapshotId=members[0])
        with pytest.raises(InvalidArgument, match="must list the snapshots in"):
            await bench.call("DeleteVolumeGroupSnapshot", **named | {"snapshotIds": members[:1]})
        for _ in range(2):
            await bench.call("DeleteVolumeGroupSnapshot", **named)
        assert len(bench.storage.snapshots) == 0


async def test_a_group_of_the_name_with_other_volumes_already_exists(way: Way):
    async with way() as bench:
        volumes = [await create(bench, "a"), await create(bench, "b")]
        await bench.call("CreateVolumeGroupSnapshot", name="g", sourceVolumeIds=volumes)
        with pytest.raises(AlreadyExists, match="the group snapshot named g exists"):
            await bench.call("CreateVolumeGroupSnapshot", name="g", sourceVolumeIds=volumes[:1])


async def test_a_group_with_a_volume_that_is_gone_leaves_nothing_behind(way: Way):
    async with way() as bench:
        with pytest.raises(NotFound):
            await bench.call("CreateVolumeGroupSnapshot", name="g", sourceVolumeIds=[await create(bench), "gone"])
        assert (len(bench.storage.snapshots), len(bench.storage.groups)) == (0, 0)


async def written(bench: Bench, *blocks: int) -> str:
    volume = await create(bench, capacityRange={"requiredBytes": 1 << 30})
    kept = bench.volume(volume)
    for block in blocks:
        kept.write(block)
    return volume


def offsets(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [[int(block.get("byteOffset", 0)) >> 20 for block in answer["blockMetadata"]] for answer in answers]


async def test_the_blocks_of_a_snapshot_are_streamed_in_order_and_in_pages(way: Way):
    async with way() as bench:
        taken = await snapshot(bench, await written(bench, 5, 3, 9, 3), "s")
        whole = await bench.stream("GetMetadataAllocated", snapshotId=taken)
        assert offsets(whole) == [[3, 5, 9]]
        assert whole[0]["blockMetadataType"] == "FIXED_LENGTH"
        assert whole[0]["volumeCapacityBytes"] == str(1 << 30)
        assert offsets(await bench.stream("GetMetadataAllocated", snapshotId=taken, maxResults=2)) == [[3, 5], [9]]
        later = await bench.stream("GetMetadataAllocated", snapshotId=taken, startingOffset=(5 << 20) + 1)
        assert offsets(later) == [[5, 9]]
        for wrong in (-1, (1 << 30) + 1):
            with pytest.raises(OutOfRange, match="starting_offset"):
                await bench.stream("GetMetadataAllocated", snapshotId=taken, startingOffset=wrong)
        with pytest.raises(InvalidArgument, match="max_results is -1"):
            await bench.stream("GetMetadataAllocated", snapshotId=taken, maxResults=-1)


async def test_the_difference_of_two_snapshots_is_what_was_written_between_them(way: Way):
    async with way() as bench:
        volume = await written(bench, 1, 2)
        base = await snapshot(bench, volume, "s1")
        kept = bench.volume(volume)
        kept.write(2)
        kept.write(7)
        target = await snapshot(bench, volume, "s2")
        changed = await bench.stream("GetMetadataDelta", baseSnapshotId=base, targetSnapshotId=target)
        assert offsets(changed) == [[2, 7]]
        assert await bench.stream("GetMetadataDelta", baseSnapshotId=base, targetSnapshotId=base) == []
        with pytest.raises(InvalidArgument, match="is no later snapshot of the same volume"):
            await bench.stream("GetMetadataDelta", baseSnapshotId=target, targetSnapshotId=base)


async def test_a_workload_that_may_write_is_taken_to_do_so(way: Way):
    async with way() as bench:
        volume = await create(bench)
        await publish(bench, volume)
        (first,) = await bench.stream("GetMetadataAllocated", snapshotId=await snapshot(bench, volume, "s1"))
        await bench.call("NodeUnpublishVolume", volumeId=volume, targetPath="/target")
        await bench.call("NodePublishVolume", volumeId=volume, **PUBLISH)
        (second,) = await bench.stream("GetMetadataAllocated", snapshotId=await snapshot(bench, volume, "s2"))
        assert [len(each["blockMetadata"]) for each in (first, second)] == [1, 2]
