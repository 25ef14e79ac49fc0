"""Telling those who watch: one shared value per change, handed to hundreds of watches without copying it.

Nobody waits for a watch. One whose owner does not read is cut when more lies before it than it may hold, and the
others never notice. A watch that had read everything is never cut, however much a single commit brings.

Must not know where changes come from, nor what an object looks like.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from onenode.apiserver.store.store_errors import StoreClosed, TooSlow
from onenode.apiserver.store.versions import Change, SizeLimits


class Watches:
    def __init__(self, unread: SizeLimits, revision: Callable[[], int]) -> None:
        self._unread = unread
        self._revision = revision
        self._by_resource: dict[str, dict[Watch, None]] = {}  # sets that keep their order

    def begin(self, resource: str, namespace: str | None, kept: Sequence[Change]) -> Watch:
        """`kept` is what the watch shall see first."""
        watch = Watch(self, resource, namespace, self._unread, self._revision)
        watch.replay(kept)
        self._by_resource.setdefault(resource, {})[watch] = None
        return watch

    def tell(self, changes: Sequence[Change]) -> None:
        by_resource: dict[str, list[Change]] = {}
        for change in changes:
            by_resource.setdefault(change.key.resource, []).append(change)
        for resource, those in by_resource.items():
            for watch in tuple(self._by_resource.get(resource, ())):
                watch.tell(those)

    def forget(self, watch: Watch) -> None:
        watches = self._by_resource.get(watch.resource, {})
        watches.pop(watch, None)
        if not watches:
            self._by_resource.pop(watch.resource, None)

    def close(self) -> None:
        """Each ends when its owner has read what is there."""
        for watches in tuple(self._by_resource.values()):
            for watch in tuple(watches):
                watch.close()

    def __len__(self) -> int:
        return sum(map(len, self._by_resource.values()))


class Watch:
    """The changes of one kind of object, in order, for one reader: `with store.watch(…) as watch: async for …`."""

    def __init__(
        self, watches: Watches, resource: str, namespace: str | None, bounds: SizeLimits, revision: Callable[[], int]
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self._watches = watches
        self._bounds = bounds
        self._revision = revision
        self._unread: deque[Change] = deque()
        self._unread_bytes = 0
        self._replayed = 0  # how many of the unread were there when the watch began
        self._unread_when_cut: int | None = None
        self._closed_at: int | None = None
        self._news: asyncio.Future[None] | None = None

    @property
    def seen_until(self) -> int:
        """A new watch behind this revision misses nothing and repeats nothing: what a bookmark may say."""
        self._refuse_if_cut()
        if self._unread:
            return self._unread[0].revision - 1
        return self._revision() if self._closed_at is None else self._closed_at

    @property
    def has_news(self) -> bool:
        """Whether a change came that was not read, or more than the watch may hold."""
        return bool(self._unread) or self._unread_when_cut is not None

    @property
    def was_cut(self) -> bool:
        """Whether more lay before its owner than it may hold."""
        return self._unread_when_cut is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while not self._unread:
            self._refuse_if_cut()
            if self._closed_at is not None:
                raise StopAsyncIteration
            await self._wait_for_news()
        return self._next()

    async def news(self) -> list[Change] | None:
        """Everything there is to read, as soon as there is any; nothing after a nudge; None at the end."""
        if not self._unread and self._closed_at is None and self._unread_when_cut is None:
            await self._wait_for_news()
        if self._unread:
            return self.take()
        self._refuse_if_cut()
        return [] if self._closed_at is None else None

    def nudge(self) -> None:
        """Wakes who waits for news, though there are none."""
        self._wake()

    def take(self) -> list[Change]:
        """Everything that can be read without waiting."""
        return [self._next() for _ in range(len(self._unread))]

    def close(self) -> None:
        """No more changes come; those that are here can still be read."""
        if self._closed_at is None:
            self._closed_at = self._revision()
        self._watches.forget(self)
        self._wake()

    def replay(self, kept: Sequence[Change]) -> None:
        self._add(kept)
        self._replayed = len(self._unread)
        self._unread_bytes = 0

    def tell(self, changes: Sequence[Change]) -> None:
        if self._bounds.hold(len(self._unread) - self._replayed, self._unread_bytes):
            self._add(changes)
        else:
            self._unread_when_cut = len(self._unread)
            self._unread.clear()
            self._watches.forget(self)
        if self._unread or self._unread_when_cut is not None:
            self._wake()

    def _refuse_if_cut(self) -> None:
        if self._unread_when_cut is not None:
            raise TooSlow(self._unread_when_cut)

    def _add(self, changes: Sequence[Change]) -> None:
        if self.namespace is not None:
            changes = [change for change in changes if change.key.namespace == self.namespace]
        self._unread.extend(changes)
        self._unread_bytes += sum(change.size for change in changes)

    def _next(self) -> Change:
        change = self._unread.popleft()
        if self._replayed:
            self._replayed -= 1
        else:
            self._unread_bytes -= change.size
        return change

    async def _wait_for_news(self) -> None:
        if self._news is not None:
            raise RuntimeError("two tasks read from one watch; begin a watch for each")
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


# ---- waiting for a revision ------------------------------------------------------------------------------------------

# Waiting for a revision that others are going to make.


class Arrivals:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], int] = {}

    async def wait_for(self, revision: int) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = revision
        try:
            await waiter
        finally:
            del self._waiting[waiter]

    def arrived(self, revision: int) -> None:
        for waiter, awaited in self._waiting.items():
            if awaited <= revision and not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(StoreClosed())
