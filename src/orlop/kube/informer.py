"""The objects of one kind kept in memory as the API server has them, a little later, and who wants to know of changes.

Order, again and again: list everything (a consistent read: never an older state than one somebody has seen) → watch
from that version on → when the watch ends, watch on from the last version seen, or list anew (`informer_rules`).
For each change: the cache first, then the listeners, who are told the name and look for themselves. What vanished
between two lists is told as well.

The cache is behind, always. Whoever acted on the API server and must not act on what was before waits with `reached`
(or, after a deletion, `gone`): until the watch has come so far, or else until a list begun after that is there, which
is asked for when the watch takes too long. So nobody waits for ever for an event that a selector keeps from us.

Must not be told what happened to an object, and must not tell: levels only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Final

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.client import EVERYTHING, KubeClient, Selection, WatchEvent
from orlop.kube.errors import ApiError, CacheBehind, ConnectionBroken
from orlop.kube.informer_listeners import Listener, Listeners
from orlop.kube.informer_rules import EndedWatch, Standing, after_list, after_watch, after_wish, asked_to_wait
from orlop.kube.kinds import Kind
from orlop.kube.object_cache import CachedObject, Keys, ObjectCache
from orlop.kube.objects import Object, ObjectName, name_of, resource_version, uid, version_order

BACKOFF: Final = Backoff(initial=0.8, factor=2.0, cap=30.0, jitter=1.0)
"""client-go's."""
WATCH_SECONDS: Final = 300
"""A server is asked to end each watch after this to twice this, so that none lives on a connection that is dead."""
WATCH_GRACE_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 2.0
"""How long a watch may take to bring what has been written before a list is asked for."""
LONGEST_WAIT_SECONDS: Final = 60.0

Transform = Callable[[Object], Object]
"""May drop what nobody reads, also in place; must keep the name, the namespace, the uid and the resourceVersion."""


def as_it_came(obj: Object) -> Object:
    return obj


def without_managed_fields(obj: Object) -> Object:
    obj["metadata"].pop("managedFields", None)
    return obj


@dataclass(frozen=True, slots=True)
class Watched:
    """What an informer is about."""

    kind: Kind
    selection: Selection = EVERYTHING
    transform: Transform = as_it_came

    def __str__(self) -> str:
        place = f" in {self.selection.namespace}" if self.selection.namespace else ""
        chosen = " and ".join(filter(None, (self.selection.labels, self.selection.fields)))
        return f"{self.kind.resource}{place}{f' with {chosen}' if chosen else ''}"


class _Interrupted(Exception):
    """The watch was given up because a list is wanted."""


