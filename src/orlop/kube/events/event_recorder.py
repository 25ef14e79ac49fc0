"""Record Kubernetes Events about objects. No caller waits for it, and nothing fails because of it.

`normal` and `warning` only take a note; `run` writes the Events, one after another. A repetition updates the series of
the existing Event. Events are written as events.k8s.io/v1, or as core/v1 where only that is permitted, or where the
reporter asks for it. What cannot be
written (no permission, no room, a server that stays away) is dropped and counted; a missing permission is logged once.

We choose the name of an Event before the first attempt, so a retry after a broken connection finds the Event there
instead of creating a second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from random import Random
from typing import Any, Final

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import AlreadyExists, ApiError, Forbidden, NotFound, StatusError
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.events.event_bodies import (
    ObjectReference,
    Reporter,
    core_form,
    core_form_repeated,
    event_name,
    make_occurrence,
    new_form,
    new_form_repeated,
)
from orlop.kube.events.event_book import BookEntry, EventBook
from orlop.kube.kinds import CORE_EVENT, EVENT
from orlop.kube.objects import ObjectName
from orlop.kube.retry_rules import is_passing

MOST_ATTEMPTS: Final = 3
RETRY: Final = Backoff(initial=5.0, factor=3.0, cap=60.0, jitter=0.5)
REFUSED_SECONDS: Final = 300.0
"""How long a namespace in which we may not write Events is left alone."""
MOST_REFUSED: Final = 1000
NO_MORE_CONTENT: Final = "NamespaceTerminating"
LAST_EVENTS_SECONDS: Final = 0.5


@asynccontextmanager
async def recording(client: KubeClient, reporter: Reporter, runtime: Runtime) -> AsyncIterator[EventRecorder]:
    """Yield a recorder that is kept running; when the block ends well, what it has noted is written."""
    events = EventRecorder(
        client, reporter, clock=runtime.clock, random=runtime.random, log=runtime.log, metrics=runtime.metrics
    )
    async with TaskGroup() as tasks:
        writing = tasks.start(events.run(), name=f"events of {reporter.controller}")
        try:
            yield events
            await events.drain(LAST_EVENTS_SECONDS)
        finally:
            writing.cancel()


class EventRecorder:
    """Takes notes of events without blocking; `run` writes them."""

    def __init__(
        self, client: KubeClient, reporter: Reporter, *, clock: Clock, random: Random, log: Log, metrics: Metrics
    ) -> None:
        self._client = client
        self._reporter = reporter
        self._clock = clock
        self._random = random
        self._log = log
        self._dropped = metrics.counter(
            "orlop_events_dropped_total", "Events dropped before they were written, by reason.", ("reason",)
        )
        self._book = EventBook(random)
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._use_core = reporter.in_core
        self._may_patch = True
        self._refused_until: dict[str, float] = {}
        self._last_name = 0
        self._logged: set[str] = set()

    # ---- taking notes --------------------------------------------------------------------------------------------

    def normal(
        self,
        obj: Mapping[str, Any] | ObjectReference,
        reason: str,
        note: str,
        *,
        action: str = "",
        related: Mapping[str, Any] | ObjectReference | None = None,
    ) -> None:
        self._note(obj, related, warning=False, reason=reason, note=note, action=action)

    def warning(
        self,
        obj: Mapping[str, Any] | ObjectReference,
        reason: str,
        note: str,
        *,
        action: str = "",
        related: Mapping[str, Any] | ObjectReference | None = None,
    ) -> None:
        self._note(obj, related, warning=True, reason=reason, note=note, action=action)

    def _note(self, obj: Any, related: Any, **what: Any) -> None:
        try:
            other = None if related is None else _reference(related)
            occurrence = make_occurrence(_reference(obj), related=other, **what)
            if self._book.add(occurrence, self._clock.now(), self._clock.elapsed()):
                self._news.set()
            else:
                self._drop("no room")
        except Exception as error:  # noqa: BLE001 - an Event must never fail the work it is about
            self._log.exception("event could not be recorded", error)
            self._drop("unusable")

    # ---- writing -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write due Events, for ever."""
        while True:
            self._news.clear()
            for entry in self._book.take_due(self._clock.elapsed()):
                await self._write(entry)
            if not self._book.waiting():
                self._idle.set()
            await self._wait()

    async def drain(self, within: float) -> None:
        """Wait until every waiting Event is written, at most `within` seconds; `run` must be running."""
        self._book.hurry(self._clock.elapsed())
        self._idle.clear()
        self._news.set()
        try:
            async with self._clock.timeout(within):
                await self._idle.wait()
        except TimeoutError:
            self._log.info("events not written at shutdown", count=self._book.waiting())

    async def _wait(self) -> None:
        instant = self._book.next_instant()
        if instant is None:
            await self._news.wait()
            return
        try:
            async with self._clock.timeout(max(0.0, instant - self._clock.elapsed())):
                await self._news.wait()
        except TimeoutError:
            return

    async def _write(self, entry: BookEntry) -> None:
        # Before the request: repetitions that happen while it is in flight are not in it, and must be written later.
        count = entry.count
        try:
            if self._clock.elapsed() < self._refused_until.get(entry.occurrence.namespace, 0.0):
                self._drop("refused", count - entry.written)
            elif entry.exists:
                await self._repeat(entry)
            else:
                await self._create(entry)
        except ApiError as error:
            self._failed(entry, count, error)
            return
        self._book.written(entry, count, self._clock.elapsed())

    async def _create(self, entry: BookEntry) -> None:
        entry.event = entry.event or event_name(entry.occurrence, self._moment(entry.first))
        try:
            await (self._post_core(entry) if self._use_core else self._post_new(entry))
        except (Forbidden, NotFound) as error:
            if self._use_core or _is_about_the_namespace(error):
                raise
            await self._fall_back(entry)
        entry.exists, entry.in_core = True, self._use_core

    async def _fall_back(self, entry: BookEntry) -> None:
        """Write core/v1, and stay with it if that is permitted."""
        await self._post_core(entry)
        self._use_core = True
        self._log_once("events are written as core/v1: events.k8s.io/v1 is not permitted or not served")

    async def _post_new(self, entry: BookEntry) -> None:
        with suppress(AlreadyExists):  # The response to our first attempt was lost.
            await self._client.create(EVENT, new_form(entry.event, entry.occurrence, self._reporter, entry.seen))

    async def _post_core(self, entry: BookEntry) -> None:
        with suppress(AlreadyExists):
            await self._client.create(CORE_EVENT, core_form(entry.event, entry.occurrence, self._reporter, entry.seen))

    async def _repeat(self, entry: BookEntry) -> None:
        if not self._may_patch:
            return
        changes = core_form_repeated(entry.seen) if entry.in_core else new_form_repeated(entry.seen)
        kind = CORE_EVENT if entry.in_core else EVENT
        try:
            await self._client.patch(kind, ObjectName(entry.occurrence.namespace, entry.event), MergePatch(changes))
        except NotFound:  # The API server deletes Events after an hour.
            entry.event, entry.exists = "", False
            await self._create(entry)
        except Forbidden as error:
            if _is_about_the_namespace(error):
                raise
            self._may_patch = False
            self._log_once("repeated events are not counted: patching events is not permitted", error)

    # ---- what goes wrong -----------------------------------------------------------------------------------------

    def _failed(self, entry: BookEntry, count: int, error: ApiError) -> None:
        entry.failures += 1
        if is_passing(error) and entry.failures < MOST_ATTEMPTS:
            again = RETRY.delay(entry.failures, self._random)
            self._book.postpone(entry, self._clock.elapsed() + again)
            return
        if isinstance(error, StatusError) and not is_passing(error):
            self._refuse(entry.occurrence.namespace, count - entry.written, error)
        else:
            self._drop("failed", count - entry.written)
            self._log.debug("event dropped", error=error)
        self._book.written(entry, count, self._clock.elapsed())
        if not entry.exists:
            self._book.forget(entry)  # When it happens again, a new Event is created.

    def _refuse(self, namespace: str, count: int, error: StatusError) -> None:
        self._drop("refused", count)
        if _is_about_the_namespace(error):
            return
        self._log_once(f"events are not written: {error.reason or error.code}", error)
        if isinstance(error, Forbidden):
            if len(self._refused_until) >= MOST_REFUSED:
                self._refused_until.clear()
            self._refused_until[namespace] = self._clock.elapsed() + REFUSED_SECONDS

    def _drop(self, reason: str, count: int = 1) -> None:
        self._dropped.inc(reason, by=count)

    def _log_once(self, sentence: str, error: ApiError | None = None) -> None:
        if sentence not in self._logged:
            self._logged.add(sentence)
            self._log.warning(sentence, **({"error": error} if error is not None else {}))

    def _moment(self, first: datetime) -> int:
        """Return the time in nanoseconds, moved on where needed so that no two Events get the same name."""
        self._last_name = max(self._last_name + 1, int(first.timestamp() * 1_000_000) * 1000)
        return self._last_name


def _reference(obj: Mapping[str, Any] | ObjectReference) -> ObjectReference:
    return obj if isinstance(obj, ObjectReference) else ObjectReference.to(obj)


def _is_about_the_namespace(error: StatusError) -> bool:
    """Return whether the namespace is being deleted or gone, which proves nothing about our permissions."""
    return error.has_cause(NO_MORE_CONTENT) or bool(isinstance(error, NotFound) and error.details.name)
