"""What becomes of the work when the driver goes away, and when it comes back as another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from orlop.csi.in_process import InProcessConnection
from orlop.csi.transport import Shape
from orlop.kube import objects
from orlop.kube.kinds import VOLUME_ATTACHMENT
from orlop.sidecars.attacher.driver_session import AnotherDriver, DriverLost, DriverSession, SessionTimes
from support.api_wires import failing
from support.attacher_worlds import OURS, PUBLISH, UNPUBLISH, AttacherWorld, attacher_world

pytestmark = pytest.mark.virtual_time
OTHER = {"driver": {"name": "other.example.com"}}
NOTHING_TO_ATTACH = {"capabilities": {"controller": []}}


@dataclass
class Session:
    world: AttacherWorld
    connection: InProcessConnection
    stop: asyncio.Event
    running: asyncio.Future[None]

    async def restarted(self, script: dict[str, object] | None = None, **facts: object) -> None:
        """The driver dies and comes back, as this one."""
        self.connection.cut()
        await self.world.clock.sleep(2)
        self.world.play(script or {}, **facts)
        self.connection.mend(self.world.interceptor)


class Deaf:
    """Accepts connections, and is never heard of."""

    def shape_of(self, _path: str) -> Shape:
        return Shape.ONE_ANSWER

    async def answer(self, _path: str, _message: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def answers(self, _path: str, _message: bytes) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""


@asynccontextmanager
async def session(patience: float = 10.0, *, cut: bool = False) -> AsyncIterator[Session]:
    async with attacher_world() as world, world.tools() as (caches, settings, tools, connection):
        await world.node()
        await world.volume()
        await world.wanted()
        stop = asyncio.Event()
        if cut:
            connection.cut()
        run = DriverSession(caches, settings, SessionTimes(patience=patience), tools).run(stop)
        made = Session(world, connection, stop, asyncio.ensure_future(run))
        try:
            yield made
        finally:
            made.running.cancel()
            await asyncio.wait([made.running])


@pytest.mark.parametrize("patience", [2.0, 10.0, 60.0])
async def test_a_driver_that_does_not_answer_is_waited_out_and_then_lost(patience: float):
    async with session(patience) as the:
        await the.world.clock.sleep(3 * patience)
        assert not the.running.done()
        the.connection.cut()
        began = the.world.clock.elapsed()
        await asyncio.wait([the.running])
        assert isinstance(the.running.exception(), DriverLost)
        assert patience / 2 <= the.world.clock.elapsed() - began <= patience


async def test_a_driver_that_hangs_is_lost_within_the_same_time():
    async with session() as the:
        await the.world.clock.sleep(30)
        the.world.play({"Probe": [{"times": 0, "hang": True}]})
        the.connection.mend(the.world.interceptor)
        began = the.world.clock.elapsed()
        await asyncio.wait([the.running])
        assert isinstance(the.running.exception(), DriverLost)
        assert the.world.clock.elapsed() - began <= 11


async def test_a_driver_that_is_busy_with_our_calls_is_not_lost_though_it_answers_nobody_else():
    async with session() as the:
        await the.world.until_attached()
        slow = {"times": 0, "delay": "14s"}
        the.world.play({"Probe": [slow], PUBLISH: [slow]})
        the.connection.mend(the.world.interceptor)
        for number in range(2, 7):
            await the.world.volume(f"pv{number}", f"h{number}")
            await the.world.wanted(f"va{number}", f"pv{number}")
            await the.world.clock.sleep(14)
        assert not the.running.done()
        await the.world.until_attached("va6")


async def test_a_driver_that_answers_none_of_our_calls_is_lost_when_one_could_have_been_answered():
    async with session() as the:
        await the.world.until_attached()
        the.connection.mend(Deaf())
        began = the.world.clock.elapsed()
        for number in range(2, 12):
            await the.world.volume(f"pv{number}", f"h{number}")
            await the.world.wanted(f"va{number}", f"pv{number}")
        await asyncio.wait([the.running])
        assert isinstance(the.running.exception(), DriverLost)
        assert the.world.clock.elapsed() - began <= 26


async def test_another_driver_on_the_socket_is_asked_to_detach_nothing_before_its_name_is_known():
    async with session() as the:
        await the.world.until_attached()
        the.connection.cut()
        the.world.play({}, **OTHER)
        the.connection.mend(the.world.interceptor)
        await the.world.delete(VOLUME_ATTACHMENT, "va1")
        await asyncio.wait([the.running])
        assert isinstance(the.running.exception(), AnotherDriver)
        assert the.world.calls() == [PUBLISH]
        assert objects.finalizers(await the.world.attachment()) == (OURS,)


async def test_another_driver_that_comes_just_when_it_is_asked_is_not_believed(monkeypatch: pytest.MonkeyPatch):
    async with session() as the:
        await the.world.until_attached()
        ask = the.connection.call

        async def asked_of_another(path: str, message: bytes, within: float) -> bytes:
            if path.endswith(UNPUBLISH):
                the.world.play({}, **OTHER)
                the.connection.mend(the.world.interceptor)
            return await ask(path, message, within)

        monkeypatch.setattr(the.connection, "call", asked_of_another)
        await the.world.delete(VOLUME_ATTACHMENT, "va1")
        await asyncio.wait([the.running])
        assert isinstance(the.running.exception(), AnotherDriver)
        assert the.world.calls() == [PUBLISH, UNPUBLISH]
        assert objects.finalizers(await the.world.attachment()) == (OURS,)


@pytest.mark.parametrize("answer", [{"hang": True}, {"error": {"code": "INTERNAL", "message": "no"}}], ids=str)
async def test_a_driver_that_came_back_and_does_not_say_its_name_is_lost_as_one_that_is_away(answer: dict[str, object]):
    async with session() as the:
        await the.world.until_attached()
        await the.restarted({"GetPluginInfo": [{"times": 0, **answer}]})
        await the.world.clock.sleep(16)
        assert the.running.done()
        assert isinstance(the.running.exception(), DriverLost)


async def test_a_driver_that_came_back_and_says_its_name_at_the_third_time_is_not_lost():
    async with session() as the:
        await the.world.until_attached()
        refused = {"times": 2, "error": {"code": "UNAVAILABLE", "message": "soon"}}
        await the.restarted({"GetPluginInfo": [refused]})
        await the.world.delete(VOLUME_ATTACHMENT, "va1")
        await the.world.until_gone(VOLUME_ATTACHMENT, "va1")
        await the.world.clock.sleep(60)
        assert not the.running.done()


async def test_a_driver_that_is_away_for_a_moment_is_waited_for_and_no_other_is_told():
    async with session() as the:
        await the.world.until_attached()
        for _ in range(5):
            await the.restarted()
            await the.world.clock.sleep(7)
        assert not the.running.done()
        assert the.world.calls() == [PUBLISH]


async def test_whoever_got_the_lease_while_his_driver_was_dead_does_not_begin():
    async with session(cut=True) as the:
        await asyncio.wait([the.running])
        assert isinstance(the.running.exception(), DriverLost)


async def test_whoever_got_the_lease_while_his_driver_hung_gives_it_back_in_time():
    async with attacher_world() as world:
        world.play({"GetPluginInfo": [{"times": 0, "hang": True}]})
        async with world.tools() as (caches, settings, tools, _connection):
            with pytest.raises(DriverLost, match="nothing came for 10 s"):
                await DriverSession(caches, settings, SessionTimes(patience=10.0), tools).run(asyncio.Event())
        assert world.clock.elapsed() <= 11


async def test_whoever_got_the_lease_while_his_driver_became_another_does_not_begin():
    async with attacher_world() as world:
        world.play({}, **OTHER)
        async with world.tools() as (caches, settings, tools, _connection):
            with pytest.raises(AnotherDriver, match="came back as 'other"):
                await DriverSession(caches, settings, SessionTimes(patience=10.0), tools).run(asyncio.Event())


async def test_a_driver_that_came_back_with_another_name_ends_all():
    async with session() as the:
        await the.world.until_attached()
        await the.restarted(**OTHER)
        await asyncio.wait([the.running])
        assert isinstance(the.running.exception(), AnotherDriver)


async def test_a_driver_that_ceased_to_attach_and_began_again_is_followed_both_times():
    async with session() as the:
        await the.world.until_attached()
        await the.restarted(**NOTHING_TO_ATTACH)
        await the.world.clock.sleep(10)
        assert objects.finalizers(await the.world.attachment()) == ()
        await the.restarted()
        await the.world.clock.sleep(10)
        found = await the.world.until_attached()
        assert objects.finalizers(found) == (OURS,)
        assert not the.running.done()
        assert the.world.calls() == [PUBLISH, PUBLISH]


async def test_told_to_stop_it_lets_the_call_under_way_end_and_tells_what_came_of_it():
    async with session() as the:
        the.world.play({PUBLISH: [{"delay": "10s"}]})
        the.connection.mend(the.world.interceptor)
        await the.world.volume("pv2", "h2")
        await the.world.wanted("va2", "pv2")
        await the.world.clock.sleep(3)
        the.stop.set()
        await asyncio.wait([the.running])
        assert the.running.exception() is None
        assert (await the.world.attachment("va2"))["status"]["attached"] is True


async def test_told_to_stop_it_waits_for_no_call_longer_than_its_grace():
    async with session() as the:
        the.world.play({PUBLISH: [{"times": 0, "hang": True}]})
        the.connection.mend(the.world.interceptor)
        await the.world.volume("pv2", "h2")
        await the.world.wanted("va2", "pv2")
        await the.world.clock.sleep(3)
        the.stop.set()
        began = the.world.clock.elapsed()
        await asyncio.wait([the.running])
        assert the.world.clock.elapsed() - began <= 21
        assert objects.finalizers(await the.world.attachment("va2")) == (OURS,), "the next attacher takes it from here"


async def test_told_to_stop_while_the_api_server_is_away_it_stops_at_once():
    async with attacher_world() as world:
        world.wire.before = failing("GET", times=1000)
        async with world.tools() as (caches, settings, tools, _connection):
            stop = asyncio.Event()
            running = asyncio.ensure_future(
                DriverSession(caches, settings, SessionTimes(patience=10.0), tools).run(stop)
            )
            await world.clock.sleep(30)
            stop.set()
            began = world.clock.elapsed()
            await running
            assert world.clock.elapsed() - began < 1
        assert "calls were still under way" not in str(world.log)


async def test_the_nodes_half_of_a_driver_is_not_asked_though_it_is_there_and_does_not_work():
    async with session() as the:
        broken = {"times": 0, "error": {"code": "INTERNAL", "message": "this is no node"}}
        the.connection.cut()
        the.world.play({"NodeGetCapabilities": [broken]})
        the.connection.mend(the.world.interceptor)
        await the.world.until_attached()
        await the.world.clock.sleep(60)
        assert not the.running.done()
        assert not the.world.calls("NodeGetCapabilities")
