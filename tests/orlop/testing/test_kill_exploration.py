"""Killing a whole program at each of its effects."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import pytest

from orlop.csi.error_codes import DeadlineExceeded
from orlop.csi.proto import csi_pb2, rpc
from orlop.testing import kill_points
from orlop.testing.kill_points import (
    KillAt,
    KillMoment,
    KillNotSurvived,
    KillPoints,
    KillReport,
    explore_kills,
)
from orlop.testing.scripted_driver import ScriptedDriver, in_process_driver
from orlop.testing.virtual_clock import VirtualClock
from support.csi.csi_drivers import client_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from orlop.csi.client import CsiClient

AFTER_2 = KillAt(2, KillMoment.AFTER)


def do(world: list[str], points: KillPoints, *names: str) -> None:
    for name in names:
        with points.effect(name):
            world.append(name)


@dataclass
class Publishing:
    """Publishes a draft: copies it, then removes it. `forgets` leaves out the look at what is there already."""

    forgets: bool = False
    swallows: bool = False
    worlds: list[dict[str, str]] = field(default_factory=list)

    def build(self) -> dict[str, str]:
        self.worlds.append({"draft": "hello"})
        return self.worlds[-1]

    async def run(self, world: dict[str, str], points: KillPoints) -> None:
        try:
            await self.publish(world, points)
        except BaseException:
            if not self.swallows:
                raise

    async def publish(self, world: dict[str, str], points: KillPoints) -> None:
        if "final" not in world or self.forgets:
            async with points.effect("copy"):
                world["final"] = world["draft"]
        if "draft" in world:
            async with points.effect("remove the draft"):
                del world["draft"]

    def check(self, world: dict[str, str]) -> None:
        assert world == {"final": "hello"}


async def test_a_program_that_recovers_from_every_kill_passes():
    program = Publishing()
    explored = await explore_kills(program.build, program.run, program.check)
    assert explored == KillReport(runs=5, effects=("copy", "remove the draft"))
    assert len({id(world) for world in program.worlds}) == 5


async def test_the_kills_that_a_program_does_not_recover_from_are_reported_by_name():
    program = Publishing(forgets=True)
    with pytest.raises(KillNotSurvived) as caught:
        await explore_kills(program.build, program.run, program.check)
    assert caught.value.failures == ("killed after effect 2 (remove the draft): KeyError: 'draft'",)


async def test_a_program_that_swallows_its_death_still_does_nothing_more():
    program = Publishing(swallows=True)
    assert (await explore_kills(program.build, program.run, program.check)).runs == 5


async def test_two_deaths_kill_each_restart_at_each_of_its_effects():
    program = Publishing()
    explored = await explore_kills(program.build, program.run, program.check, deaths=2)
    # Restarts have 2, 1, 1 and 0 effects left after the four first kills, so 4 + 2 + 2 + 0 second ones.
    assert explored.runs == 1 + 4 + 8


async def test_a_second_death_is_told_with_the_first():
    async def run(world: list[str], points: KillPoints) -> None:
        async with points.effect("note"):
            world.append("note")

    def check(world: list[str]) -> None:
        assert len(world) < 3, "noted too often"

    with pytest.raises(KillNotSurvived) as caught:
        await explore_kills(list, run, check, deaths=2)
    assert [failure.partition("\n")[0] for failure in caught.value.failures] == [
        "killed after effect 1 (note), then killed after effect 1 (note): AssertionError: noted too often"
    ]


async def test_a_program_that_fails_undisturbed_is_told_so_and_not_killed():
    async def run(world: list[str], points: KillPoints) -> None:
        async with points.effect("one"):
            raise ValueError("broken from the start")

    with pytest.raises(KillNotSurvived) as caught:
        await explore_kills(list, run, lambda world: None)
    assert caught.value.failures == ("with no kill at all: ValueError: broken from the start",)


async def test_a_program_with_no_effects_is_an_error_since_nothing_was_tried():
    async def run(world: list[str], points: KillPoints) -> None:
        world.append("past the seam")

    with pytest.raises(KillNotSurvived, match="does it use the points it is given"):
        await explore_kills(list, run, lambda world: None)


async def test_a_program_that_does_not_repeat_itself_is_told_so():
    lengths = iter([2, 0, 0, 0, 0])

    async def run(world: list[str], points: KillPoints) -> None:
        do(world, points, *("ab"[: next(lengths, 0)]))

    with pytest.raises(KillNotSurvived, match=r"not yet killed before effect 1: DoesNotRepeatItself: .* it had none"):
        await explore_kills(list, run, lambda world: None)


async def test_building_and_checking_may_wait():
    async def build() -> list[str]:
        await asyncio.sleep(0)
        return []

    async def run(world: list[str], points: KillPoints) -> None:
        if not world:
            do(world, points, "a")

    async def check(world: list[str]) -> None:
        await asyncio.sleep(0)
        assert world == ["a"]

    assert (await explore_kills(build, run, check)).effects == ("a",)


@pytest.mark.virtual_time
async def test_a_program_whose_part_died_does_not_wait_for_it_for_ever():
    clock = VirtualClock()

    async def part(world: list[str], points: KillPoints, done: asyncio.Event) -> None:
        await clock.sleep(3600)
        do(world, points, "part")
        done.set()

    async def run(world: list[str], points: KillPoints) -> None:
        if world:
            return
        done = asyncio.Event()
        working = asyncio.ensure_future(part(world, points, done))
        await done.wait()
        await working

    assert (await explore_kills(list, run, lambda world: None)).runs == 3


async def test_a_death_inside_a_task_group_ends_the_whole_program():
    async def run(world: list[str], points: KillPoints) -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                if name not in world:
                    group.create_task(asyncio.to_thread(do, world, points, name))

    def check(world: list[str]) -> None:
        assert sorted(world) == ["a", "b", "c"]

    assert sorted((await explore_kills(list, run, check)).effects) == ["a", "b", "c"]


@pytest.mark.parametrize("virtual", [False, pytest.param(True, marks=pytest.mark.virtual_time)])
async def test_a_blocking_program_in_a_thread_is_killed_and_restarted(virtual: object):
    def program(world: list[str], points: KillPoints) -> None:
        do(world, points, *[name for name in "abc" if name not in world])

    def run_in_thread(world: list[str], points: KillPoints):
        return asyncio.to_thread(program, world, points)

    def check(world: list[str]) -> None:
        assert world == ["a", "b", "c"]

    explored = await explore_kills(list, run_in_thread, check, deaths=2)
    assert explored.effects == ("a", "b", "c")


@pytest.mark.virtual_time
async def test_a_restart_waits_for_the_effect_a_thread_has_under_way():
    slow_began, slow_may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(points: KillPoints) -> None:
        with points.effect("slow"):
            slow_began.set()
            slow_may_end.wait(10)
            order.append("slow ended")

    async def run(world: list[str], points: KillPoints) -> None:
        order.append("start")
        if points.kill != AFTER_2:
            do(world, points, "a", "b")
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(slow, points))
            await asyncio.to_thread(slow_began.wait, 10)
            threading.Timer(0.05, slow_may_end.set).start()
            do(world, points, "killed here")

    await explore_kills(list, run, lambda world: None)
    assert order[-3:] == ["start", "slow ended", "start"]


async def test_cancelling_an_exploration_ends_the_run_as_well():
    began = asyncio.Event()
    ended: list[str] = []

    async def run(world: list[str], points: KillPoints) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("run")

    exploring = asyncio.ensure_future(explore_kills(list, run, lambda world: None))
    await began.wait()
    exploring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exploring
    await asyncio.sleep(0)
    assert ended == ["run"]


async def test_the_example_of_the_documentation_works():
    example = (kill_points.__doc__ or "").split("\n\n    ", 1)[1].split("\n\nThe same run")[0]
    lines = [line.removeprefix("    ") for line in ("    " + example).splitlines()]
    *definitions, call = lines
    space = vars(kill_points).copy()
    exec("\n".join(definitions), space)  # noqa: S102 - our own documentation
    assert call.startswith("await explore_kills(build, publish, check)")
    with pytest.raises(KillNotSurvived) as caught:
        await explore_kills(space["build"], space["publish"], lambda world: space["check"](world | {"spoilt": "yes"}))
    assert len(caught.value.failures) == 1
    assert (await explore_kills(space["build"], space["publish"], space["check"])).runs == 5


# ---- a controller and a driver ---------------------------------------------------------------------------------------


@dataclass
class Claims:
    """What outlives a controller: the driver, and what is written down of the volumes."""

    driver: ScriptedDriver
    client: CsiClient
    volumes: dict[str, str] = field(default_factory=dict)

    def write(self, claim: str, volume_id: str) -> None:
        self.volumes[claim] = volume_id


def claims_of_a_slow_driver() -> Claims:
    clock = VirtualClock()
    lost_answer = {"delay": "10s", "effect": True, "error": {"code": "DEADLINE_EXCEEDED"}}
    driver, connection = in_process_driver({"script": {"CreateVolume": [lost_answer]}}, clock)
    return Claims(driver, client_of(connection, clock))


async def provision(claims: Claims, points: KillPoints, new_name: Callable[[], str]) -> None:
    client = points.wrap(claims.client, "call", describe=lambda method, _request: method.name)
    writer = points.wrap(claims, "write")
    capability = csi_pb2.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    while "claim" not in claims.volumes:
        request = csi_pb2.CreateVolumeRequest(name=new_name(), volume_capabilities=[capability])
        try:
            made = await client.call(rpc.CREATE_VOLUME, request)
        except DeadlineExceeded:
            continue
        writer.write("claim", made.volume.volume_id)


def nothing_is_leaked(claims: Claims) -> None:
    assert sorted(claims.volumes.values()) == [volume.id for volume in claims.driver.storage.volumes]


@pytest.mark.virtual_time
async def test_a_controller_that_asks_by_the_same_name_again_leaks_no_volume():
    async def run(claims: Claims, points: KillPoints) -> None:
        await provision(claims, points, lambda: "claim")

    explored = await explore_kills(claims_of_a_slow_driver, run, nothing_is_leaked, deaths=2)
    assert explored.effects == ("CreateVolume", "CreateVolume", "Claims.write")


@pytest.mark.virtual_time
async def test_a_controller_that_asks_by_a_new_name_each_time_is_found_out():
    names = map(str, count())

    async def run(claims: Claims, points: KillPoints) -> None:
        await provision(claims, points, lambda: next(names))

    with pytest.raises(KillNotSurvived, match="with no kill at all: AssertionError"):
        await explore_kills(claims_of_a_slow_driver, run, nothing_is_leaked)
