"""A sidecar's contact with its driver: found, silent, lost, back, changed, replaced; whatever the sidecar does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from orlop.csi.client import CsiClient
from orlop.csi.driver_session import (
    SILENT,
    AnotherDriver,
    Capabilities,
    DriverLost,
    DriverSession,
    SessionTimes,
    UnusableDriver,
    wait_for_driver,
)
from orlop.csi.error_codes import CsiError, DeadlineExceeded, Unavailable
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.transport import Shape
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.testing.driver_model import DriverFacts
from orlop.testing.driver_script import read_script
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor
from orlop.testing.virtual_clock import VirtualClock

pytestmark = pytest.mark.virtual_time
DRIVER = "mock.example.com"
OTHER = {"driver": {"name": "other.example.com"}}
NO_CAPABILITIES = {"capabilities": {"controller": []}}
PLUGIN_CAPABILITIES = DriverFacts().capabilities.plugin
CALL_TIMEOUT = 15.0
GRACE = 20.0
EXPAND = "ControllerExpandVolume"


class SilentDriver:
    """Accepts connections and calls, and never answers one."""

    def shape_of(self, _path: str) -> Shape:
        return Shape.UNARY

    async def answer(self, _path: str, _message: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def answers(self, _path: str, _message: bytes) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""


@dataclass
class CallingWorker:
    """Calls the driver as often as the test says, one call after the other."""

    csi: CsiClient
    capabilities: Capabilities
    calls: int = 0
    ended: list[str] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        try:
            for _ in range(self.calls):
                try:
                    await self.csi.call(rpc.CONTROLLER_EXPAND_VOLUME, csi_pb2.ControllerExpandVolumeRequest())
                except (Unavailable, DeadlineExceeded) as error:
                    self.ended.append(type(error).__name__)
                except CsiError:
                    self.ended.append("answered")
            await self.stopped.wait()
            self.ended.append("stopped")
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise

    def stop(self) -> None:
        self.stopped.set()


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.log: list[LogEntry] = []
        self.drivers: list[ScriptedDriver] = []
        self.interceptors: list[ScriptedInterceptor] = []
        self.play({})
        log = collecting_log(self.log)
        self.connection = InProcessConnection(self.interceptors[-1])
        metrics = Metrics("t", of_process=False)
        self.csi = CsiClient(self.connection, log=log, metrics=metrics, clock=self.clock, random=Random(3))
        self.stop = asyncio.Event()
        self.workers: list[CallingWorker] = []
        self.calls = 0
        """How many calls the next worker makes."""

    def play(self, script: Mapping[str, Any], **facts: Any) -> None:
        driver = ScriptedDriver(read_script({"script": script, **facts}), self.clock)
        self.drivers.append(driver)
        log = collecting_log(self.log)
        self.interceptors.append(ScriptedInterceptor(driver, log=log, metrics=Metrics("t"), clock=self.clock))

    def replace_driver(self, script: Mapping[str, Any] | None = None, **facts: Any) -> None:
        """A new connection, to a driver that behaves so."""
        self.play(script or {}, **facts)
        self.connection.mend(self.interceptors[-1])

    async def restart_driver(self, script: Mapping[str, Any] | None = None, **facts: Any) -> None:
        """The driver dies, and comes back two seconds later."""
        self.connection.cut()
        await self.clock.sleep(2)
        self.replace_driver(script, **facts)

    def worker_for(self, capabilities: Capabilities) -> CallingWorker:
        self.workers.append(CallingWorker(self.csi, capabilities, self.calls))
        return self.workers[-1]

    async def run(self, lost_after: float) -> None:
        times = SessionTimes(lost_after=lost_after, call_timeout=CALL_TIMEOUT, grace=GRACE)
        session = DriverSession(self.csi, DRIVER, times, clock=self.clock, log=collecting_log(self.log))
        async with session.open():
            await session.run_workers(self.worker_for, self.stop)

    def called(self, method: str) -> int:
        return sum(call.method == method for driver in self.drivers for call in driver.calls)

    async def close(self) -> None:
        await self.connection.close()
        for driver, interceptor in zip(self.drivers, self.interceptors, strict=True):
            driver.stop_hanging()
            await interceptor.drain(10_000.0)


@dataclass
class Running:
    world: World
    task: asyncio.Task[None]

    async def error(self) -> BaseException | None:
        async with self.world.clock.timeout(3600):
            await asyncio.wait([self.task])
        return self.task.exception()


@asynccontextmanager
async def session(
    lost_after: float = 10.0, *, calls: int = 0, script: Mapping[str, Any] | None = None
) -> AsyncIterator[Running]:
    """One that is open, and whose worker makes so many calls."""
    world = World()
    world.replace_driver(script)
    world.calls = calls
    task = asyncio.get_running_loop().create_task(world.run(lost_after))
    await world.clock.sleep(0.1)
    try:
        yield Running(world, task)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await world.close()


# ---- lost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost_after", [2.0, 10.0, 60.0])
async def test_a_driver_that_cannot_be_reached_is_lost_after_that_time(lost_after: float):
    async with session(lost_after) as the:
        await the.world.clock.sleep(3 * lost_after)
        assert not the.task.done()
        the.world.connection.cut()
        began = the.world.clock.elapsed()
        assert isinstance(await the.error(), DriverLost)
        assert lost_after / 2 <= the.world.clock.elapsed() - began <= lost_after
        assert the.world.workers[0].ended == ["cancelled"]


async def test_a_driver_that_hangs_is_lost_within_the_same_time():
    async with session() as the:
        await the.world.clock.sleep(29.9)
        the.world.replace_driver({"Probe": [{"times": 0, "hang": True}]})
        began = the.world.clock.elapsed()
        assert isinstance(await the.error(), DriverLost)
        assert the.world.clock.elapsed() - began <= 11


async def test_a_driver_that_is_busy_with_our_calls_is_not_lost_though_it_answers_no_probe():
    slow = {"times": 0, "delay": "14s"}
    async with session(calls=6, script={"Probe": [slow], EXPAND: [slow]}) as the:
        await the.world.clock.sleep(6 * 14 - 1)
        assert not the.task.done()
        assert len(the.world.workers[0].ended) >= 5


async def test_a_driver_that_answers_none_of_our_calls_is_lost_when_one_could_have_been_answered():
    async with session(calls=100, script={EXPAND: [{"times": 0, "hang": True}]}) as the:
        the.world.connection.mend(SilentDriver())
        began = the.world.clock.elapsed()
        assert isinstance(await the.error(), DriverLost)
        assert 11 < the.world.clock.elapsed() - began <= 26


async def test_a_driver_without_a_probe_is_not_lost():
    async with session() as the:
        the.world.replace_driver({"Probe": [{"times": 0, "error": {"code": "UNIMPLEMENTED", "message": "no"}}]})
        await the.world.clock.sleep(100)
        assert not the.task.done()


# ---- back ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [{"hang": True}, {"error": {"code": "INTERNAL", "message": "no"}}], ids=str)
@pytest.mark.parametrize("method", ["GetPluginInfo", "ControllerGetCapabilities"])
async def test_a_driver_that_came_back_and_does_not_identify_itself_is_lost_too(method: str, answer: dict[str, object]):
    async with session() as the:
        await the.world.restart_driver({method: [{"times": 0, **answer}]})
        await the.world.clock.sleep(16)
        assert the.task.done()
        assert isinstance(the.task.exception(), DriverLost)


async def test_a_driver_that_came_back_and_returns_its_name_at_the_third_time_is_not_lost():
    async with session() as the:
        await the.world.restart_driver(
            {"GetPluginInfo": [{"times": 2, "error": {"code": "UNAVAILABLE", "message": "soon"}}]}
        )
        await the.world.clock.sleep(60)
        assert not the.task.done()


async def test_a_driver_that_is_away_for_a_moment_keeps_its_worker():
    async with session() as the:
        for _ in range(5):
            await the.world.restart_driver()
            await the.world.clock.sleep(7)
        assert not the.task.done()
        assert [worker.ended for worker in the.world.workers] == [[]]


async def test_a_driver_that_came_back_with_another_name_ends_the_session():
    async with session() as the:
        await the.world.clock.sleep(5)
        await the.world.restart_driver(**OTHER)
        error = await the.error()
        assert isinstance(error, AnotherDriver)
        assert "is now 'other.example.com'; this process serves 'mock.example.com'" in str(error)


# ---- changed ---------------------------------------------------------------------------------------------------------


async def test_a_driver_whose_capabilities_changed_gets_another_worker_that_knows_them():
    async with session() as the:
        await the.world.clock.sleep(5)
        await the.world.restart_driver(**NO_CAPABILITIES)
        await the.world.clock.sleep(10)
        await the.world.restart_driver()
        await the.world.clock.sleep(10)
        assert not the.task.done()
        first, second, third = the.world.workers
        assert "PUBLISH_UNPUBLISH_VOLUME" in first.capabilities
        assert second.capabilities == PLUGIN_CAPABILITIES
        assert third.capabilities == first.capabilities
        assert (first.ended, second.ended, third.ended) == (["stopped"], ["stopped"], [])


async def test_calls_in_flight_are_awaited_before_the_worker_is_replaced():
    async with session() as the:
        the.world.calls = 1
        await the.world.restart_driver({EXPAND: [{"delay": "12s"}]}, **NO_CAPABILITIES)
        await the.world.clock.sleep(4)
        busy = the.world.workers[-1]
        assert (busy.capabilities, busy.ended, the.world.called(EXPAND)) == (PLUGIN_CAPABILITIES, [], 1)
        the.world.calls = 0
        the.world.replace_driver()
        await the.world.clock.sleep(3)
        assert (busy.ended, the.world.workers[-1]) == ([], busy), "nobody else works before its call has ended"
        await the.world.clock.sleep(10)
        assert busy.ended == ["answered", "stopped"]
        assert the.world.workers[-1] is not busy


async def test_a_driver_that_stays_silent_is_logged_when_it_falls_silent_and_then_once_a_minute():
    async with session(lost_after=300.0) as the:
        await the.world.clock.sleep(10)
        the.world.connection.cut()
        await the.world.clock.sleep(150)
        the.world.connection.mend()
        await the.world.clock.sleep(10)
        the.world.connection.cut()
        await the.world.clock.sleep(30)
        assert not the.task.done()
        messages = [entry.message for entry in the.world.log if entry.message in {SILENT, "driver responds again"}]
        assert messages == [SILENT, SILENT, SILENT, "driver responds again", SILENT]


# ---- when it opens ---------------------------------------------------------------------------------------------------


async def test_a_session_does_not_open_with_a_driver_that_cannot_be_reached():
    world = World()
    world.connection.cut()
    with pytest.raises(DriverLost, match=f"the driver {DRIVER} does not respond"):
        await world.run(10.0)
    assert world.workers == []
    await world.close()


async def test_a_session_does_not_open_with_a_driver_that_hangs_and_ends_in_time():
    world = World()
    world.replace_driver({"GetPluginInfo": [{"times": 0, "hang": True}]})
    with pytest.raises(DriverLost, match="no response for 10 s"):
        await world.run(10.0)
    assert world.clock.elapsed() <= 11
    await world.close()


async def test_a_session_does_not_open_with_another_driver():
    world = World()
    world.replace_driver(**OTHER)
    with pytest.raises(AnotherDriver):
        await world.run(10.0)
    assert world.workers == []
    await world.close()


async def test_the_nodes_half_of_a_driver_is_not_called():
    async with session() as the:
        await the.world.restart_driver()
        await the.world.clock.sleep(60)
        assert not the.task.done()
        assert the.world.called("NodeGetCapabilities") == 0


# ---- when it stops ---------------------------------------------------------------------------------------------------


async def test_a_session_that_is_stopped_waits_for_the_call_in_flight():
    async with session(calls=1, script={EXPAND: [{"delay": "10s"}]}) as the:
        await the.world.clock.sleep(3)
        the.world.stop.set()
        assert await the.error() is None
        assert the.world.workers[0].ended == ["answered", "stopped"]
        assert len(the.world.workers) == 1


async def test_a_session_that_is_stopped_waits_no_longer_than_its_grace():
    async with session(calls=100, script={EXPAND: [{"times": 0, "hang": True}]}) as the:
        await the.world.clock.sleep(3)
        the.world.stop.set()
        began = the.world.clock.elapsed()
        assert await the.error() is None
        assert GRACE <= the.world.clock.elapsed() - began <= GRACE + 1
        assert the.world.workers[0].ended[-1] == "cancelled"
        assert "calls are still in flight" in str(the.world.log)


# ---- the first contact -----------------------------------------------------------------------------------------------


async def first_contact(world: World) -> str:
    log = collecting_log(world.log)
    return await wait_for_driver(world.csi, "/run/csi/socket", clock=world.clock, log=log)


async def test_a_driver_that_comes_late_is_waited_for():
    world = World()
    world.connection.cut()
    waiting = asyncio.ensure_future(first_contact(world))
    await world.clock.sleep(100)
    assert not waiting.done()
    world.replace_driver({"Probe": [{"times": 3, "answer": {"ready": False}}]})
    assert await waiting == DRIVER
    await world.close()


@pytest.mark.parametrize("name", ["-a", "a_b", "a/b", "../a", "a b", "a" * 64, "ä", "a."])
async def test_a_driver_whose_name_is_not_allowed_is_refused(name: str):
    world = World()
    world.replace_driver({}, driver={"name": name})
    with pytest.raises(
        UnusableDriver, match="which is not allowed as the name of a driver: allowed are up to 63 letters"
    ) as refused:
        await first_contact(world)
    assert repr(name) in str(refused.value)
    await world.close()


@pytest.mark.parametrize("method", ["Probe", "GetPluginInfo"])
async def test_a_driver_that_answers_with_a_final_error_is_refused(method: str):
    world = World()
    world.replace_driver({method: [{"times": 0, "error": {"code": "FAILED_PRECONDITION", "message": "no licence"}}]})
    with pytest.raises(UnusableDriver, match="the driver at /run/csi/socket cannot be used: no licence"):
        await first_contact(world)
    await world.close()
