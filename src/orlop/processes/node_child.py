"""`orlop node` as a child of this process: started, listened to, started again when it dies, and ended with us.

What it says is passed on, line by line. One that dies soon after its start is started again later and later; one that
had lived for a while, at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Final

from orlop.foundation.backoff import Backoff
from orlop.foundation.task_group import TaskGroup
from orlop.host.errors import HostError
from orlop.host.programs import Child
from orlop.processes.daemon import Surroundings

AGAIN: Final = Backoff(initial=0.2, factor=2.0, cap=10.0, jitter=0.2)
WELL_AFTER_SECONDS: Final = 30.0
LONGEST_END_SECONDS: Final = 25.0
"""Its own grace period is 20 seconds."""

Say = Callable[[str], None]


@asynccontextmanager
async def kept_running(name: str, words: Sequence[str], say: Say, given: Surroundings) -> AsyncIterator[None]:
    async with TaskGroup() as tasks:
        task = tasks.start(_Keeper(name, words, say, given).run(), name=name)
        try:
            yield
        finally:
            task.cancel()


class _Keeper:
    def __init__(self, name: str, words: Sequence[str], say: Say, given: Surroundings) -> None:
        self._name = name
        self._words = words
        self._say = say
        self._clock = given.clock
        self._random = given.random
        self._log = given.log

    async def run(self) -> None:
        failures = 0
        while True:
            began = self._clock.elapsed()
            how = await self._one_life()
            lived = self._clock.elapsed() - began
            failures = 1 if lived > WELL_AFTER_SECONDS else failures + 1
            delay = AGAIN.delay(failures, self._random)
            self._log.warning(f"{self._name} has ended, and is started again", how=how, in_seconds=round(delay, 1))
            await self._clock.sleep(delay)

    async def _one_life(self) -> str:
        try:
            child = Child(self._words)
        except HostError as error:
            return str(error)
        with closing(child):
            self._log.info(f"{self._name} was started", pid=child.pid)
            try:
                await self._listen(child)
            except asyncio.CancelledError:
                await self._end(child)
                raise
            return _told(child.exit_code())

    async def _end(self, child: Child) -> None:
        """It finishes what it is asked right now; then it is killed."""
        child.ask_to_end()
        with suppress(TimeoutError):
            async with self._clock.timeout(LONGEST_END_SECONDS):
                await self._listen(child)

    async def _listen(self, child: Child) -> None:
        """Returns when it has ended."""
        loop, ended, lines = asyncio.get_running_loop(), asyncio.Event(), _Lines(self._say)

        def hear() -> None:
            if (said := child.said()) is None:
                loop.remove_reader(child.output)
            else:
                lines.add(said)

        loop.add_reader(child.output, hear)
        loop.add_reader(child.handle, ended.set)
        try:
            await ended.wait()
            hear()
        finally:
            loop.remove_reader(child.output)
            loop.remove_reader(child.handle)
            lines.end()


class _Lines:
    """Passed on when they are whole, the last one also without its end."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._rest = b""

    def add(self, said: bytes) -> None:
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            self._say(line.decode(errors="replace"))

    def end(self) -> None:
        if self._rest:
            self._say(self._rest.decode(errors="replace"))


def _told(code: int | None) -> str:
    if code is None:
        return "it has ended"
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
