"""Attaching and detaching have workers of their own: an object that turns round goes over to the others, at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from orlop.kube.kinds import VOLUME_ATTACHMENT
from support.attaching.attacher_worlds import OURS, PUBLISH, UNPUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
REFUSED = {"times": 0, "error": {"code": "INTERNAL", "message": "no"}}
SLOWLY_REFUSED = {**REFUSED, "delay": "14s"}
LONGEST_ATTACHING = 'workqueue_longest_running_processor_seconds{name="csi-attacher-va"}'
MANY = 15
"""More than there are workers in a pool."""


async def test_no_worker_who_attaches_is_kept_by_what_could_not_be_attached_and_cannot_be_detached():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [REFUSED], UNPUBLISH: [SLOWLY_REFUSED]})
        await world.node()
        async with world.attacher():
            for number in range(MANY):
                await world.volume(f"pv{number}", f"h{number}")
                await world.wanted(f"va{number}", f"pv{number}")
            for number in range(MANY):
                await world.until_told(name=f"va{number}")
                await world.delete(VOLUME_ATTACHMENT, f"va{number}")
            for _ in range(120):
                await world.clock.sleep(1)
                assert world.metrics()[LONGEST_ATTACHING] == 0
            assert len(world.calls(UNPUBLISH)) > MANY


async def test_what_cannot_be_detached_is_asked_for_as_often_though_it_was_to_be_attached_again():
    async def asked(*, failed_before: bool) -> int:
        async with AttacherWorld() as world:
            world.play({PUBLISH: [REFUSED] if failed_before else [], UNPUBLISH: [REFUSED]})
            await world.node()
            await world.volume()
            await world.wanted()
            async with world.attacher():
                await (world.until_told() if failed_before else world.until_attached())
                await world.delete(VOLUME_ATTACHMENT, "va1")
                await world.clock.sleep(1000)
            return len(world.calls(UNPUBLISH))

    assert await asked(failed_before=True) == await asked(failed_before=False)


@pytest.mark.parametrize("outcome", [{"error": {"code": "INTERNAL", "message": "no"}}, {}], ids=["fails", "succeeds"])
async def test_one_that_is_deleted_during_a_call_that_ends_late_is_detached_as_soon_as_that_has_ended(
    outcome: dict[str, object],
):
    async with AttacherWorld() as world:
        failures = {"times": 6, "error": {"code": "INTERNAL", "message": "no"}}
        world.play({PUBLISH: [failures, {"delay": "10s", **outcome}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():

            async def is_at_the_late_one() -> bool:
                return len(world.calls(PUBLISH)) == 7

            await world.until(is_at_the_late_one)
            await world.delete(VOLUME_ATTACHMENT, "va1")
            began = world.clock.elapsed()
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            assert world.clock.elapsed() - began < 11
        assert world.calls(UNPUBLISH) == [UNPUBLISH]
        assert world.published() == []


async def test_one_that_came_again_after_its_detaching_failed_is_attached_at_once_and_once():
    async with AttacherWorld() as world:
        world.play({UNPUBLISH: [{"times": 4, "error": {"code": "INTERNAL", "message": "no"}}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.wanted()
            began = world.clock.elapsed()
            found = await world.until_attached()
            assert world.clock.elapsed() - began < 1
            await world.clock.sleep(600)
        assert found["metadata"]["finalizers"] == [OURS]
        assert world.calls(PUBLISH) == [PUBLISH] * 2


async def test_one_that_came_again_waits_no_longer_than_the_first_of_its_name_however_often_that_failed():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 10, "error": {"code": "INTERNAL", "message": "no"}}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():

            async def has_failed_often() -> bool:
                return len(world.calls(PUBLISH)) == 9

            await world.until(has_failed_often, within=1000)
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.wanted()
            began = world.clock.elapsed()
            await world.until_attached()
            assert world.clock.elapsed() - began < 2
        assert len(world.calls(PUBLISH)) == 11


async def test_a_retry_that_was_left_from_attaching_does_not_shorten_the_delays_of_detaching():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [REFUSED], UNPUBLISH: [REFUSED]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():

            async def waits_long_for_its_retry() -> bool:
                return len(world.calls(PUBLISH)) == 6

            await world.until(waits_long_for_its_retry)
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(200)
        started = [call.started for driver in world.drivers for call in driver.calls_of(UNPUBLISH)]
        delays = [later - earlier for earlier, later in pairwise(started)]
        assert len(delays) >= 6
        assert all(later >= 1.6 * earlier for earlier, later in pairwise(delays)), delays


async def test_no_worker_who_attaches_is_kept_by_detaching_what_was_deleted_during_its_call():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"delay": "5s"}], UNPUBLISH: [SLOWLY_REFUSED]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():
            await world.clock.sleep(2)
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(5)
            assert world.calls() == [PUBLISH, UNPUBLISH]
            assert world.metrics()[LONGEST_ATTACHING] == 0
