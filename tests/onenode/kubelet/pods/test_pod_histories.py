"""Random histories of pods on one node: made, deleted, forced, with restarts of ours in between; on virtual time."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from random import Random

import pytest

from orlop.kube.api_errors import NotFound
from orlop.kube.client import DeleteOptions
from orlop.kube.kinds import POD
from orlop.kube.objects import ObjectName, is_being_deleted, uid
from support.kubelet.running_pods import PodWorld

pytestmark = pytest.mark.virtual_time

HISTORIES = 300 if os.environ.get("ORLOP_SOAK") else 15
SCRIPTS = (
    *("exit 0", "exit 1", "sleep 5; exit 0", "sleep 20; exit 3", "sleep 100000", "trap '' TERM; sleep 100000"),
    *("trap 'exit 4' TERM; sleep 100000", "no-such-thing"),
)
NAMES = ("a", "b", "c")


@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_what_runs_and_what_is_held_follows_from_the_pods_there_are(seed: int):
    random = Random(seed)
    async with PodWorld() as w, AsyncExitStack() as node:
        await node.enter_async_context(w.node())
        for _ in range(25):
            await one_thing(w, node, random)
            await w.settle(random.choice((0.0, 0.01, 1.0, 15.0, 200.0)))
        w.volumes.trouble, w.volumes.seconds = "", 0.0
        await w.settle(700)
        await check(w)
        for name in NAMES:
            if await w.pod(name) is not None:
                await w.delete_pod(name)
        await w.settle(100)

        assert w.containers.running() == []
        assert w.volumes.held == set()
        assert w.containers.logs == {}
        assert list((await w.client.list(POD)).items) == []


async def one_thing(w: PodWorld, node: AsyncExitStack, random: Random) -> None:
    name = random.choice(NAMES)
    match random.choice(("make", "make", "make", "delete", "delete", "force", "restart", "volumes")):
        case "make":
            if await w.pod(name) is None:
                policy = random.choice(("Always", "OnFailure", "Never"))
                grace = random.choice((1, 10, 30))
                await w.make(random.choice(SCRIPTS), name, restartPolicy=policy, terminationGracePeriodSeconds=grace)
        case "delete":
            await delete(w, name, None)
        case "force":
            await delete(w, name, 0)
        case "restart":
            await node.aclose()
            await w.settle(random.choice((0.0, 30.0)))
            await node.enter_async_context(w.node())
        case "volumes":
            w.volumes.trouble = random.choice(("", "", "no volumes today"))
            w.volumes.seconds = random.choice((0.0, 0.0, 3.0))


async def delete(w: PodWorld, name: str, grace: int | None) -> None:
    try:
        await w.client.delete(POD, ObjectName("default", name), DeleteOptions(grace_seconds=grace))
    except NotFound:
        return


async def check(w: PodWorld) -> None:
    """Long after the last change; a status follows a moment after what it tells, so a second look is allowed."""
    try:
        await look(w)
    except AssertionError:
        await w.settle(0.7)
        await look(w)


async def look(w: PodWorld) -> None:
    """Nothing runs without its pod, and each pod says what is true of it."""
    pods = {uid(pod): pod for pod in (await w.client.list(POD)).items}
    running = {one.wanted.pod_uid for one in w.containers.running()}

    assert running <= set(pods)
    assert w.volumes.held <= set(pods)
    for pod_uid, pod in pods.items():
        states = [next(iter(one["state"])) for one in pod["status"]["containerStatuses"]]
        assert not is_being_deleted(pod)
        assert (states == ["running"]) == (pod_uid in running)
        if pod["status"]["phase"] in {"Succeeded", "Failed"}:
            assert pod["spec"]["restartPolicy"] != "Always"
            assert pod_uid not in w.volumes.held
        else:
            assert pod["status"]["phase"] == "Running"
            assert pod_uid in w.volumes.held
