"""`support.worlds`: what every world promises to the tests that use it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from orlop.foundation.clock import SystemClock
from orlop.kube.kinds import CONFIG_MAP, CORE_EVENT, NODE, POD
from orlop.kube.objects import name_of
from support.api.api_objects import config_map, named, pod
from support.worlds import ClusterWorld, World


async def forever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def fail() -> None:
    raise ValueError("the part failed")


# ---- time ------------------------------------------------------------------------------------------------------------


async def test_a_world_without_virtual_time_is_refused_with_the_mark_that_is_missing():
    with pytest.raises(TypeError, match=r"mark the test with @pytest\.mark\.virtual_time"):
        async with World():
            pass


async def test_a_world_on_real_time_does_not_settle():
    async with World(SystemClock()) as world:
        with pytest.raises(TypeError, match=r"settle\(\) would sleep in real time"):
            await world.settle()


@pytest.mark.virtual_time
async def test_until_returns_the_first_true_value_of_a_function_or_of_a_coroutine():
    async with World() as world:

        async def elapsed() -> float:
            return world.clock.elapsed()

        assert await world.until(lambda: [world.clock.elapsed()] if world.clock.elapsed() > 1000 else [], 2000) > [1000]
        assert await world.until(elapsed) > 1000


@pytest.mark.virtual_time
async def test_a_condition_that_never_holds_fails_by_name_with_its_value_and_the_end_of_the_log():
    async with World() as world:
        world.runtime("p").log.info("volume published", volume="v1")

        def volumes_left() -> list[str]:
            return []

        with pytest.raises(AssertionError) as failure:
            await world.until(volumes_left, within=5)

        assert world.clock.elapsed() == pytest.approx(5, abs=0.1)
        assert "volumes_left did not become true within 5 virtual seconds; it is []" in str(failure.value)
        assert "volume published {'volume': 'v1'}" in str(failure.value)


# ---- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_tasks_end_with_the_world_the_last_one_first_and_before_what_they_use():
    ended: list[str] = []

    class Example(World):
        async def begin(self, ends: AsyncExitStack) -> None:
            await super().begin(ends)
            ends.callback(ended.append, "resource")

    async with Example() as world:
        world.start(forever(ended, "first"), "first")
        world.start(forever(ended, "second"), "second")
        await world.settle()

    assert ended == ["second", "first", "resource"]


@pytest.mark.virtual_time
async def test_a_task_that_fails_fails_the_test_at_once():
    with pytest.raises(ValueError, match="the part failed"):
        async with World() as world:
            world.start(fail(), "part")
            await world.until(lambda: False)
    assert world.clock.elapsed() == 0


@pytest.mark.virtual_time
async def test_what_was_started_ends_when_a_world_cannot_begin():
    ended: list[str] = []

    class Broken(World):
        async def begin(self, ends: AsyncExitStack) -> None:
            await super().begin(ends)
            ends.callback(ended.append, "resource")
            raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        async with Broken():
            pass
    assert ended == ["resource"]


@pytest.mark.virtual_time
async def test_a_part_can_be_killed_and_started_again():
    ended: list[str] = []
    async with World() as world:
        part = world.part("kubelet", lambda: forever(ended, "kubelet"))
        part.start()
        await world.settle()
        with pytest.raises(AssertionError, match="kubelet runs already"):
            part.start()
        await part.restart()
        await world.settle()
        assert ended == ["kubelet"]
    assert ended == ["kubelet", "kubelet"]


# ---- the cluster -----------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_objects_are_created_found_changed_and_deleted_by_kind_and_name():
    async with ClusterWorld() as world:
        await world.create(CONFIG_MAP, config_map("c", k="v"))
        await world.merge(CONFIG_MAP, "c", {"data": {"k": "w"}})
        found = await world.find(CONFIG_MAP, "c")
        assert found is not None
        assert (name_of(found).namespace, found["data"]) == ("default", {"k": "w"})
        await world.delete(CONFIG_MAP, "c")
        assert await world.find(CONFIG_MAP, "c") is None

        await world.create(NODE, named("n1"))
        assert await world.find(NODE, "n1") is not None
        await world.create(POD, pod("p"))


@pytest.mark.virtual_time
async def test_events_of_a_controller_are_written_when_its_parts_have_ended():
    async with ClusterWorld() as world:
        created = await world.create(POD, pod("p"))
        async with world.controller_parts("binder") as parts:
            parts.events.normal(created, "Bound", "bound to n1")
        (event,) = (await world.client.list(CORE_EVENT)).items

    assert (event["reason"], event["reportingComponent"]) == ("Bound", "binder")


@pytest.mark.virtual_time
async def test_a_part_draws_the_same_random_numbers_whatever_other_parts_there_are():
    async with World() as one, World() as two:
        two.runtime("scheduler").random.random()
        assert one.runtime("binder").random.random() == two.runtime("binder").random.random()
        assert one.runtime("binder").random.random() != one.runtime("scheduler").random.random()
