"""A node on virtual time: a driver that can be restarted as another one, a registrar beside it, and kubelet."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from orlop.csi.in_process_transport import InProcessConnection
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Level, LogEntry, collecting_log, silent_log
from orlop.kube.client import KubeClient
from orlop.sidecars.registrar.driver_registration import Registrar
from orlop.sidecars.registrar.node_metadata_writer import NodeMetadataWriter
from orlop.sidecars.registrar.registration_socket import RegistrationFolder
from orlop.testing.driver_script import read_script
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor
from orlop.testing.virtual_clock import VirtualClock
from support.csi.csi_drivers import client_of
from support.kubelet.kubelet_plugins import Kubelet, VirtualFolder

FOLDER = Path("/registration")
HOST_SOCKET = "/var/lib/kubelet/plugins/mock/csi.sock"


def runtime_of(clock: VirtualClock, entries: list[LogEntry], metrics: Metrics | None = None) -> Runtime:
    return Runtime(clock=clock, random=Random(1), log=collecting_log(entries), metrics=metrics or Metrics("test"))


def call_ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"registration-{next(numbers)}"


class Driver:
    """A driver's socket, and whoever answers there now."""

    def __init__(self, clock: VirtualClock, script: Mapping[str, Any] | None = None) -> None:
        self.clock = clock
        self.drivers: list[ScriptedDriver] = []
        self.connection = InProcessConnection(self._incarnation(script))

    def restart(self, script: Mapping[str, Any] | None = None) -> None:
        self.connection.cut()
        self.connection.mend(self._incarnation(script))

    def _incarnation(self, script: Mapping[str, Any] | None) -> ScriptedInterceptor:
        driver = ScriptedDriver(read_script(script), self.clock)
        self.drivers.append(driver)
        return ScriptedInterceptor(driver, log=silent_log(), metrics=Metrics("test"), clock=self.clock)

    def asked(self, method: str) -> int:
        return sum(call.method == method for driver in self.drivers for call in driver.calls)


@dataclass
class World:
    clock: VirtualClock
    driver: Driver
    folder: VirtualFolder
    kubelet: Kubelet
    entries: list[LogEntry] = field(default_factory=list)
    metrics: Metrics = field(default_factory=lambda: Metrics("test"))
    kube: KubeClient | None = None
    running: asyncio.Task[None] | None = None

    def registrar(self) -> Registrar:
        folder = RegistrationFolder(
            folder=FOLDER,
            driver_endpoint=HOST_SOCKET,
            serve=self.folder.serve,
            connect=lambda endpoint: self.folder.dial(endpoint.path),
        )
        runtime = runtime_of(self.clock, self.entries, self.metrics)
        writer = NodeMetadataWriter(self.kube, "node-1", runtime, annotate=True, label=True) if self.kube else None
        client = client_of(self.driver.connection, self.clock)
        return Registrar(client, folder, runtime, new_id=call_ids(), node_writer=writer)

    def start(self) -> None:
        self.running = asyncio.get_running_loop().create_task(self.registrar().run())

    async def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()
            with suppress(asyncio.CancelledError):
                await self.running
            self.running = None

    async def kill(self) -> None:
        """No socket is removed, as after kill -9."""
        self.folder.kill()
        await self.stop()

    async def pass_time(self, seconds: float = 10.0) -> None:
        await self.clock.sleep(seconds)

    def said(self, message: str, least: Level = Level.INFO) -> list[LogEntry]:
        return [entry for entry in self.entries if entry.message == message and entry.level >= least]

    def counted(self) -> str:
        return self.metrics.render()[0].decode()


@asynccontextmanager
async def world(script: Mapping[str, Any] | None = None, **parts: Any) -> AsyncIterator[World]:
    """Everything but the registrar runs already."""
    clock = VirtualClock()
    driver, folder = Driver(clock, script), VirtualFolder()
    at: Callable[[str], Any] = lambda _endpoint: driver.connection  # noqa: E731 - one driver, wherever it is said to be
    made = World(clock, driver, folder, Kubelet(folder, at, clock), **parts)
    watching = asyncio.get_running_loop().create_task(made.kubelet.run())
    try:
        yield made
    finally:
        watching.cancel()
        await made.stop()
        with suppress(asyncio.CancelledError):
            await watching
