"""Who is woken by what, who waits for whom, what the driver lists: upstream's cases, and complaints of its users."""

from __future__ import annotations

import pytest

from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpResponse
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from support.api.api_objects import attachment
from support.api.api_wires import failing, refusal
from support.attaching.attacher_worlds import OURS, PUBLISH, UNPUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
VA1 = ObjectName(None, "va1")
FAILS = {"times": 0, "error": {"code": "INTERNAL", "message": "no"}}


async def prepared(world: AttacherWorld) -> None:
    await world.node()
    await world.volume()
    await world.wanted()


# ---- who is woken by what --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["attachError", "detachError"])
async def test_an_error_that_is_written_or_changed_wakes_nobody(field: str):
    async with AttacherWorld() as world:
        world.play({PUBLISH: [FAILS]})
        await prepared(world)
        async with world.attacher(retry_start=1000.0, retry_most=1000.0, resync=0.0):
            await world.until_told()
            for number in range(10):
                error = {"message": f"written by somebody else, {number}", "time": "2026-01-02T03:04:05Z"}
                await world.client.patch(
                    VOLUME_ATTACHMENT, VA1, MergePatch({"status": {field: error}}), subresource="status"
                )
                await world.clock.sleep(10)
        assert world.calls() == [PUBLISH]


async def test_labels_annotations_and_who_manages_what_wake_nobody():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [FAILS]})
        await prepared(world)
        async with world.attacher(retry_start=1000.0, retry_most=1000.0, resync=0.0):
            await world.until_told()
            for part in ("labels", "annotations"):
                await world.client.patch(VOLUME_ATTACHMENT, VA1, MergePatch({"metadata": {part: {"a": "b"}}}))
                await world.clock.sleep(10)
            await world.client.patch(
                PERSISTENT_VOLUME, ObjectName(None, "pv1"), MergePatch({"metadata": {"labels": {"nothing": "new"}}})
            )
            await world.clock.sleep(10)
        assert world.calls() == [PUBLISH]


async def test_from_time_to_time_all_are_looked_at_again_though_nothing_was_told():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [FAILS]})
        await prepared(world)
        async with world.attacher(retry_start=100_000.0, retry_most=100_000.0, resync=600.0):
            await world.clock.sleep(3 * 660 + 1)
        assert len(world.calls()) == 4


async def test_a_finalizer_of_ours_that_somebody_took_is_put_back_and_it_is_attached_again():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            await world.client.patch(VOLUME_ATTACHMENT, VA1, MergePatch({"metadata": {"finalizers": None}}))
            await world.clock.sleep(1)
            found = await world.until_attached()
        assert objects.finalizers(found) == (OURS,)
        assert world.published() == ["id-1"]


async def test_failures_of_one_object_do_not_delay_another():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{**FAILS, "when": {"volumeId": "h1"}}]})
        await prepared(world)
        async with world.attacher():
            await world.clock.sleep(600)
            await world.volume("pv2", "h2")
            await world.wanted("va2", "pv2")
            began = world.clock.elapsed()
            await world.until_attached("va2")
            assert world.clock.elapsed() - began < 1
        attempts = [request for request in world.requests(PUBLISH) if request.volume_id == "h1"]
        assert 9 <= len(attempts) <= 13, "after 1, 2, 4 … seconds, at most five minutes apart"


# ---- who waits behind whom -------------------------------------------------------------------------------------------


async def test_attaching_does_not_wait_behind_a_burst_of_detaching_that_hangs():
    async with AttacherWorld() as world:
        world.play({UNPUBLISH: [{"times": 0, "delay": "1000s"}]})
        await world.node()
        for number in range(50):
            await world.volume(f"pv{number}", f"h{number}")
            await world.wanted(f"va{number}", f"pv{number}")
        async with world.attacher(workers=10, timeout=2000.0):
            for number in range(50):
                await world.until_attached(f"va{number}")
            for number in range(50):
                await world.delete(VOLUME_ATTACHMENT, f"va{number}")
            await world.clock.sleep(5)
            await world.volume("new", "h-new")
            await world.wanted("va-new", "new")
            began = world.clock.elapsed()
            await world.until_attached("va-new")
            assert world.clock.elapsed() - began < 1


