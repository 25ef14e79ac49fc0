"""The binder in every history within bounds: no volume has two claims, no pair changes, nothing is left undone.

`make test` plays all histories with one departure and a sample of those with more; `make soak` all with two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from conftest import SOAK
from orlop.kube.api_errors import NotFound
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, Kind
from orlop.testing.explorer import Act, Bounds, ExploredTransport, Life, Stage, explore, explore_randomly
from support.explorer.explored_options import faults_without_leases
from support.provisioning.binding_judge import Judge
from support.provisioning.binding_objects import DRIVER, PROVISIONED_BY
from support.provisioning.binding_worlds import BindingWorld

SHARING = ("two claims come", "a volume comes", "the first claim goes", "it comes again", "another volume comes")
PROVISIONING = (
    "a claim comes before its class",
    "its class comes",
    "its volume is provisioned",
    "the volume is removed by force",
    "a volume of that name is restored",
)


async def remove(world: BindingWorld, kind: Kind, name: str) -> None:
    """Delete it and remove its finalizers, as its protection would."""
    with suppress(NotFound):
        await world.delete(kind, name)
        await world.strip(kind, name)


Scenario = Callable[[Stage], Coroutine[Any, Any, None]]


def scenario(make_acts: Callable[[BindingWorld, Judge], list[Act]]) -> Scenario:
    async def play(stage: Stage) -> None:
        async with BindingWorld(stage.clock) as world:
            judge = Judge(world.on.store)

            async def controller(life: Life) -> None:
                async with world.binder(way=ExploredTransport(life, world.transport())):
                    await asyncio.Event().wait()

            stage.always(judge.pairs_are_exclusive_and_stay)
            stage.run("binder", controller)
            await stage.acts(*make_acts(world, judge))
            judge.nothing_is_left_to_do()

    return play


def _sharing(world: BindingWorld, judge: Judge) -> list[Act]:
    async def two_claims() -> None:
        await world.claim("c")
        await world.claim("d")

    def one_is_bound() -> None:
        assert sorted([judge.bound("c"), judge.bound("d")]) == ["", "v"]

    def it_is_released() -> None:
        is_of_the_other = judge.bound("d") == "v"
        assert judge.phase(PERSISTENT_VOLUME, "v") == ("Bound" if is_of_the_other else "Released")

    return [
        Act(SHARING[0], two_claims),
        Act(SHARING[1], lambda: world.volume("v")),
        Act(SHARING[2], lambda: remove(world, PERSISTENT_VOLUME_CLAIM, "c"), expects=one_is_bound),
        Act(SHARING[3], lambda: world.claim("c"), expects=it_is_released),
        Act(SHARING[4], lambda: world.volume("w")),
    ]


def _provisioning(world: BindingWorld, judge: Judge) -> list[Act]:
    async def provisioned() -> None:
        claim = await world.find(PERSISTENT_VOLUME_CLAIM, "c")
        assert claim is not None
        reserved = ("c", claim["metadata"]["uid"])
        await world.volume(of_class="fast", policy="Delete", reserved=reserved, annotations={PROVISIONED_BY: DRIVER})

    def bound() -> None:
        assert judge.bound("c") == "v"

    def lost_if_it_was_bound() -> None:
        assert judge.phase(PERSISTENT_VOLUME_CLAIM, "c") in ({"Lost"} if judge.pairs else {"Lost", "Pending"})

    return [
        Act(PROVISIONING[0], lambda: world.claim(of_class="fast")),
        Act(PROVISIONING[1], lambda: world.storage_class("fast")),
        Act(PROVISIONING[2], provisioned),
        Act(PROVISIONING[3], lambda: remove(world, PERSISTENT_VOLUME, "v"), expects=bound),
        Act(PROVISIONING[4], lambda: world.volume(of_class="fast"), expects=lost_if_it_was_bound),
    ]


SCENARIOS = [(scenario(_sharing), SHARING), (scenario(_provisioning), PROVISIONING)]
IDS = ["claims that share volumes", "a provisioned volume that is lost"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("play", "acts"), SCENARIOS, ids=IDS)
def test_in_every_history_pairs_are_exclusive_and_stay_and_nothing_is_left_to_do(play: Scenario, acts: tuple[str, ...]):
    departures = 2 if SOAK else 1
    bounds = Bounds(
        faults=departures, departures=departures, choices=14 if SOAK else 24, only=faults_without_leases(acts[1:])
    )
    explored = explore(play, bounds)
    for written in ("PUT persistentvolumes/v", "PUT persistentvolumes/v/status", "PUT persistentvolumeclaims/c/status"):
        assert written in explored.choices


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("play", "acts"), SCENARIOS, ids=IDS)
def test_the_same_holds_whenever_objects_come_and_go(play: Scenario, acts: tuple[str, ...]):
    early = 3 if SOAK else 1
    bounds = Bounds(faults=0, early_acts=early, departures=early, choices=40, only=faults_without_leases(acts[1:]))
    explore(play, bounds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("play", "acts"), SCENARIOS, ids=IDS)
def test_the_same_holds_in_random_histories_with_more_departures(play: Scenario, acts: tuple[str, ...]):
    bounds = Bounds(faults=4, early_acts=3, departures=5, choices=60, only=faults_without_leases(acts[1:]))
    explore_randomly(play, seed=7, histories=200 if SOAK else 6, bounds=bounds)
