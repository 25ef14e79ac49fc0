"""Stage, publish, expand and undo them under locks: one call at a time for each volume and each path.

`volume_staging` and `volume_publishing` change the machine; this module decides when, and keeps the index. Order: the
drive is open → its volumes were read → lock the volume → lock the path → change the machine, in a thread → unlock the
path → change the index → unlock the volume. After a failure the record is read again, so that index and drive agree
when the volume is unlocked.

No call here needs the API server. A volume is unmounted even if its drive is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Final, TypeVar

from orlop.csi.error_codes import Aborted, AlreadyExists, CsiError, FailedPrecondition, NotFound, Unavailable
from orlop.driver.kubelet_calls import KUBELET_DIR_NOT_SHARED, as_csi_errors, retryable
from orlop.driver.persistent.drive_errors import DriveErrorListener, disk_error_behind, errors_of_drive
from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.driver.persistent.node_request_rules import VolumeExpandOrder, VolumePublishOrder, VolumeStageOrder
from orlop.driver.persistent.recorded_volumes import existing_volume
from orlop.driver.persistent.staged_mounts import VolumeMounts
from orlop.driver.persistent.volume_index import VolumeIndex, without_old_paths
from orlop.driver.persistent.volume_publishing import VolumePublishing
from orlop.driver.persistent.volume_record_rules import is_published_at
from orlop.driver.persistent.volume_staging import DriveRoom, VolumeStaging
from orlop.driver.project_numbers import ProjectNumbers
from orlop.foundation.clock import Clock
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.structured_log import Log
from orlop.host.batched_work import BatchedWork, BatchRunner
from orlop.host.host_errors import HostError
from orlop.host.node_host import KubeletDir
from orlop.host.threads import LONGEST_READ_SECONDS, Threads
from orlop.records.volume_record import VolumeRecord

T = TypeVar("T")
RELEASE_SECONDS: Final = 600.0
STILL_OPENING: Final = "the drives of this node are still being opened; try again"
NOT_GROWN: Final = "its expansion was requested, and has not succeeded yet"


class LockedVolumes:
    """The volumes on the drives of this node, used under locks.

    `drive_failed` gets the id of a drive and a disk error of a call on it. `is_opening` returns whether drives are
    still being opened after a start: an unknown volume may then be on one of them. `detach_lost` detaches the loop
    devices of a volume whose drive cannot be used; it blocks. `call_failed` gets a volume, the name of a call and the
    error, if the call was refused or failed; not if it may succeed a moment later.
    """

    def __init__(  # noqa: PLR0913 - its parts, each by name
        self,
        table: DriveTable,
        index: VolumeIndex,
        kubelet_dir: KubeletDir,
        *,
        batched: BatchRunner,
        threads: Threads,
        clock: Clock,
        log: Log,
        drive_failed: DriveErrorListener = lambda _drive_id, _error: None,
        is_opening: Callable[[], bool] = lambda: False,
        detach_lost: Callable[[str], object] = lambda _volume_id: None,
        call_failed: Callable[[str, str, str], object] = lambda _volume_id, _call, _why: None,
    ) -> None:
        self.index = index
        mounts = VolumeMounts(kubelet_dir)
        self._staging, self._publishing = VolumeStaging(mounts, detach_lost), VolumePublishing(mounts)
        self._table = table
        self._kubelet_dir = kubelet_dir
        self._batched = batched
        self._threads = threads
        self._clock, self._log = clock, log
        self._drive_failed = drive_failed
        self._is_opening = is_opening
        self._call_failed = call_failed
        self._paths = KeyedLock()
        """By path below kubelet's folder. Always taken after the volume's key, so that two calls cannot deadlock."""
        self._new_bytes: dict[str, tuple[str, int]] = {}
        """By volume: its drive, and the bytes that a call under way adds to the index when it succeeds."""
        self._numbers: dict[str, tuple[OpenDrive, ProjectNumbers]] = {}
        self._pods_see_mounts = False

    # ---- stage and unstage -------------------------------------------------------------------------------------------

    async def stage(self, order: VolumeStageOrder) -> None:
        """Stage a volume, made on its drive if it is new, for NodeStageVolume."""
        with self._noting_failure(order.volume_id, "NodeStageVolume"):
            await self._stage(order)

    async def _stage(self, order: VolumeStageOrder) -> None:
        volume_id, context = order.volume_id, order.context
        await self._refuse_unless_pods_see_mounts()
        if self._is_opening() and context.drive not in self._table.standings():
            raise Unavailable(STILL_OPENING)
        with self._table.staging(context.drive) as drive:
            await self._read(drive)
            async with self.index.keys.hold(volume_id, why="NodeStageVolume"):
                known = self.index.get(volume_id)
                self._refuse_other_drive(known, context.drive)
                room, numbers, now = self._room(drive), self._numbers_of(drive), self._clock.now().timestamp()
                taken = context.bytes if known is None else 0
                is_recorded = known is not None and known.staged == order.staging
                with self._taking(drive, volume_id, taken), retryable(AlreadyExists) if is_recorded else nullcontext():
                    record = await self._change(
                        drive, volume_id, order.staging, lambda: self._staging.stage(drive, order, room, numbers, now)
                    )
            if record is None:
                return
            if known is None:
                self._log.info("volume made", volume=volume_id, drive=drive.drive_id, bytes=record.bytes)
            if record.unfinished:
                self._log.warning("volume staged at its old size", volume=volume_id, asked_bytes=record.bytes)

    def _refuse_other_drive(self, known: VolumeRecord | None, drive_id: str) -> None:
        if known is not None and known.drive != drive_id:
            raise FailedPrecondition(
                f"the volume {known.volume_id} is on the drive {known.drive}, and its volume context names {drive_id}: "
                "the PersistentVolume was not made by Orlop's controller, or was changed"
            )

    @contextmanager
    def _taking(self, drive: OpenDrive, volume_id: str, size: int) -> Iterator[None]:
        """Count bytes of a call under way as promised: a parallel call must not promise them again."""
        self._new_bytes[volume_id] = (drive.drive_id, size)
        try:
            yield
        finally:
            del self._new_bytes[volume_id]

    def _room(self, drive: OpenDrive) -> DriveRoom:
        taking = sum(size for drive_id, size in self._new_bytes.values() if drive_id == drive.drive_id)
        return DriveRoom(drive.record.capacity_bytes, self.index.promised(drive.drive_id) + taking)

    def _numbers_of(self, drive: OpenDrive) -> ProjectNumbers:
        """Return the project numbers of a drive's file system: one object for each opening."""
        opening = self._numbers.get(drive.drive_id)
        if opening is None or opening[0] is not drive:
            numbers = ProjectNumbers(drive.volumes, lambda: self._projects_on(drive.drive_id))
            opening = self._numbers[drive.drive_id] = (drive, numbers)
        return opening[1]

    def _projects_on(self, drive_id: str) -> set[int]:
        return {
            record.project for record in list(self.index.all_records()) if record.drive == drive_id and record.project
        }

    async def run(self) -> None:
        """Free the project numbers of erased volumes, for ever: their usage falls some time after the erasure."""
        while True:
            await self._clock.sleep(RELEASE_SECONDS)
            for drive in self._table.open_drives():
                if drive.features.why_no_quota is None:
                    with self._table.using_open(drive):
                        await self._release_unused(drive)

    async def _release_unused(self, drive: OpenDrive) -> None:
        numbers = self._numbers_of(drive)
        try:
            await self._threads(numbers.release_unused)
        except HostError as error:
            self._log.warning("project numbers not freed", drive=drive.drive_id, error=error)

    async def unstage(self, volume_id: str, staging: str) -> None:
        """Unstage a volume, for NodeUnstageVolume. Succeeds if it is not staged, or unknown."""
        async with self._locked(volume_id, "NodeUnstageVolume") as (drive, known):
            await self._change(
                drive, volume_id, staging, lambda: self._staging.unstage(drive, known, volume_id, staging)
            )

    # ---- publish and unpublish ---------------------------------------------------------------------------------------

    async def publish(self, order: VolumePublishOrder) -> None:
        """Publish a staged volume at a target, for NodePublishVolume."""
        with self._noting_failure(order.volume_id, "NodePublishVolume"):
            await self._publish(order)

    async def _publish(self, order: VolumePublishOrder) -> None:
        await self._refuse_unless_pods_see_mounts()
        async with self._locked(order.volume_id, "NodePublishVolume") as (_, known):
            if known is None:
                raise NotFound(f"this node has no volume {order.volume_id}")
            path = order.target.path
            # If the record names the target, an earlier call may have mounted it. After a final error kubelet would
            # never call NodeUnpublishVolume, which alone unmounts it.
            with (
                self._table.using(known.drive) as drive,
                retryable(AlreadyExists) if is_published_at(known, path) else nullcontext(),
            ):
                await self._change(drive, order.volume_id, path, lambda: self._publishing.publish(drive, order))

    async def unpublish(self, volume_id: str, target: str) -> None:
        """Unpublish a volume from a target, for NodeUnpublishVolume. Succeeds if it is not published, or unknown."""
        async with self._locked(volume_id, "NodeUnpublishVolume") as (drive, known):
            await self._change(drive, volume_id, target, lambda: self._publishing.unpublish(drive, known, target))

    # ---- expand ------------------------------------------------------------------------------------------------------

    async def expand(self, order: VolumeExpandOrder) -> int:
        """Make a volume larger while it is in use, for NodeExpandVolume; return its size."""
        with self._noting_failure(order.volume_id, "NodeExpandVolume"):
            return await self._expand(order)

    async def _expand(self, order: VolumeExpandOrder) -> int:
        volume_id = order.volume_id
        async with self._locked(volume_id, "NodeExpandVolume") as (_, known):
            if known is None or order.path not in {known.staged, *(target.path for target in known.published)}:
                raise NotFound(f"this node has no volume {volume_id} at {order.path}")
            with self._table.using(known.drive) as drive:
                room = self._room(drive)
                with self._taking(drive, volume_id, max(0, order.bytes - known.bytes)):
                    record = await self._change(
                        drive,
                        volume_id,
                        known.staged,
                        lambda: self._staging.expand(drive, volume_id, order.bytes, room),
                    )
            return record.bytes if record is not None else 0

    @contextmanager
    def _noting_failure(self, volume_id: str, call: str) -> Iterator[None]:
        try:
            yield
        except (Aborted, Unavailable):
            raise  # It may succeed a moment later; a drive that cannot be used has Events of its own.
        except CsiError as error:
            self._call_failed(volume_id, call, str(error))
            raise

    # ---- locks -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(self, volume_id: str, why: str) -> AsyncIterator[tuple[OpenDrive | None, VolumeRecord | None]]:
        """Hold a volume's key; return its drive, None if it cannot be used, and its record, None if it is unknown."""
        if self.index.get(volume_id) is None:
            await self._read_all()
        async with self.index.keys.hold(volume_id, why=why):
            known = self.index.get(volume_id)
            if known is None and self._is_opening():
                raise Unavailable(STILL_OPENING)
            with ExitStack() as used:
                drive: OpenDrive | None = None
                if known is not None:
                    with suppress(CsiError):
                        drive = used.enter_context(self._table.using(known.drive))
                yield drive, known

    async def _read_all(self) -> None:
        """Read every drive that was not read yet, because each may have the volume. One that hangs ends the call."""
        try:
            async with self._clock.timeout(LONGEST_READ_SECONDS):
                await self.index.read_all()
        except TimeoutError:
            raise Unavailable(
                f"this node does not know the volume, and a drive has not answered for {LONGEST_READ_SECONDS:g} "
                "seconds; 'orlop drives list' shows the state of each"
            ) from None

    async def _read(self, drive: OpenDrive) -> None:
        try:
            with as_csi_errors(), errors_of_drive():
                await self.index.read(drive)
        except CsiError as error:
            self.report_disk_error(drive.drive_id, error)
            raise

    async def _change(
        self, drive: OpenDrive | None, volume_id: str, path: str, work: Callable[[], VolumeRecord | None]
    ) -> VolumeRecord | None:
        """Change a volume, in a thread; then the index. The caller holds the volume's key."""
        try:
            async with self._paths.hold(path, why=f"the volume {volume_id}"):
                record = await self._batched(_alone(work))
        except Exception as error:
            if drive is not None:
                await self._after_failure(drive, volume_id, error)
            raise
        if record is not None:
            self.index.put(record)
            self.index.set_trouble(volume_id, NOT_GROWN if record.unfinished == "growth" else "")
        return record

    async def _after_failure(self, drive: OpenDrive, volume_id: str, error: Exception) -> None:
        """Read the record again, because the failed call may have changed it, and report I/O errors of the disk."""
        with suppress(OSError, CsiError):
            record = await self._threads(lambda: existing_volume(drive, volume_id))
            if record is not None:
                self.index.put(await self._threads(lambda: without_old_paths(drive.volumes, record)))
        if disk_error_behind(error) is not None:
            self.index.set_trouble(volume_id, str(error))
        self.report_disk_error(drive.drive_id, error)

    def report_disk_error(self, drive_id: str, error: Exception) -> None:
        """Report the error of a call that used a drive, if it may be one of the disk."""
        if disk_error_behind(error) is not None:
            self._drive_failed(drive_id, error)

    async def _refuse_unless_pods_see_mounts(self) -> None:
        # A shared mount stays shared: after the first success the check is not repeated.
        if not self._pods_see_mounts:
            with as_csi_errors():
                self._pods_see_mounts = await self._threads(self._kubelet_dir.is_shared)
        if not self._pods_see_mounts:
            raise FailedPrecondition(KUBELET_DIR_NOT_SHARED)


def _alone(work: Callable[[], T]) -> BatchedWork[T]:
    """Return work for `BatchThreads` that shares no step with others."""
    yield from ()
    return work()
