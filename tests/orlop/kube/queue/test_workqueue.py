"""Names wait once, run one at a time across all pools, come back when asked to, and are never lost."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.backoff import Backoff
from orlop.foundation.metrics import Metrics
from orlop.kube.queue.workqueue import FairShare, Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.testing.virtual_clock import NothingCanHappen, VirtualClock, run_virtual
from support.hand_clock import HandClock
from support.queues import BACKOFF, queue_of, scraped, take_all

# ---- adding and taking -----------------------------------------------------------------------------------------------


def test_a_name_waits_once_however_often_it_is_added():
    queue = queue_of("work", clock=HandClock())
    for name in ("a", "b", "a", "c", "b"):
        queue.add("work", name)
    assert queue.depth("work") == 3
    assert take_all(queue, "work") == ["a", "b", "c"]
    assert queue.is_idle()


def test_an_idle_queue_holds_nothing_of_the_names_and_groups_it_had():
    queue = queue_of_crowds(workers=4, share=0.8)
    for name in ("a0", "b0", "b1"):
        queue.add("work", name)
    take_all(queue, "work")
    pool = queue._pools["work"]
    assert queue.is_idle()
    assert not any((pool.waiting, pool.running, pool.lines, pool.group_of_running, pool.at_work, pool.failures))


def test_a_name_added_while_it_is_worked_on_is_worked_on_again_afterwards():
    queue = queue_of("work", clock=HandClock())
    queue.add("work", "a")
    assert queue.take_now("work") == "a"
    queue.add("work", "a")
    queue.add("work", "a")
    assert queue.take_now("work") is None
    queue.done("a")
    assert take_all(queue, "work") == ["a"]


def test_a_name_is_worked_on_by_one_pool_at_a_time_and_the_others_take_the_next():
    queue = queue_of("attach", "detach", clock=HandClock())
    for pool in ("attach", "detach"):
        queue.add(pool, "a")
        queue.add(pool, "b")
    assert queue.take_now("attach") == "a"
    assert queue.take_now("detach") == "b"
    assert queue.take_now("detach") is None
    assert queue.take_now("attach") is None
    queue.done("a")
    assert queue.take_now("detach") == "a"


def queue_of_crowds(workers: int, share: float, clock: HandClock | None = None) -> Workqueue[str]:
    """Names belong to their first letter."""
    fair_share: FairShare[str] = FairShare(lambda name: name[0], workers, share)
    metrics = WorkqueueMetrics(Metrics("t", of_process=False))
    return Workqueue(
        ("work",), clock=clock or HandClock(), random=Random(1), backoff=BACKOFF, metrics=metrics, fair_share=fair_share
    )


def test_crowds_take_turns_and_none_has_more_than_its_share_of_what_others_leave():
    queue = queue_of_crowds(workers=10, share=0.8)
    for crowd in "ab":
        for number in range(9):
            queue.add("work", f"{crowd}{number}")
    taken = [queue.take_now("work") for _ in range(9)]
    assert taken == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3", None], "two workers are left for others"
    queue.add("work", "c0")
    assert queue.take_now("work") == "c0"
    queue.done("b1")
    assert queue.take_now("work") == "b4"


def test_a_crowd_that_had_its_turn_is_behind_the_others_also_when_its_work_has_ended():
    queue = queue_of_crowds(workers=10, share=0.8)
    for name in ("a0", "a1", "b0", "b1"):
        queue.add("work", name)
    taken = []
    for _ in range(4):
        name = queue.take_now("work")
        assert name is not None
        taken.append(name)
        queue.done(name)
    assert taken == ["a0", "b0", "a1", "b1"]


def test_a_crowd_alone_leaves_some_workers_to_those_that_may_come():
    queue = queue_of_crowds(workers=10, share=0.8)
    for number in range(12):
        queue.add("work", f"a{number}")
    assert [queue.take_now("work") for _ in range(12)] == [*(f"a{number}" for number in range(8)), *[None] * 4]


def test_a_crowd_of_which_nothing_is_worked_on_is_before_those_that_came_first():
    queue = queue_of_crowds(workers=2, share=1.0)
    for name in ("a1", "a2", "a3", "b1"):
        queue.add("work", name)
    assert [queue.take_now("work") for _ in range(2)] == ["a1", "b1"]
    queue.add("work", "c1")
    queue.done("b1")
    assert queue.take_now("work") == "c1", "a has one at work"


def take_one(queue: Workqueue[str]) -> str | None:
    name = queue.take_now("work")
    if name is not None:
        queue.done(name)
    return name


def test_a_crowd_whose_work_took_long_is_behind_those_whose_did_not_until_it_ends_quickly():
    clock = HandClock()
    queue = queue_of_crowds(workers=1, share=1.0, clock=clock)
    queue.add("work", "a1")
    assert queue.take_now("work") == "a1"
    clock.time += 15.0
    queue.done("a1")
    for name in ("a2", "b1", "b2"):
        queue.add("work", name)
    assert [take_one(queue) for _ in range(3)] == ["b1", "b2", "a2"]
    for name in ("a3", "b3"):
        queue.add("work", name)
    assert [take_one(queue) for _ in range(2)] == ["a3", "b3"]


@given(st.integers(1, 12), st.floats(0.1, 1.0), st.lists(st.sampled_from("abcdef"), max_size=60))
def test_whatever_crowds_come_each_can_have_one_worker_and_none_more_than_its_share(
    workers: int, share: float, fair_share: list[str]
):
    queue = queue_of_crowds(workers, share)
    for number, crowd in enumerate(fair_share):
        queue.add("work", f"{crowd}{number}")
    taken = [name for _ in range(workers) if (name := queue.take_now("work")) is not None]
    at_work = Counter(name[0] for name in taken)
    assert len(at_work) == min(workers, len(set(fair_share)))
    assert all(count <= max(1, share * workers) for count in at_work.values())


async def test_whoever_waits_for_a_name_of_a_crowd_gets_it_when_another_of_it_ends():
    metrics = WorkqueueMetrics(Metrics("t", of_process=False))
    queue: Workqueue[str] = Workqueue(
        ("work",),
        clock=HandClock(),
        random=Random(1),
        backoff=BACKOFF,
        metrics=metrics,
        fair_share=FairShare(workers=1),
    )
    queue.add("work", "a")
    queue.add("work", "b")
    assert await queue.take("work") == "a"
    waiting = asyncio.ensure_future(queue.take("work"))
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done("a")
    assert await waiting == "b"


def test_a_name_passed_over_keeps_its_place():
    queue = queue_of("attach", "detach", clock=HandClock())
    queue.add("detach", "a")
    for name in ("a", "b", "c"):
        queue.add("attach", name)
    queue.take_now("detach")
    assert queue.take_now("attach") == "b"
    queue.done("a")
    assert queue.take_now("attach") == "a"


def test_wrong_use_is_told():
    queue = queue_of("attach", "detach", clock=HandClock())
    with pytest.raises(ValueError, match="no pool 'resize'; its pools are: attach, detach"):
        queue.add("resize", "a")
    with pytest.raises(ValueError, match="no worker has a"):
        queue.done("a")
    for never in (math.inf, math.nan):
        with pytest.raises(ValueError, match="the delay must be finite"):
            queue.add_after("attach", "a", never)


# ---- delays and failures ---------------------------------------------------------------------------------------------


def test_a_delayed_name_comes_at_the_earliest_time_anybody_asked_for():
    clock = HandClock()
    queue = queue_of("work", clock=clock)
    queue.add_after("work", "a", 10)
    queue.add_after("work", "a", 5)
    queue.add_after("work", "a", 20)
    queue.add_after("work", "b", 0)
    queue.add_after("work", "c", -1)
    assert queue.delayed() == 1
    assert take_all(queue, "work") == ["b", "c"]
    clock.time = 4.9
    assert take_all(queue, "work") == []
    clock.time = 5.0
    assert take_all(queue, "work") == ["a"]
    clock.time = 100.0
    assert take_all(queue, "work") == []


def test_an_add_does_not_cancel_a_delayed_one():
    clock = HandClock()
    queue = queue_of("work", clock=clock)
    queue.add_after("work", "a", 10)
    queue.add("work", "a")
    assert take_all(queue, "work") == ["a"]
    clock.time = 10.0
    assert take_all(queue, "work") == ["a"]


def test_a_name_is_delayed_in_each_pool_for_itself():
    clock = HandClock()
    queue = queue_of("attach", "detach", clock=clock)
    queue.add_after("attach", "a", 10)
    queue.add_after("detach", "a", 20)
    clock.time = 15.0
    assert (take_all(queue, "attach"), take_all(queue, "detach")) == (["a"], [])


def test_each_failure_doubles_the_delay_until_success_or_the_cap():
    queue = queue_of("work", clock=HandClock(), backoff=Backoff(initial=1, factor=2, cap=10))
    assert [queue.retry("work", "a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert queue.retry("work", "b") == 1
    assert queue.failures("work", "a") == 6
    queue.forget("work", "a")
    assert queue.failures("work", "a") == 0
    assert queue.retry("work", "a") == 1


def test_the_failures_of_one_pool_do_not_slow_another():
    queue = queue_of("attach", "detach", clock=HandClock())
    for _ in range(5):
        queue.retry("attach", "a")
    assert queue.retry("detach", "a") == 1
    queue.forget("detach", "a")
    assert queue.failures("attach", "a") == 5


def test_many_that_failed_together_do_not_come_back_together():
    queue = queue_of("work", clock=HandClock(), backoff=Backoff(initial=1, factor=2, cap=10, jitter=0.5))
    delays = [queue.retry("work", number) for number in range(100)]
    assert len(set(delays)) == 100
    assert all(1 <= delay <= 1.5 for delay in delays)


def test_a_hundred_thousand_names_are_no_trouble():
    clock = HandClock()
    queue = queue_of("attach", "detach", clock=clock)
    for number in range(100_000):
        queue.add("attach", number)
        queue.add_after("detach", number, 100_000 - number)
        queue.add_after("detach", number, (100_000 - number) / 2)
    assert (queue.depth("attach"), queue.delayed()) == (100_000, 100_000)
    clock.time = 1e6
    for number in range(20_000):
        assert (queue.take_now("attach"), queue.take_now("detach")) == (number, 99_999 - number)
        queue.done(number)
        queue.done(99_999 - number)
    assert (queue.depth("attach"), queue.depth("detach"), queue.delayed()) == (80_000, 80_000, 0)


def test_a_name_delayed_earlier_and_earlier_takes_no_more_memory():
    queue = queue_of("work", clock=HandClock())
    for number in range(10_000):
        queue.add_after("work", "a", 20_000 - number)
    assert len(queue._delayed._heap) < 100


# ---- waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_taker_waits_until_a_name_is_there():
    queue, clock = queue_of("work"), VirtualClock()
    taker = asyncio.create_task(queue.take("work"))
    await clock.sleep(5)
    assert not taker.done()
    queue.add("work", "a")
    assert await taker == "a"
    assert clock.elapsed() == 5


@pytest.mark.virtual_time
async def test_takers_get_names_in_the_order_they_came():
    queue, clock = queue_of("work"), VirtualClock()
    takers = [asyncio.create_task(queue.take("work")) for _ in range(3)]
    await clock.sleep(1)
    for name in "abc":
        queue.add("work", name)
    assert await asyncio.gather(*takers) == ["a", "b", "c"]


@pytest.mark.virtual_time
async def test_a_taker_waits_for_a_name_that_another_pool_works_on():
    queue, clock = queue_of("attach", "detach"), VirtualClock()
    queue.add("detach", "a")
    queue.take_now("detach")
    queue.add("attach", "a")
    taker = asyncio.create_task(queue.take("attach"))
    await clock.sleep(5)
    assert not taker.done()
    queue.done("a")
    assert await taker == "a"


@pytest.mark.virtual_time
async def test_a_delayed_name_wakes_a_taker_when_it_is_due():
    queue, clock = queue_of("work"), VirtualClock()
    running = asyncio.create_task(queue.run())
    taker = asyncio.create_task(queue.take("work"))
    queue.add_after("work", "late", 3600)
    await clock.sleep(1)
    queue.add_after("work", "soon", 10)
    assert await taker == "soon"
    assert clock.elapsed() == 11
    assert await queue.take("work") == "late"
    assert clock.elapsed() == 3600
    queue.shut_down(drain=False)
    await running


@pytest.mark.virtual_time
async def test_a_taker_cancelled_as_it_is_woken_passes_its_turn_on():
    queue, clock = queue_of("work"), VirtualClock()
    first, second = (asyncio.create_task(queue.take("work")) for _ in range(2))
    await clock.sleep(1)
    queue.add("work", "a")
    first.cancel()
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.virtual_time
async def test_a_taker_cancelled_just_before_it_would_be_woken_leaves_its_turn_to_the_next():
    queue, clock = queue_of("work"), VirtualClock()
    first, second = (asyncio.create_task(queue.take("work")) for _ in range(2))
    await clock.sleep(1)
    first.cancel()
    queue.add("work", "a")  # the first one has not run since, and still stands in line
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.virtual_time
async def test_a_taker_that_gave_up_is_not_woken():
    queue, clock = queue_of("work"), VirtualClock()
    first, second = (asyncio.create_task(queue.take("work")) for _ in range(2))
    await clock.sleep(1)
    first.cancel()
    await clock.sleep(1)
    queue.add("work", "a")
    assert await second == "a"
    assert not queue._pools["work"].takers


@pytest.mark.virtual_time
async def test_the_timer_can_be_cancelled():
    queue, clock = queue_of("work"), VirtualClock()
    for delay in (None, 100):
        if delay:
            queue.add_after("work", "a", delay)
        running = asyncio.create_task(queue.run())
        await clock.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


def test_nobody_is_woken_for_nothing():
    async def wait_for_ever(_: VirtualClock) -> None:
        queue = queue_of("work", "other")
        queue.add("other", "a")
        await asyncio.gather(queue.run(), queue.take("work"))

    with pytest.raises(NothingCanHappen):
        run_virtual(wait_for_ever)


# ---- the end ---------------------------------------------------------------------------------------------------------


async def drained(queue: Workqueue[Any], pool: str) -> list[Any]:
    names = []
    while (name := await queue.take(pool)) is not None:
        names.append(name)
        queue.done(name)
    return names


@pytest.mark.virtual_time
async def test_a_queue_that_drains_hands_out_what_waits_and_nothing_else():
    queue = queue_of("work")
    queue.add("work", "a")
    queue.add("work", "b")
    queue.add_after("work", "delayed", 1)
    queue.shut_down(drain=True)
    queue.add("work", "too late")
    queue.add_after("work", "much too late", 1)
    queue.retry("work", "failed")
    assert queue.is_shut_down
    assert await drained(queue, "work") == ["a", "b"]
    assert queue.delayed() == 0


@pytest.mark.virtual_time
async def test_a_queue_that_drops_hands_out_nothing_more():
    queue = queue_of("work")
    queue.add("work", "a")
    queue.add("work", "b")
    assert queue.take_now("work") == "a"
    queue.add("work", "a")
    queue.shut_down(drain=False)
    assert await queue.take("work") is None
    queue.done("a")
    assert await queue.take("work") is None
    assert queue.is_idle()


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.virtual_time
async def test_everybody_who_waits_is_told_of_the_end(drain: bool):  # noqa: FBT001 - both ways to end
    queue, clock = queue_of("attach", "detach"), VirtualClock()
    waiting = [asyncio.create_task(queue.take(pool)) for pool in ("attach", "detach", "detach")]
    running = asyncio.create_task(queue.run())
    await clock.sleep(1)
    queue.shut_down(drain=drain)
    assert await asyncio.gather(*waiting, running) == [None] * 4


@pytest.mark.virtual_time
async def test_draining_waits_for_a_name_that_another_pool_still_works_on_and_then_ends_for_all():
    queue, clock = queue_of("attach", "detach"), VirtualClock()
    for pool in ("attach", "detach"):
        queue.add(pool, "a")
    queue.take_now("detach")
    takers = [asyncio.create_task(drained(queue, "attach")) for _ in range(3)]
    await clock.sleep(1)
    queue.shut_down(drain=True)
    await clock.sleep(1)
    assert not any(taker.done() for taker in takers)
    queue.done("a")
    assert sorted(await asyncio.gather(*takers)) == [[], [], ["a"]]


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_the_metrics_are_client_gos_and_say_how_much_waits_and_since_when():
    metrics, clock = Metrics("test", of_process=False), HandClock()
    queue = queue_of("csi-attacher-va", "csi-attacher-pv", clock=clock, metrics=metrics)
    queue.add("csi-attacher-va", "a")
    clock.time = 2.0
    for name in ("a", "b", "c"):
        queue.add("csi-attacher-va", name)
    queue.add_after("csi-attacher-va", "d", 1000)
    clock.time = 5.0
    assert queue.take_now("csi-attacher-va") == "a"
    clock.time = 6.0
    assert queue.take_now("csi-attacher-va") == "b"
    queue.retry("csi-attacher-va", "b")
    clock.time = 8.0
    assert scraped(metrics, "csi-attacher-va") == {
        "workqueue_adds_total": 4,
        "workqueue_retries_total": 1,
        "workqueue_depth": 1,
        "orlop_workqueue_oldest_seconds": 6,
        "workqueue_longest_running_processor_seconds": 3,
        "workqueue_unfinished_work_seconds": 5,
        "workqueue_queue_duration_seconds_count": 2,
        "workqueue_queue_duration_seconds_sum": 9,
    }
    queue.done("a")
    assert scraped(metrics, "csi-attacher-va")["workqueue_work_duration_seconds_sum"] == 3
    assert scraped(metrics, "csi-attacher-pv") == {
        "workqueue_depth": 0,
        "orlop_workqueue_oldest_seconds": 0,
        "workqueue_longest_running_processor_seconds": 0,
        "workqueue_unfinished_work_seconds": 0,
    }
