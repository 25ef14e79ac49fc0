"""A node on virtual time: a driver that can be restarted as another one, a registrar beside it, and kubelet."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

from orlop.csi.in_process_transport import InProcessConnection
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Level, LogEntry, collecting_log, silent_log
from orlop.kube.client import KubeClient
from orlop.sidecars.registrar.driver_registration import Registrar
from orlop.sidecars.registrar.node_metadata_writer import NodeMetadataWriter
from orlop.sidecars.registrar.registration_socket import RegistrationFolder
from orlop.testing.driver_script import read_script
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor
from support.csi.csi_drivers import client_of
from support.kubelet.kubelet_plugins import Kubelet, VirtualFolder
from support.worlds import World

FOLDER = Path("/registration")
HOST_SOCKET = "/var/lib/kubelet/plugins/mock/csi.sock"


def runtime_of(clock: Clock, entries: list[LogEntry], metrics: Metrics | None = None) -> Runtime:
    return Runtime(clock=clock, random=Random(1), log=collecting_log(entries), metrics=metrics or Metrics("test"))


def call_ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"registration-{next(numbers)}"


class Driver:
    """A driver's socket, and the driver that responds there now."""

    def __init__(self, clock: Clock, script: Mapping[str, Any] | None = None) -> None:
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


class RegistrarWorld(World):
    """Everything runs, except the registrar."""

    def __init__(self, script: Mapping[str, Any] | None = None, kube: KubeClient | None = None) -> None:
        super().__init__()
        self.driver = Driver(self.clock, script)
        self.folder = VirtualFolder()
        # Whatever endpoint kubelet is given, the one driver responds there.
        self.kubelet = Kubelet(self.folder, lambda _endpoint: self.driver.connection, self.clock)
        self.metrics = Metrics("test")
        self.kube = kube
        self.running: asyncio.Task[None] | None = None
        """The registrar. Not a part of the world: tests want its failure, which would end the world."""

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        self.start(self.kubelet.run(), "kubelet")
        ends.push_async_callback(self.stop_registrar)

    def registrar(self) -> Registrar:
        folder = RegistrationFolder(
            folder=FOLDER,
            driver_endpoint=HOST_SOCKET,
            serve=self.folder.serve,
            connect=lambda endpoint: self.folder.dial(endpoint.path),
        )
        runtime = runtime_of(self.clock, self.log, self.metrics)
        writer = NodeMetadataWriter(self.kube, "node-1", runtime, annotate=True, label=True) if self.kube else None
        client = client_of(self.driver.connection, self.clock)
        return Registrar(client, folder, runtime, new_id=call_ids(), node_writer=writer)

    def start_registrar(self) -> None:
        self.running = asyncio.get_running_loop().create_task(self.registrar().run())

    async def stop_registrar(self) -> None:
        if self.running is not None:
            self.running.cancel()
            with suppress(asyncio.CancelledError):
                await self.running
            self.running = None

    async def kill_registrar(self) -> None:
        """No socket is removed, as after kill -9."""
        self.folder.kill()
        await self.stop_registrar()

    def said(self, message: str, least: Level = Level.INFO) -> list[LogEntry]:
        return [entry for entry in self.log if entry.message == message and entry.level >= least]

    def counted(self) -> str:
        return self.metrics.render()[0].decode()
