"""The attach/detach controller dies before and after each of its writes, and the next one goes on where it was."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from conftest import SOAK
from orlop.kube.kinds import POD
from orlop.testing.kill_points import KillPoints, explore_kills
from support.attaching.attaching_players import Players
from support.attaching.attaching_worlds import AttachingWorld, unique

pytestmark = pytest.mark.virtual_time
HANDLES = {"c": "h1", "other": "h2"}


async def test_a_controller_that_dies_at_any_write_leaves_nothing_half_done():
    """A pod gets its volume, another one on another node waits for it and gets it; then both go."""
    async with AsyncExitStack() as stack:

        async def build() -> Players:
            await stack.aclose()  # the last world: all live on one clock, and each pass of it costs
            world = await stack.enter_async_context(AttachingWorld())
            for name in ("n1", "n2"):
                await world.node(name)
            for name, handle in HANDLES.items():
                await world.bound_claim(name, handle)
            await world.pod("a")
            players = Players(world, HANDLES)
            await stack.enter_async_context(players.playing())
            return players

        async def attach(players: Players, points: KillPoints) -> None:
            world = players.world
            async with world.controller(points):
                if await world.find(POD, "a") is not None:
                    await world.until(lambda: is_mounted(players, "n1"))
                    await world.pod("b", node="n2")
                    await world.delete(POD, "a")
                if await world.find(POD, "b") is not None:
                    await world.until(lambda: is_mounted(players, "n2"))
                    assert await world.listed("n2") == [unique()]
                    await world.delete(POD, "b")
                await world.until(lambda: is_free(players))
                await world.settle()

        async def check(players: Players) -> None:
            await players.check_clean()

        explored = await explore_kills(build, attach, check, deaths=2 if SOAK else 1)
        assert sorted(set(explored.effects)) == ["KubeClient.create", "KubeClient.delete", "KubeClient.patch"]


async def is_mounted(players: Players, node: str) -> bool:
    return bool(players.mounted.get(node))


async def is_free(players: Players) -> bool:
    return not await players.world.attachments()
