"""The walkthroughs of provisioning and deleting, step by step, with the state of every object.

Binder, protection of volumes and provisioner run as in `orlop up`, beside a scripted driver, on virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER
from support.provisioning.binding_worlds import BindingWorld
from support.provisioning.provisioner_worlds import CREATE, DELETE, DRIVER, NAMESPACE, Object, ProvisionerWorld

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def cluster(**script: Any) -> AsyncIterator[ProvisionerWorld]:
    """`script` are steps that the driver takes first, by their method."""
    async with (
        ProvisionerWorld() as world,
        BindingWorld(on=world.on) as binding,
        binding.binder(),
        binding.protection(),
    ):
        world.play(script)
        async with world.provisioner():
            yield world


async def unmarked_claim(world: ProvisionerWorld, name: str = "data") -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "fast",
    }
    body = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    return await world.client.create(PERSISTENT_VOLUME_CLAIM, body)


async def until_bound(world: ProvisionerWorld, name: str = "data") -> Object:
    async def is_bound() -> bool:
        claim = await world.get(PERSISTENT_VOLUME_CLAIM, name, NAMESPACE)
        return claim is not None and state.phase(claim) == "Bound"

    await world.until(is_bound)
    claim = await world.get(PERSISTENT_VOLUME_CLAIM, name, NAMESPACE)
    assert claim is not None
    return claim


async def test_a_claim_is_provisioned_as_the_walkthrough_says():
    async with cluster() as world:
        await world.make_class(parameters={"tier": "hot"}, mountOptions=["noatime"])
        created = await unmarked_claim(world)
        claim = await until_bound(world)
        (volume,) = await world.until_provisioned()

        name = f"pvc-{created['metadata']['uid']}"
        annotations = objects.annotations(claim)
        assert annotations[state.STORAGE_PROVISIONER] == annotations[state.BETA_STORAGE_PROVISIONER] == DRIVER
        assert (claim["spec"]["volumeName"], claim["status"]["capacity"]) == (name, {"storage": "1Gi"})
        (request,) = world.requests(CREATE)
        assert (request.name, dict(request.parameters)) == (name, {"tier": "hot"})
        assert request.capacity_range.required_bytes == 1 << 30
        assert (volume["metadata"]["name"], state.phase(volume)) == (name, "Bound")
        assert objects.annotations(volume)[state.PROVISIONED_BY] == DRIVER
        assert set(objects.finalizers(volume)) == {FINALIZER, state.PV_PROTECTION}
        assert volume["spec"]["claimRef"]["uid"] == created["metadata"]["uid"]
        assert volume["spec"]["mountOptions"] == ["noatime"]
        await world.until_journal_is_empty()


async def test_a_volume_whose_policy_is_delete_goes_with_its_claim():
    async with cluster(**{DELETE: [{"delay": "5s"}]}) as world:
        await world.make_class()
        await unmarked_claim(world)
        claim = await until_bound(world)
        await world.client.delete(PERSISTENT_VOLUME_CLAIM, objects.name_of(claim))
        await world.until(lambda: world.requests(DELETE))
        await world.clock.sleep(2)

        (volume,) = await world.volumes()
        assert await world.get(PERSISTENT_VOLUME_CLAIM, "data", NAMESPACE) is None
        assert (state.phase(volume), objects.is_being_deleted(volume)) == ("Released", False)
        assert set(objects.finalizers(volume)) == {FINALIZER, state.PV_PROTECTION}
        assert volume["spec"]["claimRef"]["uid"] == objects.uid(claim)
        assert await world.journal() == []

        await world.until_provisioned(0)
        assert world.names() == []
        assert world.calls() == [CREATE, DELETE]
        assert await world.journal() == []
        assert not [event for event in await world.events() if event.startswith("VolumeFailedDelete")]


async def test_a_volume_whose_policy_is_retain_stays_with_its_object():
    async with cluster() as world:
        await world.make_class(reclaimPolicy="Retain")
        await unmarked_claim(world)
        await until_bound(world)
        await world.delete_claim()

        async def is_released() -> bool:
            return [state.phase(volume) for volume in await world.volumes()] == ["Released"]

        await world.until(is_released)
        await world.clock.sleep(600)
        assert await is_released()
        (volume,) = await world.volumes()
        assert objects.finalizers(volume) == (state.PV_PROTECTION,)
        assert not objects.is_being_deleted(volume)
        assert len(world.names()) == 1
        assert world.calls() == [CREATE]


async def test_a_volume_deleted_before_its_claim_goes_only_after_it():
    async with cluster() as world:
        await world.make_class()
        await unmarked_claim(world)
        claim = await until_bound(world)
        await world.client.delete(PERSISTENT_VOLUME, objects.name_of({"metadata": {"name": state.volume_name(claim)}}))
        await world.clock.sleep(600)
        (volume,) = await world.volumes()
        assert (state.phase(volume), objects.is_being_deleted(volume)) == ("Bound", True)
        assert set(objects.finalizers(volume)) == {FINALIZER, state.PV_PROTECTION}
        assert state.phase(await world.claim()) == "Bound"
        assert len(world.names()) == 1
        await world.delete_claim()
        await world.until_provisioned(0)

        assert world.names() == []
        assert world.calls() == [CREATE, DELETE]
