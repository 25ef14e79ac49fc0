"""Candidates against a model of a server on virtual time: one leads, loses in time, and leaves the lease free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.structured_log import LogEntry, collecting_log, silent_log
from orlop.kube.api_errors import ConnectionBroken, NotConnected
from orlop.kube.client import KubeClient
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import LEASE
from orlop.kube.leader_election import LeaderElection, Leadership, LeadershipLost
from orlop.kube.lease_rules import Candidate, LeaseTimes
from orlop.kube.objects import ObjectName
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.api.kube_model import ModelServer, status
from support.random_tests import A_HANDFUL

pytestmark = pytest.mark.virtual_time

LOCK = ObjectName("ns", "lock")
Fault = Callable[[HttpRequest], Any]


class Line:
    """One candidate's connection to the server; requests and answers can be lost or late on it."""

    is_remote = False

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.lost_before = 0.0
        self.lost_after = 0.0
        self.late_before = 0.0
        self.late_after = 0.0
        self.random = Random(3)

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        await VirtualClock().sleep(self.late_before)
        if self.random.random() < self.lost_before:
            raise NotConnected("lost on the way there")
        answer = await self.server.exchange(request, within)
        await VirtualClock().sleep(self.late_after)
        if self.random.random() < self.lost_after:
            raise ConnectionBroken("lost on the way back")
        return answer

    def open(self, request: HttpRequest, within: float) -> Any:
        raise NotImplementedError

    async def renew_credentials(self) -> None: ...

    async def close(self) -> None: ...

    def cut(self) -> None:
        self.lost_before = 1.0


def election(line: Line, identity: str, log: Any = None, times: LeaseTimes = LeaseTimes()) -> LeaderElection:  # noqa: B008
    client = KubeClient(line, clock=VirtualClock(), random=Random(1), log=silent_log(), name=identity)
    candidate = Candidate(LOCK, identity, times)
    return LeaderElection(client, candidate, clock=VirtualClock(), random=Random(identity), log=log or silent_log())


async def pass_time(seconds: float) -> None:
    await VirtualClock().sleep(seconds)


def record(server: ModelServer) -> dict[str, Any]:
    return server.of(LEASE)[0]["spec"]


async def forever(_: Leadership) -> None:
    await asyncio.Event().wait()


class Leading:
    """A process that leads as often and as long as it can."""

    def __init__(self, server: ModelServer, identity: str) -> None:
        self.line = Line(server)
        self.identity = identity
        self.leadership: Leadership | None = None
        self.terms = 0
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        while True:
            with suppress(LeadershipLost):
                async with election(self.line, self.identity).leading() as self.leadership:
                    self.terms += 1
                    await forever(self.leadership)

    def leads(self) -> bool:
        return self.leadership is not None and self.leadership.held()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def candidates(server: ModelServer, *names: str) -> AsyncIterator[list[Leading]]:
    all_of_them = [Leading(server, name) for name in names]
    try:
        yield all_of_them
    finally:
        for one in all_of_them:
            await one.stop()


async def test_the_first_leads_and_says_so_in_the_lease():
    server = ModelServer()
    async with election(Line(server), "me").leading() as leadership:
        assert leadership.held()
        leadership.guard()
        assert record(server)["holderIdentity"] == "me"
        assert record(server)["leaseTransitions"] == 0
        acquired = record(server)["acquireTime"]
        await pass_time(600)
        assert leadership.held()
        assert record(server)["acquireTime"] == acquired
        assert record(server)["renewTime"] > acquired
    assert not leadership.held()


async def test_the_lease_is_free_after_the_work_and_not_before():
    server = ModelServer()
    async with election(Line(server), "me").leading():
        await pass_time(5)
        holder_at_work = record(server)["holderIdentity"]
    assert holder_at_work == "me"
    assert record(server)["holderIdentity"] == ""
    assert record(server)["leaseDurationSeconds"] == 1


async def test_the_lease_is_free_after_work_that_was_cancelled_and_cleaned_up():
    server = ModelServer()
    seen: list[str] = []

    async def work() -> None:
        async with election(Line(server), "me").leading():
            try:
                await asyncio.Event().wait()
            finally:
                await pass_time(20)
                seen.append(record(server)["holderIdentity"])

    task = asyncio.create_task(work())
    await pass_time(5)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert seen == ["me"]
    assert record(server)["holderIdentity"] == ""


async def test_what_the_work_raises_is_raised_and_the_lease_is_free():
    server = ModelServer()
    with pytest.raises(ZeroDivisionError):
        async with election(Line(server), "me").leading():
            raise ZeroDivisionError
    assert record(server)["holderIdentity"] == ""


