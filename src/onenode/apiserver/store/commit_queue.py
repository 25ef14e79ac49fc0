"""Group commit: writes that come while a commit runs share the next one.

Order: a write is queued (and is from now on what later writers of its key build upon) → the batch is committed → it is
published → its writers are notified, before the watches. One batch at a time, so writes become visible in the order
they were queued in.

When a commit fails, nothing of its batch is published, and with each of its writes fail those queued behind it that
were built upon it; the others go on. On a full disk what takes room fails first, and the rest of the batch is committed
without it: nobody's deletion fails for somebody else's object. A writer that stops waiting only stops waiting: its
write may be in the batch.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence

from onenode.apiserver.store.journal import Batch, Journal
from onenode.apiserver.store.store_errors import DiskFull, WriteFailed
from onenode.apiserver.store.versions import Change, Key


class PendingWrite:
    """A change on its way."""

    __slots__ = ("_waiting", "change")

    def __init__(self, change: Change) -> None:
        self.change = change
        self._waiting: list[asyncio.Future[None]] = []

    async def settled(self) -> None:
        """Returns when the change is durable and can be seen; raises `WriteFailed` when it never will."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def succeed(self) -> None:
        for waiter in self._those_who_wait():
            waiter.set_result(None)

    def fail(self, reason: BaseException) -> None:
        for waiter in self._those_who_wait():
            error = WriteFailed(self.change.key, reason)
            error.__cause__ = reason
            waiter.set_exception(error)

    def _those_who_wait(self) -> list[asyncio.Future[None]]:
        return [waiter for waiter in self._waiting if not waiter.done()]


class CommitQueue:
    def __init__(
        self,
        journal: Journal,
        *,
        prepare: Callable[[Sequence[Change]], Batch],
        publish: Callable[[Batch], None],
        writes_per_commit: int,
    ) -> None:
        self._journal = journal
        self._prepare = prepare
        self._publish = publish
        self._writes_per_commit = writes_per_commit
        self._newest: dict[Key, PendingWrite] = {}
        self._queued: deque[PendingWrite] = deque()
        self._retried: list[PendingWrite] = []
        self._busy = False
        self._flush_asked_for = False
        self._idle_waiters: list[asyncio.Future[None]] = []
        self.failure: BaseException | None = None
        """Why the last commit failed, until one succeeds."""

    def newest(self, key: Key) -> PendingWrite | None:
        """The last write of this key that is not durable yet."""
        return self._newest.get(key)

    def add(self, change: Change) -> PendingWrite:
        write = PendingWrite(change)
        self._newest[change.key] = write
        self._queued.append(write)
        self._start_soon()
        return write

    def flush(self) -> None:
        """A commit though nobody writes: garbage leaves with it, and it shows whether the journal can be written."""
        self._flush_asked_for = True
        self._start_soon()

    async def idle(self) -> None:
        """Returns when nothing is on its way."""
        while self._busy:
            waiter = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def _start_soon(self) -> None:
        """Not at once: everybody whose turn it is now shall be in the batch."""
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        writes, self._retried = self._retried, []
        if not writes:
            count = min(len(self._queued), self._writes_per_commit)
            writes = [self._queued.popleft() for _ in range(count)]
        if not writes and not self._flush_asked_for:
            self._rest()
            return
        self._flush_asked_for = False
        batch = self._prepare([write.change for write in writes])
        try:
            commit = self._journal.commit(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the writers must hear of it
            self._fail(writes, error)
            asyncio.get_running_loop().call_soon(self._start)
        else:
            commit.add_done_callback(functools.partial(self._ended, writes, batch))

    def _ended(self, writes: Sequence[PendingWrite], batch: Batch, commit: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError("the commit was called off") if commit.cancelled() else commit.exception()
        if error is None:
            self._succeed(writes, batch)
        else:
            self._retried = _without_those_that_take_room(writes) if isinstance(error, DiskFull) else []
            again = set(map(id, self._retried))
            self._fail([write for write in writes if id(write) not in again], error)
        # After the writers that were just notified: what they write next is in the same batch.
        asyncio.get_running_loop().call_soon(self._start)

    def _succeed(self, writes: Sequence[PendingWrite], batch: Batch) -> None:
        self.failure = None
        for write in writes:
            if self._newest[write.change.key] is write:
                del self._newest[write.change.key]
        # Woken is not run: that is after the publishing, and in this order. No writer waits for a thousand watches.
        for write in writes:
            write.succeed()
        self._publish(batch)

    def _fail(self, writes: Sequence[PendingWrite], reason: BaseException) -> None:
        self.failure = reason
        failed_keys = {write.change.key for write in writes}
        built_upon = [write for write in self._queued if write.change.key in failed_keys]
        self._queued = deque(write for write in self._queued if write.change.key not in failed_keys)
        for key in failed_keys:
            del self._newest[key]
        for write in (*writes, *built_upon):
            write.fail(reason)

    def _rest(self) -> None:
        self._busy = False
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _without_those_that_take_room(writes: Sequence[PendingWrite]) -> list[PendingWrite]:
    """Return none where all are left: they have failed by themselves."""
    refused = {write.change.key for write in writes if write.change.takes_room}
    return [write for write in writes if write.change.key not in refused] if refused else []
