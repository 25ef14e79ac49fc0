"""The database of the object store: one table of versions, appended to by every write. The only user of SQLite.

The newest version of a key is its object, unless it is a deletion; older ones are there as long as the history can show
them. So a write is one row, and the state of any kept revision can be derived from the rows up to it.

A commit adds the rows of a batch and removes its garbage in one transaction, which is on disk (write-ahead log,
`synchronous=FULL`) before `commit` returns. After a failed one the next begins with what was durable before it.

Opening reads and checks everything through a connection that cannot write; only then is it opened for writing. What is
damaged, of another program or of a newer version is refused and left as it is. All of it belongs to one thread.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from onenode.apiserver.store import database_files as files
from onenode.apiserver.store import history_log_rules
from onenode.apiserver.store.database_files import Mark, MarkFile, Tally
from onenode.apiserver.store.journal import Batch, JournalState
from onenode.apiserver.store.store_errors import StoreUnusable
from onenode.apiserver.store.versions import FIRST_REVISION, Change, ChangeKind, Key, Stored

ConnectDatabase: TypeAlias = Callable[[str], sqlite3.Connection]
Row: TypeAlias = tuple[int, str, str, str, int, bytes, int]

# Made without a write-ahead log, which could be left behind by a disk that fills while it is closed.
SCHEMA: Final = f"""
PRAGMA synchronous = FULL;
PRAGMA application_id = {files.APPLICATION_ID};
PRAGMA user_version = {files.SCHEMA_VERSION};
CREATE TABLE versions (
    revision INTEGER PRIMARY KEY,
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    kind INTEGER NOT NULL, json BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE store (revision INTEGER NOT NULL, oldest INTEGER NOT NULL);
"""
# An exclusive lock needs no memory shared with other processes, so there is no file for it.
SETTINGS: Final = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA journal_size_limit = 16777216;
PRAGMA trusted_schema = OFF;
"""
INSERT: Final = "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?)"
SELECT: Final = "SELECT revision, resource, namespace, name, kind, json, checksum FROM versions ORDER BY revision"

NO_SPACE: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}


def connect(address: str) -> sqlite3.Connection:
    return sqlite3.connect(address, uri=True, isolation_level=None)


def is_full(error: BaseException) -> bool:
    """Whether a change failed because the disk has no room."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


class Database:
    def __init__(self, lock: files.FolderLock, connection: sqlite3.Connection, mark: MarkFile, revision: int) -> None:
        self._lock = lock
        self._mark = mark
        self._connection = connection
        self._durable = revision

    def commit(self, batch: Batch) -> None:
        revision = batch.changes[-1].revision if batch.changes else self._durable
        try:
            if batch.garbage and not batch.changes:
                self._mark.fewer_versions()
            self._write(batch, revision)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._roll_back()
            raise
        self._durable = revision
        if batch.changes:  # others may leave the log as it was, and have none at all
            self._mark.committed(revision)

    def free_bytes(self) -> int:
        """Return the room inside the database that deleted rows have left."""
        ((pages,),) = self._connection.execute("PRAGMA freelist_count").fetchall()
        ((size,),) = self._connection.execute("PRAGMA page_size").fetchall()
        return int(pages) * int(size)

    def reuse_log(self) -> None:
        """Bring the log into the database, so that the next commit begins it anew and needs no room for it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()

    def close(self) -> None:
        try:
            self._mark_as_closed()
            self._connection.close()
        finally:
            self._lock.close()

    def _mark_as_closed(self) -> None:
        """Before the log goes, which closing removes when it could be brought into the database."""
        try:
            self._roll_back()
            busy, in_log, brought_in = self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            if busy or in_log != brought_in:
                raise sqlite3.OperationalError("the log could not be brought into the database")
            ((revision,),) = self._connection.execute("SELECT revision FROM store").fetchall()
            self._mark.closed(revision, _tally(self._connection))
        except (OSError, sqlite3.Error):
            with contextlib.suppress(OSError):
                self._mark.forget()

    def _write(self, batch: Batch, revision: int) -> None:
        self._roll_back()
        self._connection.execute("BEGIN IMMEDIATE")
        # A commit that failed may have come through all the same; its writers got an error.
        self._connection.execute("DELETE FROM versions WHERE revision > ?", (self._durable,))
        # Garbage goes first: on a full disk its pages are the ones that new rows find.
        self._connection.executemany("DELETE FROM versions WHERE revision = ?", ((old,) for old in batch.garbage))
        self._connection.executemany(INSERT, map(_row_of, batch.changes))
        self._connection.execute("UPDATE store SET revision = ?, oldest = ?", (revision, batch.oldest))
        self._connection.execute("COMMIT")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


# ---- opening ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenedDatabase:
    database: Database
    kept: JournalState


def open_database(
    folder: Path, connect: ConnectDatabase = connect, first_revision: int = FIRST_REVISION
) -> OpenedDatabase:
    """`first_revision` is where a new database begins."""
    lock = files.FolderLock(folder)
    try:
        return _open_locked(lock, folder / files.DATABASE, connect, first_revision)
    except BaseException:
        lock.close()
        raise


def _open_locked(lock: files.FolderLock, path: Path, connect: ConnectDatabase, first_revision: int) -> OpenedDatabase:
    try:
        mark_file = MarkFile(path)
        if not files.is_there(path):
            mark_file.forget()
            _make(path, connect, first_revision)
        files.refuse_unfit_header(path)
        mark = mark_file.read()
        _refuse_damaged_log(path, mark)
        kept = _read(path, connect, mark)
        files.restrict(path)
        return OpenedDatabase(Database(lock, _open_for_writing(path, connect), mark_file, kept.revision), kept)
    except (OSError, sqlite3.OperationalError) as error:
        raise StoreUnusable(f"The database {path} cannot be opened: {_reason(error)} and start again.") from error
    except sqlite3.Error as error:
        raise _damaged(path, str(error)) from error


