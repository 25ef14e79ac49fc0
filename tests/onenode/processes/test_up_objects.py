"""What `orlop up` stores for our driver: as this version has it, and without undoing what an admin chose."""

from __future__ import annotations

import copy

import pytest

from onenode.processes.up_objects import StoredObject, drive_objects, first_objects, store_objects
from orlop.foundation.structured_log import collecting_log
from orlop.kube.kinds import CSI_DRIVER, CUSTOM_RESOURCE_DEFINITION
from orlop.records.drive import DRIVE
from support.worlds import ClusterWorld

pytestmark = pytest.mark.virtual_time


async def start(world: ClusterWorld) -> None:
    await store_objects([*first_objects(), *drive_objects()], world.client, collecting_log(world.log))


async def test_the_kinds_of_drives_are_served_from_the_first_start():
    async with ClusterWorld() as world:
        await start(world)

        assert (await world.client.list(DRIVE)).items == []
        assert world.log == []


async def test_a_second_start_writes_nothing():
    async with ClusterWorld() as world:
        await start(world)
        before = world.on.store.revision
        await start(world)

        assert world.on.store.revision == before


async def test_a_definition_is_that_of_this_version_again_and_keeps_the_labels_of_others():
    async with ClusterWorld() as world:
        await start(world)
        (definition,) = (each for each in drive_objects() if each.object["metadata"]["name"] == DRIVE.resource)
        older = copy.deepcopy(definition.object["spec"]["versions"])
        older[0]["schema"]["openAPIV3Schema"]["properties"].pop("status")
        await world.merge(CUSTOM_RESOURCE_DEFINITION, DRIVE.resource, {"spec": {"versions": older}})
        await world.merge(CUSTOM_RESOURCE_DEFINITION, DRIVE.resource, {"metadata": {"labels": {"theirs": "x"}}})
        await start(world)
        found = await world.find(CUSTOM_RESOURCE_DEFINITION, DRIVE.resource)

        assert found is not None
        assert "status" in found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        assert found["metadata"]["labels"] == {"theirs": "x", "app.kubernetes.io/name": "orlop"}


async def test_what_an_admin_changed_in_the_driver_object_stays():
    async with ClusterWorld() as world:
        await start(world)
        await world.merge(CSI_DRIVER, "csi.orlop.dev", {"spec": {"requiresRepublish": True}})
        await start(world)
        found = await world.find(CSI_DRIVER, "csi.orlop.dev")

        assert found is not None
        assert found["spec"]["requiresRepublish"] is True


async def test_an_object_that_is_refused_is_logged_and_the_others_are_stored():
    async with ClusterWorld() as world:
        refused = StoredObject(CUSTOM_RESOURCE_DEFINITION, {"metadata": {"name": "x"}, "spec": {}})
        await store_objects([refused, *first_objects()], world.client, collecting_log(world.log))

        assert [(entry.message, dict(entry.fields)["name"]) for entry in world.log] == [("object not stored", "x")]
        assert await world.find(CSI_DRIVER, "csi.orlop.dev") is not None
