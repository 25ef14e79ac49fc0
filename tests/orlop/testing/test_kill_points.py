from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.testing.kill_points import (
    KillAt,
    Killed,
    KillMoment,
    KillPoints,
    every_kill,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

AFTER_2 = KillAt(2, KillMoment.AFTER)
BEFORE_2 = KillAt(2, KillMoment.BEFORE)


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
        (KillAt(4, KillMoment.BEFORE), ["a", "b", "c"], ["a", "b", "c"]),
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
    points = KillPoints(KillAt(1, KillMoment.AFTER))
    with pytest.raises(Killed), points.effect("fails"):
        raise OSError("disk full")


def test_an_effect_that_fails_with_no_kill_raises_its_own_error():
    with pytest.raises(OSError, match="disk full"), KillPoints().effect("fails"):
        raise OSError("disk full")


async def test_who_had_an_effect_under_way_at_the_kill_never_learns_its_result():
    points = KillPoints(KillAt(2, KillMoment.AFTER))
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
        KillAt(0, KillMoment.BEFORE)


@given(st.integers(min_value=0, max_value=50))
def test_every_kill_is_enumerated_once_in_order(count: int):
    kills = list(every_kill(count))
    assert len(kills) == len(set(kills)) == 2 * count
    assert kills == sorted(kills, key=lambda kill: (kill.number, kill.moment is KillMoment.AFTER))


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


async def test_an_effect_can_be_named_after_the_arguments_of_its_call():
    points = KillPoints()
    wrapped = points.wrap(Disk(), "write", "remove", describe=lambda name, **_: f"change {name}")
    await wrapped.write("a", text="x")
    wrapped.remove("a")
    assert points.seen == ["change a", "change a"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rename", "there is no method Disk.rename"),
        ("label", "there is no method Disk.label"),
        ("changes", "is a generator"),
    ],
)
def test_what_cannot_be_an_effect_is_refused_by_name(name: str, sentence: str):
    with pytest.raises(TypeError, match=sentence):
        KillPoints().wrap(Disk(), name)
