"""Wipe the disks of delete operations, each in a task of its own. Which, and when, is decided by `wipe_rules`.

Order of a wipe: find the entry in the configuration → hold the disk (`StaticHost`: locked, recognized, unused) →
overwrite it piece by piece, or empty the folder, or run the admin's command → make that durable → the result. Progress
counts bytes that are durable, so the next process may go on from there.

A wipe that is cancelled ends between two pieces; its thread releases the disk.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock, wait_until_set
from orlop.foundation.task_group import TaskGroup
from orlop.host.host_errors import HostError
from orlop.host.static_disks.disk_entries import EntryKind
from orlop.host.threads import ThreadedGenerator
from orlop.static_pv.configuration import StaticClass
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.wipe_method_rules import (
    CHUNK_BYTES,
    Fill,
    OverwriteDevice,
    RunCommand,
    UnusableCommand,
    WipePiece,
    bytes_to_write,
    next_piece,
    wipe_method,
)
from orlop.static_pv.wipe_rules import (
    LONGEST_DELAY_SECONDS,
    WipeFailed,
    WipeProgress,
    WipeRun,
    WipeSucceeded,
    resumed_bytes,
)

if TYPE_CHECKING:
    from types import TracebackType

    from orlop.foundation.runtime import Runtime
    from orlop.host.static_host import WipedDevice
    from orlop.records.provisioner_status import DeleteOperation
    from orlop.static_pv.configuration_watch import ConfigurationWatch, StaticMachine
    from orlop.static_pv.worker_metrics import WorkerMetrics

RETRY: Final = Backoff(initial=5.0, factor=2.0, cap=LONGEST_DELAY_SECONDS / 1.2, jitter=0.2)
FLUSH_SECONDS: Final = 2.0
MEASURE_SECONDS: Final = 2.0
SMALLEST_CHUNK: Final = 1 << 20
DEFAULT_WORKERS: Final = 4
FILES: Final = "files"


@dataclass(frozen=True, slots=True)
class WipeLimits:
    """How much a node wipes at a time."""

    workers: int = DEFAULT_WORKERS
    """Disks at a time."""
    bytes_per_second: int = 0
    """Of all block devices together; 0: no limit."""

    @property
    def chunk(self) -> int:
        """Return how much is overwritten at a time: with a limit, about as much as is allowed in one second."""
        limit = self.bytes_per_second
        return min(CHUNK_BYTES, max(SMALLEST_CHUNK, limit // SMALLEST_CHUNK * SMALLEST_CHUNK)) if limit else CHUNK_BYTES


DEFAULT_LIMITS: Final = WipeLimits()


class WipeRate:
    """Spreads what is written over time."""

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._per_second = bytes_per_second
        self._free_at = 0.0

    async def wait_after(self, count: int) -> None:
        """Wait until more bytes may be written, after `count` bytes were."""
        if self._per_second:
            self._free_at = max(self._free_at, self._clock.elapsed()) + count / self._per_second
            await self._clock.sleep_until(self._free_at)


class Wiping:
    def __init__(
        self,
        machine: StaticMachine,
        configuration: ConfigurationWatch,
        node: str,
        *,
        metrics: WorkerMetrics,
        runtime: Runtime,
        limits: WipeLimits,
    ) -> None:
        self._machine = machine
        self._configuration = configuration
        self._node = node
        self._metrics = metrics
        self._limits = limits
        self._clock, self._random, self._log = runtime.clock, runtime.random, runtime.log
        self._rate = WipeRate(runtime.clock, limits.bytes_per_second)
        self._runs: dict[str, WipeRun] = {}
        self._operations: dict[str, DeleteOperation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group = TaskGroup()
        self._listeners: list[Callable[[bool], object]] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    # ---- for the worker ------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[bool], object]) -> None:
        """Call `listener` on progress, and with True when a wipe has ended."""
        self._listeners.append(listener)

    def run_of(self, uid: str) -> WipeRun | None:
        return self._runs.get(uid)

    def may_start(self, operation: DeleteOperation, begun: Iterable[DeleteOperation]) -> bool:
        """Return whether a worker is free and nothing else wipes this disk. `begun` start just now."""
        at_work = {uid: self._operations[uid] for uid, run in self._runs.items() if run.result is None}
        at_work |= {each.uid: each for each in begun}
        others = [each for uid, each in at_work.items() if uid != operation.uid]
        is_same = any((each.storage_class, each.entry) == (operation.storage_class, operation.entry) for each in others)
        return not is_same and len(others) < self._limits.workers

    def start(self, operation: DeleteOperation, resume: WipeProgress, attempt: int) -> None:
        if operation.uid in self._runs:
            return
        self._operations[operation.uid] = operation
        self._runs[operation.uid] = WipeRun(WipeProgress())
        work = self._work(operation, resume, attempt)
        self._tasks[operation.uid] = self._group.start(work, name=f"wipe of {operation.volume}")

    def refuse(self, operation: DeleteOperation, why: str) -> None:
        """Record a wipe that must not begin as failed."""
        if operation.uid in self._runs:
            return
        self._operations[operation.uid] = operation
        self._runs[operation.uid] = WipeRun(WipeProgress(), WipeFailed(why, LONGEST_DELAY_SECONDS))
        self._log.warning("wipe refused", volume=operation.volume, uid=operation.uid, error=why)
        self._notify(has_ended=True)

    def forget(self, uid: str) -> None:
        """Forget a wipe whose result is recorded; cancel one that nobody requests any more."""
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()
        self._runs.pop(uid, None)
        self._operations.pop(uid, None)

    def counts(self) -> dict[str, int]:
        """Return how many wipes run, and how many have ended with a result that is not recorded yet."""
        results = [run.result for run in self._runs.values()]
        succeeded = sum(isinstance(each, WipeSucceeded) for each in results)
        failed = sum(isinstance(each, WipeFailed) for each in results)
        return {"running": len(results) - succeeded - failed, "succeeded": succeeded, "failed": failed}

    def uids(self) -> tuple[str, ...]:
        return tuple(self._runs)

    # ---- one wipe ------------------------------------------------------------------------------------------------

    async def _work(self, operation: DeleteOperation, resume: WipeProgress, attempt: int) -> None:
        about = {"volume": operation.volume, "storage_class": operation.storage_class, "entry": operation.entry}
        self._log.info("wipe started", **about, attempt=attempt, resumed_at=resume.done or None)
        try:
            await self._wipe(operation, resume)
        except (HostError, UnusableCommand) as error:
            delay = RETRY.delay(attempt, self._random)
            self._log.warning("wipe failed", **about, error=error, retry_after_seconds=round(delay, 1))
            if isinstance(error, HostError) and error.errno == errno.EBUSY:
                # The program that uses the disk may write to parts that are wiped already: wipe everything again.
                self._set_progress(operation.uid, replace(resume, done=0, message=""))
            self._end(operation.uid, WipeFailed(str(error), delay))
        except Exception as error:  # noqa: BLE001 - the top of the task: recorded, and tried again
            self._log.exception("wipe failed", error, **about)
            self._end(operation.uid, WipeFailed(f"{type(error).__name__}: see the worker's log.", RETRY.cap))
        else:
            self._log.info("wipe complete", **about)
            self._end(operation.uid, WipeSucceeded())

    async def _wipe(self, operation: DeleteOperation, resume: WipeProgress) -> None:
        static_class = self._class_of(operation)
        host, threads, folder = self._machine.host, self._machine.wipers, static_class.mount_dir
        entry = await threads(lambda: host.entry(folder, operation.entry))
        match entry.kind:
            case EntryKind.DEVICE:
                await self._wipe_device(operation, static_class, resume)
            case EntryKind.MOUNT:
                await self._empty(operation, static_class, resume)
            case EntryKind.FOLDER if static_class.stated_size(operation.entry):
                await self._empty(operation, static_class, resume)
            case _:
                raise HostError(
                    errno.ENODEV,
                    f"{folder}/{operation.entry} is {entry.why or entry.kind.value}: its disk is not there.",
                )

    def _class_of(self, operation: DeleteOperation) -> StaticClass:
        static_class = self._configuration.of_class(operation.storage_class)
        if static_class is None:
            sentence = f"The configuration of the worker has no class {operation.storage_class}."
            raise HostError(errno.ENOENT, self._configuration.fault or sentence)
        if operation.volume != volume_name(operation.entry, self._node, static_class.name):
            sentence = f"{operation.volume} is not the volume of {operation.entry!r} on the node {self._node}."
            raise HostError(errno.EINVAL, sentence)
        return static_class

    async def _wipe_device(self, operation: DeleteOperation, static_class: StaticClass, resume: WipeProgress) -> None:
        match wipe_method(static_class.cleaner_command):
            case RunCommand(words) as command:
                self._set_progress(operation.uid, WipeProgress(method=command.name, message="The command is running."))
                await self._stoppable(
                    lambda stop: self._machine.host.run_cleaner(
                        static_class.mount_dir, operation.entry, operation.identity, words, stop
                    )
                )
            case OverwriteDevice() as method:
                steps = overwrite_steps(self._held(operation, static_class), method, resume, self._limits, self._clock)
                await self._overwrite(operation.uid, steps)

    def _held(self, operation: DeleteOperation, static_class: StaticClass) -> AbstractContextManager[WipedDevice]:
        return self._machine.host.held_device(static_class.mount_dir, operation.entry, operation.identity)

    async def _overwrite(self, uid: str, steps: Generator[OverwriteStep]) -> None:
        generator = ThreadedGenerator(steps, self._machine.wipers)
        try:
            while (step := await generator.next()) is not None:
                self._set_progress(uid, step.progress)
                self._metrics.wiped_bytes(step.written)
                await self._rate.wait_after(step.written)
        finally:
            generator.close()

    async def _empty(self, operation: DeleteOperation, static_class: StaticClass, resume: WipeProgress) -> None:
        host, folder, name = self._machine.host, static_class.mount_dir, operation.entry
        first = await self._machine.wipers(lambda: host.entry(folder, name))
        # What was used at the first attempt is the whole; a folder without a mount shares its file system with others.
        is_measured = first.kind is EntryKind.MOUNT
        is_resumed = resume.method == FILES and resume.identity == first.recognized_by
        total = max(first.used_bytes, resume.total if is_resumed else 0) if is_measured else 0
        progress = WipeProgress(0, total, FILES, first.recognized_by, "Files are being erased.")
        self._set_progress(operation.uid, progress)

        async def measure() -> None:
            entry = await self._machine.wipers(lambda: host.entry(folder, name))
            done = max(0, total - entry.used_bytes) if is_measured else 0
            self._set_progress(operation.uid, replace(progress, done=done))

        await self._stoppable(lambda stop: host.empty_folder(folder, name, operation.identity, stop), measure)

    async def _stoppable(
        self, work: Callable[[threading.Event], None], measure: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Run work in a thread until it ends; a cancellation stops it."""
        stop, done = threading.Event(), asyncio.Event()

        async def until_done() -> None:
            try:
                await self._machine.wipers(lambda: work(stop))
            finally:
                done.set()

        try:
            async with TaskGroup() as tasks:
                tasks.start(until_done(), name="work of a wipe")
                while not done.is_set():
                    await wait_until_set(self._clock, done, MEASURE_SECONDS)
                    if measure is not None and not done.is_set():
                        with suppress(HostError):
                            await measure()
        finally:
            stop.set()

    # ---- what is known of it -------------------------------------------------------------------------------------

    def _set_progress(self, uid: str, progress: WipeProgress) -> None:
        run = self._runs.get(uid)
        if run is not None and run.progress != progress:
            self._runs[uid] = WipeRun(progress)
            self._notify(has_ended=False)

    def _end(self, uid: str, result: WipeSucceeded | WipeFailed) -> None:
        run = self._runs.get(uid)
        if run is not None:
            self._runs[uid] = WipeRun(run.progress, result)
            self._tasks.pop(uid, None)
            self._notify(has_ended=True)

    def _notify(self, *, has_ended: bool) -> None:
        for listener in tuple(self._listeners):
            listener(has_ended)


