"""The controllers of workloads in every history within bounds: order and bounds hold, and all ends as it is wanted.

`make test` plays all histories with one departure and a sample of those with more; `make soak` all with two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from conftest import SOAK
from orlop.kube.client import MergePatch
from orlop.kube.kinds import DEPLOYMENT, PERSISTENT_VOLUME_CLAIM, POD, REPLICA_SET, STATEFUL_SET, Kind
from orlop.kube.objects import ObjectName, is_being_deleted, is_condition_true, uid
from orlop.testing.explorer import Act, Bounds, ExploredTransport, Life, Stage, explore, explore_randomly
from support.api.api_objects import container, stateful_set, workload
from support.explorer.explored_options import faults_without_leases
from support.provisioning.binding_controllers import stored_objects
from support.workloads.workload_worlds import WorkloadWorld

Play = Callable[[Stage], Coroutine[Any, Any, None]]
CREATED, CHANGED, SCALED, LOST = "it is created", "its template changes", "it is scaled", "a pod is deleted"
ACTS = (CREATED, CHANGED, SCALED, LOST)
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
TEMPLATES = [{"metadata": {"name": "data"}, "spec": CLAIM}]
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@dataclass
class Judge:
    world: WorkloadWorld
    kind: Kind

    def all(self, kind: Kind) -> list[dict[str, Any]]:
        return stored_objects(self.world.on, kind)

    def pods(self) -> list[dict[str, Any]]:
        return sorted(self.all(POD), key=lambda pod: pod["metadata"]["name"])

    def serving(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if is_condition_true(pod, "Ready") and not is_being_deleted(pod)]

    def acts(self, first: dict[str, Any], *, replicas: int) -> list[Act]:
        async def change() -> None:
            if self.all(self.kind):
                spec = {"template": {"spec": {"containers": [container(image="busybox:2")]}}}
                await self.world.merge(self.kind, "w", {"spec": spec})

        async def scale() -> None:
            if self.all(self.kind):
                patch = MergePatch({"spec": {"replicas": replicas}})
                await self.world.client.patch(self.kind, ObjectName("default", "w"), patch, subresource="scale")

        async def lose() -> None:
            for pod in self.pods()[:1]:
                await self.world.remove(POD, pod["metadata"]["name"])

        async def create() -> None:
            await self.world.create(self.kind, first)

        return [Act(CREATED, create), Act(CHANGED, change), Act(SCALED, scale), Act(LOST, lose)]

    def ends_with(self, replicas: int, image: str = "busybox:2") -> None:
        (found,) = self.all(self.kind)
        status = found["status"]
        assert [pod["spec"]["containers"][0]["image"] for pod in self.serving()] == [image] * replicas
        assert len(self.pods()) == replicas
        assert {status[field] for field in ("replicas", "readyReplicas", "availableReplicas")} == {replicas}
        assert status["observedGeneration"] == found["metadata"]["generation"]


def scenario(play: Callable[[Stage, Judge], Coroutine[Any, Any, None]], kind: Kind, processes: int = 1) -> Play:
    async def run(stage: Stage) -> None:
        async with WorkloadWorld(stage.clock) as world, world.playing():

            async def controller(life: Life) -> None:
                async with world.workloads(ExploredTransport(life, world.transport())):
                    await asyncio.Event().wait()

            for number in range(processes):
                stage.run(f"workloads {number}", controller)
            await play(stage, Judge(world, kind))

    return run


async def _replica_set(stage: Stage, judge: Judge) -> None:
    created, _, scaled, lost = judge.acts(workload(replicas=2), replicas=1)
    await stage.acts(created, lost, scaled)
    judge.ends_with(1, "busybox:1")


async def _deployment(stage: Stage, judge: Judge) -> None:
    created, changed, scaled, _ = judge.acts(workload(replicas=2, strategy=SURGE), replicas=3)
    begun: list[str] = []

    def bounds_hold() -> None:
        wanted = sum(each["spec"]["replicas"] for each in judge.all(REPLICA_SET))
        assert wanted <= 1 + max((each["spec"]["replicas"] for each in judge.all(DEPLOYMENT)), default=0)
        if len(judge.serving()) >= 2:
            begun.append("all serve")
        assert not begun or len(judge.serving()) >= 2

    stage.always(bounds_hold)
    await stage.acts(created, changed, scaled)
    judge.ends_with(3)
    assert sum(each["spec"]["replicas"] for each in judge.all(REPLICA_SET)) == 3


async def _stateful_set(stage: Stage, judge: Judge) -> None:
    made = stateful_set(replicas=2, volumeClaimTemplates=TEMPLATES)
    created, changed, scaled, _ = judge.acts(made, replicas=1)
    claims: dict[str, str] = {}

    def order_holds() -> None:
        assert len(judge.pods()) - len(judge.serving()) <= 1
        now = {each["metadata"]["name"]: uid(each) for each in judge.all(PERSISTENT_VOLUME_CLAIM)}
        assert claims.items() <= now.items()
        claims.update(now)

    stage.always(order_holds)
    await stage.acts(created, changed, scaled)
    judge.ends_with(1)
    assert "data-w-0" in claims


async def _stateful_set_of_two(stage: Stage, judge: Judge) -> None:
    created, changed, scaled, lost = judge.acts(stateful_set(replicas=2, volumeClaimTemplates=TEMPLATES), replicas=1)
    await stage.acts(created, lost, changed, scaled)
    judge.ends_with(1)


async def _deployment_of_two(stage: Stage, judge: Judge) -> None:
    await stage.acts(*judge.acts(workload(replicas=2), replicas=1))
    judge.ends_with(1)


SCENARIOS = {
    "replica set": (scenario(_replica_set, REPLICA_SET), (LOST, SCALED)),
    "deployment": (scenario(_deployment, DEPLOYMENT), (CHANGED, SCALED)),
    "stateful set": (scenario(_stateful_set, STATEFUL_SET), (CHANGED, SCALED)),
    "two of deployments": (scenario(_deployment_of_two, DEPLOYMENT, 2), (CHANGED, SCALED, LOST)),
    "two of stateful sets": (scenario(_stateful_set_of_two, STATEFUL_SET, 2), (CHANGED, SCALED, LOST)),
}
OF_ONE = list(SCENARIOS)[:3]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OF_ONE)
def test_in_every_history_order_and_bounds_hold_and_all_ends_as_it_is_wanted(name: str) -> None:
    play, acts = SCENARIOS[name]
    departures = 2 if SOAK else 1
    bounds = Bounds(
        faults=departures, departures=departures, choices=24 if SOAK else 5, only=faults_without_leases(acts)
    )
    report = explore(play, bounds)

    assert "POST pods" in report.choices


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_departures_and_two_processes(name: str) -> None:
    play, acts = SCENARIOS[name]
    bounds = Bounds(faults=4, early_acts=2, departures=5, choices=60, only=faults_without_leases(acts))
    explore_randomly(play, seed=5, histories=200 if SOAK else 3, bounds=bounds)