async def test_one_that_is_deleted_while_it_is_attached_is_detached_after_that_call_and_not_beside_it():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"delay": "10s"}]})
        await prepared(world)
        async with world.attacher():
            await world.clock.sleep(3)
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        attached, detached = (call for call in world.drivers[-1].calls if call.method in {PUBLISH, UNPUBLISH})
        assert (attached.method, detached.method) == (PUBLISH, UNPUBLISH)
        assert attached.ended is not None
        assert detached.started >= attached.ended
        assert world.published() == []


async def test_a_server_that_says_when_to_come_back_is_obeyed_and_no_error_is_told():
    async with AttacherWorld() as world:
        busy = refusal(429, "TooManyRequests")
        later = HttpResponse(429, {**busy.headers, "retry-after": "7"}, busy.body)
        world.wire.before = failing("PATCH", times=2, answer=later)
        await prepared(world)
        async with world.attacher():
            began = world.clock.elapsed()
            await world.until_attached()
            assert 14 <= world.clock.elapsed() - began < 15
        assert await world.events() == []
        assert world.calls() == [PUBLISH]


async def test_the_backlog_and_the_age_of_its_oldest_are_metrics():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 0, "delay": "100s"}]})
        await world.node()
        for number in range(5):
            await world.volume(f"pv{number}", f"h{number}")
            await world.wanted(f"va{number}", f"pv{number}")
        async with world.attacher(workers=1, timeout=200.0):
            await world.clock.sleep(60)
            shown = world.metrics()
    of_attaching = '{name="csi-attacher-va"}'
    assert shown[f"workqueue_depth{of_attaching}"] == 4
    assert shown[f"orlop_workqueue_oldest_seconds{of_attaching}"] == pytest.approx(60, abs=1)
    assert shown[f"workqueue_longest_running_processor_seconds{of_attaching}"] == pytest.approx(60, abs=1)
    assert shown['workqueue_depth{name="csi-attacher-va-detach"}'] == 0
    assert shown['workqueue_depth{name="csi-attacher-pv"}'] == 0


# ---- what the driver lists -------------------------------------------------------------------------------------------


async def test_what_the_driver_has_though_the_object_is_not_attached_is_attached_without_waiting_for_its_turn():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"effect": True, "error": {"code": "INTERNAL", "message": "the answer was lost"}}]})
        await prepared(world)
        async with world.attacher(reconcile=60.0, retry_start=100_000.0, retry_most=100_000.0, resync=0.0):
            await world.until_told()
            began = world.clock.elapsed()
            await world.until_attached()
            assert world.clock.elapsed() - began <= 130, "what differs twice in a row is looked at"
        assert world.calls() == [PUBLISH, PUBLISH]


async def test_what_the_driver_has_and_no_object_asks_for_is_left_alone():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
        await world.client.patch(VOLUME_ATTACHMENT, VA1, MergePatch({"metadata": {"finalizers": None}}))
        await world.delete(VOLUME_ATTACHMENT, "va1")
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(300)
        assert world.published() == ["id-1"]
        assert world.calls() == [PUBLISH]
        assert len(world.calls("ListVolumes")) >= 4


# ---- drivers that attach nothing -------------------------------------------------------------------------------------


async def test_without_attaching_those_of_an_unknown_driver_are_ignored():
    async with AttacherWorld() as world:
        await world.client.create(VOLUME_ATTACHMENT, attachment("va1", attacher="other.example.com", nodeName="n1"))
        async with world.attacher(trivial=True):
            await world.clock.sleep(700)
        assert world.wire.written() == []


async def test_without_attaching_a_write_that_fails_is_made_again():
    async with AttacherWorld() as world:
        world.wire.before = failing("PATCH volumeattachments/va1/status", times=3)
        await world.wanted()
        async with world.attacher(trivial=True):
            await world.until_attached()


async def test_without_attaching_one_that_is_being_deleted_is_left_to_those_who_keep_it():
    async with AttacherWorld() as world:
        await world.wanted()
        keeps = MergePatch({"metadata": {"finalizers": ["somebody/else"]}})
        await world.client.patch(VOLUME_ATTACHMENT, VA1, keeps)
        await world.delete(VOLUME_ATTACHMENT, "va1")
        async with world.attacher(trivial=True):
            await world.clock.sleep(700)
        assert world.wire.written() == []
