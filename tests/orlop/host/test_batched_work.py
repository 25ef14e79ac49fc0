"""Work whose steps run in batches, in real threads: no work is resumed with a step that began too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.host.batched_work import LARGEST_BATCH, BatchedWork, BatchThreads, run_alone

WITHIN = 60.0


class World:
    """Counts what was done, and how much of it each look saw."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.looks = 0


@dataclass(frozen=True)
class Look:
    world: World = field(hash=True)
    what: str = "all"

    def run(self) -> list[str]:
        self.world.looks += 1
        return list(self.world.done)


@dataclass(frozen=True)
class Failing:
    def run(self) -> None:
        raise OSError("the disk is dead")


class Gate:
    """A step that hangs until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def run(self) -> str:
        self.entered.set()
        self.opened.wait(WITHIN)
        return "through"


def act_and_look(world: World, name: str, looks: int = 1) -> BatchedWork[bool]:
    saw_itself = True
    for number in range(looks):
        world.done.append(f"{name}-{number}")
        seen: list[str] = yield Look(world)
        saw_itself = saw_itself and f"{name}-{number}" in seen
    return saw_itself


def ask(step: Any) -> BatchedWork[Any]:
    return (yield step)


@asynccontextmanager
async def threads(usual: int = 1, most: int = 16) -> AsyncIterator[BatchThreads]:
    batched = BatchThreads("test", usual=usual, most=most)
    try:
        yield batched
    finally:
        await asyncio.to_thread(batched.close)


async def in_time(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, WITHIN)


@pytest.mark.parametrize("usual", [1, 4])
async def test_every_work_is_answered_by_a_step_that_began_after_it_asked(usual: int):
    world, random = World(), Random(usual)
    async with threads(usual) as batched:
        works = [batched(act_and_look(world, str(number), random.randint(1, 5))) for number in range(200)]
        assert await in_time(asyncio.gather(*works)) == [True] * 200


async def test_a_step_that_many_wait_for_is_taken_once():
    world, gate = World(), Gate()
    async with threads() as batched:
        first = batched(ask(gate))
        await asyncio.to_thread(gate.entered.wait, WITHIN)
        works = [batched(act_and_look(world, str(number))) for number in range(LARGEST_BATCH - 1)]
        gate.opened.set()
        await in_time(asyncio.gather(first, *works))
    assert world.looks == 1


async def test_those_who_came_first_do_not_wait_for_all_who_come_later():
    world, gate = World(), Gate()
    async with threads() as batched:
        first = batched(ask(gate))
        await asyncio.to_thread(gate.entered.wait, WITHIN)
        works = [batched(act_and_look(world, str(number))) for number in range(3 * LARGEST_BATCH)]
        gate.opened.set()
        await in_time(asyncio.gather(first, *works))
    assert world.looks == 3


async def test_unequal_steps_are_each_taken():
    world = World()
    async with threads() as batched:
        await in_time(asyncio.gather(batched(ask(Look(world, "one"))), batched(ask(Look(world, "other")))))
    assert world.looks == 2


async def test_a_step_that_fails_fails_for_all_who_wait_for_it_and_for_nobody_else():
    world = World()
    async with threads() as batched:
        works = [batched(ask(Failing())), batched(act_and_look(world, "a")), batched(ask(Failing()))]
        one, fine, other = await in_time(asyncio.gather(*works, return_exceptions=True))
    assert str(one) == str(other) == "the disk is dead"
    assert fine is True


async def test_work_may_go_on_after_a_step_that_failed():
    def insistent() -> BatchedWork[str]:
        try:
            yield Failing()
        except OSError as error:
            return f"undone: {error}"
        return "done"

    async with threads() as batched:
        assert await in_time(batched(insistent())) == "undone: the disk is dead"


async def test_work_that_breaks_tells_whoever_waits_and_the_threads_go_on():
    def broken() -> BatchedWork[None]:
        yield Look(World())
        raise KeyError("broken")

    async with threads() as batched:
        with pytest.raises(KeyError, match="broken"):
            await in_time(batched(broken()))
        assert await in_time(batched(act_and_look(World(), "a"))) is True


class Turns:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self._passed = asyncio.Condition()
        self.count = 0

    async def sleep(self, _seconds: float) -> None:
        async with self._passed:
            now = self.count
            await self._passed.wait_for(lambda: self.count > now)

    async def pass_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            async with self._passed:
                self.count += 1
                self._passed.notify_all()
            await asyncio.sleep(0)


async def test_a_step_that_hangs_holds_up_only_those_who_need_it():
    world, gate, time = World(), Gate(), Turns()
    async with threads() as batched:
        watch = asyncio.create_task(batched.watch(time.sleep, 1.0))
        stuck = batched(ask(gate))
        await asyncio.to_thread(gate.entered.wait, WITHIN)
        others = [batched(act_and_look(world, str(number))) for number in range(5)]
        await in_time(time.pass_until(lambda: all(work.done() for work in others)))
        assert not stuck.done()
        gate.opened.set()
        assert await in_time(stuck) == "through"
        watch.cancel()


async def test_no_more_threads_hang_than_are_allowed():
    gates, time = [Gate() for _ in range(6)], Turns()
    async with threads(usual=1, most=3) as batched:
        watch = asyncio.create_task(batched.watch(time.sleep, 1.0))
        works = [batched(ask(gate)) for gate in gates]
        await in_time(time.pass_until(lambda: sum(gate.entered.is_set() for gate in gates) == 3))
        await time.pass_until(lambda: time.count > 50)
        assert sum(gate.entered.is_set() for gate in gates) == 3
        for gate in gates:
            gate.opened.set()
        assert await in_time(asyncio.gather(*works)) == ["through"] * 6
        watch.cancel()


async def test_closing_waits_for_the_work_and_takes_no_more():
    world = World()
    batched = BatchThreads("test", usual=2, most=2)
    works = [batched(act_and_look(world, str(number), 3)) for number in range(20)]
    await asyncio.to_thread(batched.close)
    assert await in_time(asyncio.gather(*works)) == [True] * 20
    refused = act_and_look(world, "late")
    with pytest.raises(RuntimeError, match="ending"):
        batched(refused)


async def test_whoever_stops_waiting_harms_nobody():
    gate, world = Gate(), World()
    async with threads() as batched:
        left = batched(ask(gate))
        await asyncio.to_thread(gate.entered.wait, WITHIN)
        left.cancel()
        gate.opened.set()
        assert await in_time(batched(act_and_look(world, "a"))) is True


@given(st.integers(0, 6))
def test_alone_each_step_is_taken_when_it_is_asked_for(looks: int):
    world = World()
    assert run_alone(act_and_look(world, "a", looks)) is True
    assert world.looks == looks


def test_alone_a_step_that_fails_is_told_to_the_work():
    with pytest.raises(OSError, match="the disk is dead"):
        run_alone(ask(Failing()))
