"""The scheduler in every history within bounds: each pod gets its node once its claims are bound, no volume is shared.

`make test` plays all with one departure and a sample of those with more; `make soak` all with two.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from conftest import SOAK
from orlop.kube.api_errors import StatusError
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
from orlop.kube.objects import annotations, uid
from orlop.testing.explorer import Act, Bounds, ExploredTransport, Life, Stage, explore, explore_randomly
from support.explorer.explored_options import faults_without_leases
from support.scheduling.fake_binder import SELECTED
from support.scheduling.scheduling_worlds import SchedulingWorld

ROOM = {"cpu": "4", "memory": "8Gi", "pods": "2"}


class Watched:
    """What must hold all the while, seen beside the scheduler."""

    def __init__(self, world: SchedulingWorld) -> None:
        self.world = world

    def check(self) -> None:
        assert self.world.binder.broken == []

    async def check_pod(self, name: str) -> None:
        """A pod has its node, its claims have their volumes, and these are for that node."""
        w = self.world
        found = await w.find(POD, name) or {}
        node = found["spec"].get("nodeName")
        assert node, f"{name} has no node: {await w.why(name)}"
        for source in found["spec"]["volumes"]:
            if "persistentVolumeClaim" in source:
                claim = await w.find(PERSISTENT_VOLUME_CLAIM, source["persistentVolumeClaim"]["claimName"]) or {}
                volume = await w.find(PERSISTENT_VOLUME, claim["spec"]["volumeName"]) or {}
                assert volume["spec"]["claimRef"]["uid"] == uid(claim)
                assert allowed_hosts(volume) == [node]
                assert annotations(claim).get(SELECTED, node) == node


def allowed_hosts(volume: dict[str, Any]) -> list[str]:
    term = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]
    return list(term["matchExpressions"][0]["values"])


async def tolerant(act: Any) -> None:
    """What is gone already cannot be done again."""
    with suppress(StatusError):
        await act


async def scheduled_beside(stage: Stage, prepare: Any, acts: Any, end: Any) -> None:
    async with SchedulingWorld(stage.clock) as world:
        watched = Watched(world)
        await prepare(world)

        async def scheduler(life: Life) -> None:
            async with world.scheduling(ExploredTransport(life, world.transport())):
                await asyncio.Event().wait()

        stage.always(watched.check)
        async with world.binder.binding():
            await stage.clock.sleep(1)  # volumes are Available before anything is searched
            stage.run("scheduler", scheduler)
            await stage.acts(*acts(world))
            await end(world, watched)


async def one_volume_and_one_to_provision(world: SchedulingWorld) -> None:
    for name in ("n1", "n2"):
        await world.node(name, ROOM)
    await world.late_class()
    await world.local_volume("v", "n1")
    await world.claim("a")
    await world.claim("b", size="9Gi")


# ---- two pods, one local volume and one provisioned ------------------------------------------------------------------

TWO_PODS = ("a pod comes", "another comes")


async def two_pods(stage: Stage) -> None:
    async def end(_: SchedulingWorld, watched: Watched) -> None:
        for name in ("p", "q"):
            await watched.check_pod(name)

    await scheduled_beside(
        stage,
        one_volume_and_one_to_provision,
        lambda w: (Act(TWO_PODS[0], lambda: w.pod("p", "a")), Act(TWO_PODS[1], lambda: w.pod("q", "b"))),
        end,
    )


# ---- what others do meanwhile ----------------------------------------------------------------------------------------

DISTURBED = ("a pod comes", "its volume is taken by another", "a second pod comes", "the second goes")


async def volume_taken(stage: Stage) -> None:
    """Whoever gets the volume, it has one claim; the pod gets another."""
    taken = {"spec": {"claimRef": {"namespace": "default", "name": "other"}}}

    async def end(_: SchedulingWorld, watched: Watched) -> None:
        await watched.check_pod("p")

    await scheduled_beside(
        stage,
        one_volume_and_one_to_provision,
        lambda w: (
            Act(DISTURBED[0], lambda: w.pod("p", "a")),
            Act(DISTURBED[1], lambda: tolerant(take_if_free(w, taken))),
            Act(DISTURBED[2], lambda: w.pod("q", "b")),
            Act(DISTURBED[3], lambda: tolerant(w.delete(POD, "q"))),
        ),
        end,
    )


async def take_if_free(w: SchedulingWorld, taken: dict[str, Any]) -> None:
    found = await w.find(PERSISTENT_VOLUME, "v") or {}
    if "claimRef" not in found["spec"]:
        await w.merge(PERSISTENT_VOLUME, "v", taken)


RENEWED = ("a pod comes", "its claim is deleted and made anew", "its node goes and comes back")


async def claim_and_node_renewed(stage: Stage) -> None:
    """The claim of a pod that waits, and the node, vanish and come back."""

    async def renew_claim(w: SchedulingWorld) -> None:
        pod = await w.find(POD, "p") or {}
        if pod and not pod["spec"].get("nodeName"):  # else it would be in use
            changes = {"metadata": {"finalizers": None}}
            await tolerant(w.merge(PERSISTENT_VOLUME_CLAIM, "b", changes))
            await tolerant(w.delete(PERSISTENT_VOLUME_CLAIM, "b"))
            await tolerant(w.claim("b", size="9Gi"))

    async def renew_node(w: SchedulingWorld) -> None:
        await w.delete(NODE, "n1")
        await w.node("n1", ROOM)

    async def end(w: SchedulingWorld, watched: Watched) -> None:
        claim = await w.find(PERSISTENT_VOLUME_CLAIM, "b") or {}
        if "volumeName" in claim["spec"]:
            await watched.check_pod("p")
        else:  # deleted by force in the moment in which the pod was bound: nobody gives the new one a node any more
            assert await w.node_of("p") is not None
            assert SELECTED not in annotations(claim)

    async def one_node(world: SchedulingWorld) -> None:
        await world.node("n1", ROOM)
        await world.late_class()
        await world.claim("b", size="9Gi")

    await scheduled_beside(
        stage,
        one_node,
        lambda w: (
            Act(RENEWED[0], lambda: w.pod("p", "b")),
            Act(RENEWED[1], lambda: renew_claim(w)),
            Act(RENEWED[2], lambda: renew_node(w)),
        ),
        end,
    )


FAILING = ("a pod comes", "it is deleted", "a new one of its name comes")


async def provisioning_fails(stage: Stage) -> None:
    """Provisioning fails once, the pod goes while it waits, and a new one of its name gets the claim."""

    async def prepare(world: SchedulingWorld) -> None:
        await one_volume_and_one_to_provision(world)
        world.binder.refuse["b"] = 1

    async def end(_: SchedulingWorld, watched: Watched) -> None:
        await watched.check_pod("p")

    await scheduled_beside(
        stage,
        prepare,
        lambda w: (
            Act(FAILING[0], lambda: w.pod("p", "a", "b")),
            Act(FAILING[1], lambda: tolerant(w.delete(POD, "p"))),
            Act(FAILING[2], lambda: w.pod("p", "b")),
        ),
        end,
    )


SCENARIOS = {
    "two pods": (two_pods, TWO_PODS),
    "a volume is taken": (volume_taken, DISTURBED),
    "a claim and a node are renewed": (claim_and_node_renewed, RENEWED),
    "provisioning fails": (provisioning_fails, FAILING),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCENARIOS)
def test_in_every_history_pods_get_their_node_and_volumes_one_claim(name: str) -> None:
    scenario, acts = SCENARIOS[name]
    departures = 2 if SOAK else 1
    bounds = Bounds(faults=departures, departures=departures, choices=14, only=faults_without_leases(acts[1:]))
    explored = explore(scenario, bounds)

    assert any(what.startswith("PUT persistentvolume") for what in explored.choices)
    assert any(what.endswith("/binding") for what in explored.choices)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_departures(name: str) -> None:
    scenario, acts = SCENARIOS[name]
    bounds = Bounds(faults=4, early_acts=3, departures=5, choices=60, only=faults_without_leases(acts[1:]))
    explore_randomly(scenario, seed=17, histories=200 if SOAK else 4, bounds=bounds)