def _make(path: Path, connect: ConnectDatabase, first_revision: int) -> None:
    new = path.with_name(path.name + ".new")
    try:
        files.make_empty(new)
        with contextlib.closing(connect(_address(new, "rw"))) as connection:
            connection.executescript(SCHEMA)
            connection.execute("INSERT INTO store VALUES (?, ?)", (first_revision, first_revision))
            connection.execute("PRAGMA journal_mode = WAL")
        _read(new, connect)
        files.put_in_place(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove(new)
        raise


def _refuse_damaged_log(path: Path, mark: Mark | None) -> None:
    """SQLite would go on without what is in it, and give its revisions to others."""
    log = files.log_of(path)
    content = log.read_bytes() if log.exists() else b""
    if mark is not None and mark.closed_with is None and not history_log_rules.has_sound_header(content):
        how = "damaged" if content else "empty" if log.exists() else "missing"
        raise _lost(path, f"its log {log} is {how}, with writes that were acknowledged")
    if history_log_rules.is_damaged_inside(content):
        raise _damaged(path, f"in its log {log}, writes that were acknowledged cannot be read")


def _refuse_loss(path: Path, kept: JournalState, tally: Tally, mark: Mark) -> None:
    if kept.revision < mark.revision:
        raise _lost(path, f"it ends at revision {kept.revision}, but {mark.revision} had been acknowledged")
    if kept.revision == mark.revision and mark.closed_with not in {None, tally}:
        raise _lost(path, "it does not have the versions of objects that it had when it was closed")


def _lost(path: Path, how: str) -> StoreUnusable:
    return StoreUnusable(
        f"The database {path} is damaged: {how}. {files.LEFT_AS_IT_IS}. To go on with what is there all the same, "
        f"remove {MarkFile(path).path}."
    )


def _tally(connection: sqlite3.Connection) -> Tally:
    ((rows, total),) = connection.execute("SELECT count(*), ifnull(sum(revision), 0) FROM versions").fetchall()
    return Tally(rows, total)


def _read(path: Path, connect: ConnectDatabase, mark: Mark | None = None) -> JournalState:
    try:
        with contextlib.closing(connect(_address(path, "ro"))) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise _damaged(path, found)
            ((revision, oldest),) = connection.execute("SELECT revision, oldest FROM store").fetchall()
            kept = _replayed(_checked(connection.execute(SELECT), path), revision, oldest, path)
            if mark is not None:
                _refuse_loss(path, kept, _tally(connection), mark)
            return kept
    except (TypeError, ValueError) as error:  # SQLite lets any value stand in any column
        raise _damaged(path, str(error)) from error
    finally:
        path.with_name(path.name + "-shm").unlink(missing_ok=True)  # of this connection; nobody else has one


def _open_for_writing(path: Path, connect: ConnectDatabase) -> sqlite3.Connection:
    connection = connect(_address(path, "rw"))
    try:
        connection.executescript(SETTINGS)
    except BaseException:
        connection.close()
        raise
    return connection


def _address(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def _reason(error: Exception) -> str:
    """With what to do about it. SQLite says "disk I/O error" also where there is no space for a file beside."""
    full = isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) in NO_SPACE
    if full or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return f"{error}: no space is left on its disk. Make room there"
    return f"{error}. Mend that"


def _damaged(path: Path, how: str) -> StoreUnusable:
    return StoreUnusable(f"The database {path} is damaged: {how}. {files.LEFT_AS_IT_IS}.")


# ---- rows ------------------------------------------------------------------------------------------------------------


def _row_of(change: Change) -> Row:
    key, json = change.key, change.after.json
    return (change.revision, *key, change.kind.value, json, _checksum(key, json))


def _checksum(key: Key, json: bytes) -> int:
    """SQLite checks the shape of its pages, not what is in them."""
    return zlib.crc32(json, zlib.crc32("\0".join(key).encode()))


def _checked(rows: Iterable[Row], path: Path) -> Iterator[tuple[ChangeKind, Stored]]:
    for revision, resource, namespace, name, kind, json, checksum in rows:
        key = Key(sys.intern(resource), sys.intern(namespace), name)
        if checksum != _checksum(key, json) or kind > ChangeKind.DELETED.value:
            raise _damaged(path, f"revision {revision} of {key} does not have the bytes that were written")
        yield ChangeKind(kind), Stored(key, revision, json)


def _replayed(versions: Iterable[tuple[ChangeKind, Stored]], revision: int, oldest: int, path: Path) -> JournalState:
    objects: dict[Key, Stored] = {}
    changes: list[Change] = []
    if oldest > revision:
        raise _damaged(path, f"its history begins at revision {oldest}, behind its newest revision {revision}")
    for kind, after in versions:
        before = objects.pop(after.key, None)
        if after.revision > oldest:
            changes.append(Change(kind, after, before))
        if kind is not ChangeKind.DELETED:
            objects[after.key] = after
        if not _fits(kind, before, after.revision, revision, oldest):
            raise _damaged(path, f"revision {after.revision} does not follow from those before it")
    return JournalState(revision, oldest, objects, changes)


def _fits(kind: ChangeKind, before: Stored | None, revision: int, newest: int, oldest: int) -> bool:
    if revision <= oldest:  # what was before it is gone
        return before is None and kind is not ChangeKind.DELETED
    return revision <= newest and (kind is ChangeKind.CREATED) == (before is None)
