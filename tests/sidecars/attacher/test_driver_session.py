"""What becomes of the work when the driver goes away."""

from __future__ import annotations

import asyncio

import pytest

from orlop.sidecars.attacher.driver_session import DriverLost, DriverSession, SessionTimes
from support.attacher_worlds import attacher_world

pytestmark = pytest.mark.virtual_time


async def test_a_driver_that_does_not_answer_is_waited_out_and_then_lost():
    async with attacher_world() as world, world.tools() as (caches, settings, tools, connection):
        session = asyncio.ensure_future(
            DriverSession(caches, settings, SessionTimes(patience=10.0), tools).run(asyncio.Event())
        )
        await world.clock.sleep(20)
        assert not session.done()
        connection.cut()
        began = world.clock.elapsed()
        await asyncio.wait([session])
        assert isinstance(session.exception(), DriverLost)
        assert 10 <= world.clock.elapsed() - began <= 30
