"""Drivers that answer what they must not: nothing of another's is lost, and nothing grows without a limit."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.kube.kinds import PERSISTENT_VOLUME
from support.provisioning.late_watches import LateWatch
from support.provisioning.provisioner_worlds import CREATE, DELETE, DRIVER, ProvisionerWorld

pytestmark = pytest.mark.virtual_time


def answer(**volume: Any) -> dict[str, Any]:
    return {"answer": {"volume": volume}, "effect": False}


async def static_volume(world: ProvisionerWorld, name: str, handle: str, driver: str = DRIVER) -> None:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": driver, "volumeHandle": handle},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    await world.client.create(PERSISTENT_VOLUME, {"metadata": {"name": name}, "spec": spec})


async def begin(world: ProvisionerWorld, *steps: dict[str, Any]) -> None:
    world.play({CREATE: list(steps)})
    await world.make_class()
    await world.make_claim()


async def test_an_answer_without_an_id_is_reported_and_asked_for_again_in_five_minutes():
    async with ProvisionerWorld() as world:
        await begin(world, answer())
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "the driver returned a volume without an id")
            await world.clock.sleep(290)
            assert world.calls() == [CREATE]
            await world.until_provisioned()
        assert world.calls() == [CREATE, CREATE]


async def test_the_order_of_a_claim_that_goes_after_an_answer_without_an_id_ends_and_the_leak_is_logged():
    async with ProvisionerWorld() as world:
        await begin(world, answer(), answer())
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "without an id")
            await world.delete_claim()
            await world.until_journal_is_empty()
        assert world.calls() == [CREATE, CREATE]
        assert [line.message for line in world.log if line.message == "volume may be leaked"]


async def test_an_id_of_two_mebibytes_is_deleted_again_and_shown_nowhere_in_full():
    async with ProvisionerWorld() as world:
        world.play(
            {CREATE: [answer(volumeId="x" * (2 << 20))], DELETE: [{"error": {"code": "INTERNAL", "message": "no"}}]}
        )
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "a volume id of more than 4096 bytes")
            await world.until_provisioned()
        assert world.calls() == [CREATE, DELETE, DELETE, CREATE]
        # Without what the driver logs of its own calls.
        shown = [line for line in world.log if line.level.name != "DEBUG" and not line.message.startswith("call ")]
        assert max(len(repr(line)) for line in shown) < 10_000
        assert max(map(len, await world.events())) < 2_000


async def test_the_volume_of_another_persistent_volume_is_neither_used_nor_deleted():
    async with ProvisionerWorld() as world:
        world.storage.add_volume("precious", 1 << 30)
        await static_volume(world, "static", "precious")
        await begin(world, answer(volumeId="precious"))
        async with world.provisioner():
            await world.until_event(
                "ProvisioningFailed", "the driver returned the volume precious, which already belongs to static"
            )
            await world.clock.sleep(60)
            assert world.calls() == [CREATE]
            await world.until_provisioned(2)
        assert "precious" in world.names()
        assert DELETE not in world.calls()


async def test_the_volume_of_another_persistent_volume_is_not_deleted_when_the_claim_goes():
    async with ProvisionerWorld() as world:
        world.storage.add_volume("precious", 1 << 30)
        await static_volume(world, "static", "precious")
        await begin(world, answer(volumeId="precious"), answer(volumeId="precious"))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "precious")
            await world.delete_claim()
            await world.until_journal_is_empty()
        assert world.names() == ["precious"]
        assert DELETE not in world.calls()


async def test_a_volume_of_another_driver_with_the_same_handle_is_no_obstacle():
    async with ProvisionerWorld() as world:
        await static_volume(world, "theirs", "vol-1", driver="other.example.com")
        await begin(world)
        async with world.provisioner():
            await world.until_provisioned(2)
        assert world.calls() == [CREATE]


async def test_one_volume_for_two_claims_is_used_for_one_and_never_deleted():
    async with ProvisionerWorld() as world:
        world.storage.add_volume("twin", 1 << 30)
        world.play({CREATE: [answer(volumeId="twin", capacityBytes=str(1 << 30)), answer(volumeId="twin")]})
        await world.make_class()
        await world.make_claim("one")
        await world.make_claim("two")
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "returned the volume twin, which already belongs to pvc-")
            await world.clock.sleep(30)
            handles = [volume["spec"]["csi"]["volumeHandle"] for volume in await world.volumes()]
            assert handles == ["twin"]
        assert "twin" in world.names()
        assert DELETE not in world.calls()


async def test_one_volume_for_two_claims_is_used_for_one_also_while_the_cache_lacks_its_persistent_volume():
    async with ProvisionerWorld() as world:
        world.wire = wire = LateWatch(PERSISTENT_VOLUME, world.clock)
        world.storage.add_volume("twin", 1 << 30)
        twin = answer(volumeId="twin", capacityBytes=str(1 << 30))
        world.play({CREATE: [{**twin, "times": 1}, {**twin, "times": 1, "delay": "1s"}]})
        await world.make_class()
        async with world.provisioner():
            await world.clock.sleep(2)
            wire.is_late = True
            await world.make_claim("one")
            await world.make_claim("two")
            await world.until_event("ProvisioningFailed", "returned the volume twin, which already belongs to pvc-")
            await world.clock.sleep(30)
            handles = [volume["spec"]["csi"]["volumeHandle"] for volume in await world.volumes()]
        assert handles.count("twin") == 1
        assert DELETE not in world.calls()


async def test_the_id_of_a_volume_that_is_gone_can_be_used_again():
    async with ProvisionerWorld() as world:
        again = answer(volumeId="again", capacityBytes=str(1 << 30))
        world.play({CREATE: [{**again, "times": 0}]})
        await world.make_class()
        async with world.provisioner():
            for _ in range(2):
                await world.make_claim()
                (volume,) = await world.until_provisioned()
                await world.delete_claim()
                await world.release(volume["metadata"]["name"])
                await world.until_provisioned(0)
        assert world.calls() == [CREATE, DELETE] * 2


@pytest.mark.parametrize(
    "segments", [{"not a key!": "a"}, {"zone": "not a value!"}, {"zone": "x" * 64}, {"/": "a"}], ids=repr
)
async def test_a_topology_that_no_node_can_have_is_refused_and_the_volume_deleted_again(segments: dict[str, str]):
    async with ProvisionerWorld() as world:
        topology = [{"segments": segments}]
        await begin(world, answer(volumeId="v", accessibleTopology=topology))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "the driver returned an illegal topology")
            await world.until_provisioned()
        assert world.calls() == [CREATE, DELETE, CREATE]


async def test_a_context_that_is_too_large_is_refused_and_the_volume_deleted_again():
    async with ProvisionerWorld() as world:
        await begin(world, answer(volumeId="v", volumeContext={"key": "x" * (300 << 10)}))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "the volume context is larger than")
            await world.until_provisioned()
        assert world.calls() == [CREATE, DELETE, CREATE]


async def test_a_clone_without_its_source_in_the_answer_is_deleted_again():
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_claim("source")
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            await world.bind("source", volume["metadata"]["name"])
            world.play({})
        world.play({CREATE: [answer(volumeId="empty")]})
        await world.make_claim("copy", dataSource={"kind": "PersistentVolumeClaim", "name": "source"})
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "volume content source missing")
            await world.until_provisioned(2)
        assert world.calls() == [CREATE, CREATE, DELETE, CREATE]


async def test_what_a_terminal_would_obey_is_escaped_in_events():
    async with ProvisionerWorld() as world:
        await begin(world, {"error": {"code": "INTERNAL", "message": "\x1b[2Jgone\nFAKE: line"}})
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "\\x1b[2Jgone\\nFAKE: line")
            await world.until_provisioned()
        assert not [event for event in await world.events() if not event.isprintable()]


async def test_a_driver_that_cannot_create_volumes_is_reported_and_not_called():
    async with ProvisionerWorld() as world:
        world.play({}, capabilities={"controller": []})
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "lacks the capability CREATE_DELETE_VOLUME")
        assert world.calls() == []
