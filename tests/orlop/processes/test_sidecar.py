"""A second sidecar is a table of flags and a `run`; the frame does everything else, as a tiny one shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest

from orlop.csi.client import CsiClient
from orlop.csi.in_process_transport import InProcessConnection
from orlop.foundation.clock import Clock
from orlop.foundation.go_flags import UsageError, flag, parse_flags, text
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.kube.api_errors import NotFound
from orlop.kube.client import KubeClient
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import EVENT, LEASE, PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from orlop.kube.patches import set_annotation
from orlop.processes.daemon import CannotGoOn
from orlop.processes.lease_wiring import LeaseWiring
from orlop.processes.sidecar import Caches, Sidecar, SidecarFlags, SidecarLife, SidecarSession
from orlop.testing.driver_script import read_script
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_objects import volume
from support.api.api_servers import TestServer, api_server
from support.api.api_wires import Before, Wire, failing

pytestmark = pytest.mark.virtual_time
DRIVER = "mock.example.com"


# ---- the whole of another sidecar ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelerFlags(SidecarFlags):
    annotation: str = flag(text, default="labeled", metavar="KEY", help="The annotation.")


@dataclass
class LabelingWorker:
    session: SidecarSession[LabelerFlags]
    caches: Caches
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        for found in self.caches[PERSISTENT_VOLUME].cache:
            patch = set_annotation(found, self.session.settings.annotation, self.session.driver.driver)
            if patch is not None:
                self.session.may_act()
                await self.session.kube.patch(PERSISTENT_VOLUME, ObjectName(None, found["metadata"]["name"]), patch)
        await self.stopped.wait()
        about = {"kind": "PersistentVolume", "metadata": {"name": "pv1"}}
        self.session.events.warning(about, "Stopped", "as it ends", action="Labeling")

    def stop(self) -> None:
        self.stopped.set()


async def run_labeler(session: SidecarSession[LabelerFlags], caches: Caches) -> None:
    await session.run_workers(lambda _capabilities: LabelingWorker(session, caches))


LABELER = Sidecar(
    name="labeler",
    summary="Annotates volumes.",
    flags=LabelerFlags,
    event_source="labeler",
    lease_of=lambda driver: f"labeler-{driver}",
    kinds=(PERSISTENT_VOLUME,),
    run=run_labeler,
)


# ---- where it lives --------------------------------------------------------------------------------------------------


def flags(*arguments: str) -> LabelerFlags:
    daemon = LABELER.daemon
    found: LabelerFlags = parse_flags(
        LabelerFlags, arguments, program=daemon.program, summary="", environment={}, warn=lambda _: None
    )
    return found


@dataclass
class World:
    on: TestServer
    clock: Clock
    log: list[LogEntry] = field(default_factory=list)
    wire: Wire = field(default_factory=Wire)
    drivers: list[tuple[ScriptedDriver, ScriptedInterceptor]] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.client = self.on.client()
        self.connection = InProcessConnection(self.played())
        log, metrics = collecting_log(self.log), Metrics("t", of_process=False)
        self.runtime = Runtime(clock=self.clock, random=Random(6), log=log, metrics=metrics)

    def played(self, name: str = DRIVER) -> ScriptedInterceptor:
        driver = ScriptedDriver(read_script({"driver": {"name": name}}), self.clock)
        log = collecting_log(self.log)
        self.drivers.append((driver, ScriptedInterceptor(driver, log=log, metrics=Metrics("t"), clock=self.clock)))
        return self.drivers[-1][1]

    def life(self, *arguments: str) -> SidecarLife[LabelerFlags]:
        settings, runtime = flags(*arguments), self.runtime
        transport = self.wire.around(self.on.transport())
        kube = KubeClient(transport, clock=self.clock, random=Random(2), log=runtime.log, name="labeler")
        csi = CsiClient(self.connection, log=runtime.log, metrics=runtime.metrics, clock=self.clock, random=Random(3))
        leases = LeaseWiring(settings.leader, runtime, kube, "default")
        return SidecarLife(LABELER, settings, runtime=runtime, csi=csi, kube=kube, leases=leases)

    async def label(self, name: str = "pv1", key: str = "labeled") -> str | None:
        found = await self.client.get(PERSISTENT_VOLUME, ObjectName(None, name))
        value: str | None = found["metadata"].get("annotations", {}).get(key)
        return value

    async def holder(self) -> str | None:
        try:
            lease = await self.client.get(LEASE, ObjectName("default", f"labeler-{DRIVER}"))
        except NotFound:
            return None
        return lease["spec"].get("holderIdentity") or None

    def slowly(self, method: str, end: str) -> Before:
        """Such requests take three seconds to reach the API server."""

        async def before(request: HttpRequest) -> None:
            if request.method == method and request.path.endswith(end):
                await self.clock.sleep(3)

        return before

    async def add_volume(self, name: str) -> None:
        await self.client.create(PERSISTENT_VOLUME, volume(name, csi={"driver": DRIVER, "volumeHandle": name}))

    def logged(self) -> list[str]:
        return [entry.message for entry in self.log]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = VirtualClock()
    async with api_server(clock) as on:
        made = World(on, clock)
        await made.add_volume("pv1")
        yield made
        await made.connection.close()
        for driver, interceptor in made.drivers:
            driver.stop_hanging()
            await interceptor.drain(10_000.0)


@asynccontextmanager
async def living(the: World, *arguments: str) -> AsyncIterator[asyncio.Task[None]]:
    task: asyncio.Task[None] = asyncio.get_running_loop().create_task(the.life(*arguments).run(the.stop))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


# ---- what the frame does for it --------------------------------------------------------------------------------------


def test_it_has_the_flags_of_all_sidecars_and_its_own():
    found = flags("--annotation=x", "-leader-election", "--kube-api-qps=5", "-v", "5", "--timeout=3s")
    assert (found.annotation, found.leader.leader_election, found.log.verbosity) == ("x", True, 5)
    assert found.session_times.call_timeout == 3
    with pytest.raises(UsageError, match="it must begin with a slash"):
        flags("--metrics-path=x")
    with pytest.raises(UsageError, match="Only one of"):
        flags("--http-endpoint=:1", "--metrics-address=:2")
    assert LABELER.daemon.instead(flags("--version")).startswith("orlop labeler ")
    assert LABELER.daemon.instead(flags()) is None


async def test_it_runs_with_complete_caches_under_its_lease_and_gives_the_lease_back():
    async with world() as the:
        the.wire.before = the.slowly("GET", "/persistentvolumes")
        async with living(the, "--leader-election", "--annotation=mine") as life:
            await the.clock.sleep(10)
            assert await the.label(key="mine") == DRIVER
            assert await the.holder()
            the.wire.before = the.slowly("POST", "/events")
            the.stop.set()
            await life
        assert await the.holder() is None
        reasons = [event["reason"] for event in (await the.client.list(EVENT)).items]
        assert reasons == ["Stopped"], "also the last events are written"


async def test_it_waits_for_its_driver_and_is_not_ready_until_then():
    async with world() as the:
        the.connection.cut()
        life = the.life("--leader-election")
        task = asyncio.ensure_future(life.run(the.stop))
        await the.clock.sleep(100)
        assert await life.why_not_ready() == "waiting for the driver"
        assert await the.holder() is None
        the.connection.mend()
        await the.clock.sleep(10)
        assert await life.why_not_ready() is None
        assert await the.label() == DRIVER
        the.stop.set()
        await task


async def test_a_lost_driver_ends_the_work_and_frees_the_lease_until_it_is_back():
    async with world() as the, living(the, "--leader-election") as life:
        await the.clock.sleep(10)
        the.connection.cut()
        await the.clock.sleep(60)
        assert await the.holder() is None
        await the.add_volume("pv2")
        assert not life.done()
        the.connection.mend()
        await the.clock.sleep(60)
        assert await the.holder()
        assert await the.label("pv2") == DRIVER


async def test_the_metric_of_the_lease_is_one_exactly_while_it_is_held():
    async with world() as the:
        the.wire.before = the.slowly("POST", "/leases")

        def status() -> list[str]:
            lines = the.runtime.metrics.render()[0].decode().splitlines()
            return [line for line in lines if line.startswith("leader_election_master_status")]

        async with living(the, "--leader-election"):
            assert status() == []
            await the.clock.sleep(2)
            assert status() == [f'leader_election_master_status{{name="labeler-{DRIVER}"}} 0.0']
            await the.clock.sleep(8)
            assert status() == [f'leader_election_master_status{{name="labeler-{DRIVER}"}} 1.0']
            the.connection.cut()
            await the.clock.sleep(60)
            assert status() == [f'leader_election_master_status{{name="labeler-{DRIVER}"}} 0.0']


async def test_without_leader_election_there_is_no_metric_of_the_lease():
    async with world() as the, living(the):
        await the.clock.sleep(10)
        assert b"leader_election_master_status" not in the.runtime.metrics.render()[0]


async def test_another_driver_on_the_socket_after_a_loss_ends_the_process():
    async with world() as the, living(the) as life:
        await the.clock.sleep(10)
        the.connection.cut()
        await the.clock.sleep(60)
        the.connection.mend(the.played("other.example.com"))
        await the.clock.sleep(60)
        assert life.done()
        assert isinstance(life.exception(), CannotGoOn)
        assert "is now 'other.example.com'; this process serves 'mock.example.com'" in str(life.exception())


async def test_a_driver_whose_name_is_not_allowed_ends_the_process():
    async with world() as the:
        the.connection.mend(the.played("not_allowed"))
        with pytest.raises(CannotGoOn, match="'not_allowed', which is not allowed as the name of a driver"):
            await the.life().run(the.stop)
        assert await the.label() is None


async def test_a_process_without_its_lease_ends():
    async with world() as the, living(the, "--leader-election") as life:
        await the.clock.sleep(10)
        the.wire.before = failing("GET", "PUT", "PATCH", "POST", times=10_000)
        await the.clock.sleep(60)
        assert life.done()
        assert isinstance(life.exception(), CannotGoOn)


@pytest.mark.parametrize("away", ["the driver", "the API server"])
async def test_a_process_that_only_waits_stops_at_once(away: str):
    async with world() as the:
        if away == "the driver":
            the.connection.cut()
        else:
            the.wire.before = failing("GET", times=10_000)
        async with living(the) as life:
            await the.clock.sleep(30)
            the.stop.set()
            began = the.clock.elapsed()
            await life
            assert the.clock.elapsed() - began < 6, "the time for events at most"
        assert "calls are still in flight; the next process finishes them" not in the.logged()