async def test_the_next_one_leads_soon_after_a_release():
    server = ModelServer()
    async with candidates(server, "a", "b") as (first, second):
        await pass_time(10)
        leader, waiter = (first, second) if first.leads() else (second, first)
        assert not waiter.leads()
        await leader.stop()
        await pass_time(2.5)
        assert waiter.leads()
        assert record(server)["leaseTransitions"] == 1


async def test_the_next_one_leads_after_a_leader_that_vanished():
    server = ModelServer()
    async with candidates(server, "a", "b") as (first, second):
        await pass_time(10)
        leader, waiter = (first, second) if first.leads() else (second, first)
        leader.line.cut()
        await pass_time(13)
        assert not leader.leads()
        assert not waiter.leads()
        await pass_time(5)
        assert waiter.leads()


async def test_work_is_cancelled_when_the_lease_is_lost_and_told_why():
    server = ModelServer()
    line = Line(server)
    began = VirtualClock().elapsed()
    with pytest.raises(LeadershipLost, match=r"could not be renewed in time .*no response in time"):
        async with election(line, "me").leading() as leadership:
            line.cut()
            await asyncio.Event().wait()
    assert VirtualClock().elapsed() - began == 10
    assert not leadership.held()
    with pytest.raises(LeadershipLost):
        leadership.guard()
    assert record(server)["holderIdentity"] == "me"


async def test_work_that_does_not_stop_is_told_that_it_leads_no_more():
    server = ModelServer()
    line = Line(server)
    with pytest.raises(LeadershipLost):
        async with election(line, "me").leading() as leadership:
            line.cut()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            assert not leadership.held()


async def test_a_lease_that_another_has_is_lost_at_once():
    server = ModelServer()
    began = VirtualClock().elapsed()
    with pytest.raises(LeadershipLost, match="thief holds the lease ns/lock now"):
        async with election(Line(server), "me").leading():
            server.put(LEASE, "lock", "ns", spec={"holderIdentity": "thief", "leaseDurationSeconds": 15})
            await asyncio.Event().wait()
    assert VirtualClock().elapsed() - began <= 2
    assert record(server)["holderIdentity"] == "thief"


async def test_a_lease_that_somebody_labelled_is_still_ours():
    server = ModelServer()
    async with election(Line(server), "me").leading() as leadership:
        known = server.of(LEASE)[0]
        server.put(LEASE, "lock", "ns", metadata={"labels": {"a": "b"}}, spec=known["spec"])
        await pass_time(60)
        assert leadership.held()
    assert record(server)["holderIdentity"] == ""
    assert server.of(LEASE)[0]["metadata"]["labels"] == {"a": "b"}


async def test_a_lease_that_somebody_deleted_is_made_again():
    server = ModelServer()
    async with election(Line(server), "me").leading() as leadership:
        server.remove(LEASE, "lock", "ns")
        await pass_time(60)
        assert leadership.held()


async def test_a_renewal_whose_answer_was_lost_does_not_end_the_term():
    server = ModelServer()
    line = Line(server)
    async with election(line, "me").leading() as leadership:
        line.lost_after = 0.3
        await pass_time(600)
        assert leadership.held()
        line.lost_after = 0.0


async def test_a_slow_answer_does_not_make_the_term_longer():
    """Whoever waits counts from when the renewal was written; we count from when it was sent."""
    server = ModelServer()
    line = Line(server)
    line.late_after = 4.0
    async with election(line, "me").leading() as leadership:
        assert leadership.remaining() == 10 - 2 * 4
        line.late_after = 0.0


async def test_a_slow_renewal_does_not_make_the_term_longer():
    server = ModelServer()
    line = Line(server)
    async with election(line, "me").leading() as leadership:
        line.late_after = 4.0
        await pass_time(6.5)  # sent at 2, confirmed at 6
        line.late_after = 0.0
        assert leadership.remaining() == 2 + 10 - 6.5


async def test_a_lease_is_taken_over_only_after_its_duration_counted_from_when_it_was_seen():
    """A request that took long may have been answered at its end, just after the holder renewed."""
    server = ModelServer()
    server.put(LEASE, "lock", "ns", spec={"holderIdentity": "silent", "leaseDurationSeconds": 15})
    line = Line(server)
    line.late_before = 3.0
    async with election(line, "me").leading():
        # The first request ends at 3. An attempt takes 3 s to read and 3 s to write, and the next begins 2 s later.
        assert VirtualClock().elapsed() >= 3 + 15 + 6
        line.late_before = 0.0


class SleepyClock(VirtualClock):
    """The machine was suspended: timers did not run, and still time has passed."""

    asleep = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.asleep


async def test_a_lease_that_was_over_before_its_answer_came_is_not_held():
    server, clock = ModelServer(), SleepyClock()
    client = KubeClient(server, clock=VirtualClock(), random=Random(1), log=silent_log(), name="me")
    create = server._created

    def sleep(*asked: Any) -> HttpResponse:
        clock.asleep = 20.0
        return create(*asked)

    server._created = sleep  # type: ignore[method-assign]
    candidate = Candidate(LOCK, "me", LeaseTimes())
    election = LeaderElection(client, candidate, clock=clock, random=Random(1), log=silent_log())
    async with election.leading() as leadership:
        assert leadership.held()
        assert VirtualClock().elapsed() >= 2


