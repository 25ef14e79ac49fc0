"""Publish, unpublish, bury and keep folders under locks: one call at a time for each volume and each target.

`publish_sequence` changes the machine; this module decides when, and maintains the index. Order: lock the volume → lock
the target → change the machine, in a thread → unlock the target → change the index → unlock the volume. So for the
holder of a volume's lock, index and machine agree. A change that failed may have taken effect: the volume is then in
doubt, and the next holder of its lock first reads its folder from disk.

This module erases nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeVar

from orlop.csi.error_codes import CsiError, FailedPrecondition, ResourceExhausted, Unavailable
from orlop.driver.ephemeral.folder_index import FolderIndex, find_folder
from orlop.driver.ephemeral.publish_request_rules import (
    AdminLimits,
    PublishOrder,
    refuse_another_pod,
    refuse_beyond_limits,
)
from orlop.driver.ephemeral.publish_sequence import PublishSequence
from orlop.driver.kubelet_calls import KUBELET_DIR_NOT_SHARED, as_csi_errors, retryable
from orlop.driver.project_numbers import ProjectNumbers
from orlop.foundation.clock import Clock
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.structured_log import Log
from orlop.host.batched_work import BatchedWork, BatchRunner, run_alone
from orlop.host.host_errors import HostError
from orlop.host.node_host import NodeHost
from orlop.host.threads import Threads
from orlop.records.ephemeral_folder import Burial, FolderOptions, FolderRecord

T = TypeVar("T")


class Folders:
    """The folders of this node, changed under locks. A volume's key is held for every change of its folder."""

    def __init__(  # noqa: PLR0913 - its parts, each by name
        self,
        host: NodeHost,
        book: FolderIndex,
        *,
        threads: Threads,
        clock: Clock,
        log: Log,
        batched: BatchRunner | None = None,
        limits: AdminLimits | None = None,
        max_volumes: int = 0,
    ) -> None:
        """Create it with the index `book`.

        Without `batched`, the work of each volume runs alone, in `threads`. Without `limits`, folders are retained for
        the lifespan in their records.
        """
        self.book = book
        self.keys = KeyedLock()
        """By volume id. Every change of a volume's folder holds its key."""
        self._targets = KeyedLock()
        """By target: without it, two volumes could both find the same target free.

        Always taken after the volume's key, so that two calls cannot deadlock.
        """
        self.wake_reaper = asyncio.Event()
        """Set whenever the reaper has to decide again; the reaper clears it."""
        self.trashed: list[str] = []
        """Names of folders in the trash that are not queued for a purge yet; the reaper removes them when it does."""
        self.in_doubt: set[str] = set()
        """Volumes whose last change failed: the index may be wrong about them."""
        self.to_measure = asyncio.Event()
        """Set whenever a retained folder has to be measured; `SizeWatch` clears it."""
        self.numbers = ProjectNumbers(host.workdir, book.projects)
        self._sequence = PublishSequence(host, self.numbers)
        self._workdir = host.workdir
        self._kubelet_dir = host.kubelet_dir
        self._pods_see_mounts = False
        self._threads = threads
        self._batched = batched or _without_batches(threads)
        self._clock = clock
        self._log = log
        self._limits = limits
        self._max_volumes = max_volumes
        self._being_made: set[str] = set()

    async def publish(self, order: PublishOrder) -> None:
        """Publish a volume at a target, for NodePublishVolume."""
        async with self.keys.hold(order.volume_id, why="NodePublishVolume"):
            await self.resolve_doubt(order.volume_id)
            live = self.book.live.get(order.volume_id)
            # After a final status code kubelet forgets the target and never calls NodeUnpublishVolume. If the record
            # names the target, an earlier call may have mounted it, and only NodeUnpublishVolume would unmount it.
            may_be_mounted = live is not None and order.target in live.targets
            with retryable() if may_be_mounted else nullcontext():
                await self._publish(order)

    async def _publish(self, order: PublishOrder) -> None:
        await self._refuse_unless_pods_see_mounts()
        known = self.book.record_of(order.volume_id)
        burial = self.book.burial_of(order.volume_id)
        if known is None:
            # Only for a new folder: an existing one was created within the limits of that time, and stays usable.
            refuse_beyond_limits(order)
        else:
            refuse_another_pod(order, known.owner)
        if order.volume_id not in self.book.live:
            self._refuse_too_many(order.volume_id)
        self._being_made.add(order.volume_id)
        try:
            now = self._clock.now().timestamp()
            async with self._targets.hold(order.target, why="NodePublishVolume"):
                record = await self._batched(self._sequence.publish(order, known, burial, now))
            self.book.lives(record)
        except Exception as error:
            self._publish_failed(order.volume_id, error)
            raise
        finally:
            self._being_made.discard(order.volume_id)
        if burial is not None:
            self._log.info("retained volume published again", volume=order.volume_id, pod=order.owner.pod_name)

    async def _refuse_unless_pods_see_mounts(self) -> None:
        # Check until it is true, and then never again: a shared mount stays shared.
        if not self._pods_see_mounts:
            with as_csi_errors():
                self._pods_see_mounts = await self._threads(self._kubelet_dir.is_shared)
        if not self._pods_see_mounts:
            raise FailedPrecondition(KUBELET_DIR_NOT_SHARED)

    def _publish_failed(self, volume_id: str, error: Exception) -> None:
        # Every other status code means that all effects were undone, and a new folder was moved to the trash.
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
        """Unpublish a volume from a target, for NodeUnpublishVolume; bury its folder after the last target."""
        async with self.keys.hold(volume_id, why="NodeUnpublishVolume"):
            await self.resolve_doubt(volume_id)
            record, now = self.book.live.get(volume_id), self._clock.now().timestamp()
            lifespan = lifespan_at_burial(record.options, self._limits) if record is not None else 0.0
            with self._doubted_on_failure(volume_id):
                async with self._targets.hold(target, why="NodeUnpublishVolume"):
                    outcome = await self._batched(self._sequence.unpublish(target, record, now, lifespan))
            match outcome:
                case Burial():
                    self._buried(outcome)
                case FolderRecord():
                    self.book.lives(outcome)
                    if not outcome.targets:
                        # `orphan_watch` buries the folder when nothing has it mounted any more.
                        self._log.warning("volume still mounted somewhere; not buried yet", volume=volume_id)

    async def bury_if_unused(self, volume_id: str, why: str) -> bool:
        """Bury a live folder unless something has it mounted; return whether it was buried."""
        async with self.keys.hold(volume_id, why=why):
            await self.resolve_doubt(volume_id)
            record = self.book.live.get(volume_id)
            if record is None or await self._batched(self._sequence.is_mounted(record)):
                return False
            await self._bury(record)
            self._log.info("volume buried", volume=volume_id, why=why, pod=record.owner.pod_name)
            return True

    async def _bury(self, record: FolderRecord) -> None:
        now, lifespan = self._clock.now().timestamp(), lifespan_at_burial(record.options, self._limits)
        with self._doubted_on_failure(record.volume_id):
            burial = await self._batched(self._sequence.bury(record.volume_id, now, lifespan))
        self._buried(burial)

    def _buried(self, burial: Burial) -> None:
        self.book.was_buried(burial, self._clock.elapsed())
        if burial.lifespan_seconds <= 0:
            self.trashed.append(burial.folder_name)
        self.wake_reaper.set()
        self.to_measure.set()

    async def keep(self, volume_id: str, lifespan: float) -> bool:
        """Extend the lifespan of a retained folder, counted from its burial; return whether it is still retained."""
        async with self.keys.hold(volume_id, why="keeping it longer"):
            await self.resolve_doubt(volume_id)
            retained = self.book.retained.get(volume_id)
            if retained is None:
                return False
            if lifespan > retained.burial.lifespan_seconds:
                with self._doubted_on_failure(volume_id):
                    longer = await self._threads(lambda: self._sequence.keep(retained.burial, lifespan))
                self.book.was_kept(longer)
                self._log.info("lifespan extended", volume=volume_id, lifespan_seconds=lifespan)
            return True

    async def discard(self, burial: Burial) -> None:
        """Move a retained folder to the trash, durably, and remove it from the index. The caller holds its key."""
        # The index last: if the move fails, the folder is still retained, and is erased later.
        with self._doubted_on_failure(burial.volume_id):
            await self._threads(lambda: self._sequence.discard(burial))
        self.book.was_discarded(burial.volume_id)

    # ---- doubt -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _doubted_on_failure(self, volume_id: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.in_doubt.add(volume_id)
            raise

    async def resolve_doubt(self, volume_id: str) -> None:
        """Correct the index for a volume in doubt. The caller holds the volume's key. UNAVAILABLE: the disk fails."""
        if volume_id not in self.in_doubt:
            return
        known = self.book.burial_of(volume_id)
        try:
            record, burial = await self._threads(lambda: find_folder(self._workdir, volume_id, known))
        except HostError as error:
            raise Unavailable(
                f"after an earlier failure, the volume's folder cannot be read from disk: {error}"
            ) from error
        self.book.correct_from_disk(volume_id, record, burial, self._clock.elapsed())
        self.in_doubt.discard(volume_id)
        self._log.info("folder read from disk after a failure", volume=volume_id, live=volume_id in self.book.live)
        self.wake_reaper.set()
        self.to_measure.set()

    async def resolve_doubts(self) -> None:
        """Call `resolve_doubt` for every volume in doubt: kubelet may never call again. Failures stay in doubt."""
        for volume_id in sorted(self.in_doubt):
            async with self.keys.hold(volume_id, why="reading from disk after a failure"):
                with suppress(Unavailable):
                    await self.resolve_doubt(volume_id)


def lifespan_at_burial(options: FolderOptions, limits: AdminLimits | None) -> float:
    """Return how long a folder that is buried now is retained; without `limits`, as its record has it."""
    if limits is None:
        return options.lifespan_seconds
    # By the current flags: the admin may have changed them since the folder was created.
    return min(options.lifespan_seconds, limits.max_afterlifespan) if options.own_lifespan else limits.afterlifespan


def _without_batches(threads: Threads) -> BatchRunner:
    async def run(work: BatchedWork[T], /) -> T:
        return await threads(lambda: run_alone(work))

    return run
