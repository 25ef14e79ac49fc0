"""Something goes wrong at every step of a pod's life: in the end it runs or is gone, and nothing is left of it.

Each journey is made on a machine of its own on virtual time, once for each step that somebody beside the kubelet sees,
held before it happens, or after it happened and before the kubelet learns of it. The first journey counts the steps.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from orlop.kube.api_errors import NotFound
from support.api.api_objects import container
from support.host.remains import NOTHING
from support.kubelet.crossings import Place
from support.kubelet.journey_machines import GONE, Machine, journey_machine
from support.kubelet.volume_worlds import DRIVER

pytestmark = pytest.mark.virtual_time
SOAK = bool(os.environ.get("ORLOP_SOAK"))
EVERY = 1 if SOAK else 24
"""Of so many places one is taken, another one by each disturbance; all of them in a soak."""
DRIVER_SPEC: dict[str, Any] = {
    "attachRequired": False,
    "podInfoOnMount": True,
    "volumeLifecycleModes": ["Ephemeral", "Persistent"],
    "fsGroupPolicy": "File",
}
INLINE = {"name": "scratch", "csi": {"driver": DRIVER}}
CLAIMED = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
DEVICE = {"name": "disk", "persistentVolumeClaim": {"claimName": "b"}}
VOLUMES = {"inline": (INLINE,), "persistent": (CLAIMED,), "parts": (INLINE, CLAIMED), "block": (DEVICE,)}
"""Of `parts`, the pod mounts a part of each."""
UNDOING = ("NodeUnpublishVolume", "NodeUnstageVolume")
Disturbance = Callable[[Machine], Awaitable[None]]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


async def pod_is_deleted(machine: Machine) -> None:
    await machine.delete_pod()


async def pod_is_deleted_by_force(machine: Machine) -> None:
    """Its object goes at once, whatever of it is still here."""
    try:
        await machine.delete_pod(grace=0)
    except NotFound:
        return


async def driver_is_killed(machine: Machine) -> None:
    machine.kill_driver()
    await machine.settle(2)
    machine.start_driver()


async def kubelet_is_restarted(machine: Machine) -> None:
    await machine.kill_kubelet()
    await machine.settle(2)
    await machine.start_kubelet()


async def api_server_is_killed(machine: Machine) -> None:
    await machine.kill_api_server()
    await machine.settle(2)
    await machine.start_api_server()


async def pod_is_deleted_while_the_kubelet_is_away(machine: Machine) -> None:
    await machine.kill_kubelet()
    await pod_is_deleted_by_force(machine)
    await machine.start_kubelet()


async def kubelet_is_back_before_its_driver(machine: Machine) -> None:
    await machine.kill_kubelet()
    machine.kill_driver()
    await machine.start_kubelet()
    await machine.settle(30)
    machine.start_driver()


async def kubelet_is_back_before_the_api_server(machine: Machine) -> None:
    await machine.kill_kubelet()
    await machine.kill_api_server()
    await machine.start_kubelet()
    await machine.settle(30)
    await machine.start_api_server()


async def node_is_rebooted(machine: Machine) -> None:
    await machine.reboot()


ALL: list[Disturbance] = [
    pod_is_deleted,
    pod_is_deleted_by_force,
    driver_is_killed,
    kubelet_is_restarted,
    api_server_is_killed,
    pod_is_deleted_while_the_kubelet_is_away,
    kubelet_is_back_before_its_driver,
    node_is_rebooted,
]


# ---- the journey -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def prepared_machine(place: Place | None = None) -> AsyncIterator[Machine]:
    async with journey_machine() as machine:
        await machine.world.csi_driver(**DRIVER_SPEC)
        await machine.world.bound_claim()
        await machine.world.bound_claim("b", "pv2", "h2", volumeMode="Block")
        machine.start_driver()
        await machine.start_kubelet()
        await machine.settle()
        machine.crossings.hold_at = place
        machine.crossings.is_counting = True
        yield machine


async def is_running(machine: Machine) -> bool:
    """What the API says and what the machine does."""
    if machine.transport is None or await machine.phase() not in {"Running", GONE}:
        return False
    return await machine.phase() == GONE or len(machine.containers.running()) == 1


def assert_has_all(machine: Machine, volumes: tuple[Any, ...]) -> None:
    """The container was given each volume and its way to the API, and the kubelet holds each device."""
    for running in machine.containers.running():
        assert len(running.wanted.volumes) == len(volumes) + 1
        (api,) = machine.world.machine.payloads.values()
        assert sorted(api) == [("ca.crt",), ("namespace",), ("token",)]
        assert len(machine.world.machine.loops) == sum(one is DEVICE for one in volumes)


async def make(machine: Machine, volumes: tuple[Any, ...]) -> None:
    mounts = [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes if one is not DEVICE]
    if len(volumes) > 1:
        mounts = [{**mount, "subPath": "a/b"} for mount in mounts]
    devices = [{"name": one["name"], "devicePath": f"/dev/{one['name']}"} for one in volumes if one is DEVICE]
    one = container(command=["sleep", "1000000"], volumeMounts=mounts, volumeDevices=devices)
    options = {"securityContext": {"fsGroup": 2000}, "terminationGracePeriodSeconds": 1}
    await machine.make_pod("p", *volumes, containers=[one], **options)


async def make_and_end(machine: Machine, volumes: tuple[Any, ...]) -> tuple[int, int]:
    """How many steps the beginning had, and all of it; whatever is done to the machine meanwhile."""
    await make(machine, volumes)
    await machine.until(lambda: is_running(machine))
    beginning = len(machine.crossings.names)
    assert_has_all(machine, volumes)
    if await machine.phase() != GONE:
        assert machine.world.calls(*UNDOING) == [], "nothing is taken from a pod that is to run"
        await machine.delete_pod()
    await machine.until_phase(GONE)
    return beginning, await is_clean(machine)


async def is_clean(machine: Machine) -> int:
    """Soon, within what the longest delay may be, and for good. Gives how many steps there were until then."""

    async def nothing_is_left() -> bool:
        return machine.remains() == NOTHING

    with suppress(AssertionError):
        await machine.until(nothing_is_left, within=130)
    steps = len(machine.crossings.names)
    await machine.settle(10)
    assert machine.remains() == NOTHING
    return steps


STEPS_OF: dict[str, tuple[int, int]] = {}
"""By the kind of volume: an undisturbed journey has the same steps each time, on virtual time."""


async def steps_of(kind: str) -> tuple[int, int]:
    if kind not in STEPS_OF:
        async with prepared_machine() as machine:
            STEPS_OF[kind] = await make_and_end(machine, VOLUMES[kind])
    return STEPS_OF[kind]


async def disturb(machine: Machine, disturbance: Disturbance) -> None:
    await machine.crossings.held.wait()
    await disturbance(machine)
    machine.crossings.go_on()


async def disturbed(place: Place, volumes: tuple[Any, ...], disturbance: Disturbance) -> None:
    async with prepared_machine(place) as machine:
        disturbing = asyncio.ensure_future(disturb(machine, disturbance))
        try:
            await make_and_end(machine, volumes)
            assert machine.crossings.held.is_set()
            await disturbing
            broken = [entry for entry in machine.world.log if "Traceback" in str(entry.fields)]
            assert broken == []
        finally:
            disturbing.cancel()
            await asyncio.wait([disturbing])


def places(steps: int, salt: int) -> list[Place]:
    every = [Place(number, after) for number in range(1, steps + 1) for after in (False, True)]
    return every[salt % EVERY :: EVERY]


@pytest.mark.parametrize("disturbance", ALL, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", VOLUMES)
async def test_whatever_happens_at_any_step_the_pod_runs_or_is_gone_and_nothing_is_left(
    kind: str, disturbance: Disturbance
):
    beginning, steps = await steps_of(kind)
    last = beginning if disturbance is pod_is_deleted else steps
    for place in places(last, ALL.index(disturbance)):
        try:
            await disturbed(place, VOLUMES[kind], disturbance)
        except BaseException as error:
            error.add_note(f"{disturbance.__name__} {place} of {last}")
            raise


# ---- one thing after the other ---------------------------------------------------------------------------------------

AGAIN: list[Disturbance] = [
    driver_is_killed,
    kubelet_is_restarted,
    api_server_is_killed,
    kubelet_is_back_before_its_driver,
    kubelet_is_back_before_the_api_server,
    node_is_rebooted,
]


@pytest.mark.parametrize("seed", range(200 if SOAK else 4))
async def test_one_thing_after_the_other_at_any_moment_ends_as_well_as_one_alone(seed: int):
    random = Random(seed)
    async with prepared_machine() as machine:
        slow = {f"Node{verb}Volume": [{"times": 0, "delay": "1s"}] for verb in VERBS}
        machine.world.play(slow)
        for _ in range(2):
            before = machine.world.calls(*UNDOING)
            await make(machine, VOLUMES[random.choice(sorted(VOLUMES))])
            for _ in range(4):
                await machine.settle(random.uniform(0.0, 3.0))
                await random.choice(AGAIN)(machine)
            await machine.until(lambda: is_running(machine))
            assert machine.world.calls(*UNDOING) == before
            await machine.delete_pod()
            await machine.settle(random.uniform(0.0, 3.0))
            await random.choice(AGAIN)(machine)
            await machine.until_phase(GONE)
            await is_clean(machine)


VERBS = ("Stage", "Publish", "Unpublish", "Unstage")
