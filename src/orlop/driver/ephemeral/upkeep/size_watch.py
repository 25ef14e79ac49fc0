"""Measure retained folders: one at a time, once each, in a thread of idle I/O priority.

Sizes are shown to operators, and used to choose among expired folders; nothing waits for them. A size is stored in the
index, and in a note on the folder together with the burial it belongs to, so that a restart does not measure again. If
a folder is published or erased meanwhile, its measurement stops at once. This module must not hold a volume's key.

Order: read the note → measure → write the note → write the size to the index.
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
    """Stores sizes across restarts, with the burial they belong to. Blocks. A failure loses the note, silently."""

    def noted(self, place: FolderPlace, true_of: str) -> int | None: ...

    def note(self, place: FolderPlace, size: int, true_of: str) -> None: ...


TRIES: Final = 3
AFTER_BURIAL_SECONDS: Final = 1.0
BEFORE_ANOTHER_TRY_SECONDS: Final = 60.0
NOT_WORTH_LOGGING: Final = frozenset({errno.ENOENT, errno.ECANCELED})


class SizeWatch:
    """Measures retained folders while `run` runs. `idle_threads` is one thread of idle I/O priority."""

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
                # One burial is often followed by many: let them finish first.
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
            self._forget_old_failures()
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
        """Return whether the measurement of a folder has become useless. Called in the thread too: it only reads."""
        current = self._book.retained.get(retained.volume_id)
        return self._is_stopped or current is None or _key(current) != _key(retained)

    def _note_failure(self, retained: Retained, error: HostError) -> None:
        if self._is_gone(retained):
            return
        self._failures[_key(retained)] += 1
        if error.errno not in NOT_WORTH_LOGGING:
            self._log.warning("folder not measured", volume=retained.volume_id, error=error)

    def _forget_old_failures(self) -> None:
        retained_keys = {_key(retained) for retained in self._book.retained.values()} if self._failures else set()
        self._failures = Counter({key: count for key, count in self._failures.items() if key in retained_keys})


def _key(retained: Retained) -> tuple[str, float]:
    """Return a key for one burial of one volume, which does not change when the lifespan is extended."""
    return retained.volume_id, retained.burial.buried_at
