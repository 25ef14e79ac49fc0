"""Publishing, unpublishing and burying scratch folders: one at a time for each volume and each target, many at once.

`folder_work` says what is done to the machine and in which order; this module says when, and keeps the book. Order: the
volume's key is held, then the target's → the machine is changed, in a thread → the target's key is let go → the book is
changed → the volume's is let go. So whoever holds a volume's key finds the book as the machine is. After a change that
failed, and may have been made all the same, the volume is in doubt: the next who holds its key looks at the machine
first.

Nothing is erased here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol, TypeVar

from orlop.csi.error_codes import CsiError, FailedPrecondition, ResourceExhausted, Unavailable
from orlop.driver.ephemeral.folder_book import FolderBook
from orlop.driver.ephemeral.folder_work import FolderWork
from orlop.driver.ephemeral.machine_errors import told
from orlop.driver.ephemeral.project_numbers import ProjectNumbers
from orlop.driver.ephemeral.publish_request_rules import PublishOrder, refuse_another_pod
from orlop.foundation.clock import Clock
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.shared_steps import Together, Work, work_alone
from orlop.foundation.structured_log import Log
from orlop.host.node_host import NodeHost
from orlop.records.ephemeral_folder import Burial, FolderRecord

T = TypeVar("T")
KUBELET_DIR_NOT_SHARED: Final = (
    "kubelet's folder is no shared mount: no pod would see its volume. Give the container mountPropagation: "
    "Bidirectional; on the host itself: mount --make-rshared on the mount that holds it"
)


class Threads(Protocol):
    """Where blocking work is done: threads, or in a simulation right here."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


def _alone_in(threads: Threads) -> Together:
    async def alone(work: Work[T], /) -> T:
        return await threads(lambda: work_alone(work))

    return alone


