"""The base of every world: clock, log, random numbers, tasks and an API server of a cluster in one process.

A world runs on virtual time: an hour takes no time, the same seed takes the same steps, and no busy machine can make a
test late. Everything a world starts ends with it, in reverse order; a task that fails fails the test at once.

    class BinderWorld(ClusterWorld):
        @asynccontextmanager
        async def binder(self) -> AsyncIterator[None]:
            async with self.controller_parts("binder") as the:
                async with binder(the.kube, the.informers, the.runtime, the.events, the.queue_metrics):
                    yield

    async with BinderWorld() as world, world.binder():
        await world.create(PERSISTENT_VOLUME_CLAIM, claim("c"))
        await world.until(lambda: world.find(PERSISTENT_VOLUME, "pv-c"))

Wait with `until` for something that must happen, with `settle` to show that nothing more does. Neither can be reached
by a slow machine: both count virtual seconds. A test with a world needs `@pytest.mark.virtual_time`. Only tests on this
kernel pass a `SystemClock`; there `until` waits for other processes, and `settle` is refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, overload

from onenode.apiserver.access.rbac_rules import ADMIN
from onenode.apiserver.edge.in_process_client import InProcessTransport, Server
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informers import Informers
from orlop.kube.client import DeleteOptions, KubeClient, MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.http.http_messages import Transport
from orlop.kube.kinds import SERVICE_ACCOUNT, Kind
from orlop.kube.objects import ObjectName
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.testing.virtual_clock import VirtualClock, VirtualTimeLoop
from support.api.api_servers import TestServer, api_server
from support.waiting import eventually_answered

T = TypeVar("T")
Object = dict[str, Any]
AT_ONCE = DeleteOptions(grace_seconds=0)
LAST_EVENTS_SECONDS = 60.0
SHOWN_LOG_ENTRIES = 10


class World:
    """Virtual time, a log and tasks; `ClusterWorld` adds an API server."""

    check_every: ClassVar = 0.05
    """Virtual seconds between two checks of `until`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or VirtualClock()
        self.log: list[LogEntry] = []
        """What every part of the world logged, in order."""
        self._tasks = TaskGroup()
        self._started: list[asyncio.Task[Any]] = []
        self._ends = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._check_loop()
        async with AsyncExitStack() as ends:
            await ends.enter_async_context(self._tasks)
            await self.begin(ends)
            # Pushed last, so that it runs first: tasks end while what they use is still there.
            ends.push_async_callback(self._end_tasks)
            self._ends = ends.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._ends.__aexit__(kind, error, trace)

    async def begin(self, ends: AsyncExitStack) -> None:
        """Start what this world consists of; `ends` closes it in reverse order. Subclasses call `super()` first."""

    # ---- parts ---------------------------------------------------------------------------------------------------

    def runtime(self, name: str) -> Runtime:
        """Create the runtime of one part. Its random numbers depend on its name alone, not on other parts."""
        return runtime_of(name, self.clock, self.log)

    def start(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a task until the world ends; its failure fails the test."""
        task = self._tasks.start(coroutine, name=name)
        self._started.append(task)
        return task

    def part(self, name: str, live: Callable[[], Coroutine[Any, Any, None]]) -> Part:
        return Part(self, name, live)

    async def _end_tasks(self) -> None:
        while self._started:
            await end_task(self._started.pop())

    # ---- time ----------------------------------------------------------------------------------------------------

    async def settle(self, seconds: float = 1.0) -> None:
        """Let everybody do what they do within these virtual seconds."""
        if not isinstance(self.clock, VirtualClock):
            raise TypeError("settle() would sleep in real time: use until() with the condition that is waited for")
        await self.clock.sleep(seconds)

    @overload
    async def until(self, condition: Callable[[], Awaitable[T]], within: float = ...) -> T: ...

    @overload
    async def until(self, condition: Callable[[], T], within: float = ...) -> T: ...

    async def until(self, condition: Callable[[], Any], within: float = 600.0) -> Any:
        """Wait until the condition is true, and return its value; fail after `within` virtual seconds."""
        if not isinstance(self.clock, VirtualClock):
            return await eventually_answered(lambda: _value_of(condition))
        end = self.clock.elapsed() + within
        while not (value := await _value_of(condition)):
            if self.clock.elapsed() >= end:
                raise AssertionError(self._never_true(condition, value, within))
            await self.clock.sleep(self.check_every)
        return value

    def _never_true(self, condition: Callable[[], object], value: object, within: float) -> str:
        name = getattr(condition, "__qualname__", repr(condition))
        last = [f"  {entry.message} {dict(entry.fields)}" for entry in self.log[-SHOWN_LOG_ENTRIES:]]
        lines = [f"{name} did not become true within {within} virtual seconds; it is {value!r}", "the log ends with:"]
        return "\n".join([*lines, *(last or ["  (nothing was logged)"])])

    def _check_loop(self) -> None:
        if isinstance(self.clock, VirtualClock) and not isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
            raise TypeError("a world runs on virtual time: mark the test with @pytest.mark.virtual_time")


class Part:
    """A part of a world that can be killed and started again, such as a process."""

    def __init__(self, world: World, name: str, live: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._world = world
        self._name = name
        self._live = live
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None, f"{self._name} runs already: kill it first"
        self._task = self._world.start(self._live(), self._name)

    async def kill(self) -> None:
        if self._task is not None:
            await end_task(self._task)
        self._task = None

    async def restart(self) -> None:
        await self.kill()
        self.start()


class ClusterWorld(World):
    """A world with an API server in memory, and the ServiceAccount without which it creates no pod."""

    on: TestServer
    client: KubeClient
    """An admin's, for what the test itself does."""

    def __init__(self, clock: Clock | None = None, on: TestServer | None = None, **served: Any) -> None:
        """`on` is the API server of another world that this one shares; `served` are options of one of its own."""
        super().__init__(on.clock if on is not None else clock)
        self._shared = on
        self._served = served

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        self.on = self._shared or await ends.enter_async_context(api_server(self.clock, **self._served))
        self.client = self.on.client()
        if self._shared is None:
            await self.create(SERVICE_ACCOUNT, {"metadata": {"name": "default"}})

    def transport(self, through: Server | None = None) -> Transport:
        """Return an admin's connection; `through` answers in the place of the API server."""
        return InProcessTransport(through or self.on.server, ADMIN)

    @asynccontextmanager
    async def controller_parts(
        self, name: str, transport: Transport | None = None, instance: str = ""
    ) -> AsyncIterator[ControllerParts]:
        """`transport` is the controller's own connection to the API server, where a test disturbs it."""
        reporter = Reporter(name, instance or f"{name}-0")
        async with controller_parts(self.runtime(name), transport or self.transport(), reporter) as parts:
            yield parts

    # ---- objects -------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind, obj: Object) -> Object:
        """Namespaced objects are in the namespace `default` unless they name another."""
        namespace = obj["metadata"].get("namespace", "default") if kind.namespaced else None
        return await self.client.create(kind, obj, namespace=namespace)

    async def put(self, kind: Kind, obj: Object) -> None:
        """Store an object as it is, even one that the API server would refuse."""
        metadata, kept = obj["metadata"], KindInStore(kind, kind)
        about = {"apiVersion": kind.api_version, "kind": kind.kind}
        whole = {**about, **obj, "metadata": {"uid": f"uid-{metadata['name']}", **metadata}}
        key = kept.key(metadata.get("namespace", ""), metadata["name"])
        await self.on.store.create(key, lambda revision: kept.encoded(whole, revision))

    async def find(self, kind: Kind, name: str) -> Object | None:
        with suppress(NotFound):
            return await self.client.get(kind, object_name(kind, name))
        return None

    async def merge(self, kind: Kind, name: str, changes: Object, subresource: str = "") -> Object:
        return await self.client.patch(kind, object_name(kind, name), MergePatch(changes), subresource=subresource)

    async def delete(self, kind: Kind, name: str, options: DeleteOptions = AT_ONCE) -> None:
        await self.client.delete(kind, object_name(kind, name), options)


@dataclass(frozen=True)
class ControllerParts:
    """What every controller is built from."""

    kube: KubeClient
    informers: Informers
    events: EventRecorder
    runtime: Runtime
    queue_metrics: WorkqueueMetrics


@asynccontextmanager
async def controller_parts(
    runtime: Runtime, transport: Transport, reporter: Reporter
) -> AsyncIterator[ControllerParts]:
    """The parts of one life of a controller. Events that it recorded are written before its parts end."""
    common: Any = {"clock": runtime.clock, "random": runtime.random, "log": runtime.log}
    kube = KubeClient(transport, name=reporter.controller, **common)
    events = EventRecorder(kube, reporter, metrics=runtime.metrics, **common)
    async with running(events.run()):
        async with Informers(kube, **common) as informers:
            yield ControllerParts(kube, informers, events, runtime, WorkqueueMetrics(runtime.metrics))
        # Only where the block ended well: a controller that was killed writes nothing more.
        await events.drain(LAST_EVENTS_SECONDS)


@asynccontextmanager
async def running(*coroutines: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run tasks beside the block and end them in reverse order; the failure of a task ends the block."""
    async with TaskGroup() as group:
        tasks = [group.start(coroutine, name=getattr(coroutine, "__qualname__", "task")) for coroutine in coroutines]
        try:
            yield
        finally:
            for task in reversed(tasks):
                await end_task(task)


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel the task and wait until it has ended. Whoever started it raises its failure."""
    task.cancel()
    await asyncio.wait([task])


def runtime_of(name: str, clock: Clock, log: list[LogEntry]) -> Runtime:
    # From a name: a part that is added to a world changes the random numbers of no other.
    random = Random(name)
    return Runtime(clock=clock, random=random, log=collecting_log(log), metrics=Metrics("test", of_process=False))


def object_name(kind: Kind, name: str) -> ObjectName:
    """Of an object in no namespace, or in the namespace `default`."""
    return ObjectName("default" if kind.namespaced else None, name)


async def _value_of(condition: Callable[[], Any]) -> Any:
    value = condition()
    return await value if inspect.isawaitable(value) else value
