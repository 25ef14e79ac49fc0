"""Programs that run as children of `orlop up`: started, started again when they die, and ended with it.

What a child writes is passed on, line by line. One that dies soon after its start is started again later and later;
one that had lived for a while, at once.

Beside a driver that is not ours run our provisioner and our attacher, each from when it is needed. Order: the driver is
registered → a class names it, or a volume of it may have to be attached → the child begins, and runs until `orlop up`
ends: what it has attached, it alone can detach. It ends before the API server does. Whatever becomes of it, `orlop up`
goes on: it is started again, also when the driver came back under another name.

Imported before the first child begins, so what only waits for the API server is imported when that runs.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
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
    from orlop.kube.cache.informers import Informers

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
            if (said := child.read_output()) is None:
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


@asynccontextmanager
async def controller_of_drives(
    words: Sequence[str], stored: asyncio.Event, has_credentials: Callable[[], bool], say: Say, runtime: Runtime
) -> AsyncIterator[None]:
    """Keep `orlop controller` running, from when its objects are stored and it has credentials."""

    async def run() -> None:
        await stored.wait()
        while not has_credentials():
            await runtime.clock.sleep(GATHER_SECONDS)
        async with kept_running("orlop controller", words, say, runtime):
            await asyncio.Event().wait()

    async with TaskGroup() as tasks:
        running = tasks.start(run(), name="controller of drives")
        try:
            yield
        finally:
            running.cancel()


# ---- what runs beside a driver that is not ours ----------------------------------------------------------------------


class Sidecars(Enum):
    """The words are the flag's."""

    AUTO = "auto"
    ALL = "all"
    PROVISIONER = "provisioner"
    ATTACHER = "attacher"
    NONE = "none"

    @property
    def roles(self) -> tuple[str, ...]:
        match self:
            case Sidecars.AUTO | Sidecars.ALL:
                return (PROVISIONER, ATTACHER)
            case Sidecars.NONE:
                return ()
            case _:
                return (self.value,)


def parse_sidecars(value: str) -> Sidecars:
    try:
        return Sidecars(value)
    except ValueError:
        raise ValueError(f"allowed are {', '.join(each.value for each in Sidecars)}") from None


PROVISIONER: Final = "provisioner"
ATTACHER: Final = "attacher"
GATHER_SECONDS: Final = 0.1
"""How long changes are gathered: a thousand volumes that are created at once are checked once."""


@dataclass(frozen=True, slots=True)
class DriverBeside:
    """A driver of somebody else: its socket, and how its sidecars are started."""

    socket: str
    sidecars: Sidecars
    words: Mapping[str, Sequence[str]]
    """The command line of each role."""


@asynccontextmanager
async def sidecars_beside(
    driver: DriverBeside, drivers: RegisteredDrivers, api: RunningApi, say: Say, runtime: Runtime
) -> AsyncIterator[None]:
    async def run(role: str) -> None:
        if driver.sidecars is Sidecars.AUTO:
            await _until_needed(role, driver.socket, drivers, api, runtime)
        async with kept_running(f"orlop {role}", driver.words[role], say, runtime):
            await asyncio.Event().wait()

    async with TaskGroup() as tasks:
        running = [tasks.start(run(role), name=f"{role} beside the driver") for role in driver.sidecars.roles]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


async def _until_needed(role: str, socket: str, drivers: RegisteredDrivers, api: RunningApi, runtime: Runtime) -> None:
    from onenode.apiserver.edge.in_process_client import InProcessTransport  # noqa: PLC0415 - the API server runs now
    from onenode.processes.api_wiring import CONTROLLERS  # noqa: PLC0415 - as above
    from orlop.kube.cache.informers import Informers  # noqa: PLC0415 - as above
    from orlop.kube.client import KubeClient  # noqa: PLC0415 - as above

    clock, random, log = runtime.clock, runtime.random, runtime.log
    transport = InProcessTransport(api.server, CONTROLLERS)
    client = KubeClient(transport, clock=clock, random=random, log=log, name="orlop-up")
    async with Informers(client, clock=clock, random=random, log=log) as informers, AsyncExitStack() as stack:
        changed = asyncio.Event()
        is_needed = await _need_of(role, informers, stack, changed)
        while not any(is_needed(name) for name, driver in drivers.items() if driver.endpoint.path == socket):
            await _first_of(changed.wait(), drivers.changed())
            changed.clear()
            await clock.sleep(GATHER_SECONDS)
    log.info("driver needs a sidecar, starting it", sidecar=role)


async def _need_of(
    role: str, informers: Informers, stack: AsyncExitStack, changed: asyncio.Event
) -> Callable[[str], bool]:
    """Return the function that decides whether the driver of a name needs the sidecar; `changed` is set on changes."""
    from orlop.kube.cache.informer import Watched, without_managed_fields  # noqa: PLC0415 - the API server runs now
    from orlop.kube.kinds import (  # noqa: PLC0415 - as above
        CSI_DRIVER,
        PERSISTENT_VOLUME,
        STORAGE_CLASS,
        VOLUME_ATTACHMENT,
    )
    from orlop.kube.objects import ObjectName  # noqa: PLC0415 - as above
    from orlop.sidecars.attacher.finalizer_rules import needs_attacher  # noqa: PLC0415 - as above
    from orlop.sidecars.provisioner.volume_deletion_rules import needs_provisioner  # noqa: PLC0415 - as above

    kinds = {
        PROVISIONER: (STORAGE_CLASS, PERSISTENT_VOLUME),
        ATTACHER: (CSI_DRIVER, PERSISTENT_VOLUME, VOLUME_ATTACHMENT),
    }[role]
    caches = {}
    for kind in kinds:
        informer = await stack.enter_async_context(informers.using(Watched(kind, transform=without_managed_fields)))
        informer.add_listener(lambda _name: changed.set())
        await informer.wait_synced()
        caches[kind] = informer
    volumes = caches[PERSISTENT_VOLUME].cache
    if role == PROVISIONER:
        return lambda name: needs_provisioner(name, caches[STORAGE_CLASS].cache, volumes)
    return lambda name: needs_attacher(
        name, caches[CSI_DRIVER].get(ObjectName(None, name)), volumes, caches[VOLUME_ATTACHMENT].cache
    )


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