class Informer:
    """Nothing happens unless somebody keeps `run` running."""

    def __init__(self, client: KubeClient, watched: Watched, *, clock: Clock, random: Random, log: Log) -> None:
        self.watched = watched
        self.cache = ObjectCache()
        self._client = client
        self._clock = clock
        self._random = random
        self._log = log.bind(watching=str(watched))
        self._listeners = Listeners(clock=clock, random=random, log=self._log)
        self._standing = Standing()
        self._version = ""
        self._lists_begun = 0
        self._last_list = 0
        self._list_wanted = False
        self._watch_scope: asyncio.Timeout | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._problem: ApiError | None = None
        self._failed_to = ""

    # ---- for readers ---------------------------------------------------------------------------------------------

    def get(self, name: ObjectName) -> CachedObject | None:
        return self.cache.get(name)

    @property
    def synced(self) -> bool:
        """Whether everything that was there at the beginning is here."""
        return self._last_list > 0

    @property
    def problem(self) -> str | None:
        """Why the cache is not kept up to date, while it is not."""
        return self._problem.message if self._problem is not None else None

    def add_index(self, name: str, keys: Keys) -> None:
        self.cache.add_index(name, keys)

    def add_listener(self, listener: Listener, *, resync: float = 0.0) -> Callable[[], None]:
        """Told at once of everything that is here already; gives what ends it."""
        remove = self._listeners.add(listener, resync)
        for name in self.cache.names():
            self._listeners.tell_one(listener, name)
        return remove

    async def wait_synced(self) -> None:
        await self._until(lambda: self.synced)

    async def reached(self, version: str, *, within: float = LONGEST_WAIT_SECONDS) -> None:
        """Returns when the cache is at least as new as this version, which an answer of this server has named.

        Raises `CacheBehind` when that could not be had in so many seconds.
        """
        wanted = version_order(version)
        await self._see(lambda: bool(self._version) and version_order(self._version) >= wanted, within, version)

    async def gone(self, name: ObjectName, object_uid: str, *, within: float = LONGEST_WAIT_SECONDS) -> None:
        """Returns when the object that had this uid is no longer in the cache; raises as `reached` does."""
        await self._see(lambda: self.synced and not self._has(name, object_uid), within, f"the end of {name}")

    def _has(self, name: ObjectName, object_uid: str) -> bool:
        known = self.cache.get(name)
        return known is not None and uid(known) == object_uid

    async def _see(self, seen: Callable[[], bool], within: float, what: str) -> None:
        begun = self._lists_begun

        def is_new_enough() -> bool:
            return seen() or self._last_list > begun

        try:
            async with self._clock.timeout(within):
                try:
                    async with self._clock.timeout(min(PATIENCE_SECONDS, within / 2)):
                        await self._until(is_new_enough)
                except TimeoutError:
                    self._want_list()
                    await self._until(is_new_enough)
        except TimeoutError:
            problem = f": {self._problem.message}" if self._problem is not None else ""
            raise CacheBehind(
                f"the cache of {self.watched} has not seen {what} in {within:g} seconds{problem}"
            ) from None

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            progress = asyncio.get_running_loop().create_future()
            self._waiting.add(progress)
            try:
                await progress
            finally:
                self._waiting.discard(progress)

    # ---- keeping up ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever, whatever the server does."""
        async with TaskGroup() as tasks:
            tasks.start(self._listeners.resync(self.cache.names), name=f"resync of {self.watched}")
            while True:
                error = await (self._list() if self._standing.must_list else self._watch())
                pause = max(BACKOFF.delay(self._standing.failures, self._random), asked_to_wait(error))
                if pause:
                    await self._clock.sleep(pause)

    async def _list(self) -> ApiError | None:
        self._lists_begun += 1
        number, self._list_wanted = self._lists_begun, False
        try:
            found = await self._client.list(self.watched.kind, self.watched.selection)
            if not found.version:
                raise ConnectionBroken("the server listed objects and said no version")
        except ApiError as error:
            self._standing = after_list(self._standing, error)
            self._note(error, "list")
            return error
        names = self.cache.replace(self._transformed(obj) for obj in found.items)
        self._version = found.version
        self._last_list = number
        self._standing = after_list(self._standing, None)
        self._listeners.tell(names)
        self._progressed()
        if self._failed_to == "list":
            self._note(None)
        return None

    async def _watch(self) -> ApiError | None:
        began, version = self._clock.elapsed(), self._version
        error: ApiError | None = None
        try:
            await self._follow()
        except ApiError as raised:
            error = raised
        except _Interrupted:
            self._standing = after_wish(self._standing)
            return None
        ended = EndedWatch(error, self._version != version, self._clock.elapsed() - began)
        self._standing = after_watch(self._standing, ended)
        if error is not None or not self._standing.failures:
            self._note(error, "watch")
        return error

    async def _follow(self) -> None:
        """Until the watch ends, or a list is wanted; a watch that outlives its time is one nobody serves any more."""
        seconds = WATCH_SECONDS + int(WATCH_SECONDS * self._random.random())
        try:
            async with asyncio.timeout(None) as self._watch_scope:
                if self._list_wanted:
                    raise _Interrupted
                await self._follow_for(seconds)
        except TimeoutError:
            raise _Interrupted from None
        finally:
            self._watch_scope = None

    async def _follow_for(self, seconds: int) -> None:
        kind, selection = self.watched.kind, self.watched.selection
        try:
            async with (
                self._clock.timeout(seconds + WATCH_GRACE_SECONDS),
                aclosing(self._client.watch(kind, selection, after=self._version, seconds=seconds)) as events,
            ):
                async for event in events:
                    self._take(event)
        except TimeoutError:
            raise ConnectionBroken(f"the watch of {self.watched} did not end when it should have") from None

    def _take(self, event: WatchEvent) -> None:
        version = resource_version(event.object)
        if not version:
            raise ConnectionBroken(f"the watch of {self.watched} sent an object without a version")
        match event.type:
            case "ADDED" | "MODIFIED":
                name = name_of(event.object)
                self.cache.put(name, self._transformed(event.object))
                self._move_on(version, name)
            case "DELETED":
                name = name_of(event.object)
                self.cache.remove(name)
                self._move_on(version, name)
            case "BOOKMARK":
                self._move_on(version)
            case _:
                self._log.debug("the watch sent an event of an unknown type", type=event.type)

    def _move_on(self, version: str, *names: ObjectName) -> None:
        self._version = version
        self._note(None)
        self._listeners.tell(names)
        self._progressed()

    def _transformed(self, obj: Object) -> CachedObject:
        try:
            return self.watched.transform(obj)
        except Exception as error:  # noqa: BLE001 - an odd object must not end the watch of all others
            self._log.exception("an object could not be made smaller", error, name=str(name_of(obj)))
            return obj

    # ---- who waits -----------------------------------------------------------------------------------------------

    def _want_list(self) -> None:
        self._list_wanted = True
        if self._watch_scope is not None:
            self._watch_scope.reschedule(asyncio.get_running_loop().time())

    def _progressed(self) -> None:
        for progress in self._waiting:
            if not progress.done():
                progress.set_result(None)

    def _note(self, error: ApiError | None, what: str = "") -> None:
        """A problem is told once, and its end; a list that succeeds ends no problem of the watch."""
        before, self._problem, self._failed_to = self._problem, error, what if error is not None else ""
        if error is not None and (before is None or str(before) != str(error)):
            self._log.warning(f"the cache is not kept up to date: the {what} failed", error=error)
        elif error is None and before is not None:
            self._log.info("the cache is kept up to date again")
