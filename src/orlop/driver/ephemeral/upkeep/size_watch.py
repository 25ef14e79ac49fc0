"""Measure retained folders: one at a time, once each, in a thread of idle I/O priority.

A size is shown to people, and used to choose among expired folders; nothing waits for it. It is kept in the book, and
noted on the folder together with the burial it belongs to, so that a restart does not measure again. The measurement of
a folder that is published or erased meanwhile stops at once. Must not hold a volume's key.

Order: read the note → measure → note → write it to the book.
"""

from __future__ import annotations

import errno
from collections import Counter
from typing import Final, Protocol

from orlop.driver.ephemeral.folder_index import Retained, retained_place
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, Workdir
from orlop.host.threads import Threads


class SizeNotes(Protocol):
    """Notes of sizes that survive restarts, with the burial they belong to; forgets rather than fails. Blocks."""

    def noted(self, place: FolderPlace, true_of: str) -> int | None: ...

    def note(self, place: FolderPlace, size: int, true_of: str) -> None: ...


TRIES: Final = 3
AFTER_BURIAL_SECONDS: Final = 1.0
BEFORE_ANOTHER_TRY_SECONDS: Final = 60.0
NOT_WORTH_LOGGING: Final = frozenset({errno.ENOENT, errno.ECANCELED})


class SizeWatch:
    """`idle_threads` is one thread of idle I/O priority. Nothing is measured unless somebody keeps `run` running."""

    def __init__(
        self, folders: Folders, workdir: Workdir, notes: SizeNotes, idle_threads: Threads, clock: Clock, log: Log
    ) -> None:
        self._folders = folders
        self._book = folders.book
        self._workdir = workdir
        self._notes = notes
        self._threads = idle_threads
        self._clock = clock
        self._log = log
        self._failures: Counter[tuple[str, float]] = Counter()
        self._is_stopped = False

    async def run(self) -> None:
        """Measure until cancelled; a measurement under way ends soon after."""
        try:
            while True:
                self._folders.to_measure.clear()
                for volume_id in self._unmeasured():
                    await self._measure(volume_id)
                await self._until_there_is_more()
                # One burial is often followed by many: let them go first.
                await self._clock.sleep(AFTER_BURIAL_SECONDS)
        finally:
            self._is_stopped = True

    def _unmeasured(self) -> list[str]:
        retained = self._book.retained
        return [volume_id for volume_id in self._book.unmeasured if self._is_to_measure(retained[volume_id])]

    def _is_to_measure(self, retained: Retained) -> bool:
        return retained.bytes_used is None and self._failures[_key(retained)] < TRIES

    async def _until_there_is_more(self) -> None:
        if not self._unmeasured():
            self._forget_failures_of_what_is_gone()
            await self._folders.to_measure.wait()
            return
        try:
            async with self._clock.timeout(BEFORE_ANOTHER_TRY_SECONDS):
                await self._folders.to_measure.wait()
        except TimeoutError:
            return

    async def _measure(self, volume_id: str) -> None:
        retained = self._book.retained.get(volume_id)
        if retained is None or not self._is_to_measure(retained):
            return
        try:
            size = await self._threads(lambda: self._noted_or_measured(retained))
        except HostError as error:
            self._note_failure(retained, error)
            return
        if not self._is_gone(retained):
            self._book.was_measured(volume_id, size)

    def _noted_or_measured(self, retained: Retained) -> int:
        place, true_of = retained_place(retained.burial), f"{retained.burial.buried_at:.3f}"
        size = self._notes.noted(place, true_of)
        if size is None:
            size = self._workdir.measure(place, lambda: self._is_gone(retained)).bytes
            self._notes.note(place, size, true_of)
        return size

    def _is_gone(self, retained: Retained) -> bool:
        """Asked from the thread too: it only reads."""
        now = self._book.retained.get(retained.volume_id)
        return self._is_stopped or now is None or _key(now) != _key(retained)

    def _note_failure(self, retained: Retained, error: HostError) -> None:
        if self._is_gone(retained):
            return
        self._failures[_key(retained)] += 1
        if error.errno not in NOT_WORTH_LOGGING:
            self._log.warning("folder not measured", volume=retained.volume_id, error=error)

    def _forget_failures_of_what_is_gone(self) -> None:
        there = {_key(retained) for retained in self._book.retained.values()} if self._failures else set()
        self._failures = Counter({key: count for key, count in self._failures.items() if key in there})


def _key(retained: Retained) -> tuple[str, float]:
    """One burial of one volume, however long it is kept."""
    return retained.volume_id, retained.burial.buried_at
