"""However folders come and go, the queue's decision is the one that the rule makes of all of them."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from orlop.driver.ephemeral.afterlife.afterlife_queue import AfterlifeQueue, Queued
from orlop.driver.ephemeral.afterlife.retention_rules import Erase, Reason, Wait, next_step

milliseconds = st.integers(0, 100_000).map(lambda number: number / 1000)
names = st.sampled_from([f"csi-{number}" for number in range(8)])
changes = st.one_of(
    st.builds(
        Queued,
        name=names,
        namespace=st.sampled_from("ab"),
        buried_at=milliseconds,
        lifespan=st.sampled_from([1.0, 10.0, 50.0]),
        bytes_used=st.none() | st.integers(0, 3),
    ),
    st.tuples(st.sampled_from(["remove", "set_aside", "reinstate"]), names),
    st.tuples(st.just("measured"), names, st.integers(0, 3)),
)


@given(st.lists(changes, max_size=40), st.fractions(0, 1), milliseconds)
def test_the_queue_decides_as_the_rule_does_that_sees_every_folder(history, factor: Fraction, later: float):
    queue, queued, aside = AfterlifeQueue(), {}, {}
    for change in history:
        match change:
            case Queued():
                queue.put(change)
                aside.pop(change.name, None)
                queued[change.name] = change
            case (what, name, *rest):
                getattr(queue, what)(name, *rest)
                play(what, name, rest, queued, aside)
        now = 100.0 + later
        assert queue.next_step(now, factor) == next_step([each.at(now) for each in queued.values()], factor)
        assert len(queue) == len(queued)


def play(what: str, name: str, rest: list[int], queued: dict[str, Queued], aside: dict[str, Queued]) -> None:
    """The same with two dictionaries."""
    if what == "remove":
        queued.pop(name, None)
        aside.pop(name, None)
    elif what == "set_aside" and name in queued:
        aside[name] = queued.pop(name)
    elif what == "reinstate" and name in aside:
        queued[name] = aside.pop(name)
    elif what == "measured":
        for shelf in (queued, aside):
            if name in shelf:
                old = shelf[name]
                shelf[name] = Queued(old.name, old.namespace, old.buried_at, old.lifespan, rest[0])


def test_what_was_set_aside_weighs_nothing_and_comes_back_as_it_was():
    queue = AfterlifeQueue()
    for name, namespace in (("csi-1", "a"), ("csi-2", "a"), ("csi-3", "b")):
        queue.put(Queued(name, namespace, buried_at=0.0, lifespan=10.0))
    assert queue.next_step(11.0, Fraction(1)) == Erase("csi-1", Reason.AGE)
    queue.set_aside("csi-1")
    queue.set_aside("csi-2")
    assert queue.next_step(11.0, Fraction(1)) == Erase("csi-3", Reason.AGE)
    queue.reinstate("csi-2")
    queue.reinstate("csi-1")
    assert queue.next_step(11.0, Fraction(1)) == Erase("csi-1", Reason.AGE)


def test_a_folder_that_comes_and_goes_ten_thousand_times_takes_no_memory():
    queue = AfterlifeQueue()
    queue.put(Queued("csi-old", "a", buried_at=0.0, lifespan=10.0))
    for instant in range(10_000):
        queue.put(Queued("csi-1", "a", buried_at=float(instant), lifespan=10.0))
    assert sum(len(group.order) for group in queue._groups.values()) < 30
    queue.remove("csi-1")
    queue.remove("csi-old")
    assert queue._groups == queue._weights == {}
    assert queue.next_step(0.0, Fraction(1)) == Wait(None)


def test_a_size_that_becomes_known_while_a_folder_is_aside_is_not_lost():
    queue = AfterlifeQueue()
    for name in ("csi-1", "csi-2"):
        queue.put(Queued(name, "a" if name == "csi-1" else "b", buried_at=0.0, lifespan=10.0, bytes_used=1))
    queue.set_aside("csi-2")
    queue.measured("csi-2", 1000)
    queue.reinstate("csi-2")

    # Under pressure the namespace that uses most goes first.
    assert queue.next_step(1.0, Fraction(0)) == Erase("csi-2", Reason.PRESSURE)


def test_a_folder_is_postponed_until_its_time_also_when_it_was_put_back_meanwhile():
    queue = AfterlifeQueue()
    folder = Queued("csi-1", "a", buried_at=0.0, lifespan=10.0)
    queue.put(folder)
    queue.set_aside("csi-1")
    queue.put(folder)
    queue.postpone("csi-1", until=20.0)

    assert queue.next_step(19.0, Fraction(1)) == Wait(None)
    assert queue.next_step(20.0, Fraction(1)) == Erase("csi-1", Reason.AGE)
