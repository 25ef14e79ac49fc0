"""One of many is the leader: whoever holds a Lease. `lease_rules` decides, this module reads, writes and waits.

Order: take the lease → lead, and renew meanwhile → the work has ended → renew no more → release the lease.

**No new effect starts after the lease is lost.** `Leadership.held()` says so by the clock alone, at any time, also when
the machine was asleep or the event loop busy: ask it (or `guard()`) before each effect. When the renew deadline passes
without a renewal, or another has the lease, the work is cancelled and `LeadershipLost` raised. An effect that began
before may still land late, up to the end of the lease and beyond: writes must be guarded, calls repeatable.

The deadline counts from when the last successful renewal was *sent*, so it is over before anybody else may take the
lease, however long the answer took.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.client import KubeClient
from orlop.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from orlop.kube.kinds import LEASE
from orlop.kube.lease_rules import (
    JITTER,
    Candidate,
    Create,
    HeldByOther,
    Observed,
    Write,
    holder_of,
    next_step,
    observed,
    released,
)
from orlop.kube.objects import Object

RELEASE_SECONDS: Final = 5.0


class LeadershipLost(Exception):
    """Whoever led must stop; most processes end, and begin anew as candidates."""


class Leadership:
    """Being the leader, for as long as it lasts."""

    def __init__(self, clock: Clock, lease: Object, until: float) -> None:
        self.lease = lease
        self._clock = clock
        self._until = until

    def held(self) -> bool:
        return self._clock.elapsed() < self._until

    def guard(self) -> None:
        """To be called before each effect."""
        if not self.held():
            raise LeadershipLost("the lease is lost: nothing more may be done")

    def remaining(self) -> float:
        """Seconds for which it is held if nothing more is heard of the server."""
        return max(0.0, self._until - self._clock.elapsed())

    def renewed(self, lease: Object, until: float) -> None:
        self.lease, self._until = lease, until

    def end(self) -> None:
        self._until = float("-inf")


class LeaderElection:
    def __init__(self, client: KubeClient, candidate: Candidate, *, clock: Clock, random: Random, log: Log) -> None:
        self._client = client
        self._candidate = candidate
        self._times = candidate.times
        self._clock = clock
        self._random = random
        self._log = log.bind(lease=str(candidate.lease), identity=candidate.identity)
        self._seen: Observed | None = None
        self._told = ""

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Leadership]:
        """Waits until we lead. The block is cancelled when the lease is lost; leaving it releases the lease."""
        leadership = await self._elected()
        self._seen, self._told = None, ""
        self._log.info("became the leader")
        try:
            async with TaskGroup() as tasks:
                renewing = tasks.start(self._keep(leadership), name=f"renewing {self._candidate.lease}")
                try:
                    yield leadership
                finally:
                    renewing.cancel()
        finally:
            left = leadership.remaining()
            leadership.end()
            if left:
                await self._release(leadership.lease, left)

    # ---- becoming the leader -------------------------------------------------------------------------------------

    async def _elected(self) -> Leadership:
        while True:
            began = self._clock.elapsed()
            try:
                async with self._clock.timeout(self._times.renew_deadline):
                    lease = await self._try_once(began)
            except (ApiError, TimeoutError) as error:
                self._warn_once("the lease cannot be had", error)
                lease = None
            if lease is not None:
                leadership = Leadership(self._clock, lease, began + self._times.renew_deadline)
                if leadership.held():
                    return leadership
            await self._clock.sleep(self._times.retry_period * (1 + JITTER * self._random.random()))

    async def _try_once(self, now: float) -> Object | None:
        """Takes or renews the lease if that may be: then gives it, as it is now. A refused write is no error."""
        try:
            found = await self._soon(self._client.get(LEASE, self._candidate.lease))
            # Seen at the end of the request: whoever takes over counts from later rather than from too early.
            self._seen = observed(self._seen, found, self._clock.elapsed())
        except NotFound:
            self._seen = None
        match next_step(self._seen, self._candidate, now, self._clock.now()):
            case Create(lease):
                with suppress(AlreadyExists):
                    return await self._soon(self._client.create(LEASE, lease))
            case Write(lease):
                return await self._written(lease)
            case HeldByOther(holder):
                self._tell_once(f"{holder} leads")
        return None

    async def _written(self, lease: Object) -> Object | None:
        """None if it was refused, unless our own write, whose answer was lost, is the reason: then it is as written."""
        try:
            return await self._soon(self._client.replace(LEASE, lease))
        except Conflict:
            found = await self._soon(self._client.get(LEASE, self._candidate.lease))
            return found if found.get("spec") == lease["spec"] else None

    # ---- staying the leader --------------------------------------------------------------------------------------

    async def _keep(self, leadership: Leadership) -> None:
        """Until it is cancelled or the lease is lost."""
        while leadership.held():
            await self._clock.sleep(min(self._times.retry_period, leadership.remaining()))
            if leadership.held():
                await self._renew(leadership)
        raise LeadershipLost(f"the lease {self._candidate.lease} could not be renewed in time{self._why()}")

    async def _renew(self, leadership: Leadership) -> None:
        began = self._clock.elapsed()
        try:
            async with self._clock.timeout(leadership.remaining()):
                lease = await self._renewed(leadership.lease, began)
        except (ApiError, TimeoutError) as error:
            self._warn_once("the lease was not renewed", error)
            return
        if lease is not None:
            leadership.renewed(lease, began + self._times.renew_deadline)
            self._told = ""
        elif self._seen is not None and self._seen.holder != self._candidate.identity:
            leadership.end()
            raise LeadershipLost(f"{self._seen.holder or 'nobody'} holds the lease {self._candidate.lease} now")

    async def _renewed(self, lease: Object, began: float) -> Object | None:
        """First by what we know; where that is refused, somebody wrote it: look."""
        step = next_step(observed(None, lease, began), self._candidate, began, self._clock.now())
        if isinstance(step, Write):
            with suppress(NotFound):
                written = await self._written(step.lease)
                if written is not None:
                    return written
        return await self._try_once(began)

    # ---- leaving -------------------------------------------------------------------------------------------------

    async def _release(self, lease: Object, left: float) -> None:
        """So that the next one need not wait; if it fails, the lease is over by itself in a while."""
        try:
            async with self._clock.timeout(min(RELEASE_SECONDS, left)):
                await self._write_release(lease)
            self._log.info("released the lease")
        except (ApiError, TimeoutError) as error:
            self._log.warning("the lease could not be released", error=error)

    async def _write_release(self, lease: Object) -> None:
        try:
            await self._client.replace(LEASE, released(lease, self._clock.now()))
        except Conflict:  # a renewal of ours that was cut off may have been written
            found = await self._client.get(LEASE, self._candidate.lease)
            if holder_of(found) == self._candidate.identity:
                await self._client.replace(LEASE, released(found, self._clock.now()))

    # ---- small things --------------------------------------------------------------------------------------------

    async def _soon(self, asked: Awaitable[Object]) -> Object:
        """As client-go: a connection that died without a word leaves time for another."""
        async with self._clock.timeout(self._times.renew_deadline / 2):
            return await asked

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._log.info(sentence)
            self._told = sentence

    def _warn_once(self, what: str, error: ApiError | TimeoutError) -> None:
        sentence = f"{what}: {error.message if isinstance(error, ApiError) else 'no answer in time'}"
        if isinstance(error, Forbidden):
            sentence += "; permit it there, or name another namespace with --leader-election-namespace"
        if sentence != self._told:
            self._log.warning(sentence)
            self._told = sentence

    def _why(self) -> str:
        return f" ({self._told})" if self._told else ""
