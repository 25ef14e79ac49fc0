"""Publishing, unpublishing and burying scratch folders: one at a time for each volume, many volumes at once.

`folder_work` says what is done to the machine and in which order; this module says when, and keeps the book. Order: the
volume's key is held → the machine is changed, in a thread → the book is changed → the key is let go. So whoever holds a
key finds the book as the machine is.

Nothing is erased here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from orlop.csi.error_codes import ResourceExhausted
from orlop.driver.ephemeral.folder_book import FolderBook
from orlop.driver.ephemeral.folder_work import FolderWork, live_place
from orlop.driver.ephemeral.publish_request_rules import PublishOrder
from orlop.foundation.clock import Clock
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.structured_log import Log
from orlop.host.node_host import NodeHost
from orlop.records.ephemeral_folder import FolderRecord

T = TypeVar("T")


class Threads(Protocol):
    """Where blocking work is done: threads, or in a simulation right here."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Folders:
    def __init__(
        self,
        host: NodeHost,
        book: FolderBook,
        *,
        threads: Threads,
        clock: Clock,
        log: Log,
        max_volumes: int = 0,
    ) -> None:
        self.book = book
        self.keys = KeyedLock()
        """By volume id: held by whoever changes a volume's folder."""
        self.buried = asyncio.Event()
        """Set whenever a folder is buried; who waits for it clears it."""
        self.to_measure = asyncio.Event()
        """Set whenever there is a folder whose size is not known yet; who waits for it clears it."""
        self._work = FolderWork(host)
        self._workdir = host.workdir
        self._threads = threads
        self._clock = clock
        self._log = log
        self._max_volumes = max_volumes
        self._being_made: set[str] = set()

    async def publish(self, order: PublishOrder) -> None:
        async with self.keys.hold(order.volume_id, why="NodePublishVolume"):
            known = self.book.record_of(order.volume_id)
            burial = self.book.burial_of(order.volume_id)
            if order.volume_id not in self.book.live:
                self._refuse_too_many(order.volume_id)
            self._being_made.add(order.volume_id)
            try:
                now = self._clock.now().timestamp()
                record = await self._threads(lambda: self._work.publish(order, known, burial, now))
                self.book.lives(record)
            finally:
                self._being_made.discard(order.volume_id)
            if burial is not None:
                self._log.info("taken out of the afterlife", volume=order.volume_id, pod=order.owner.pod_name)

    def _refuse_too_many(self, volume_id: str) -> None:
        count = len(self.book.live.keys() | self._being_made)
        if self._max_volumes and count >= self._max_volumes and volume_id not in self._being_made:
            raise ResourceExhausted(
                f"this node has {count} volumes, and --maxvolumespernode allows {self._max_volumes}"
            )

    async def unpublish(self, volume_id: str, target: str) -> None:
        async with self.keys.hold(volume_id, why="NodeUnpublishVolume"):
            record = self.book.live.get(volume_id)
            await self._threads(lambda: self._work.take_from_target(target, record))
            if record is not None:
                await self._end_of_target(record, target)

    async def _end_of_target(self, record: FolderRecord, target: str) -> None:
        """Buried when the last target has gone; while anything has it mounted all the same, it stays for now."""
        others = any(other != target for other in record.targets)
        if others or live_place(record.volume_id) in await self._threads(self._workdir.mounted_folders):
            self.book.lives(await self._threads(lambda: self._work.forget_target(record, target)))
            if not others:
                self._log.warning("not buried yet: something still has it mounted", volume=record.volume_id)
            return
        await self._bury(record)

    async def bury_if_unused(self, volume_id: str, why: str) -> bool:
        """For folders whose pod will not ask for it any more: buried unless something has it mounted."""
        async with self.keys.hold(volume_id, why=why):
            record = self.book.live.get(volume_id)
            if record is None or live_place(volume_id) in await self._threads(self._workdir.mounted_folders):
                return False
            await self._bury(record)
            self._log.info("buried", volume=volume_id, why=why, pod=record.owner.pod_name)
            return True

    async def _bury(self, record: FolderRecord) -> None:
        now, lifespan = self._clock.now().timestamp(), record.options.lifespan_seconds
        burial = await self._threads(lambda: self._work.bury(record.volume_id, now, lifespan))
        self.book.was_buried(burial, self._clock.elapsed())
        self.buried.set()
        self.to_measure.set()

    async def keep(self, volume_id: str, lifespan: float) -> bool:
        """Gives a retained folder a longer lifespan, counted from its burial; whether it is retained still."""
        async with self.keys.hold(volume_id, why="keeping it longer"):
            retained = self.book.retained.get(volume_id)
            if retained is None:
                return False
            if lifespan > retained.burial.lifespan_seconds:
                self.book.was_kept(await self._threads(lambda: self._work.keep(retained.burial, lifespan)))
                self._log.info("kept longer", volume=volume_id, lifespan_seconds=lifespan)
            return True
