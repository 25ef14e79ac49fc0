"""A scripted driver that dies and starts again, with another script, on the same storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orlop.csi.client import CsiClient
from orlop.csi.transport import ClientTransport
from orlop.foundation.runtime import Runtime
from orlop.testing.driver_model import Storage
from orlop.testing.driver_script import read_script
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor

DRAIN_SECONDS = 10_000.0
"""Of virtual time: longer than any delay of a script."""


class DriverLives:
    """`drivers` are all lives, the current one last; each has the calls that were made to it."""

    def __init__(self, runtime: Runtime) -> None:
        self.storage = Storage()
        self.drivers: list[ScriptedDriver] = []
        self._interceptors: list[ScriptedInterceptor] = []
        self._runtime = runtime

    def start(self, script: Mapping[str, Any] | None, **options: Any) -> ScriptedInterceptor:
        """Start another life with this script; `options` are those of `ScriptedDriver`."""
        runtime = self._runtime
        driver = ScriptedDriver(read_script(script), runtime.clock, **{"storage": self.storage, **options})
        interceptor = ScriptedInterceptor(driver, log=runtime.log, metrics=runtime.metrics, clock=runtime.clock)
        self.drivers.append(driver)
        self._interceptors.append(interceptor)
        return interceptor

    def calls(self, *methods: str) -> list[str]:
        """Return the calls of these methods in all lives, in order."""
        return [call.method for driver in self.drivers for call in driver.calls if call.method in methods]

    def requests(self, method: str) -> list[Any]:
        return [call.request for driver in self.drivers for call in driver.calls_of(method)]

    async def end(self) -> None:
        """Let every call of every life end, also those that a script has hanging."""
        for driver, interceptor in zip(self.drivers, self._interceptors, strict=True):
            driver.stop_hanging()
            await interceptor.drain(DRAIN_SECONDS)


def csi_client(connection: ClientTransport, runtime: Runtime) -> CsiClient:
    return CsiClient(connection, log=runtime.log, metrics=runtime.metrics, clock=runtime.clock, random=runtime.random)
