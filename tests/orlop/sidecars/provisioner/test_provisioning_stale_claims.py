"""Claims that the cache has and the API server has not: the driver is not called for them."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from orlop.kube.objects import ObjectName
from support.provisioning.late_watches import LateWatch
from support.provisioning.provisioner_worlds import CREATE, DELETE, NAMESPACE, ProvisionerWorld

pytestmark = pytest.mark.virtual_time
OF_ANOTHER = dict.fromkeys((state.STORAGE_PROVISIONER, state.BETA_STORAGE_PROVISIONER), "another.example.com")


async def test_a_claim_that_went_with_its_volume_is_not_provisioned_again_by_a_late_event_of_it():
    async with ProvisionerWorld() as world:
        world.wire = wire = LateWatch(PERSISTENT_VOLUME_CLAIM, world.clock)
        await world.make_class()
        async with world.provisioner():
            await world.clock.sleep(2)
            await world.make_claim()
            (volume,) = await world.until_provisioned()
            await world.until_journal_is_empty()
            await world.clock.sleep(1)
            wire.is_late = True
            await world.annotate_claim(note="changed")
            await world.delete_claim()
            await world.release(volume["metadata"]["name"])
            await world.until_provisioned(0)
            await world.clock.sleep(60)
        assert world.calls() == [CREATE, DELETE]


async def test_a_claim_that_went_with_its_volume_between_the_lists_of_a_start_is_not_provisioned_again():
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            await world.until_journal_is_empty()
        name = volume["metadata"]["name"]

        async def between_the_lists(request: HttpRequest) -> None:
            # The claims are listed first, and their events come late.
            if request.method == "GET" and request.path.endswith("/persistentvolumes") and await world.volumes():
                await world.clock.sleep(1)
                await world.delete_claim()
                await world.client.delete(PERSISTENT_VOLUME, ObjectName(None, name))
                unprotected = MergePatch({"metadata": {"finalizers": None}})
                await world.client.patch(PERSISTENT_VOLUME, ObjectName(None, name), unprotected)

        world.wire = wire = LateWatch(PERSISTENT_VOLUME_CLAIM, world.clock)
        wire.is_late = True
        wire.before = between_the_lists
        async with world.provisioner():
            await world.clock.sleep(60)
        assert world.calls() == [CREATE]


@pytest.mark.parametrize(("waiting", "others", "reads"), [(6, 0, 0), (1, 30, 1)], ids=["many wait", "one of many"])
async def test_claims_that_wait_at_the_start_are_confirmed_by_a_list_where_that_is_less_work(
    waiting: int, others: int, reads: int
):
    async with ProvisionerWorld() as world:
        await world.make_class()
        for number in range(others):
            await world.make_claim(f"other-{number}", annotations=OF_ANOTHER)
        for number in range(waiting):
            await world.make_claim(f"data-{number}")
        asked: list[str] = []

        async def note(request: HttpRequest) -> None:
            if request.method == "GET" and "/persistentvolumeclaims/" in request.path:
                asked.append(request.path)

        world.wire.before = note
        async with world.provisioner():
            await world.until_provisioned(waiting)
        assert len(asked) == reads


async def test_a_claim_whose_persistent_volume_was_deleted_before_it_was_bound_gets_another_one():
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            await world.until_journal_is_empty()
            await world.release(volume["metadata"]["name"])

            async def is_provisioned_again() -> bool:
                return world.calls() == [CREATE, DELETE, CREATE]

            await world.clock.sleep(1)
            await world.annotate_claim(note="changed")
            await world.until(is_provisioned_again)
            await world.until_provisioned()


async def test_a_claim_that_begins_to_be_deleted_while_its_order_is_recorded_is_not_provisioned():
    async with ProvisionerWorld() as world:
        await world.make_class()

        async def deleted_meanwhile(request: HttpRequest) -> Any:
            if request.method == "PUT" and "journal" in request.path and world.calls() == []:
                await world.client.delete(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, "data"))
                await world.clock.sleep(1)
                world.wire.before = nothing

        async def nothing(_request: HttpRequest) -> None:
            return

        async with world.provisioner():
            await world.clock.sleep(1)
            world.wire.before = deleted_meanwhile
            await world.make_claim()
            await world.clock.sleep(60)
            assert (await world.claim())["metadata"]["deletionTimestamp"]
            await world.until_journal_is_empty()
        assert world.calls() == []


async def test_a_claim_whose_persistent_volume_the_cache_lacks_yet_is_not_provisioned_again():
    async with ProvisionerWorld() as world:
        world.wire = wire = LateWatch(PERSISTENT_VOLUME, world.clock)
        await world.make_class()
        async with world.provisioner():
            await world.clock.sleep(2)
            wire.is_late = True
            await world.make_claim()
            await world.until_provisioned()
            await world.annotate_claim(note="changed")
            await world.clock.sleep(60)
        assert world.calls() == [CREATE]
