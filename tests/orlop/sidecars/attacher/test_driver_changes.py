"""What becomes of VolumeAttachments when the driver goes away, and when it comes back as another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from orlop.csi.driver_session import AnotherDriver
from orlop.csi.in_process_transport import InProcessConnection
from orlop.kube import objects
from orlop.kube.kinds import VOLUME_ATTACHMENT
from orlop.sidecars.attacher.attach_rules import MARKED_ANNOTATION
from orlop.testing.driver_model.attachment_model import DEVICE_KEY
from support.attaching.attacher_worlds import OURS, PUBLISH, UNPUBLISH, AttacherWorld

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


@asynccontextmanager
async def session() -> AsyncIterator[Session]:
    async with AttacherWorld() as world, world.parts() as parts:
        await world.node()
        await world.volume()
        await world.wanted()
        stop = asyncio.Event()
        made = Session(world, world.connection, stop, asyncio.ensure_future(parts.run_session(stop)))
        try:
            yield made
        finally:
            made.running.cancel()
            await asyncio.wait([made.running])


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


async def test_a_driver_that_ceased_to_attach_and_began_again_is_followed_both_times():
    async with session() as the:
        await the.world.until_attached()
        await the.restarted(**NOTHING_TO_ATTACH)
        await the.world.clock.sleep(10)
        assert objects.finalizers(await the.world.attachment()) == (OURS,), "the capability may come back"
        await the.world.volume("pv2", "h2")
        await the.world.wanted("va2", "pv2")
        assert objects.finalizers(await the.world.until_attached("va2")) == ()
        await the.restarted()
        await the.world.clock.sleep(10)
        for name in ("va1", "va2"):
            assert objects.finalizers(await the.world.until_attached(name)) == (OURS,)
        assert not the.running.done()
        assert the.world.calls() == [PUBLISH, PUBLISH], "each once"


async def test_a_call_in_flight_when_the_driver_loses_its_capability_is_awaited_and_its_result_recorded():
    async with session() as the:
        await the.world.until_attached()
        the.world.play({PUBLISH: [{"delay": "12s"}]})
        the.connection.mend(the.world.interceptor)
        await the.world.volume("pv2", "h2")
        await the.world.wanted("va2", "pv2")
        await the.world.clock.sleep(2)
        the.world.play({}, **NOTHING_TO_ATTACH)
        the.connection.mend(the.world.interceptor)
        await the.world.clock.sleep(20)
        found = await the.world.attachment("va2")
        assert found["status"] == {"attached": True, "attachmentMetadata": {DEVICE_KEY: "/dev/h2"}}
        assert MARKED_ANNOTATION not in objects.annotations(found)
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
