"""Keep the objects of one kind in memory, as the API server has them, and notify listeners of changes.

Order, repeated for ever: list everything (a consistent read: never older than a state that any client has read) → watch
from that resourceVersion → when the watch ends, watch from the last resourceVersion, or list again (`informer_rules`).
For each change: update the cache, then call the listeners with the object's name; they read the cache themselves.
Listeners are also called for objects that disappeared between two lists.

The cache is always behind. A controller that wrote to the API server and must not act on an older state waits with
`reached` (or, after a delete, `gone`): until the watch has caught up, or until a list that started later has finished.
If the watch takes too long, `reached` asks for such a list: an event that a selector hides would never come.

Listeners never learn what happened to an object: controllers are level-triggered.
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
from orlop.kube.api_errors import ApiError, CacheBehind, ConnectionBroken
from orlop.kube.cache.informer_listeners import Listener, Listeners
from orlop.kube.cache.informer_rules import (
    EndedWatch,
    Standing,
    after_interruption,
    after_list,
    after_watch,
    asked_to_wait,
)
from orlop.kube.cache.object_cache import CachedObject, Keys, ObjectCache
from orlop.kube.client import EVERYTHING, KubeClient, Selection, WatchEvent
from orlop.kube.kinds import Kind
from orlop.kube.objects import Object, ObjectName, name_of, resource_version, uid, version_order

BACKOFF: Final = Backoff(initial=0.8, factor=2.0, cap=30.0, jitter=1.0)
"""The same as client-go's reflector."""
PATIENCE_SECONDS: Final = 2.0
"""How long `reached` and `gone` wait for the watch before they ask for a list."""
LONGEST_WAIT_SECONDS: Final = 60.0

Transform = Callable[[Object], Object]
"""May remove fields that no listener reads, also in place; must keep name, namespace, uid and resourceVersion."""


def unchanged(obj: Object) -> Object:
    return obj


def without_managed_fields(obj: Object) -> Object:
    obj["metadata"].pop("managedFields", None)
    return obj


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """How long one watch request lasts, in seconds.

    The server is asked to end each watch after a random time between `shortest` and `longest`, and a watch that has not
    ended `grace` seconds after its time is on a dead connection. This is the only proof that a quiet watch is alive
    which works through balancers: TCP keepalive stops at the first hop, and bookmarks come once a minute at best.
    client-go asks for 5 to 10 minutes because HTTP/2 has pings, with which it notices after 45 seconds; we speak
    HTTP/1.1. A server sends a bookmark just before it ends a watch (Kubernetes: 2 seconds before), and the connection
    is used again, so the price is one small request for each watch in about 25 seconds.
    """

    shortest: int = 20
    longest: int = 30
    grace: float = 10.0


REMOTE_WATCHES: Final = WatchLimits()
LOCAL_WATCHES: Final = WatchLimits(shortest=300, longest=600, grace=30.0)
"""client-go's times, for servers in this process or behind a unix socket: nothing can vanish on that path."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Which objects an informer holds, and which of their fields."""

    kind: Kind
    selection: Selection = EVERYTHING
    transform: Transform = unchanged

    def __str__(self) -> str:
        place = f" in {self.selection.namespace}" if self.selection.namespace else ""
        selectors = " and ".join(filter(None, (self.selection.labels, self.selection.fields)))
        return f"{self.kind.resource}{place}{f' with {selectors}' if selectors else ''}"


class _Interrupted(Exception):
    """The watch was stopped because a waiter needs a list."""


