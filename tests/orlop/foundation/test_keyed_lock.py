"""One holder for each key, turns in order, and nothing left behind, whoever is cancelled when."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.keyed_lock import KeyedLock, KeyHeld
from orlop.testing.virtual_clock import VirtualClock, run_virtual

if TYPE_CHECKING:
    from collections.abc import Hashable


class Ledger:
    """Who got which key in which order, and whether two ever had it at once."""

    def __init__(self) -> None:
        self.lock = KeyedLock()
        self.inside: dict[Hashable, str] = {}
        self.turns: list[str] = []

    async def work(self, key: Hashable, who: str, seconds: float = 1.0) -> None:
        async with self.lock.hold(key, why=who):
            assert self.lock.holder(key) == who
            assert self.inside.setdefault(key, who) == who
            self.turns.append(who)
            try:
                await asyncio.sleep(seconds)
            finally:
                del self.inside[key]

    def start(self, key: Hashable, who: str, seconds: float = 1.0) -> asyncio.Task[None]:
        return asyncio.create_task(self.work(key, who, seconds), name=who)


@pytest.mark.virtual_time
async def test_one_key_is_held_by_one_at_a_time_in_the_order_they_came():
    ledger = Ledger()
    await asyncio.gather(*(ledger.work("volume", who) for who in "abcde"))
    assert ledger.turns == list("abcde")
    assert VirtualClock().elapsed() == 5


@pytest.mark.virtual_time
async def test_different_keys_do_not_wait_for_each_other():
    ledger = Ledger()
    await asyncio.gather(*(ledger.work(key, f"worker {key}") for key in range(50)))
    assert VirtualClock().elapsed() == 1


@pytest.mark.virtual_time
async def test_a_key_that_is_free_again_takes_no_memory():
    ledger = Ledger()
    await asyncio.gather(*(ledger.work(number % 100, str(number)) for number in range(1000)))
    with ledger.lock.try_hold("other", why="a moment's work"):
        pass
    assert ledger.lock._lines == {}


def test_a_held_key_is_refused_at_once_with_what_it_is_held_by():
    lock = KeyedLock()
    with lock.try_hold("pvc-1", why="NodePublishVolume"):
        with (
            pytest.raises(KeyHeld, match="'pvc-1' is held by NodePublishVolume") as caught,
            lock.try_hold("pvc-1", why="NodeUnpublishVolume"),
        ):
            raise AssertionError("nobody else may come in")
        with lock.try_hold("pvc-2", why="NodePublishVolume"):
            assert lock.holder("pvc-2") == "NodePublishVolume"
    assert (caught.value.key, caught.value.holder) == ("pvc-1", "NodePublishVolume")
    assert lock.holder("pvc-1") is None


@pytest.mark.virtual_time
async def test_a_key_handed_over_is_refused_even_before_the_next_in_line_woke_up():
    lock, ledger = KeyedLock(), Ledger()
    ledger.lock = lock
    with lock.try_hold("key", why="first"):
        second = ledger.start("key", "second")
        await asyncio.sleep(0)
    assert ledger.turns == []
    with pytest.raises(KeyHeld, match="held by second"), lock.try_hold("key", why="third"):
        raise AssertionError("the next in line comes first")
    await second
    assert lock._lines == {}


@pytest.mark.virtual_time
async def test_a_failure_inside_gives_the_key_back():
    lock = KeyedLock()
    with pytest.raises(LookupError):
        async with lock.hold("key", why="a mistake"):
            raise LookupError
    with pytest.raises(LookupError), lock.try_hold("key", why="a mistake"):
        raise LookupError
    assert lock._lines == {}


@pytest.mark.virtual_time
async def test_one_cancelled_while_waiting_leaves_its_place_to_the_next():
    ledger = Ledger()
    tasks = [ledger.start("key", who) for who in "abc"]
    await asyncio.sleep(0.5)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert ledger.turns == ["a", "c"]
    assert ledger.lock._lines == {}


@pytest.mark.virtual_time
async def test_one_cancelled_in_the_moment_its_turn_came_passes_the_key_on():
    ledger = Ledger()
    with ledger.lock.try_hold("key", why="first"):
        second, third = ledger.start("key", "second"), ledger.start("key", "third")
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second, third])
    assert second.cancelled()
    assert ledger.turns == ["third"]
    assert ledger.lock._lines == {}


@pytest.mark.virtual_time
async def test_the_key_skips_one_whose_cancellation_is_on_its_way():
    ledger = Ledger()
    with ledger.lock.try_hold("key", why="first"):
        second, third = ledger.start("key", "second"), ledger.start("key", "third")
        await asyncio.sleep(0)
        second.cancel()
    await asyncio.wait([second, third])
    assert ledger.turns == ["third"]
    assert ledger.lock._lines == {}


@pytest.mark.virtual_time
async def test_one_thrown_away_while_waiting_leaves_nothing_behind():
    ledger = Ledger()
    with ledger.lock.try_hold("key", why="first"):
        abandoned = ledger.work("key", "abandoned")
        abandoned.send(None)
        abandoned.close()
    assert ledger.lock._lines == {}


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 4))
def test_whoever_comes_and_is_cancelled_whenever_no_key_is_shared_and_none_is_lost(seed: int, tasks: int, keys: int):
    async def main(clock: VirtualClock) -> None:
        random, ledger = Random(seed), Ledger()

        async def come_and_go(number: int) -> None:
            await clock.sleep(random.randrange(10))
            await ledger.work(random.randrange(keys), f"{number:03}", random.randrange(4))

        crowd = [asyncio.create_task(come_and_go(number), name=f"{number:03}") for number in range(tasks)]
        for victim in random.sample(crowd, random.randrange(tasks)):
            await clock.sleep(random.randrange(3))
            victim.cancel()
        await asyncio.wait(crowd)
        survivors = {task.get_name() for task in crowd if not task.cancelled()}
        assert all(task.cancelled() or task.exception() is None for task in crowd)
        assert survivors <= set(ledger.turns)
        assert len(ledger.turns) == len(set(ledger.turns))
        assert ledger.inside == ledger.lock._lines == {}

    run_virtual(main)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=25))
def test_each_key_is_given_in_the_order_in_which_it_was_asked_for(visits: list[tuple[int, int]]):
    async def main(_: VirtualClock) -> None:
        ledger = Ledger()
        names = [f"{key}/{number}" for number, (key, _seconds) in enumerate(visits)]
        crowd = [ledger.start(key, name, seconds) for name, (key, seconds) in zip(names, visits, strict=True)]
        await asyncio.gather(*crowd)
        for key in range(3):
            mine = [name for name in names if name.startswith(f"{key}/")]
            assert [name for name in ledger.turns if name in mine] == mine

    run_virtual(main)
