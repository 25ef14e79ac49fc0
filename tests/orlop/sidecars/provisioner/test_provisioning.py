"""Claims become volumes: the walk from a marked claim to its PersistentVolume, and what may fail on the way."""

from __future__ import annotations

import pytest

from support.provisioning.provisioner_worlds import CREATE, DELETE, DRIVER, ProvisionerWorld

pytestmark = pytest.mark.virtual_time


async def test_a_marked_claim_becomes_a_volume_and_its_persistent_volume():
    async with ProvisionerWorld() as world:
        await world.make_class()
        claim = await world.make_claim()
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            await world.until_journal_is_empty()

        name = f"pvc-{claim['metadata']['uid']}"
        assert world.names() == [name]
        assert volume["metadata"]["name"] == name
        assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        assert volume["spec"]["csi"]["driver"] == DRIVER
        assert world.calls() == [CREATE]
        reasons = [event.partition(":")[0] for event in await world.events()]
        assert reasons == ["Provisioning", "ProvisioningSucceeded"]


async def test_a_released_volume_is_deleted_with_one_call_and_its_object_goes():
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            await world.release(volume["metadata"]["name"])
            await world.until_provisioned(0)

        assert world.names() == []
        assert world.calls() == [CREATE, DELETE]


async def test_a_claim_deleted_while_its_volume_is_created_leaves_nothing():
    async with ProvisionerWorld() as world:
        await world.make_class()
        world.play({CREATE: [{"hang": True}]})
        await world.make_claim()
        async with world.provisioner(timeout=10.0):
            await world.clock.sleep(1)
            await world.delete_claim()
            world.drivers[-1].stop_hanging()
            await world.until_journal_is_empty()
            await world.clock.sleep(60)

        assert (world.names(), await world.volumes()) == ([], [])
