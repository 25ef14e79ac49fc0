"""Keep a session with one CSI driver: find it, check that it responds, and run the worker for its capabilities.

Every sidecar uses this sequence: wait for a driver that is ready and read its name (`wait_for_driver`), then keep a
session with it (`DriverSession`) until the process stops or the driver is lost.

- A driver that came back may be another version. Its name and its capabilities are requested again whenever there is a
  new connection. Another name ends the session (`AnotherDriver`). Other capabilities replace the running worker, after
  its calls in flight have ended.
- A driver that cannot be reached is lost (`DriverLost`) when `lost_after` seconds have passed since its last response,
  to whatever call: then a replica whose driver responds can take the lease. A driver that can be reached and is silent
  may be busy with our calls: while there are any, it has `call_timeout` in addition. A driver that came back and does
  not return its name cannot be called, so it is treated like one that cannot be reached.
- The driver must also answer when the session opens: a replica may have waited long for the lease, and its driver may
  have died, or been replaced, meanwhile.

This module does not depend on what the sidecar does with the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError, DeadlineExceeded, Unavailable, Unimplemented
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup

PROBES_UNTIL_LOST: Final = 4
"""The least number of probes before a driver counts as lost."""
LONGEST_PROBE_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 1.0
LOG_AGAIN_SECONDS: Final = 60.0
"""How often a fault that lasts is logged: it is checked every second, and other processes of the driver log it too."""

SILENT: Final = "driver does not respond"
UNIDENTIFIED: Final = "driver came back and does not return its name and capabilities"

Capabilities: TypeAlias = frozenset[str]
"""Those of the plugin and of its Controller service, by the names that the CSI specification uses."""


class DriverLost(Exception):
    """The driver has not responded for too long."""


class AnotherDriver(Exception):
    """The driver on the socket has another name than the one that this process serves."""


class UnusableDriver(Exception):
    """The driver responds, and this process cannot work with it."""


class Worker(Protocol):
    async def run(self) -> None:
        """Work until stopped or cancelled."""

    def stop(self) -> None:
        """Start nothing more; `run` returns when the calls in flight have ended."""


async def wait_for_driver(csi: CsiClient, address: str, *, clock: Clock, log: Log) -> str:
    """Wait until a driver is ready, and return its name. Raises `UnusableDriver`."""
    log.info("waiting for the driver", address=address)
    while True:
        try:
            await csi.ready()
            return (await csi.plugin_info()).name
        except (Unavailable, DeadlineExceeded) as error:
            log.warning("driver went away", error=error)
            await clock.sleep(RETRY_SECONDS)
            continue
        except CsiError as error:
            # Also a name that CSI does not allow: it becomes part of finalizers, leases and labels.
            raise UnusableDriver(f"the driver at {address} cannot be used: {error}") from None


def another_driver(name: str, expected: str) -> AnotherDriver:
    return AnotherDriver(
        f"the driver on the socket is now {name!r}; this process serves {expected!r}. Start another one for {name!r}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTimes:
    """Times of a session, in seconds."""

    lost_after: float
    """How long a driver may not respond."""
    call_timeout: float
    """How long one of our calls may take."""
    grace: float
    """How long to wait for calls in flight when the worker stops."""

    @property
    def probe(self) -> float:
        """How often a driver that responds is probed, and how long a probe may take."""
        return min(LONGEST_PROBE_SECONDS, self.lost_after / PROBES_UNTIL_LOST)


@dataclass(frozen=True, slots=True)
class _Fault:
    """A response that the driver has not sent, since when, and for how long that is tolerated."""

    message: str
    """For the log."""
    omission: str
    since: float
    tolerated: float
    error: CsiError


class DriverSession:
    def __init__(self, csi: CsiClient, driver: str, times: SessionTimes, *, clock: Clock, log: Log) -> None:
        self.driver = driver
        self.csi = csi
        self.capabilities: Capabilities = frozenset()
        """The latest; read it in `open`."""
        self._times = times
        self._clock = clock
        self._log = log
        self._changed = asyncio.Event()
        self._connection = csi.connections
        self._responded = 0.0
        """When the driver last responded."""
        self._identified = 0.0
        """When its name and capabilities were last known to be current."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Check the driver, then watch it in the background. Its loss cancels the block and raises `DriverLost`."""
        self.capabilities = await self._greet()
        async with TaskGroup() as tasks:
            watching = tasks.start(self._watch_driver(), name="watching the driver")
            yield
            watching.cancel()

    async def run_workers(self, worker_for: Callable[[Capabilities], Worker], stop: asyncio.Event) -> None:
        """Run the worker for the current capabilities until `stop`; start another one when they change."""
        while not stop.is_set():
            self._changed.clear()
            await self._run_worker(worker_for(self.capabilities), stop)

    async def _run_worker(self, worker: Worker, stop: asyncio.Event) -> None:
        async with TaskGroup() as tasks:
            working = tasks.start(worker.run(), name="worker")
            await _first_of(stop.wait(), self._changed.wait())
            # Wait for calls in flight, do not cancel them: a driver may continue a cancelled call, and its result would
            # not be recorded.
            worker.stop()
            try:
                async with self._clock.timeout(self._times.grace):
                    await asyncio.wait([working])
            except TimeoutError:
                self._log.warning("calls are still in flight; the next process finishes them")
                working.cancel()

    # ---- the driver ----------------------------------------------------------------------------------------------

    async def _greet(self) -> Capabilities:
        try:
            async with self._clock.timeout(self._times.lost_after):
                return await self._identify()
        except (CsiError, TimeoutError) as error:
            reason = error if isinstance(error, CsiError) else f"no response for {self._times.lost_after:g} s"
            raise DriverLost(f"the driver {self.driver} does not respond: {reason}") from error

    async def _watch_driver(self) -> None:
        self._responded = self._identified = self._clock.elapsed()
        retry = min(RETRY_SECONDS, self._times.probe)
        fault: _Fault | None = None
        logged_at = 0.0
        while True:
            await self._clock.sleep(self._times.probe if fault is None else retry)
            before, fault = fault, await self._current_fault()
            if fault is None and before is not None:
                self._log.info("driver responds again")
            is_new = fault is not None and (before is None or before.message != fault.message)
            if fault is not None and (is_new or self._clock.elapsed() >= logged_at + LOG_AGAIN_SECONDS):
                self._log.warning(fault.message, error=fault.error)
                logged_at = self._clock.elapsed()
            if fault is not None and self._clock.elapsed() + retry > fault.since + fault.tolerated:
                raise DriverLost(f"the driver {self.driver} has not {fault.omission} for {fault.tolerated:g} s")

    async def _current_fault(self) -> _Fault | None:
        # Take the time before the probe: the response proves only that the driver ran at some time after it.
        began = self._clock.elapsed()
        if (error := await self._probe()) is not None:
            self._responded = max(self._responded, self.csi.last_response_at)
            return _Fault(SILENT, "responded", self._responded, self._tolerated(error), error)
        self._responded = began
        if (error := await self._identify_if_reconnected()) is not None:
            omission = "returned its name and capabilities"
            return _Fault(UNIDENTIFIED, omission, self._identified, self._tolerated(error), error)
        self._identified = began
        return None

    async def _probe(self) -> CsiError | None:
        try:
            await self.csi.call(rpc.PROBE, csi_pb2.ProbeRequest(), within=self._times.probe)
        except Unimplemented:
            return None
        except CsiError as error:
            return error
        return None

    def _tolerated(self, error: CsiError) -> float:
        # A driver that serves one call at a time answers a probe only after the calls before it.
        may_be_busy = isinstance(error, DeadlineExceeded) and self.csi.calls_in_flight > 0
        return self._times.lost_after + (self._times.call_timeout if may_be_busy else 0.0)

    async def _identify_if_reconnected(self) -> CsiError | None:
        """Return None if name and capabilities are current: on the same connection it is the same driver."""
        connection = self.csi.connections
        if connection == self._connection:
            return None
        try:
            async with self._clock.timeout(self._times.lost_after):
                capabilities = await self._identify()
        except (CsiError, TimeoutError) as error:
            return error if isinstance(error, CsiError) else DeadlineExceeded("no response")
        self._connection = connection
        if capabilities != self.capabilities:
            self._log.info("driver capabilities changed", capabilities=sorted(capabilities))
            self.capabilities = capabilities
            self._changed.set()
        return None

    async def _identify(self) -> Capabilities:
        """Request name and capabilities. Raises `AnotherDriver` if the name is not the one that this session is for."""
        name = (await self.csi.plugin_info()).name
        if name != self.driver:
            raise another_driver(name, self.driver)
        return await self.csi.controller_capabilities()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of them has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
