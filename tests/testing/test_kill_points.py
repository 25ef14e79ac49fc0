from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.testing import kill_points
from orlop.testing.kill_points import (
    Explored,
    KillAt,
    Killed,
    KillNotSurvived,
    KillPoints,
    Moment,
    every_kill,
    explore_kills,
)
from orlop.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

AFTER_2 = KillAt(2, Moment.AFTER)
BEFORE_2 = KillAt(2, Moment.BEFORE)


def do(world: list[str], points: KillPoints, *names: str) -> None:
    for name in names:
        with points.effect(name):
            world.append(name)


@pytest.mark.parametrize(
    ("kill", "done", "seen"),
    [
        (None, ["a", "b", "c"], ["a", "b", "c"]),
        (BEFORE_2, ["a"], ["a", "b"]),
        (AFTER_2, ["a", "b"], ["a", "b"]),
        (KillAt(4, Moment.BEFORE), ["a", "b", "c"], ["a", "b", "c"]),
    ],
)
def test_a_run_ends_before_or_after_the_effect_that_was_asked_for(
    kill: KillAt | None, done: list[str], seen: list[str]
):
    world: list[str] = []
    points = KillPoints(kill)
    try:
        do(world, points, "a", "b", "c")
    except Killed:
        assert points.dead
    assert (world, points.seen) == (done, seen)
    assert points.dead == (done != ["a", "b", "c"])


def test_the_dead_do_nothing_more_whatever_they_catch():
    world: list[str] = []
    points = KillPoints(BEFORE_2)
    with pytest.raises(Killed, match=r"killed before effect 2 \(b\)"):
        do(world, points, "a", "b")
    with pytest.raises(Killed, match=r"killed before effect 2 \(b\)"):
        do(world, points, "clean up")
    assert world == ["a"]
    assert points.seen == ["a", "b"]


def test_no_except_exception_outlives_the_kill():
    assert not issubclass(Killed, Exception)


def test_an_effect_that_fails_is_still_the_one_to_die_after():
    points = KillPoints(KillAt(1, Moment.AFTER))
    with pytest.raises(Killed), points.effect("fails"):
        raise OSError("disk full")


def test_an_effect_that_fails_with_no_kill_raises_its_own_error():
    with pytest.raises(OSError, match="disk full"), KillPoints().effect("fails"):
        raise OSError("disk full")


async def test_who_had_an_effect_under_way_at_the_kill_never_learns_its_result():
    points = KillPoints(KillAt(2, Moment.AFTER))
    may_end = asyncio.Event()
    learnt: list[str] = []

    async def slow() -> None:
        async with points.effect("slow"):
            await may_end.wait()
        learnt.append("slow")

    running = asyncio.ensure_future(slow())
    await asyncio.sleep(0)
    with pytest.raises(Killed):
        async with points.effect("quick"):
            pass
    may_end.set()
    with pytest.raises(Killed):
        await running
    assert learnt == []


def test_an_effect_has_a_number_from_one_on():
    with pytest.raises(ValueError, match="the first effect has the number 1"):
        KillAt(0, Moment.BEFORE)


@given(st.integers(min_value=0, max_value=50))
def test_every_kill_is_enumerated_once_in_order(count: int):
    kills = list(every_kill(count))
    assert len(kills) == len(set(kills)) == 2 * count
    assert kills == sorted(kills, key=lambda kill: (kill.number, kill.moment is Moment.AFTER))


class Disk:
    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.label = "old"

    async def write(self, name: str, text: str = "") -> str:
        self.files[name] = text
        return name

    def remove(self, name: str) -> None:
        del self.files[name]

    def names(self) -> list[str]:
        return sorted(self.files)

    async def changes(self) -> Iterator[str]:  # type: ignore[misc]
        yield "never"


async def test_the_named_methods_of_a_wrapped_object_are_effects_and_the_others_are_not():
    disk = Disk()
    points = KillPoints()
    wrapped = points.wrap(disk, "write", "remove")
    assert await wrapped.write("a", text="x") == "a"
    await wrapped.write("b")
    wrapped.remove("a")
    assert wrapped.names() == ["b"]
    assert points.seen == ["Disk.write", "Disk.write", "Disk.remove"]


async def test_a_wrapped_object_dies_where_it_was_told_to():
    disk = Disk()
    wrapped = KillPoints(BEFORE_2).wrap(disk, "write", "remove")
    await wrapped.write("a")
    with pytest.raises(Killed):
        wrapped.remove("a")
    assert disk.files == {"a": ""}


def test_a_wrapped_object_passes_its_attributes_on_both_ways():
    disk = Disk()
    wrapped = KillPoints().wrap(disk, "remove")
    wrapped.label = "new"
    assert (disk.label, wrapped.label) == ("new", "new")
    assert "calls of remove are effects" in repr(wrapped)
    with pytest.raises(AttributeError, match="'Disk' object has no attribute 'colour'"):
        _ = wrapped.colour  # type: ignore[attr-defined]


async def test_a_wrapped_object_can_be_wrapped_again():
    inner, outer = KillPoints(), KillPoints()
    wrapped = outer.wrap(inner.wrap(Disk(), "write"), "write")
    await wrapped.write("a")
    assert inner.seen == ["Disk.write"]
    assert len(outer.seen) == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("rename", "Disk has no method 'rename'"), ("label", "Disk has no method 'label'"), ("changes", "is a generator")],
)
def test_what_cannot_be_an_effect_is_refused_by_name(name: str, sentence: str):
    with pytest.raises(TypeError, match=sentence):
        KillPoints().wrap(Disk(), name)


# ---- exploring -------------------------------------------------------------------------------------------------------


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
    assert explored == Explored(runs=5, effects=("copy", "remove the draft"))
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
