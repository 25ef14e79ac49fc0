"""The attach/detach controller in every history within bounds: what a kubelet mounts is attached, nothing is left.

`make test` plays all with one departure and a sample of those with more; `make soak` all with two departures (two
faults, or a fault and an early act) among fewer choices. There is one such controller in a process that holds the
folder's lock, so leases are none of what may be lost.
"""

from __future__ import annotations

import asyncio

import pytest

from conftest import SOAK
from orlop.kube.kinds import POD
from orlop.testing.explorer import Act, Bounds, ExploredTransport, Life, Stage, explore, explore_randomly, replay
from support.attaching.attaching_players import Players
from support.attaching.attaching_worlds import AttachingWorld, attachment_of
from support.explorer.explored_options import faults_without_leases

ACTS = ("a pod comes", "another comes on another node", "the first goes", "the second goes")
WITHOUT_LEASES = faults_without_leases(ACTS[1:])


async def a_volume_moves(stage: Stage) -> None:
    """It is for one node; a second pod on another node has to wait for it."""
    async with AttachingWorld(stage.clock) as world:
        for name in ("n1", "n2"):
            await world.node(name)
        await world.bound_claim("c", "h1")
        players = Players(world, {"c": "h1"})

        async def controller(life: Life) -> None:
            async with world.controller(way=ExploredTransport(life, world.transport())):
                await asyncio.Event().wait()

        def nothing_is_broken() -> None:
            assert players.broken == []

        def mounted_on(node: str) -> None:
            assert players.mounted.get(node) == {"h1"}, f"mounted: {players.mounted}"
            assert players.published == {"h1": {node}}

        stage.always(nothing_is_broken)
        async with players.playing():
            stage.run("attach/detach controller", controller)
            await stage.acts(
                Act(ACTS[0], lambda: world.pod("a")),
                Act(ACTS[1], lambda: world.pod("b", node="n2"), expects=lambda: mounted_on("n1")),
                Act(ACTS[2], lambda: world.delete(POD, "a")),
                Act(ACTS[3], lambda: world.delete(POD, "b"), expects=lambda: mounted_on("n2")),
            )
            await players.check_clean()


@pytest.mark.timeout(1800)
def test_in_every_history_what_is_mounted_is_attached_and_nothing_is_left() -> None:
    departures = 2 if SOAK else 1
    bounds = Bounds(faults=departures, departures=departures, choices=12 if SOAK else 8, only=WITHOUT_LEASES)
    explored = explore(a_volume_moves, bounds)
    made = [what for what in explored.choices if attachment_of() in what or what == "POST volumeattachments"]
    assert made, "the scenario attaches something"


@pytest.mark.timeout(600)
def test_the_same_holds_whenever_pods_come_and_go() -> None:
    acts = 3 if SOAK else 1
    explore(
        a_volume_moves,
        Bounds(faults=0, early_acts=acts, departures=acts, choices=40, only=WITHOUT_LEASES),
    )


def test_a_volume_that_nobody_needs_any_more_while_it_is_being_attached_goes_nowhere_else_before_that_has_ended() -> (
    None
):
    replay(a_volume_moves, f"1: before it: {ACTS[1]}; 9: before it: {ACTS[2]}")


@pytest.mark.timeout(600)
def test_the_same_holds_in_random_histories_with_more_departures() -> None:
    bounds = Bounds(faults=4, early_acts=3, departures=5, choices=60, only=WITHOUT_LEASES)
    explore_randomly(a_volume_moves, seed=11, histories=200 if SOAK else 5, bounds=bounds)