class Folders:
    def __init__(  # noqa: PLR0913 - all that it is given
        self,
        host: NodeHost,
        book: FolderBook,
        *,
        threads: Threads,
        clock: Clock,
        log: Log,
        together: Together | None = None,
        max_volumes: int = 0,
    ) -> None:
        """Without `together`, every volume is worked on alone, in the threads."""
        self.book = book
        self.keys = KeyedLock()
        """By volume id: held by whoever changes a volume's folder."""
        self._targets = KeyedLock()
        """By target: two volumes on one would both find it free. Taken last, by who has the volume's key."""
        self.buried = asyncio.Event()
        """Set whenever there may be something to erase sooner than before; who waits for it clears it."""
        self.trashed: list[str] = []
        """Names in the trash that nobody purges yet; who does takes them out."""
        self.in_doubt: set[str] = set()
        self.to_measure = asyncio.Event()
        """Set whenever there is a folder whose size is not known yet; who waits for it clears it."""
        self.numbers = ProjectNumbers(host.workdir, book.projects)
        self._work = FolderWork(host, self.numbers)
        self._workdir = host.workdir
        self._kubelet_dir = host.kubelet_dir
        self._pods_see_mounts = False
        self._threads = threads
        self._together = together or _alone_in(threads)
        self._clock = clock
        self._log = log
        self._max_volumes = max_volumes
        self._being_made: set[str] = set()

    async def publish(self, order: PublishOrder) -> None:
        async with self.keys.hold(order.volume_id, why="NodePublishVolume"):
            await self._refuse_unless_pods_see_mounts()
            await self.make_sure(order.volume_id)
            known = self.book.record_of(order.volume_id)
            burial = self.book.burial_of(order.volume_id)
            if known is not None:
                refuse_another_pod(order, known.owner)
            if order.volume_id not in self.book.live:
                self._refuse_too_many(order.volume_id)
            self._being_made.add(order.volume_id)
            try:
                now = self._clock.now().timestamp()
                async with self._targets.hold(order.target, why="NodePublishVolume"):
                    record = await self._together(self._work.publish(order, known, burial, now))
                self.book.lives(record)
            except Exception as error:
                self._publish_failed(order.volume_id, error)
                raise
            finally:
                self._being_made.discard(order.volume_id)
            if burial is not None:
                self._log.info("taken out of the afterlife", volume=order.volume_id, pod=order.owner.pod_name)

    async def _refuse_unless_pods_see_mounts(self) -> None:
        """Looked at until it is so: a folder that was a shared mount stays one."""
        self._pods_see_mounts = self._pods_see_mounts or await self._threads(lambda: told(self._kubelet_dir.is_shared))
        if not self._pods_see_mounts:
            raise FailedPrecondition(KUBELET_DIR_NOT_SHARED)

    def _publish_failed(self, volume_id: str, error: Exception) -> None:
        """Undone, unless it says so; a new folder is in the trash then."""
        if isinstance(error, Unavailable) or not isinstance(error, CsiError):
            self.in_doubt.add(volume_id)

    def _refuse_too_many(self, volume_id: str) -> None:
        if not self._max_volumes or volume_id in self._being_made:
            return
        count = len(self.book.live) + sum(each not in self.book.live for each in self._being_made)
        if count >= self._max_volumes:
            raise ResourceExhausted(
                f"this node has {count} volumes, and --maxvolumespernode allows {self._max_volumes}"
            )

    async def unpublish(self, volume_id: str, target: str) -> None:
        async with self.keys.hold(volume_id, why="NodeUnpublishVolume"):
            await self.make_sure(volume_id)
            record, now = self.book.live.get(volume_id), self._clock.now().timestamp()
            with self._doubted_on_failure(volume_id):
                async with self._targets.hold(target, why="NodeUnpublishVolume"):
                    left = await self._together(self._work.unpublish(target, record, now))
            match left:
                case Burial():
                    self._buried(left)
                case FolderRecord():
                    self.book.lives(left)
                    if not left.targets:
                        self._log.warning("not buried yet: something still has it mounted", volume=volume_id)

    async def bury_if_unused(self, volume_id: str, why: str) -> bool:
        """For folders whose pod will not ask for it any more: buried unless something has it mounted."""
        async with self.keys.hold(volume_id, why=why):
            await self.make_sure(volume_id)
            record = self.book.live.get(volume_id)
            if record is None or await self._together(self._work.is_mounted(volume_id)):
                return False
            await self._bury(record)
            self._log.info("buried", volume=volume_id, why=why, pod=record.owner.pod_name)
            return True

    async def _bury(self, record: FolderRecord) -> None:
        now, lifespan = self._clock.now().timestamp(), record.options.lifespan_seconds
        with self._doubted_on_failure(record.volume_id):
            burial = await self._together(self._work.bury(record.volume_id, now, lifespan))
        self._buried(burial)

    def _buried(self, burial: Burial) -> None:
        self.book.was_buried(burial, self._clock.elapsed())
        if burial.lifespan_seconds <= 0:
            self.trashed.append(burial.folder_name)
        self.buried.set()
        self.to_measure.set()

    async def keep(self, volume_id: str, lifespan: float) -> bool:
        """Gives a retained folder a longer lifespan, counted from its burial; whether it is retained still."""
        async with self.keys.hold(volume_id, why="keeping it longer"):
            await self.make_sure(volume_id)
            retained = self.book.retained.get(volume_id)
            if retained is None:
                return False
            if lifespan > retained.burial.lifespan_seconds:
                with self._doubted_on_failure(volume_id):
                    longer = await self._threads(lambda: self._work.keep(retained.burial, lifespan))
                self.book.was_kept(longer)
                self._log.info("kept longer", volume=volume_id, lifespan_seconds=lifespan)
            return True

    # ---- doubt -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _doubted_on_failure(self, volume_id: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.in_doubt.add(volume_id)
            raise

    async def make_sure(self, volume_id: str) -> None:
        """For the holder of the key: the book says of the volume what is true. UNAVAILABLE: nobody can know it now."""
        if volume_id not in self.in_doubt:
            return
        known = self.book.burial_of(volume_id)
        try:
            record, burial = await self._threads(lambda: self._work.find(volume_id, known))
        except CsiError as error:
            raise Unavailable(f"what a failure before this has left cannot be found out: {error}") from error
        self.book.was_found(volume_id, record, burial, self._clock.elapsed())
        self.in_doubt.discard(volume_id)
        self._log.info("looked at again after a failure", volume=volume_id, live=volume_id in self.book.live)
        self.buried.set()
        self.to_measure.set()

    async def end_doubts(self) -> None:
        """For volumes that nobody asks for any more; what cannot be found out now stays in doubt."""
        for volume_id in sorted(self.in_doubt):
            async with self.keys.hold(volume_id, why="looking again after a failure"):
                with suppress(Unavailable):
                    await self.make_sure(volume_id)
