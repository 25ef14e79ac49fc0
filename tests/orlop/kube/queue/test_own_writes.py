"""A controller that writes: its own writes do not wake it, no other write is lost, and it never acts on the past."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orlop.kube import objects
from orlop.kube.objects import ObjectName
from orlop.kube.queue.own_writes import LatestState, Observation, OwnWrites

NAME = ObjectName(None, "va1")


def obj(version: int, content: str = "a", uid: str = "u1") -> dict[str, Any]:
    return {"metadata": {"name": "va1", "uid": uid, "resourceVersion": str(version)}, "spec": content}


def own_writes() -> OwnWrites[str]:
    return OwnWrites(lambda found: str(found["spec"]))


def observe(own: OwnWrites[str], found: dict[str, Any]) -> Observation[str]:
    return own.observe(NAME, found, objects.resource_version(found))


def test_an_object_that_is_seen_first_is_news():
    assert observe(own_writes(), obj(1)) == Observation(None, is_news=True)


def test_our_own_write_is_no_news_when_the_watch_delivers_it():
    own = own_writes()
    own.remember(NAME, obj(1))
    own.remember(NAME, obj(2, "ours"))
    assert observe(own, obj(1)) == Observation()
    assert observe(own, obj(2, "ours")) == Observation()


def test_a_write_of_somebody_else_is_news_if_the_rules_read_what_changed():
    own = own_writes()
    own.remember(NAME, obj(1))
    assert not observe(own, obj(2)).is_news
    assert observe(own, obj(3, "theirs")).is_news


def test_a_cache_from_before_our_write_is_stale_and_one_from_after_it_is_not():
    own = own_writes()
    own.remember(NAME, obj(9))
    own.remember(NAME, obj(10, "ours"))
    assert own.is_stale(NAME, obj(9))
    assert not own.is_stale(NAME, obj(10, "ours"))
    assert not own.is_stale(NAME, obj(11, "theirs"))


def test_what_changes_after_work_that_failed_is_news():
    own = own_writes()
    own.remember(NAME, obj(1))
    with suppress(ZeroDivisionError), own.working(NAME):
        raise ZeroDivisionError
    assert observe(own, obj(2, "theirs")).is_news


def test_an_older_state_does_not_replace_a_newer_one():
    own = own_writes()
    own.remember(NAME, obj(10, "ours"))
    own.remember(NAME, obj(9))
    assert own.get(NAME) == LatestState("u1", "10", "ours")


def test_what_our_write_has_ended_is_stale_however_new_the_cache_says_it_is():
    own = own_writes()
    own.remember(NAME, obj(1))
    own.remember_gone(NAME, "u1")
    assert own.is_stale(NAME, obj(2))
    assert not observe(own, obj(2, "theirs")).is_news
    assert not own.is_stale(NAME, obj(3, uid="u2"))


def test_another_object_of_the_same_name_ends_the_first_and_is_news_though_it_has_the_same_content():
    own = own_writes()
    own.remember(NAME, obj(1))
    assert observe(own, obj(5, uid="u2")) == Observation(LatestState("u1", "1", "a"), is_news=True)


def test_an_object_that_is_gone_is_reported_once():
    own = own_writes()
    own.remember(NAME, obj(1))
    assert own.observe(NAME, None, "2") == Observation(LatestState("u1", "1", "a"))
    assert own.observe(NAME, None, "2") == Observation()
    assert len(own) == 0


def test_the_late_end_of_a_former_object_is_not_the_end_of_its_successor():
    own = own_writes()
    own.remember(NAME, obj(5, "ours", uid="u2"))
    assert own.observe(NAME, None, "3") == Observation()
    assert own.is_stale(NAME, obj(4, uid="u2"))
    assert own.observe(NAME, None, "6").ended == LatestState("u2", "5", "ours")


def test_changes_during_the_work_are_reported_after_it():
    own = own_writes()
    with own.working(NAME):
        own.remember(NAME, obj(1))
        assert not observe(own, obj(2, "theirs")).is_news
    assert observe(own, obj(2, "theirs")).is_news


# ---- every history: a server, a cache that lags behind, a worker that writes, and others who write too ---------------


@dataclass(frozen=True)
class State:
    """The object at the API server after one write. No content: it is deleted."""

    version: int
    uid: str
    content: str | None

    def body(self) -> dict[str, Any] | None:
        return None if self.content is None else obj(self.version, self.content, self.uid)


class Controller(RuleBasedStateMachine):
    contents = st.sampled_from("abc")

    def __init__(self) -> None:
        super().__init__()
        self.own: OwnWrites[str] = own_writes()
        self.history = [State(1, "u1", "a")]
        self.delivered = -1
        self.is_queued = False
        self.held: State | None = None
        """What the worker has read or written last, while it works."""
        self.known = State(0, "", None)
        """The same, and also what it knew when it last worked."""
        self.work = ExitStack()

    def cached(self) -> dict[str, Any] | None:
        return self.history[self.delivered].body() if self.delivered >= 0 else None

    def observe(self) -> None:
        cached = self.cached()
        observation = self.own.observe(NAME, cached, str(self.history[self.delivered].version))
        if observation.is_news:
            assert cached is not None
            assert self.history[self.delivered].version > self.known.version, "woken by something that it knew"
            assert (objects.uid(cached), cached["spec"]) != (self.known.uid, self.known.content), "woken by nothing new"
            assert self.held is None, "woken while it works"
            self.is_queued = True
            self.own.remember(NAME, cached)
            self.known = self.history[self.delivered]

    def write(self, content: str | None, uid: str) -> State:
        self.history.append(State(self.history[-1].version + 1, uid, content))
        return self.history[-1]

    @rule(content=contents)
    def somebody_writes(self, content: str) -> None:
        if self.history[-1].content is not None:
            self.write(content, self.history[-1].uid)

    @rule()
    def somebody_deletes(self) -> None:
        if self.history[-1].content is not None:
            self.write(None, self.history[-1].uid)

    @rule(content=contents)
    def somebody_creates_it_again(self, content: str) -> None:
        if self.history[-1].content is None:
            self.write(content, f"u{self.history[-1].version + 1}")

    @precondition(lambda self: self.delivered < len(self.history) - 1)
    @rule()
    def the_watch_delivers(self) -> None:
        self.delivered += 1
        self.observe()

    @precondition(lambda self: self.is_queued and self.held is None)
    @rule()
    def a_worker_begins(self) -> None:
        cached = self.cached()
        if cached is None:
            self.is_queued = False
        elif not self.own.is_stale(NAME, cached):
            now = self.history[self.delivered]
            assert now.version >= self.known.version, "works on a cache from before its own write"
            assert self.known.content is not None or now.uid != self.known.uid, "works on what it has ended"
            self.is_queued = False
            self.own.remember(NAME, cached)
            self.held = self.known = now
            self.work.enter_context(self.own.working(NAME))

    @precondition(lambda self: self.held is not None)
    @rule(content=contents)
    def the_worker_writes(self, content: str) -> None:
        """Refused, if somebody else has written: then it reads the object, and may find none."""
        assert self.held is not None
        if self.history[-1].content is None:
            self.known = State(self.held.version, self.held.uid, None)
            self.own.remember_gone(NAME, self.held.uid)
            self.the_worker_ends()
            return
        is_refused = self.held != self.history[-1]
        self.held = self.known = self.history[-1] if is_refused else self.write(content, self.held.uid)
        self.own.remember(NAME, self.held.body() or {})

    @precondition(lambda self: self.held is not None and self.held == self.history[-1])
    @rule()
    def the_worker_ends_the_object(self) -> None:
        assert self.held is not None
        self.known = self.write(None, self.held.uid)
        self.own.remember_gone(NAME, self.held.uid)
        self.the_worker_ends()

    @precondition(lambda self: self.held is not None)
    @rule()
    def the_worker_ends(self) -> None:
        self.held = None
        self.work.close()
        self.observe()

    @invariant()
    def nothing_is_lost(self) -> None:
        """When the cache is up to date and nobody works, what is there is known, or waits in the queue."""
        if self.delivered == len(self.history) - 1 and self.held is None and not self.is_queued:
            last = self.history[-1]
            assert last.content is None or (self.known.uid, self.known.content) == (last.uid, last.content)

    def teardown(self) -> None:
        if self.held is not None:
            self.the_worker_ends()
        self.somebody_deletes()
        while self.delivered < len(self.history) - 1:
            self.the_watch_delivers()
        assert len(self.own) == 0, "something is kept of an object that is gone"


TestEveryHistoryOfAController = Controller.TestCase
TestEveryHistoryOfAController.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
