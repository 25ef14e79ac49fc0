"""What can be seen of the scratch folders from outside, as numbers; counted when somebody asks for them.

Nothing here touches the disk: a dead one must not keep anybody from asking. What its state is, the reaper saw last.
"""

from __future__ import annotations

from orlop.driver.ephemeral.afterlife_rules import Moment
from orlop.driver.ephemeral.folder_book import FolderBook
from orlop.driver.ephemeral.reaper import Reaper
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics


class FolderMetrics:
    def __init__(self, book: FolderBook, reaper: Reaper, clock: Clock, metrics: Metrics) -> None:
        self._book = book
        self._reaper = reaper
        self._clock = clock
        for name, told, value in (
            ("folders_live", "Scratch folders of pods that are there.", self.live),
            ("folders_retained", "Scratch folders in their afterlife.", self.retained),
            ("folders_trash", "Scratch folders that are being erased.", self.trash),
            ("retained_bytes", "What retained folders take, of those that were measured.", self.retained_bytes),
            ("oldest_overdue_seconds", "How far the folder furthest beyond its time is beyond it.", self.overdue),
            ("free_bytes", "What users can have of the disk.", self.free_bytes),
            ("free_inodes", "What users can have of its inodes.", self.free_inodes),
        ):
            metrics.gauge_from(f"orlop_ephemeral_{name}", told, value)

    def live(self) -> float:
        return float(len(self._book.live))

    def retained(self) -> float:
        return float(len(self._book.retained))

    def trash(self) -> float:
        return float(self._reaper.in_trash)

    def retained_bytes(self) -> float:
        return float(sum(each.bytes_used or 0 for each in self._book.retained.values()))

    def overdue(self) -> float:
        now = Moment(self._clock.now().timestamp(), self._clock.elapsed())
        factor = float(self._reaper.factor)
        beyond = (
            self._book.age(each, now) - each.burial.lifespan_seconds * factor for each in self._book.retained.values()
        )
        return max(0.0, max(beyond, default=0.0))

    def free_bytes(self) -> float:
        return float(self._reaper.room.free_bytes) if self._reaper.room is not None else float("nan")

    def free_inodes(self) -> float:
        return float(self._reaper.room.free_inodes) if self._reaper.room is not None else float("nan")
