from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from orlop.host.shared_answer import SharedAnswer
from support.waiting import eventually


class World:
    """Looks at it take as long as the test says, and are counted."""

    def __init__(self) -> None:
        self.state = 0
        self.looks = 0
        self.let_go = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)

    def look(self) -> int:
        seen = self.state
        self.looks += 1
        self.begun.release()
        assert self.let_go.acquire(timeout=10)
        if seen < 0:
            raise OSError("cannot see")
        return seen


def waiting_on(answer: SharedAnswer[int], count: int) -> Callable[[], bool]:
    return lambda: len(answer._changed._waiters) == count  # type: ignore[attr-defined]


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_whoever_asks_alone_gets_a_look_of_his_own():
    world = World()
    answer = SharedAnswer(world.look)
    world.let_go.release(2)

    assert answer.ask() == 0
    world.state = 1
    assert answer.ask() == 1


async def test_all_who_ask_during_a_look_share_the_next_one_and_none_gets_the_older(threads: ThreadPoolExecutor):
    world = World()
    answer = SharedAnswer(world.look)
    first = threads.submit(answer.ask)
    assert world.begun.acquire(timeout=10)
    world.state = 1

    others: list[Future[int]] = [threads.submit(answer.ask) for _ in range(6)]
    await eventually(waiting_on(answer, 6))
    world.let_go.release(2)

    assert first.result(10) == 0
    assert [other.result(10) for other in others] == [1] * 6
    assert world.looks == 2


async def test_a_look_that_fails_fails_for_each_who_needed_it_and_later_ones_succeed(threads: ThreadPoolExecutor):
    world = World()
    world.state = -1
    answer = SharedAnswer(world.look)
    first = threads.submit(answer.ask)
    assert world.begun.acquire(timeout=10)
    second, third = threads.submit(answer.ask), threads.submit(answer.ask)
    await eventually(waiting_on(answer, 2))
    world.let_go.release(1)
    with pytest.raises(OSError, match="cannot see"):
        first.result(10)
    assert world.begun.acquire(timeout=10)
    world.state = 5
    world.let_go.release(2)

    outcomes = [asked.exception(10) or asked.result() for asked in (second, third)]

    assert {str(outcome) for outcome in outcomes} == {"cannot see", "5"}
    world.let_go.release(1)
    assert answer.ask() == 5
