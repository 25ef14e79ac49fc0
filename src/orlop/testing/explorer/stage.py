"""One run of a scenario: its time, its choices, its processes, and the checks that must always hold.

    async def scenario(stage: Stage) -> None:
        world = World(stage.clock)
        stage.always(world.check)                              # checked after every effect and every event
        stage.run("controller", lambda life: controller(life, world))
        await stage.acts(Act("order", world.order), Act("cancel", world.cancel, world.check_delivered))
        world.check_end()

An act is a change by a user or another controller. It happens when the processes are idle or, as a departure, earlier;
acts are carried out one after another.

The chooser decides what happens, never this module. `api_seam` and `driver_seam` know Kubernetes and CSI; this module
does not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from orlop.testing.explorer.histories import AS_IT_SHOULD, Choice, Chooser, DoesNotRepeatItself, Option, Sort
from orlop.testing.explorer.lives import Life, Process
from orlop.testing.kill_points import Killed
from orlop.testing.virtual_clock import VirtualClock, describe_waiting

T = TypeVar("T")
REST_SECONDS: Final = 60.0
"""Seconds without an event after which the processes count as idle: longer than any delay here."""
LONGEST_SECONDS: Final = 3600.0
MOST_MOVES: Final = 5_000
"""In one run. A program that loops need not take any virtual time."""
MOST_CANCELLATIONS: Final = 3


class NoRest(AssertionError):
    """The processes never become idle."""


class CannotBeEnded(AssertionError):
    """A task ignores every cancellation: as a process it could not be stopped."""


@dataclass(frozen=True, slots=True)
class Act:
    name: str
    do: Callable[[], Awaitable[object]]
    expects: Callable[[], object] = lambda: None
    """A check that must hold before the act, if the processes became idle after the previous act."""


class EndedUnheard(AssertionError):
    """A task that nothing awaits has failed."""


class Stage:
    def __init__(self, clock: VirtualClock, chooser: Chooser) -> None:
        self.clock = clock
        self.trail: list[Choice] = []
        self._chooser = chooser
        self._checks: list[Callable[[], object]] = []
        self._to_come: deque[Act] = deque()
        self._acting = asyncio.Lock()
        self._processes: list[Process] = []
        self._loose: set[asyncio.Task[None]] = set()
        """Effects that land after the process that started them is gone."""
        self._moves = 0
        self._last_move = 0.0
        loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(self._unheard)

    async def play(self, scenario: Callable[[Stage], Awaitable[None]]) -> None:
        """Play the scenario to its end. Stop at the first error, and raise it."""
        playing = asyncio.ensure_future(scenario(self))
        try:
            await asyncio.wait({playing, self._broken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(playing)
        if self._broken.done():
            self._broken.result()
        playing.result()

    # ---- for scenarios -------------------------------------------------------------------------------------------

    def always(self, check: Callable[[], object]) -> None:
        """Add a check that must always hold: it raises AssertionError, or returns False, if it does not."""
        self._checks.append(check)

    def run(self, name: str, start: Callable[[Life], Coroutine[Any, Any, None]]) -> Process:
        """Start a process, and start it again whenever it has died."""
        process = Process(self, name, start)
        self._processes.append(process)
        return process

    async def acts(self, *acts: Act) -> None:
        """Carry out each act when the processes are idle after the previous one, or earlier if so chosen."""
        self._to_come.extend(acts)
        while self._to_come:
            await self.rest()
            if self._to_come:
                _hold(self._to_come[0].expects)
                await self._act(self._to_come.popleft())
        await self.rest()

    async def rest(self, seconds: float = REST_SECONDS, within: float = LONGEST_SECONDS) -> None:
        """Wait until the processes are idle. Raises `NoRest` if they never are."""
        began, moves = self.clock.elapsed(), self._moves
        while (remaining := self._last_move + seconds - self.clock.elapsed()) > 0:
            if self.clock.elapsed() - began > within:
                raise NoRest(f"no rest within {within:g} seconds: {self._moves - moves} effects and events meanwhile")
            await self.clock.sleep(remaining)

    # ---- for seams -----------------------------------------------------------------------------------------------

    async def choose(self, what: str, faults: Sequence[Option]) -> Option:
        """Return the option to take. Early acts that the chooser puts before it are carried out first."""
        while True:
            early = [Option(f"before it: {self._to_come[0].name}", Sort.EARLY_ACT)] if self._to_come else []
            option = self._take(what, (AS_IT_SHOULD, *early, *faults))
            if option.sort is not Sort.EARLY_ACT:
                return option
            # In its own task: the process that is about to act may die meanwhile.
            await asyncio.shield(self._start_loose(self._act(self._to_come.popleft()), "early act"))

    def note_ending(self, number: int, ending: str) -> None:
        """Record what the caller got at that choice; the first record counts."""
        if not self.trail[number - 1].ending:
            self.trail[number - 1] = replace(self.trail[number - 1], ending=ending)

    def moved(self) -> None:
        """Note an event, and run all checks."""
        self._moves += 1
        self._last_move = self.clock.elapsed()
        if self._moves > MOST_MOVES:
            self.broken(NoRest(f"{MOST_MOVES} effects and events in one run"))
        try:
            for check in self._checks:
                _hold(check)
        except Exception as error:  # noqa: BLE001 - a check that fails to run is a finding too
            self.broken(error)

    async def effect(self, do: Callable[[], Awaitable[T]]) -> T:
        """Run an effect. An AssertionError inside is a finding, even if the caller catches it."""
        try:
            return await do()
        except AssertionError as error:
            self.broken(error)
            raise

    async def until_ended(self, tasks: Collection[asyncio.Future[Any]]) -> None:
        """Cancel tasks, several times if needed, and wait for them."""
        for _ in range(MOST_CANCELLATIONS):
            running = [task for task in tasks if not task.done()]
            if not running:
                return
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=REST_SECONDS)
        for task in tasks:
            if isinstance(task, asyncio.Task) and not task.done():
                self.broken(
                    CannotBeEnded(f"still runs after {MOST_CANCELLATIONS} cancellations: {describe_waiting(task)}")
                )
                await _throw_away(task)

    def broken(self, error: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    def later(self, seconds: float, do: Callable[[], Awaitable[object]]) -> None:
        """Let an effect land later, whichever processes still live; its result is dropped."""
        self._start_loose(self._land(seconds, do), "lands late")

    # ---- inside --------------------------------------------------------------------------------------------------

    def _take(self, what: str, options: tuple[Option, ...]) -> Option:
        number = len(self.trail) + 1
        try:
            option = self._chooser(number, options)
        except DoesNotRepeatItself as error:
            self.broken(error)  # The caller may take the error for one of its own.
            raise
        self.trail.append(Choice(number, self.clock.elapsed(), what, options, option))
        return option

    def _unheard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report the error of a task that nothing awaits. Ignore `Killed`: tasks of a dead process end with it."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.broken(EndedUnheard(f"{context['message']}: {type(error).__name__}: {error}"))
        elif not isinstance(error, Killed):
            loop.default_exception_handler(context)

    async def _act(self, act: Act) -> None:
        # Several processes may choose early acts at once. Later acts rely on what former ones did: one that removes an
        # object must not come while the act that creates it is still waiting for the API server.
        async with self._acting:
            try:
                await act.do()
            except Exception as error:  # noqa: BLE001 - not raised in the caller, which might take it for its own
                self.broken(error)
            self.moved()

    def _start_loose(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)
        return task

    async def _land(self, seconds: float, do: Callable[[], Awaitable[object]]) -> None:
        await self.clock.sleep(seconds)
        with suppress(Exception):  # The process that started the effect is gone: no caller gets the result.
            await self.effect(do)
        self.moved()

    async def _end(self, playing: asyncio.Future[None]) -> None:
        own_tasks = {playing, *self._loose, *(task for process in self._processes for task in process.tasks)}
        other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await self.until_ended(own_tasks | other_tasks)
        for task in own_tasks | other_tasks:
            if task.done() and not task.cancelled():
                task.exception()  # marks it as seen
        if self._broken.done():
            self._broken.exception()


async def _throw_away(task: asyncio.Task[Any]) -> None:
    """Discard a task that cannot be cancelled: closing the loop would wait for it for ever, in real time."""
    coroutine: Any = task.get_coro()
    with suppress(RuntimeError):  # the coroutine may catch GeneratorExit too
        coroutine.close()
    task.cancel()
    await asyncio.wait([task], timeout=REST_SECONDS)
    if not task.done():
        asyncio.tasks._unregister_task(task)  # noqa: SLF001 - made for third-party event loops, such as ours


def _hold(check: Callable[[], object]) -> None:
    """Run a check. Raise if it returns False: such a check is easily written by mistake, and would never fail."""
    if check() is False:
        code = getattr(check, "__code__", None)
        place = f" at {code.co_filename}:{code.co_firstlineno}" if code else ""
        raise AssertionError(f"the check {getattr(check, '__name__', check)}{place} returned False")