async def test_candidates_do_not_all_come_at_the_same_time():
    server = ModelServer()
    server.put(LEASE, "lock", "ns", spec={"holderIdentity": "other", "leaseDurationSeconds": 3600})
    times: list[float] = []
    server.refuse = lambda _: times.append(VirtualClock().elapsed())
    candidate = asyncio.create_task(election(Line(server), "me").leading().__aenter__())
    await pass_time(60)
    candidate.cancel()
    await asyncio.wait([candidate])
    pauses = [round(later - earlier, 6) for earlier, later in pairwise(times)]
    assert all(2 <= pause <= 2.4 for pause in pauses)
    assert len(set(pauses)) > 10


async def test_while_it_is_released_the_lease_is_no_longer_held():
    server = ModelServer()
    line = Line(server)
    held: list[bool] = []

    async def watch_over(leadership: Leadership) -> None:
        await pass_time(1.5)
        held.append(leadership.held())

    async with election(line, "me").leading() as leadership:
        watching = asyncio.create_task(watch_over(leadership))
        await pass_time(1)
        line.late_before = 1.0
    await watching
    assert held == [False]
    assert record(server)["holderIdentity"] == ""


async def test_a_lease_that_another_took_meanwhile_is_not_released():
    server = ModelServer()
    async with election(Line(server), "me").leading():
        await pass_time(1)
        server.put(LEASE, "lock", "ns", spec={"holderIdentity": "thief", "leaseDurationSeconds": 15})
    assert record(server)["holderIdentity"] == "thief"


async def test_a_lease_that_is_lost_is_not_released():
    server, entries = ModelServer(), list[LogEntry]()
    line = Line(server)
    with pytest.raises(LeadershipLost):
        async with election(line, "me", collecting_log(entries)).leading():
            line.cut()
            await asyncio.Event().wait()
    assert not [entry.message for entry in entries if "release" in entry.message]


async def test_a_release_that_crosses_a_lost_renewal_still_frees_the_lease():
    server = ModelServer()
    line = Line(server)
    async with election(line, "me").leading():
        line.late_after = 1.0
        await pass_time(2.5)  # a renewal is written, and its answer on the way
        line.late_after = 0.0
    assert record(server)["holderIdentity"] == ""


async def test_a_lease_that_may_not_be_read_is_told_once_and_tried_on():
    server, entries = ModelServer(), list[LogEntry]()
    server.refuse = lambda _: status(403, "Forbidden", "leases is forbidden")

    async def lead() -> None:
        async with election(Line(server), "me", collecting_log(entries)).leading():
            await asyncio.Event().wait()

    task = asyncio.create_task(lead())
    await pass_time(100)
    what_to_do = "allow it in RBAC, or set another namespace with --leader-election-namespace"
    assert [entry.message for entry in entries] == [f"lease cannot be acquired: leases is forbidden; {what_to_do}"]
    server.refuse = lambda _: None
    await pass_time(5)
    assert record(server)["holderIdentity"] == "me"
    task.cancel()
    await asyncio.wait([task])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lost_before", "lost_after", "late_before", "late_after", "stop", "heal"]),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.3, 1.0, 4.0]),
        st.sampled_from([0.5, 3.0, 11.0, 30.0]),
    ),
    max_size=12,
)


@A_HANDFUL
@given(STEPS)
def test_never_do_two_lead_at_once_whatever_the_network_does_and_in_the_end_one_does(steps: list[Any]):
    async def main(clock: VirtualClock) -> None:
        server = ModelServer()
        async with candidates(server, "a", "b", "c") as all_of_them:

            async def watch_over(seconds: float) -> None:
                end = clock.elapsed() + seconds
                while clock.elapsed() < end:
                    await clock.sleep(0.25)
                    leaders = [one.identity for one in all_of_them if one.leads()]
                    assert len(leaders) <= 1, leaders

            for what, who, amount, seconds in steps:
                one = all_of_them[who]
                if what == "stop":
                    await one.stop()
                    all_of_them[who] = Leading(server, f"{one.identity}'")
                elif what == "heal":
                    one.line.lost_before = one.line.lost_after = one.line.late_before = one.line.late_after = 0.0
                else:
                    setattr(one.line, what, amount)
                await watch_over(seconds)
            for one in all_of_them:
                one.line.lost_before = one.line.lost_after = one.line.late_before = one.line.late_after = 0.0
            await watch_over(60)
            assert sum(one.leads() for one in all_of_them) == 1

    run_virtual(main)
