"""The garbage collector in every history within bounds: what has a living owner stays, all else goes.

`make test` plays all histories with one departure and a sample of those with more; `make soak` all with two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from conftest import SOAK
from orlop.kube.kinds import CONFIG_MAP, SECRET
from orlop.kube.objects import is_owned_by, owner_references, uid
from orlop.testing.explorer import Act, Bounds, ExploredTransport, Life, Stage, explore, explore_randomly
from support.api.api_objects import config_map, secret
from support.explorer.explored_options import faults_without_leases
from support.provisioning.binding_controllers import stored_objects
from support.workloads.workload_worlds import WorkloadWorld, owned_by

Scenario = Callable[[Stage], Coroutine[Any, Any, None]]
KINDS = (CONFIG_MAP, SECRET)
FOREGROUND = ("an owner and what it owns come", "the owner is deleted in the foreground", "another of its name comes")
ORPHAN = ("an owner and what it owns come", "one more comes", "the owner is deleted, what it owns shall stay")
SHARED = ("two owners and what they own come", "the first owner is deleted", "the second is deleted")


class Judge:
    """`owners` and `secrets` are what was created, by uid."""

    def __init__(self, world: WorkloadWorld) -> None:
        self.world = world
        self.owners: dict[str, str] = {}

    async def owner(self, name: str) -> dict[str, Any]:
        made = await self.world.create(CONFIG_MAP, config_map(name))
        self.owners[uid(made)] = name
        return made

    def names(self, kind: Any) -> list[str]:
        return sorted(each["metadata"]["name"] for each in stored_objects(self.world.on, kind))

    def blocked_owners_stay(self) -> None:
        """An owner that is deleted in the foreground goes after what blocks it."""
        living = {uid(each) for each in stored_objects(self.world.on, CONFIG_MAP)}
        for each in stored_objects(self.world.on, SECRET):
            blocking = [owner["uid"] for owner in owner_references(each) if owner.get("blockOwnerDeletion")]
            assert set(blocking) <= living, f"{each['metadata']['name']} outlives its owner"


def scenario(make_acts: Callable[[WorkloadWorld, Judge], list[Act]], end: Callable[[Judge], object]) -> Scenario:
    async def play(stage: Stage) -> None:
        async with WorkloadWorld(stage.clock) as world:
            judge = Judge(world)

            async def controller(life: Life) -> None:
                async with world.collector(ExploredTransport(life, world.transport()), KINDS):
                    await asyncio.Event().wait()

            stage.always(judge.blocked_owners_stay)
            stage.run("garbage collector", controller)
            await stage.acts(*make_acts(world, judge))
            end(judge)

    return play


def _foreground(world: WorkloadWorld, judge: Judge) -> list[Act]:
    async def come() -> None:
        owner = await judge.owner("o")
        await world.create(SECRET, owned_by(owner, CONFIG_MAP, secret("a"), blocks=True))
        await world.create(SECRET, owned_by(owner, CONFIG_MAP, secret("b"), blocks=True))
        await world.create(SECRET, secret("free"))

    async def end() -> None:
        if judge.names(CONFIG_MAP):
            await world.remove(CONFIG_MAP, "o", "Foreground")

    async def again() -> None:
        if not judge.names(CONFIG_MAP):
            owner = await judge.owner("o")
            await world.create(SECRET, owned_by(owner, CONFIG_MAP, secret("c"), blocks=True))

    return [Act(FOREGROUND[0], come), Act(FOREGROUND[1], end), Act(FOREGROUND[2], again)]


def _foreground_end(judge: Judge) -> None:
    assert judge.names(SECRET) in (["c", "free"], ["free"])
    assert judge.names(CONFIG_MAP) == (["o"] if "c" in judge.names(SECRET) else [])


def _orphan(world: WorkloadWorld, judge: Judge) -> list[Act]:
    async def come() -> None:
        owner = await judge.owner("o")
        await world.create(SECRET, owned_by(owner, CONFIG_MAP, secret("a"), blocks=True))

    async def more() -> None:
        for owner in stored_objects(world.on, CONFIG_MAP):
            await world.create(SECRET, owned_by(owner, CONFIG_MAP, secret("b")))

    return [
        Act(ORPHAN[0], come),
        Act(ORPHAN[1], more),
        Act(ORPHAN[2], lambda: world.remove(CONFIG_MAP, "o", "Orphan")),
    ]


def _orphan_end(judge: Judge) -> None:
    assert judge.names(CONFIG_MAP) == []
    assert judge.names(SECRET) == ["a", "b"]
    assert [each for each in stored_objects(judge.world.on, SECRET) if owner_references(each)] == []


def _shared(world: WorkloadWorld, judge: Judge) -> list[Act]:
    async def come() -> None:
        first, second = [await judge.owner(name) for name in ("first", "second")]
        both = owned_by(first, CONFIG_MAP, owned_by(second, CONFIG_MAP, secret("both")))
        for made in (both, owned_by(first, CONFIG_MAP, secret("one"))):
            await world.create(SECRET, made)

    def one_is_left() -> None:
        assert judge.names(SECRET) == ["both"]
        (left,) = stored_objects(world.on, SECRET)
        assert [each for each in judge.owners if is_owned_by(left, each)] == [
            each for each, name in judge.owners.items() if name == "second"
        ]

    return [
        Act(SHARED[0], come),
        Act(SHARED[1], lambda: world.remove(CONFIG_MAP, "first")),
        Act(SHARED[2], lambda: world.remove(CONFIG_MAP, "second"), expects=one_is_left),
    ]


def _shared_end(judge: Judge) -> None:
    assert judge.names(SECRET) == []


SCENARIOS = [
    (scenario(_foreground, _foreground_end), FOREGROUND, "DELETE secrets/a"),
    (scenario(_orphan, _orphan_end), ORPHAN, "PATCH secrets/a"),
    (scenario(_shared, _shared_end), SHARED, "PATCH secrets/both"),
]
IDS = ["foreground", "orphan", "two owners"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("play", "acts", "effect"), SCENARIOS, ids=IDS)
def test_in_every_history_what_has_an_owner_stays_and_all_else_goes(
    play: Scenario, acts: tuple[str, ...], effect: str
) -> None:
    departures = 2 if SOAK else 1
    bounds = Bounds(
        faults=departures, departures=departures, choices=16 if SOAK else 20, only=faults_without_leases(acts[1:])
    )

    assert effect in explore(play, bounds).choices


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("play", "acts"), [each[:2] for each in SCENARIOS], ids=IDS)
def test_the_same_holds_in_random_histories_with_more_departures(play: Scenario, acts: tuple[str, ...]) -> None:
    bounds = Bounds(faults=4, early_acts=2, departures=5, choices=40, only=faults_without_leases(acts[1:]))
    explore_randomly(play, seed=5, histories=200 if SOAK else 6, bounds=bounds)
