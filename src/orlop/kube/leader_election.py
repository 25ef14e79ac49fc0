"""Leader election with a Lease: `lease_rules` decides, this module reads, writes and waits.

Order: acquire the lease → lead, renewing it → the work has ended → stop renewing → release the lease.

**No new effect starts after the lease is lost.** `Leadership.held()` decides by the clock alone, at any time, even if
the machine was suspended or the event loop was busy: call it (or `guard()`) before each effect. When the renew deadline
passes without a renewal, or another process holds the lease, the work is cancelled and `LeadershipLost` is raised. An
effect that started before may still land later, even after the lease has expired: writes must be guarded with a
resourceVersion, calls must be idempotent.

The deadline counts from when the last successful renewal was *sent*, so it passes before anybody else may acquire the
lease, however long the response took.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from orlop.kube.client import KubeClient
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
    """The leader must stop. Most processes exit, and start again as candidates."""


class Leadership:
    """The leader's right to act, until a deadline that each renewal moves."""

    def __init__(self, clock: Clock, lease: Object, until: float) -> None:
        self.lease = lease
        self._clock = clock
        self._until = until

    def held(self) -> bool:
        return self._clock.elapsed() < self._until

    def guard(self) -> None:
        """Raise `LeadershipLost` unless the lease is held. Call it before each effect."""
        if not self.held():
            raise LeadershipLost("the lease is lost, so no further effect is allowed")

    def remaining(self) -> float:
        """Return for how many seconds it is held without another renewal."""
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
        self._last_logged = ""

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Leadership]:
        """Wait until we lead. The block is cancelled when the lease is lost; leaving it releases the lease."""
        leadership = await self._elected()
        self._seen, self._last_logged = None, ""
        self._log.info("became leader")
        try:
            async with TaskGroup() as tasks:
                renewing = tasks.start(self._keep(leadership), name=f"renewing {self._candidate.lease}")
                try:
                    yield leadership
                finally:
                    # Before the release: a renewal that lands after it would take the lease back.
                    renewing.cancel()
        finally:
            left = leadership.remaining()
            # Before the release is sent: another process may lead as soon as the server has it.
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
                self._warn_once("lease cannot be acquired", error)
                lease = None
            if lease is not None:
                # Counted from before the request: the server may have written the lease long before it responded.
                leadership = Leadership(self._clock, lease, began + self._times.renew_deadline)
                # Not held if the machine was suspended meanwhile: timers do not run then, and time passes.
                if leadership.held():
                    return leadership
            await self._clock.sleep(self._times.retry_period * (1 + JITTER * self._random.random()))

    async def _try_once(self, now: float) -> Object | None:
        """Acquire or renew the lease if allowed, and return it as written; None if it is not ours."""
        try:
            lease = await self._soon(self._client.get(LEASE, self._candidate.lease))
            # Count from the end of the request, because the record may have been written during it. Counting from its
            # start, we might take over before the holder gives up.
            self._seen = observed(self._seen, lease, self._clock.elapsed())
        except NotFound:
            self._seen = None
        match next_step(self._seen, self._candidate, now, self._clock.now()):
            case Create(lease):
                with suppress(AlreadyExists):
                    return await self._soon(self._client.create(LEASE, lease))
            case Write(lease):
                return await self._written(lease)
            case HeldByOther(holder):
                self._log_once(f"{holder} leads")
        return None

    async def _written(self, lease: Object) -> Object | None:
        """Write the lease and return it; None after a conflict, unless our own earlier write is the cause."""
        try:
            return await self._soon(self._client.replace(LEASE, lease))
        except Conflict:
            current = await self._soon(self._client.get(LEASE, self._candidate.lease))
            return current if current.get("spec") == lease["spec"] else None

    # ---- staying the leader --------------------------------------------------------------------------------------

    async def _keep(self, leadership: Leadership) -> None:
        """Renew until cancelled; raise when the lease is lost."""
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
            self._warn_once("lease not renewed", error)
            return
        if lease is not None:
            # From when the renewal was sent, not from its response: others count from when the server wrote it.
            leadership.renewed(lease, began + self._times.renew_deadline)
            self._last_logged = ""
        elif self._seen is not None and self._seen.holder != self._candidate.identity:
            leadership.end()
            raise LeadershipLost(f"{self._seen.holder or 'nobody'} holds the lease {self._candidate.lease} now")

    async def _renewed(self, lease: Object, began: float) -> Object | None:
        """Renew based on the lease we know, without reading it; after a conflict read it first."""
        step = next_step(observed(None, lease, began), self._candidate, began, self._clock.now())
        if isinstance(step, Write):
            with suppress(NotFound):
                written = await self._written(step.lease)
                if written is not None:
                    return written
        return await self._try_once(began)

    # ---- leaving -------------------------------------------------------------------------------------------------

    async def _release(self, lease: Object, left: float) -> None:
        """Release the lease, so that the next leader need not wait. If it fails, the lease expires by itself."""
        try:
            async with self._clock.timeout(min(RELEASE_SECONDS, left)):
                await self._write_release(lease)
            self._log.info("lease released")
        except (ApiError, TimeoutError) as error:
            self._log.warning("lease not released", error=error)

    async def _write_release(self, lease: Object) -> None:
        try:
            await self._client.replace(LEASE, released(lease, self._clock.now()))
        except Conflict:  # A renewal that we cancelled may have been written.
            current = await self._client.get(LEASE, self._candidate.lease)
            if holder_of(current) == self._candidate.identity:
                await self._client.replace(LEASE, released(current, self._clock.now()))

    # ---- requests and logging ------------------------------------------------------------------------------------

    async def _soon(self, request: Awaitable[Object]) -> Object:
        """Limit a request to half the renew deadline, as client-go does: a dead connection leaves time for another."""
        async with self._clock.timeout(self._times.renew_deadline / 2):
            return await request

    def _log_once(self, sentence: str) -> None:
        if sentence != self._last_logged:
            self._log.info(sentence)
            self._last_logged = sentence

    def _warn_once(self, what: str, error: ApiError | TimeoutError) -> None:
        sentence = f"{what}: {error.message if isinstance(error, ApiError) else 'no response in time'}"
        if isinstance(error, Forbidden):
            sentence += "; allow it in RBAC, or set another namespace with --leader-election-namespace"
        if sentence != self._last_logged:
            self._log.warning(sentence)
            self._last_logged = sentence

    def _why(self) -> str:
        return f" ({self._last_logged})" if self._last_logged else ""
