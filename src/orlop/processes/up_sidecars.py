"""What runs beside a driver of somebody else in `orlop up`: our attacher, as a child, from when it is needed on.

Order: the driver is registered → a volume of it is there that may have to be attached → the child begins, and runs
until `orlop up` ends: what it has attached, it alone can detach. It ends before the API server does. Whatever becomes
of it, `orlop up` goes on: it is started again, also when the driver came back under another name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from orlop.embedded.apiserver.in_process import InProcessTransport
from orlop.embedded.kubelet.registered_drivers import RegisteredDrivers
from orlop.foundation.task_group import TaskGroup
from orlop.kube.client import KubeClient
from orlop.kube.informer import Watched, without_managed_fields
from orlop.kube.informers import Informers
from orlop.kube.kinds import CSI_DRIVER, PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.processes.api_side import CONTROLLERS, RunningApi
from orlop.processes.daemon import Surroundings
from orlop.processes.node_child import Say, kept_running
from orlop.processes.sidecar_choice import Sidecars
from orlop.sidecars.attacher.attacher_need_rules import needs_attacher

NAME: Final = "orlop attacher"
KINDS: Final = (CSI_DRIVER, PERSISTENT_VOLUME, VOLUME_ATTACHMENT)
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
    driver: DriverBeside, drivers: RegisteredDrivers, api: RunningApi, say: Say, given: Surroundings
) -> AsyncIterator[None]:
    async def run() -> None:
        if driver.sidecars is Sidecars.AUTO:
            await _until_needed(driver.socket, drivers, api, given)
        async with kept_running(NAME, driver.words, say, given):
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


async def _until_needed(socket: str, drivers: RegisteredDrivers, api: RunningApi, given: Surroundings) -> None:
    clock, random, log = given.clock, given.random, given.log
    transport = InProcessTransport(api.server, CONTROLLERS)
    client = KubeClient(transport, clock=clock, random=random, log=log, name="orlop-up")
    watched = [Watched(kind, transform=without_managed_fields) for kind in KINDS]
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
    log.info("a volume of the driver may have to be attached: its attacher begins")


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
