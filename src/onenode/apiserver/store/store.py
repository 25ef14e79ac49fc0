"""The storage behind the one-machine API server: everything in memory for reading, a journal for durability.

Order of effects of a write: decide upon the newest version (also one that is not durable yet), giving the write its
revision → commit, together with others → publish (readers, those who watch) → answer the writer. So nobody ever reads,
or gets as an answer, what a power loss could undo. An answer that writes nothing (a refusal, an unchanged object) waits
for the write it was built upon as well.

There is one counter of revisions for all objects. It never goes back, and no number that anybody has seen is given
twice; a failed write leaves a gap. A write that failed may in rare cases be found after a restart, if the disk had kept
it all the same: failed means "not known to be durable".

One process, one event loop. Must not look into the JSON it keeps.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from onenode.apiserver.store.commit_queue import CommitQueue
from onenode.apiserver.store.journal import Batch, Journal, JournalState, NoJournal
from onenode.apiserver.store.object_history import ObjectTable, WatchHistory
from onenode.apiserver.store.store_errors import NoSuchObject, ObjectExists, RevisionConflict, StoreClosed
from onenode.apiserver.store.versions import (
    DEFAULT_LIMITS,
    Change,
    ChangeKind,
    Key,
    Limits,
    Page,
    Put,
    Remove,
    Stored,
    Unchanged,
    WriteDecision,
)
from onenode.apiserver.store.watches import Arrivals, Watch, Watches


class ObjectStore:
    def __init__(self, journal: Journal, kept: JournalState, limits: Limits) -> None:
        self._journal = journal
        self._table = ObjectTable()
        self._history = WatchHistory(limits.history, kept.oldest, kept.revision)
        self._watches = Watches(limits.unread, lambda: self._history.revision)
        self._arrivals = Arrivals()
        self._queue = CommitQueue(
            journal, prepare=self._prepare, publish=self._publish, writes_per_commit=limits.writes_per_commit
        )
        self._last_given = kept.revision
        self._closed = False
        for stored in kept.objects.values():
            self._table.put(stored)
        self._history.append(kept.changes)

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The newest that can be seen."""
        return self._history.revision

    @property
    def oldest(self) -> int:
        """The oldest that can be listed at, or watched from."""
        return self._history.oldest

    def get(self, key: Key) -> Stored | None:
        return self._table.get(key)

    def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        after: Key | None = None,
        limit: int | None = None,
        at: int | None = None,
    ) -> Page:
        """Those behind the key `after`, as they were at the revision `at`, or as they are now."""
        revision = self.revision if at is None else at
        past = self._history.past(resource, revision)
        keys = self._table.select(resource, namespace, past, after)
        chosen = keys if limit is None else keys[:limit]
        return Page(revision, self._table.objects(chosen, past), len(keys) - len(chosen))

    async def reached(self, revision: int) -> None:
        """Returns when this revision can be seen; for how long, `async with clock.timeout(…)` around it decides."""
        self._refuse_if_closed()
        if revision > self.revision:
            await self._arrivals.wait_for(revision)

    def watch(self, resource: str, namespace: str | None = None, *, after: int) -> Watch:
        """Every change behind this revision, those that are kept first; raises `Expired` or `NotReached`."""
        self._refuse_if_closed()
        kept = [change for change in self._history.after(after) if change.key.resource == resource]
        return self._watches.begin(resource, namespace, kept)

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def create(self, key: Key, make: Callable[[int], bytes]) -> Stored:
        def decide(newest: Stored | None, revision: int) -> WriteDecision:
            if newest is not None:
                raise ObjectExists(key)
            return Put(make(revision))

        return await self.write(key, decide)

    async def update(
        self, key: Key, expected_revision: int | None, change: Callable[[Stored, int], WriteDecision]
    ) -> Stored:
        def decide(newest: Stored | None, revision: int) -> WriteDecision:
            return change(_expected(key, newest, expected_revision), revision)

        return await self.write(key, decide)

    async def delete(
        self, key: Key, expected_revision: int | None, make_tombstone: Callable[[Stored, int], bytes]
    ) -> Stored:
        def decide(newest: Stored | None, revision: int) -> WriteDecision:
            return Remove(make_tombstone(_expected(key, newest, expected_revision), revision))

        return await self.write(key, decide)

    async def write(self, key: Key, decide: Callable[[Stored | None, int], WriteDecision]) -> Stored:
        """`decide` is called once, with the newest version and the revision of a write; what it raises is raised.

        Returns the version that was written, the tombstone of a deletion, or what was left unchanged.
        """
        self._refuse_if_closed()
        key = _fit_to_keep(key)
        under_way = self._queue.newest(key)
        newest = under_way.change.result() if under_way else self._table.get(key)
        try:
            change = _change(key, newest, self._last_given + 1, decide)
        except Exception:
            if under_way is not None:
                await under_way.settled()
            raise
        if change is not None:
            self._last_given = change.revision
            under_way = self._queue.add(change)
        if under_way is not None:
            await under_way.settled()
        return change.after if change else _expected(key, newest, None)

    # ---- housekeeping ------------------------------------------------------------------------------------------------

    def why_not_writable(self) -> str | None:
        """Return why the last commit failed; None if it did not.

        After a failure, each call starts a commit that changes nothing, and a later call returns the result: otherwise
        the failure would stay until somebody writes.
        """
        if (failure := self._queue.failure) is None:
            return None
        if not self._closed:
            self._queue.flush()
        return f"the last change could not be made durable: {failure}"

    def compact(self, before: int) -> None:
        """Forgets the history up to this revision; the database follows soon."""
        self._refuse_if_closed()
        self._history.drop_until(before)
        self._queue.flush()

    async def close(self) -> None:
        """What was begun is finished; watches end when what is there has been read."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._queue.idle()
        finally:
            self._watches.close()
            self._arrivals.close()
            await self._journal.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosed

    def _prepare(self, changes: Sequence[Change]) -> Batch:
        if self._journal.is_short_of_room:
            self._history.drop_until(self.revision)  # watches that would begin there list anew
        return Batch(changes, tuple(self._history.garbage), self._history.oldest)

    def _publish(self, batch: Batch) -> None:
        """All at once, as far as any reader can tell: nobody else runs meanwhile."""
        del self._history.garbage[: len(batch.garbage)]
        for change in batch.changes:
            if change.kind is ChangeKind.DELETED:
                self._table.remove(change.key)
            else:
                self._table.put(change.after)
        self._history.append(batch.changes)
        self._watches.tell(batch.changes)
        self._arrivals.arrived(self.revision)


def _fit_to_keep(key: Key) -> Key:
    str(key).encode()  # here it fails one writer; in the database it would fail a batch
    return Key(sys.intern(key.resource), sys.intern(key.namespace), key.name)  # one copy of what thousands share


def _expected(key: Key, newest: Stored | None, revision: int | None) -> Stored:
    if newest is None:
        raise NoSuchObject(key)
    if revision is not None and newest.revision != revision:
        raise RevisionConflict(key, revision, newest.revision)
    return newest


def _change(
    key: Key, newest: Stored | None, revision: int, decide: Callable[[Stored | None, int], WriteDecision]
) -> Change | None:
    match decide(newest, revision):
        case Put(json):
            kind = ChangeKind.CREATED if newest is None else ChangeKind.UPDATED
            return Change(kind, Stored(key, revision, json), newest)
        case Remove(tombstone):
            return Change(ChangeKind.DELETED, Stored(key, revision, tombstone), _expected(key, newest, None))
        case Unchanged():
            _expected(key, newest, None)
            return None


# ---- opening ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def memory_store(limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[ObjectStore]:
    """Everything ends with it; `durable_store.durable_store` is the one that lasts."""
    store = ObjectStore(NoJournal(), JournalState(), limits)
    try:
        yield store
    finally:
        await store.close()
