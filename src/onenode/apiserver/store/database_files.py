"""The files of the object store in its state folder: names, modes, the lock, the mark, and what is refused unopened.

    objects.db          the database; objects.db-wal beside it belongs to it as long as it is there
    objects.db-mark     what is known to be in it (MarkFile)
    objects.lock        locked by the process that uses the database; the kernel's lock ends with the process
    objects.db.new      a database being made; it is renamed when it is complete, so objects.db is never half of one

Must not open the database, and must never change or remove one that is in place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onenode.apiserver.store.store_errors import StoreInUse, StoreUnusable

DATABASE: Final = "objects.db"
LOCK: Final = "objects.lock"
OWNER_ONLY: Final = 0o600

APPLICATION_ID: Final = 0x4F524C50  # "ORLP"
SCHEMA_VERSION: Final = 1

# https://www.sqlite.org/fileformat2.html#the_database_header
HEADER_BYTES: Final = 100
MAGIC: Final = b"SQLite format 3\0"
USER_VERSION: Final = slice(60, 64)
APPLICATION: Final = slice(68, 72)

LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

LEFT_AS_IT_IS: Final = "It was left as it is: restore it from a backup, or move it away to start with nothing"


class FolderLock:
    """Two processes never use one folder; closing it, or dying, gives it up."""

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        try:
            self._file = os.open(path, LOCK_FLAGS, OWNER_ONLY)
        except OSError as error:
            raise StoreUnusable(f"The state folder {folder} cannot be used: {path}: {error.strerror}.") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            who = f"process {owner}" if owner.isdecimal() else "another process"
            raise StoreInUse(f"The state folder {folder} is in use by {who}: stop it, or choose another.") from error
        with contextlib.suppress(OSError):  # it only makes the others' error clearer
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._file)


def is_there(database: Path) -> bool:
    """Refuses whatever stands in the place of a database and is none."""
    leftovers = [path for path in _beside(database) if path.exists()]
    try:
        found = database.lstat()
    except FileNotFoundError:
        if leftovers:
            raise StoreUnusable(
                f"{leftovers[0]} is there, but the database {database} it belongs to is missing: "
                "restore both from a backup, or move it away to start with nothing."
            ) from None
        return False
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnusable(f"{database} is not a plain file: put the database there, or move it away.")
    return True


def refuse_unfit_header(database: Path) -> None:
    """Before SQLite touches it: these bytes are the same from the day a database is made."""
    with database.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise StoreUnusable(f"{database} is not a database, or only a piece of one. {LEFT_AS_IT_IS}.")
    if int.from_bytes(header[APPLICATION]) != APPLICATION_ID:
        raise StoreUnusable(f"{database} is a database of another program. Move it away, or choose another folder.")
    version = int.from_bytes(header[USER_VERSION])
    if version != SCHEMA_VERSION:
        kind = "a newer" if version > SCHEMA_VERSION else "an older"
        raise StoreUnusable(
            f"{database} has schema version {version}, this program knows {SCHEMA_VERSION}: it was written by {kind} "
            f"one. It was left as it is: start that program, or move it away to start with nothing."
        )


def make_empty(path: Path) -> None:
    """A file only its owner can read: SQLite gives the files it makes beside it the same mode."""
    remove(path)  # of a process that died while it made one
    os.close(os.open(path, NEW_FLAGS, OWNER_ONLY))


def remove(new: Path) -> None:
    """One that was being made; never one that is in place."""
    for path in (new, *_beside(new)):
        path.unlink(missing_ok=True)


def put_in_place(new: Path, database: Path) -> None:
    """Only the database itself is renamed, so all of it must be in there."""
    for path in _beside(new):
        if path.exists() and path.stat().st_size:
            raise OSError(errno.EIO, f"a part of it stayed in {path}")
        path.unlink(missing_ok=True)
    _sync(new)
    new.rename(database)
    _sync(database.parent)


def restrict(database: Path) -> None:
    """There may be secrets in it."""
    for path in (database, *_beside(database)):
        if path.exists():
            path.chmod(OWNER_ONLY)


def log_of(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def _beside(database: Path) -> list[Path]:
    return [database.with_name(database.name + suffix) for suffix in ("-wal", "-journal")]


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# ---- the mark --------------------------------------------------------------------------------------------------------

# What is known to be in the database, kept in a small file of its own beside it: objects.db-mark.
#
#     open REVISION                the log is in use, and everything up to this revision was acknowledged
#     closed REVISION ROWS SUM     the log had been brought into the database, which held so many versions
#
# SQLite takes a log that is missing or broken for one that is empty. This file shows the difference. Its revision is
# only a lower bound, so that the end of a log that a power loss took is never missed: it is written after what it
# speaks of is durable, at the first commit and then rarely. It says "closed" before the log is removed.
#
# Where it is not there, or not readable, nothing is known, and nothing is refused for it.


SUFFIX: Final = "-mark"
FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
COMMITS_PER_MARK: Final = 128  # two more writes to the disk for so many: nobody notices


@dataclass(frozen=True, slots=True)
class Tally:
    """Of the versions in the database; each guards its own bytes, but not that it is there."""

    rows: int
    sum: int
    """Of their revisions."""


@dataclass(frozen=True, slots=True)
class Mark:
    revision: int
    closed_with: Tally | None = None
    """None while the log is in use."""


class MarkFile:
    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + SUFFIX)
        self._new = self.path.with_name(self.path.name + ".new")
        self._unmarked_commits = COMMITS_PER_MARK
        self._may_say_closed = True

    def read(self) -> Mark | None:
        try:
            words = self.path.read_bytes().split()
        except FileNotFoundError:
            return None
        match words:
            case [b"open", revision] if revision.isdigit():
                return Mark(int(revision))
            case [b"closed", revision, rows, total] if revision.isdigit() and rows.isdigit() and total.isdigit():
                return Mark(int(revision), Tally(int(rows), int(total)))
            case _:
                return None

    def committed(self, revision: int) -> None:
        """A mark that cannot be written is too low, which is harmless; the next commit tries again."""
        self._unmarked_commits += 1
        if self._unmarked_commits > COMMITS_PER_MARK:
            with contextlib.suppress(OSError):
                self._write(f"open {revision}\n")
                self._unmarked_commits = 0
                self._may_say_closed = False

    def fewer_versions(self) -> None:
        """Before old versions go and the revision stays: a tally of them would be wrong from then on."""
        if self._may_say_closed:
            self.forget()
            self._may_say_closed = False

    def closed(self, revision: int, tally: Tally) -> None:
        self._write(f"closed {revision} {tally.rows} {tally.sum}\n")

    def forget(self) -> None:
        """Nothing is known any more; needs no space."""
        self.path.unlink(missing_ok=True)
        self._sync_folder()

    def _write(self, line: str) -> None:
        try:
            self._write_beside(line)
            self._new.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                self._new.unlink(missing_ok=True)
            raise
        self._sync_folder()

    def _write_beside(self, line: str) -> None:
        with os.fdopen(os.open(self._new, FLAGS, 0o600), "wb") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
