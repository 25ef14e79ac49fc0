"""Tells people what happened to an object, as Kubernetes Events. Nobody waits for it and nothing fails because of it.

`normal` and `warning` only note; `run` writes, one after another. A repetition becomes a series on the event that is
there. Written as events.k8s.io/v1, or as core/v1 where only that is permitted. What cannot be told (no right, no room,
a server that stays away) is dropped and counted; a missing right is logged once.

An event's name is its own, so that writing it again after a broken connection finds it there and makes no second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from random import Random
from typing import Any, Final

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound, StatusError
from orlop.kube.event_bodies import (
    Reference,
    Reporter,
    core_form,
    core_form_repeated,
    event_name,
    new_form,
    new_form_repeated,
    occurrence,
)
from orlop.kube.event_book import Entry, EventBook
from orlop.kube.kinds import CORE_EVENT, EVENT
from orlop.kube.objects import ObjectName
from orlop.kube.retry_rules import is_passing

MOST_ATTEMPTS: Final = 3
RETRY: Final = Backoff(initial=5.0, factor=3.0, cap=60.0, jitter=0.5)
REFUSED_SECONDS: Final = 300.0
"""How long nothing more is tried in a namespace where we may not write."""
MOST_REFUSED: Final = 1000
NO_MORE_CONTENT: Final = "NamespaceTerminating"


class EventRecorder:
    """Whatever it is asked to tell, its caller goes on at once."""

    def __init__(
        self, client: KubeClient, reporter: Reporter, *, clock: Clock, random: Random, log: Log, metrics: Metrics
    ) -> None:
        self._client = client
        self._reporter = reporter
        self._clock = clock
        self._random = random
        self._log = log
        self._dropped = metrics.counter(
            "orlop_events_dropped_total", "Events that nobody will see, by the reason.", ("reason",)
        )
        self._book = EventBook(random)
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._use_core = False
        self._may_patch = True
        self._refused_until: dict[str, float] = {}
        self._last_name = 0
        self._logged: set[str] = set()

    # ---- for whoever has something to tell -----------------------------------------------------------------------

    def normal(
        self,
        obj: Mapping[str, Any] | Reference,
        reason: str,
        note: str,
        *,
        action: str = "",
        related: Mapping[str, Any] | Reference | None = None,
    ) -> None:
        self._note(obj, related, warning=False, reason=reason, note=note, action=action)

    def warning(
        self,
        obj: Mapping[str, Any] | Reference,
        reason: str,
        note: str,
        *,
        action: str = "",
        related: Mapping[str, Any] | Reference | None = None,
    ) -> None:
        self._note(obj, related, warning=True, reason=reason, note=note, action=action)

    def _note(self, obj: Any, related: Any, **what: Any) -> None:
        try:
            other = None if related is None else _reference(related)
            told = occurrence(_reference(obj), related=other, **what)
            if self._book.add(told, self._clock.now(), self._clock.elapsed()):
                self._news.set()
            else:
                self._drop("no room")
        except Exception as error:  # noqa: BLE001 - what is only told must not harm what is done
            self._log.exception("an event could not be noted", error)
            self._drop("unusable")

    # ---- writing -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever."""
        while True:
            self._news.clear()
            for entry in self._book.take_due(self._clock.elapsed()):
                await self._tell(entry)
            if not self._book.waiting():
                self._idle.set()
            await self._wait()

    async def drain(self, within: float) -> None:
        """Waits until all is told that waits to be told, but not for longer; `run` must be running."""
        self._book.hurry(self._clock.elapsed())
        self._idle.clear()
        self._news.set()
        try:
            async with self._clock.timeout(within):
                await self._idle.wait()
        except TimeoutError:
            self._log.info("some events were left untold", count=self._book.waiting())

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

    async def _tell(self, entry: Entry) -> None:
        count = entry.count
        try:
            if self._clock.elapsed() < self._refused_until.get(entry.told.namespace, 0.0):
                self._drop("refused", count - entry.written)
            elif entry.exists:
                await self._repeat(entry)
            else:
                await self._create(entry)
        except ApiError as error:
            self._failed(entry, count, error)
            return
        self._book.written(entry, count, self._clock.elapsed())

    async def _create(self, entry: Entry) -> None:
        entry.event = entry.event or event_name(entry.told, self._moment(entry.first))
        try:
            await (self._post_core(entry) if self._use_core else self._post_new(entry))
        except (Forbidden, NotFound) as error:
            if self._use_core or _is_about_the_namespace(error):
                raise
            await self._fall_back(entry)
        entry.exists, entry.in_core = True, self._use_core

    async def _fall_back(self, entry: Entry) -> None:
        """To the older form, and for good if that is permitted."""
        await self._post_core(entry)
        self._use_core = True
        self._log_once("events are written as core/v1: events.k8s.io/v1 is not permitted or not served")

    async def _post_new(self, entry: Entry) -> None:
        with suppress(AlreadyExists):  # the answer to our first attempt was lost
            await self._client.create(EVENT, new_form(entry.event, entry.told, self._reporter, entry.seen))

    async def _post_core(self, entry: Entry) -> None:
        with suppress(AlreadyExists):
            await self._client.create(CORE_EVENT, core_form(entry.event, entry.told, self._reporter, entry.seen))

    async def _repeat(self, entry: Entry) -> None:
        if not self._may_patch:
            return
        changes = core_form_repeated(entry.seen) if entry.in_core else new_form_repeated(entry.seen)
        kind = CORE_EVENT if entry.in_core else EVENT
        try:
            await self._client.patch(kind, ObjectName(entry.told.namespace, entry.event), MergePatch(changes))
        except NotFound:  # events are kept for an hour
            entry.event, entry.exists = "", False
            await self._create(entry)
        except Forbidden as error:
            if _is_about_the_namespace(error):
                raise
            self._may_patch = False
            self._log_once("repeated events are not counted: patching events is not permitted", error)

    # ---- what goes wrong -----------------------------------------------------------------------------------------

    def _failed(self, entry: Entry, count: int, error: ApiError) -> None:
        entry.failures += 1
        if is_passing(error) and entry.failures < MOST_ATTEMPTS:
            again = RETRY.delay(entry.failures, self._random)
            self._book.postpone(entry, self._clock.elapsed() + again)
            return
        if isinstance(error, StatusError) and not is_passing(error):
            self._refuse(entry.told.namespace, count - entry.written, error)
        else:
            self._drop("failed", count - entry.written)
            self._log.debug("an event was dropped", error=error)
        self._book.written(entry, count, self._clock.elapsed())
        if not entry.exists:
            self._book.forget(entry)  # when it happens again it is told anew

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
        """In nanoseconds; never the same twice."""
        self._last_name = max(self._last_name + 1, int(first.timestamp() * 1_000_000) * 1000)
        return self._last_name


def _reference(obj: Mapping[str, Any] | Reference) -> Reference:
    return obj if isinstance(obj, Reference) else Reference.to(obj)


def _is_about_the_namespace(error: StatusError) -> bool:
    """It is going or gone, and so is everything in it; that says nothing of our rights."""
    return error.has_cause(NO_MORE_CONTENT) or bool(isinstance(error, NotFound) and error.details.name)
