"""The journal that is a database: everything SQLite does happens in one thread of its own, never on the event loop.

A little room is kept for a disk that is full (`host/folders/room_reserve`): it is given back to the first change that
finds none, so that what fills the disk can still be deleted.

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
from onenode.apiserver.store.versions import DEFAULT_LIMITS, FIRST_REVISION, Limits
from orlop.host.folders.room_reserve import RoomReserve
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import opened_root
from orlop.host.kernel.disk_usage import room_on

ROOM_BYTES: Final = 4 << 20
"""For some hundreds of changes."""


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

    async def open(self) -> JournalState:
        """Close it also when this failed."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._commit, batch)

    async def close(self) -> None:
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)  # the thread does what it was given, then ends, whoever still waits
        await closing

    def _open(self) -> JournalState:
        opened = open_database(self._folder, self._connect, self._first_revision)
        self._database = opened.database
        self._root = self._held.enter_context(opened_root(str(self._folder)))
        self._reserve = RoomReserve(self._root, ROOM_BYTES)
        self._keep_room(self._reserve)
        return opened.kept

    def _keep_room(self, reserve: RoomReserve) -> None:
        with contextlib.suppress(HostError):
            if not reserve.is_full:
                reserve.fill(room_on(self._root).free_bytes)

    def _commit(self, batch: Batch) -> None:
        if self._database is None:
            raise RuntimeError("the journal is not open")
        try:
            self._database.commit(batch)
        except Exception as error:
            if self._reserve is None or not is_full(error) or not self._reserve.give_back():
                raise
            self._database.commit(batch)
        else:
            if self._reserve is not None:
                self._keep_room(self._reserve)

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
    """What was acknowledged survives the process and a power loss; raises `StoreUnusable` with the reason.

    `first_revision` is where a new store begins; one made from the time makes whoever knew another store in this
    place find out that its versions are gone, instead of taking new ones for them.
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
