"""The first failure ends the group and is raised as itself; nothing that went wrong is lost, and nobody is left."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.task_group import TaskGroup
from orlop.testing.virtual_clock import VirtualClock, VirtualTimeLoop, run_virtual

if TYPE_CHECKING:
    from collections.abc import Coroutine

pytestmark = pytest.mark.virtual_time


class Killed(BaseException):
    """Ends a process in simulation: no `except Exception` may stop it."""


async def fail(error: BaseException, after: float = 0.0) -> None:
    await asyncio.sleep(after)
    raise error


async def fail_when_cancelled(error: BaseException) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise error


async def group_of(*coroutines: Coroutine[object, object, object]) -> None:
    async with TaskGroup() as group:
        for number, coroutine in enumerate(coroutines):
            group.start(coroutine, name=f"child {number}")


async def test_leaving_the_block_waits_for_every_task_and_their_results_are_there():
    async with TaskGroup() as group:
        first = group.start(asyncio.sleep(5, "five"), name="first")
        second = group.start(asyncio.sleep(9, "nine"), name="second")
    assert (first.result(), second.result()) == ("five", "nine")
    assert VirtualClock().elapsed() == 9
    assert first.get_name() == "first"


async def test_a_failure_is_raised_as_itself_and_not_in_a_group():
    lost = LookupError("lost")
    with pytest.raises(LookupError) as caught:
        await group_of(fail(lost), asyncio.sleep(1))
    assert caught.value is lost


async def test_a_failure_cancels_the_other_tasks_and_the_block_itself():
    ended = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(name)

    async def block() -> None:
        async with TaskGroup() as group:
            group.start(work("other"), name="other")
            group.start(fail(LookupError("lost"), after=1), name="failing")
            await work("block")

    with pytest.raises(LookupError, match="lost"):
        await block()
    assert sorted(ended) == ["block", "other"]
    assert VirtualClock().elapsed() == 1


@pytest.mark.parametrize("block_lasts", [0, 10])
@pytest.mark.parametrize("failing_together", [1, 2])
async def test_the_task_around_goes_on_after_it_handled_the_failure(block_lasts: float, failing_together: int):
    async def block() -> None:
        async with TaskGroup() as group:
            for _ in range(failing_together):
                group.start(fail(LookupError("lost"), after=1), name="child")
            await asyncio.sleep(block_lasts)

    with pytest.raises(LookupError):
        await block()
    await asyncio.sleep(1)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_failures_after_the_first_are_told_in_its_notes():
    with pytest.raises(LookupError, match="first") as caught:
        await group_of(fail_when_cancelled(OSError("second")), fail(LookupError("first")))
    assert caught.value.__notes__ == ["task 'child 0' failed too: OSError('second')"]


async def test_the_cancellation_that_a_failure_brings_about_is_not_told_as_its_cause():
    async def block() -> None:
        async with TaskGroup() as group:
            group.start(fail(LookupError("lost")), name="failing")
            await asyncio.Event().wait()

    with pytest.raises(LookupError) as caught:
        await block()
    told = "".join(traceback.format_exception(caught.value))
    assert "CancelledError" not in told
    assert "ExceptionGroup" not in told


async def test_a_failure_keeps_the_cause_and_the_context_it_had():
    async def fail_while_failing() -> None:
        try:
            await fail(OSError("the disk is gone"))
        except OSError:
            raise LookupError("lost")  # noqa: B904 - the context is what is looked at

    with pytest.raises(LookupError) as caught:
        await group_of(fail_while_failing())
    assert isinstance(caught.value.__context__, OSError)


async def test_a_failure_of_the_block_itself_cancels_the_tasks_and_comes_first():
    lost = LookupError("lost")

    async def block() -> None:
        async with TaskGroup() as group:
            group.start(fail_when_cancelled(OSError("second")), name="child")
            await asyncio.sleep(1)
            raise lost

    with pytest.raises(LookupError) as caught:
        await block()
    assert caught.value is lost
    assert lost.__notes__ == ["task 'child' failed too: OSError('second')"]


async def test_a_block_that_fails_because_it_was_cancelled_comes_second():
    async def block() -> None:
        async with TaskGroup() as group:
            group.start(fail(LookupError("first")), name="child")
            await fail_when_cancelled(OSError("second"))

    with pytest.raises(LookupError, match="first") as caught:
        await block()
    assert caught.value.__notes__ == ["the block that started the tasks failed too: OSError('second')"]


async def test_a_cancellation_from_outside_passes_through():
    group = asyncio.create_task(group_of(asyncio.Event().wait(), asyncio.Event().wait()))
    await asyncio.sleep(1)
    group.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await group
    assert group.cancelled()


async def test_a_timeout_around_the_group_ends_it():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await group_of(asyncio.Event().wait())
    assert VirtualClock().elapsed() == 5


async def test_a_failure_during_a_cancellation_is_told_to_the_loop_and_the_cancellation_goes_on():
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    gone = OSError("the disk is gone")
    group = asyncio.create_task(group_of(fail_when_cancelled(gone)))
    await asyncio.sleep(1)
    group.cancel()
    await asyncio.wait([group])
    assert group.cancelled()
    assert told == [{"message": "task 'child 0' failed while its group was being cancelled", "exception": gone}]


async def test_a_loop_that_survives_every_failure_can_still_be_cancelled():
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    async def retry() -> None:
        while True:
            with contextlib.suppress(Exception):
                await group_of(fail_when_cancelled(OSError("at the wrong moment")))

    retrying = asyncio.create_task(retry())
    await asyncio.sleep(1)
    retrying.cancel()
    await asyncio.wait([retrying])
    assert retrying.cancelled()


async def test_a_cancellation_in_the_same_moment_as_a_failure_in_the_block_is_not_swallowed():
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    async def block() -> None:
        async with TaskGroup() as group:
            group.start(fail(LookupError("first"), after=1), name="child")
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    asyncio.get_running_loop().call_later(1, task.cancel)
    await asyncio.wait([task])
    assert task.cancelled()
    assert task.cancelling() == 1


async def test_tasks_are_cancelled_in_the_order_they_were_started_in():
    ended = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(LookupError):
        await group_of(*map(work, range(50)), fail(LookupError("lost")))
    assert ended == list(range(50))


async def test_nothing_can_be_started_in_a_group_that_is_ending():
    refused = []

    async def start_when_cancelled(group: TaskGroup) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with pytest.raises(RuntimeError, match="task 'late' cannot be started: its group is ending") as caught:
                group.start(asyncio.sleep(1), name="late")
            refused.append(caught.value)

    async def block() -> None:
        async with TaskGroup() as group:
            group.start(start_when_cancelled(group), name="child")
            await asyncio.sleep(1)
            raise LookupError("lost")

    with pytest.raises(LookupError):
        await block()
    assert len(refused) == 1


async def test_a_task_cancelled_on_its_own_is_no_failure():
    async with TaskGroup() as group:
        stopped = group.start(asyncio.Event().wait(), name="stopped")
        await asyncio.sleep(1)
        stopped.cancel()
        going_on = group.start(asyncio.sleep(1, "done"), name="going on")
    assert stopped.cancelled()
    assert going_on.result() == "done"


async def test_a_kill_surfaces_as_itself_also_when_an_ordinary_failure_came_first():
    with pytest.raises(Killed) as caught:
        await group_of(fail(LookupError("first")), fail_when_cancelled(Killed()))
    assert caught.value.__notes__ == ["task 'child 0' failed too: LookupError('first')"]


async def test_a_kill_in_the_block_surfaces_as_itself():
    async def block() -> None:
        async with TaskGroup() as group:
            group.start(asyncio.Event().wait(), name="child")
            raise Killed

    with pytest.raises(Killed):
        await block()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_surfaces_from_a_task_and_the_others_are_cancelled(error: type[BaseException]):
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("other")

    async def main() -> None:
        with pytest.raises(error):
            await group_of(work(), fail(error(), after=1))
        ended.append("main")

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main())
        with pytest.raises(error):  # for these two asyncio stops the whole loop, where the task raised it
            loop.run_until_complete(task)
        loop.run_until_complete(task)
    assert ended == ["other", "main"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_surfaces_from_the_block_with_what_failed_meanwhile(error: type[BaseException]):
    async def block() -> None:
        async with TaskGroup() as group:
            group.start(fail_when_cancelled(OSError("second")), name="child")
            await asyncio.sleep(1)
            raise error

    with pytest.raises(error) as caught:
        await block()
    assert caught.value.__notes__ == ["task 'child' failed too: OSError('second')"]


async def test_a_task_may_start_others_in_its_own_group():
    started = []

    async def parent(group: TaskGroup) -> None:
        started.append(group.start(asyncio.sleep(1, "child ran"), name="child"))

    async with TaskGroup() as group:
        group.start(parent(group), name="parent")
    assert started[0].result() == "child ran"


async def test_nothing_can_be_started_in_a_group_that_is_over():
    async with TaskGroup() as group:
        pass
    late = asyncio.sleep(1)
    with pytest.raises(RuntimeError, match="task 'late' cannot be started: its group is over"):
        group.start(late, name="late")
    assert late.cr_frame is None  # closed, so that Python has nothing to warn of


async def test_a_group_within_a_group_raises_as_itself_too():
    with pytest.raises(LookupError, match="deep"):
        await group_of(group_of(group_of(fail(LookupError("deep")))), asyncio.Event().wait())


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=8))
def test_the_first_to_fail_is_raised_and_the_group_is_over_at_that_moment(children: list[tuple[int, bool]]):
    async def main(clock: VirtualClock) -> None:
        failing = [seconds for seconds, fails in children if fails]
        coroutines = [fail(OSError(after), after) if fails else asyncio.sleep(after) for after, fails in children]
        try:
            await group_of(*coroutines)
        except OSError as error:
            end, raised = min(failing), error.args
        else:
            end, raised = max(seconds for seconds, _ in children), ()
        assert clock.elapsed() == end
        assert raised == ((end,) if failing else ())

    run_virtual(main)