@dataclass(frozen=True, slots=True)
class OverwriteStep:
    """One step: how far the wipe is durable, and how much was written in the step."""

    progress: WipeProgress
    written: int


def overwrite_steps(
    held: AbstractContextManager[WipedDevice],
    method: OverwriteDevice,
    resume: WipeProgress,
    limits: WipeLimits,
    clock: Clock,
) -> Generator[OverwriteStep]:
    """Overwrite a device piece by piece. Each step blocks; what the last one has written is durable."""
    with held as device:
        total = bytes_to_write(method, device.bytes)
        done = resumed_bytes(resume, method=method.name, total=total, identity=device.recognized_by)
        progress = WipeProgress(done, total, method.name, device.recognized_by, f"Overwriting ({method.name}).")
        # Before the first byte: the offset of the next process counts only with the method and the disk beside it.
        yield OverwriteStep(progress, 0)
        flushed_at = clock.elapsed()
        while (piece := next_piece(method, device.bytes, done, limits.chunk)) is not None:
            _overwrite_piece(device, piece)
            done = piece.done
            if done == total or clock.elapsed() - flushed_at >= FLUSH_SECONDS:
                device.flush()
                flushed_at, progress = clock.elapsed(), replace(progress, done=done)
            yield OverwriteStep(progress, piece.count)


def _overwrite_piece(device: WipedDevice, piece: WipePiece) -> None:
    match piece.fill:
        case Fill.ZEROS:
            device.zero(piece.start, piece.count)
        case Fill.RANDOM:
            device.overwrite_randomly(piece.start, piece.count)
        case Fill.DISCARD:
            device.discard(piece.start, piece.count)
