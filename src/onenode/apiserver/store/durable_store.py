"""The journal that is a database: everything SQLite does happens in one thread of its own, never on the event loop.

A little room is kept for a disk that is full (`host/folders/room_reserve`), for changes that make room or need next to
none: deletions, and the small updates that lead to them. Others are refused with `DiskFull`, unless deletions have left
room inside the database. Order on a full disk: the reserve is given back → the commit is tried again → the log is
brought into the database, so that the next commit reuses its file → the reserve takes again what is left.

Order of closing: what was begun is finished, then the database is closed, then the thread ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from onenode.apiserver.store.database import ConnectDatabase, Database, connect, is_full, open_database
from onenode.apiserver.store.journal import Batch, JournalState
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import DiskFull
from onenode.apiserver.store.versions import DEFAULT_LIMITS, FIRST_REVISION, Limits
from orlop.host.folders.room_reserve import RoomReserve
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import opened_root
from orlop.host.kernel.disk_usage import room_on

ROOM_BYTES: Final = 8 << 20
"""For a log that is brought into the database late (4 MiB), and the same in the database."""
# The reserve is kept also on a small disk, or one that is nearly full: it fills up sooner than others.
ENOUGH_ROOM: Final = 2
# What deletions must have left inside the database before objects are created on a full disk: room for more deletions.
FREE_ENOUGH: Final = 256 << 10
FREE_FOR_EACH_BYTE: Final = 2


class DatabaseJournal:
    def __init__(self, folder: Path, connect: ConnectDatabase = connect, first_revision: int = FIRST_REVISION) -> None:
        self._folder = folder
        self._first_revision = first_revision
        self._connect = connect
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="object-store")
        self._database: Database | None = None
        self._held = contextlib.ExitStack()
        self._reserve: RoomReserve | None = None
        self._root = -1
        self.is_short_of_room = False

    async def open(self) -> JournalState:
        """Close it also when this failed."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._commit, batch)

    async def close(self) -> None:
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)  # the thread finishes its queue, then ends, even if nobody waits
        await closing

    def _open(self) -> JournalState:
        opened = open_database(self._folder, self._connect, self._first_revision)
        self._database = opened.database
        self._root = self._held.enter_context(opened_root(str(self._folder)))
        self._reserve = RoomReserve(self._root, ROOM_BYTES, ENOUGH_ROOM)
        self._keep_room(self._reserve)
        return opened.kept

    def _keep_room(self, reserve: RoomReserve) -> None:
        with contextlib.suppress(HostError):
            if not reserve.is_full:
                reserve.fill(room_on(self._root).free_bytes)
                self.is_short_of_room &= not reserve.is_full

    def _commit(self, batch: Batch) -> None:
        if self._database is None or self._reserve is None:
            raise RuntimeError("the journal is not open")
        try:
            self._database.commit(batch)
        except Exception as error:
            if not is_full(error):
                raise
            self.is_short_of_room = True
            if not self._may_borrow(batch, self._database) or not self._reserve.give_back():
                raise DiskFull from error
            self._commit_with_reserve(batch, self._database, self._reserve)
        else:
            self._keep_room(self._reserve)

    def _may_borrow(self, batch: Batch, database: Database) -> bool:
        taken = sum(len(change.after.json) for change in batch.changes if change.takes_room)
        return not taken or database.free_bytes() >= FREE_ENOUGH + FREE_FOR_EACH_BYTE * taken

    def _commit_with_reserve(self, batch: Batch, database: Database, reserve: RoomReserve) -> None:
        try:
            database.commit(batch)
        except Exception as error:
            if is_full(error):
                raise DiskFull from error
            raise
        finally:
            database.reuse_log()
            reserve.refill()

    def _close(self) -> None:
        database, self._database = self._database, None
        self._held.close()
        if database is not None:
            database.close()


@contextlib.asynccontextmanager
async def durable_store(
    folder: Path,
    limits: Limits = DEFAULT_LIMITS,
    *,
    connect: ConnectDatabase = connect,
    first_revision: int = FIRST_REVISION,
) -> AsyncIterator[ObjectStore]:
    """Open a store whose acknowledged writes survive a crash and a power loss; raise `StoreUnusable` with the reason.

    `first_revision` is the first revision of a new store. If it is made from the time, a client that knew another store
    in this place learns that its versions have expired, instead of taking new ones for them.
    """
    journal = DatabaseJournal(folder, connect, first_revision)
    try:
        kept = await journal.open()
    except BaseException:
        await journal.close()
        raise
    store = ObjectStore(journal, kept, limits)
    try:
        yield store
    finally:
        await store.close()