class Informer:
    """The cache of one kind. It is filled and updated only while `run` runs."""

    def __init__(
        self,
        client: KubeClient,
        watched: Watched,
        *,
        clock: Clock,
        random: Random,
        log: Log,
        limits: WatchLimits | None = None,
    ) -> None:
        self.watched = watched
        self._limits = limits or (REMOTE_WATCHES if client.is_remote else LOCAL_WATCHES)
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
        """Whether the first list has finished. Before that an object that is missing here may exist."""
        return self._last_list > 0

    @property
    def version(self) -> str:
        """The resource version up to which the cache has followed the API server; empty before the first list."""
        return self._version

    @property
    def problem(self) -> str | None:
        """Why the cache is not being updated, or None while it is."""
        return self._problem.message if self._problem is not None else None

    def add_index(self, name: str, keys: Keys) -> None:
        self.cache.add_index(name, keys)

    def add_listener(self, listener: Listener, *, resync: float = 0.0) -> Callable[[], None]:
        """Call `listener` for every cached object, then on each change. Return an unsubscribe function."""
        remove = self._listeners.add(listener, resync)
        for name in self.cache.names():
            self._listeners.notify_one(listener, name)
        return remove

    async def wait_synced(self) -> None:
        await self._until(lambda: self.synced)

    async def reached(self, version: str, *, within: float = LONGEST_WAIT_SECONDS) -> None:
        """Wait until the cache is at least as new as `version`, a resourceVersion from a response of this server.

        Raise `CacheBehind` after `within` seconds.
        """
        least = version_order(version)
        await self._wait_for(lambda: bool(self._version) and version_order(self._version) >= least, within, version)

    async def gone(self, name: ObjectName, object_uid: str, *, within: float = LONGEST_WAIT_SECONDS) -> None:
        """Wait until the object with this uid is not in the cache; raise as `reached` does."""

        def is_gone() -> bool:
            cached = self.cache.get(name)
            return self.synced and (cached is None or uid(cached) != object_uid)

        await self._wait_for(is_gone, within, f"the deletion of {name}")

    async def _wait_for(self, is_seen: Callable[[], bool], within: float, what: str) -> None:
        # The server may have read a list in progress before the caller's write, so only a later list proves anything.
        begun = self._lists_begun

        def is_new_enough() -> bool:
            return is_seen() or self._last_list > begun

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
                f"the cache of {self.watched} has not seen {what} within {within:g} seconds{problem}"
            ) from None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            progress = asyncio.get_running_loop().create_future()
            self._waiting.add(progress)
            try:
                await progress
            finally:
                self._waiting.discard(progress)

    # ---- keeping up ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Update the cache for ever, whatever the server does."""
        async with TaskGroup() as tasks:
            tasks.start(self._listeners.resync(self.cache.names), name=f"resync of {self.watched}")
            while True:
                error = await (self._list() if self._standing.must_list else self._watch())
                # Pause after a failed list too: otherwise a server that refuses it at once would get requests non-stop.
                pause = max(BACKOFF.delay(self._standing.failures, self._random), asked_to_wait(error))
                if pause:
                    await self._clock.sleep(pause)

    async def _list(self) -> ApiError | None:
        self._lists_begun += 1
        # Clear it before the request, not after: if a waiter needs a list while this one is in progress, another must
        # follow, because the server may have read this one before the write that the waiter waits for.
        number, self._list_wanted = self._lists_begun, False
        try:
            listing = await self._client.list(self.watched.kind, self.watched.selection, transform=self._transformed)
            if not listing.version:
                raise ConnectionBroken("the server's list has no resourceVersion")
        except ApiError as error:
            self._standing = after_list(self._standing, error)
            self._note(error, "list")
            return error
        # Update the cache before listeners and waiters are called: they must find the new state.
        names = self.cache.replace(listing.items)
        # Set it even if it is smaller than the last one: after the restore of a backup it is.
        self._version = listing.version
        self._last_list = number
        self._standing = after_list(self._standing, None)
        self._listeners.notify(names)
        self._progressed()
        if self._failed_to == "list":
            self._note(None)
        return None

    async def _watch(self) -> ApiError | None:
        began, version = self._clock.elapsed(), self._version
        error: ApiError | None = None
        try:
            await self._watch_until_list_is_needed()
        except ApiError as raised:
            error = raised
        except _Interrupted:
            self._standing = after_interruption(self._standing)
            return None
        ended = EndedWatch(error, self._version != version, self._clock.elapsed() - began)
        self._standing = after_watch(self._standing, ended)
        if error is not None or not self._standing.failures:
            self._note(error, "watch")
        return error

    async def _watch_until_list_is_needed(self) -> None:
        # A random time, so that the informers of a cluster do not all reconnect at once after a server was restarted.
        spread = self._limits.longest - self._limits.shortest
        seconds = self._limits.shortest + int(spread * self._random.random())
        try:
            async with asyncio.timeout(None) as self._watch_scope:
                # The need for a list may have come while there was no watch to interrupt: during the last list, or in
                # the pause after a failure.
                if self._list_wanted:
                    raise _Interrupted
                await self._watch_for(seconds)
        except TimeoutError:
            raise _Interrupted from None
        finally:
            self._watch_scope = None

    async def _watch_for(self, seconds: int) -> None:
        kind, selection = self.watched.kind, self.watched.selection
        try:
            async with (
                self._clock.timeout(seconds + self._limits.grace),
                aclosing(self._client.watch(kind, selection, after=self._version, seconds=seconds)) as events,
            ):
                async for event in events:
                    self._apply(event)
        except TimeoutError:
            raise ConnectionBroken(f"the watch of {self.watched} did not end in time: the connection is dead") from None

    def _apply(self, event: WatchEvent) -> None:
        version = resource_version(event.object)
        if not version:
            raise ConnectionBroken(f"the watch of {self.watched} sent an object without a resourceVersion")
        match event.type:
            case "ADDED" | "MODIFIED":
                name = name_of(event.object)
                self.cache.put(name, self._transformed(event.object))
                self._advance(version, name)
            case "DELETED":
                name = name_of(event.object)
                self.cache.remove(name)
                self._advance(version, name)
            case "BOOKMARK":
                self._advance(version)
            case _:
                self._log.debug("watch event of unknown type ignored", type=event.type)

    def _advance(self, version: str, *names: ObjectName) -> None:
        self._version = version
        self._note(None)
        self._listeners.notify(names)
        self._progressed()

    def _transformed(self, obj: Object) -> CachedObject:
        try:
            return self.watched.transform(obj)
        except Exception as error:  # noqa: BLE001 - one odd object must not end the watch of all others
            self._log.exception("transform failed; object kept unchanged", error, name=str(name_of(obj)))
            return obj

    # ---- waiters -----------------------------------------------------------------------------------------------

    def _want_list(self) -> None:
        self._list_wanted = True
        if self._watch_scope is not None:
            self._watch_scope.reschedule(asyncio.get_running_loop().time())

    def _progressed(self) -> None:
        for progress in self._waiting:
            if not progress.done():
                progress.set_result(None)

    def _note(self, error: ApiError | None, request: str = "") -> None:
        """Log a problem once, and its end. A list that succeeds does not end a problem of the watch."""
        before, self._problem, self._failed_to = self._problem, error, request if error is not None else ""
        if error is not None and (before is None or str(before) != str(error)):
            self._log.warning(f"{request} failed; cache is not being updated", error=error)
        elif error is None and before is not None:
            self._log.info("cache is being updated again")
