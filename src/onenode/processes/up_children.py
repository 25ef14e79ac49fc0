"""Programs that run as children of `orlop up`: started, started again when they die, and ended with it.

What a child writes is passed on, line by line. One that dies soon after its start is started again later and later;
one that had lived for a while, at once.

Beside a driver that is not ours runs our attacher, from when it is needed. Order: the driver is registered → a volume
of it is there that may have to be attached → the child begins, and runs until `orlop up` ends: what it has attached,
it alone can detach. It ends before the API server does. Whatever becomes of it, `orlop up` goes on: it is started
again, also when the driver came back under another name.

Imported before the first child begins, so what only waits for the API server is imported when that runs.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.host_errors import HostError
from orlop.host.kernel.programs import Child

if TYPE_CHECKING:
    from onenode.kubelet.node.registered_drivers import RegisteredDrivers
    from onenode.processes.api_wiring import RunningApi

AGAIN: Final = Backoff(initial=0.2, factor=2.0, cap=10.0, jitter=0.2)
WELL_AFTER_SECONDS: Final = 30.0
LONGEST_END_SECONDS: Final = 25.0
"""Its own grace period is 20 seconds."""

Say = Callable[[str], None]


@asynccontextmanager
async def kept_running(name: str, words: Sequence[str], say: Say, runtime: Runtime) -> AsyncIterator[None]:
    async with TaskGroup() as tasks:
        task = tasks.start(_Keeper(name, words, say, runtime).run(), name=name)
        try:
            yield
        finally:
            task.cancel()


class _Keeper:
    def __init__(self, name: str, words: Sequence[str], say: Say, runtime: Runtime) -> None:
        self._name = name
        self._words = words
        self._say = say
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log

    async def run(self) -> None:
        failures = 0
        while True:
            began = self._clock.elapsed()
            how = await self._one_life()
            lived = self._clock.elapsed() - began
            failures = 1 if lived > WELL_AFTER_SECONDS else failures + 1
            delay = AGAIN.delay(failures, self._random)
            self._log.warning("child ended, restarting", child=self._name, how=how, in_seconds=round(delay, 1))
            await self._clock.sleep(delay)

    async def _one_life(self) -> str:
        try:
            child = Child(self._words)
        except HostError as error:
            return str(error)
        with closing(child):
            self._log.info("child started", child=self._name, pid=child.pid)
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


# ---- what runs beside a driver that is not ours ----------------------------------------------------------------------


class Sidecars(Enum):
    """The words are the flag's."""

    AUTO = "auto"
    ATTACHER = "attacher"
    NONE = "none"


def parse_sidecars(value: str) -> Sidecars:
    try:
        return Sidecars(value)
    except ValueError:
        raise ValueError(f"allowed are {', '.join(one.value for one in Sidecars)}") from None


ATTACHER: Final = "orlop attacher"
TOGETHER_SECONDS: Final = 0.1
"""How long news are gathered: who makes a thousand volumes is not looked at a thousand times."""


@dataclass(frozen=True, slots=True)
class DriverBeside:
    """A driver of somebody else: its socket, and how its attacher is started."""

    socket: str
    sidecars: Sidecars
    words: Sequence[str]


@asynccontextmanager
async def sidecars_beside(
    driver: DriverBeside, drivers: RegisteredDrivers, api: RunningApi, say: Say, runtime: Runtime
) -> AsyncIterator[None]:
    async def run() -> None:
        if driver.sidecars is Sidecars.AUTO:
            await _until_needed(driver.socket, drivers, api, runtime)
        async with kept_running(ATTACHER, driver.words, say, runtime):
            await asyncio.Event().wait()

    if driver.sidecars is Sidecars.NONE:
        yield
        return
    async with TaskGroup() as tasks:
        task = tasks.start(run(), name="what runs beside the driver")
        try:
            yield
        finally:
            task.cancel()


async def _until_needed(socket: str, drivers: RegisteredDrivers, api: RunningApi, runtime: Runtime) -> None:
    from onenode.apiserver.edge.in_process_client import InProcessTransport  # noqa: PLC0415 - the API server runs now
    from onenode.processes.api_wiring import CONTROLLERS  # noqa: PLC0415 - as above
    from orlop.kube.cache.informer import Watched, without_managed_fields  # noqa: PLC0415 - as above
    from orlop.kube.cache.informers import Informers  # noqa: PLC0415 - as above
    from orlop.kube.client import KubeClient  # noqa: PLC0415 - as above
    from orlop.kube.kinds import CSI_DRIVER, PERSISTENT_VOLUME, VOLUME_ATTACHMENT  # noqa: PLC0415 - as above
    from orlop.kube.objects import ObjectName  # noqa: PLC0415 - as above
    from orlop.sidecars.attacher.finalizer_rules import needs_attacher  # noqa: PLC0415 - as above

    clock, random, log = runtime.clock, runtime.random, runtime.log
    transport = InProcessTransport(api.server, CONTROLLERS)
    client = KubeClient(transport, clock=clock, random=random, log=log, name="orlop-up")
    watched = [
        Watched(kind, transform=without_managed_fields) for kind in (CSI_DRIVER, PERSISTENT_VOLUME, VOLUME_ATTACHMENT)
    ]
    async with Informers(client, clock=clock, random=random, log=log) as informers, AsyncExitStack() as stack:
        csi_drivers, volumes, attachments = [await stack.enter_async_context(informers.using(one)) for one in watched]
        news = asyncio.Event()
        for informer in (csi_drivers, volumes, attachments):
            informer.add_listener(lambda _name: news.set())
            await informer.wait_synced()
        while not any(
            needs_attacher(name, csi_drivers.get(ObjectName(None, name)), volumes.cache, attachments.cache)
            for name, driver in drivers.items()
            if driver.endpoint.path == socket
        ):
            await _first_of(news.wait(), drivers.changed())
            news.clear()
            await clock.sleep(TOGETHER_SECONDS)
    log.info("driver has volumes that may need attaching, starting its attacher")


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
