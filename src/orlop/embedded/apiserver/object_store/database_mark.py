"""What is known to be in the database, kept in a small file of its own beside it: objects.db-mark.

    open REVISION                the log is in use, and everything up to this revision was acknowledged
    closed REVISION ROWS SUM     the log had been brought into the database, which held so many versions

SQLite takes a log that is missing or broken for one that is empty. This file tells the difference. Its revision is
only a lower bound, so that the end of a log that a power loss took is never missed: it is written after what it speaks
of is durable, at the first commit and then rarely. It says "closed" before the log is removed.

Where it is not there, or not readable, nothing is known, and nothing is refused for it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
