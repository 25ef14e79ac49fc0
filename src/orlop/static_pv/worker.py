"""Keep the ProvisionerStatus of this node: list its disks, and carry out the delete operations of the master.

The object is created where it is missing, and again when it vanishes. Each pass reads the newest state of the object
that is known, decides the next step of every operation (`wipe_rules`), writes the whole status at once, and only then
starts wipes. A write fails if the spec has changed since it was read; then everything is decided again.

Order for an operation: its entry is written (InProgress) → the object is read from the API server once more: a wipe
starts only if both are still there → the wipe → its result is written. This module never writes the spec.

After the restore of a backup, the objects may request wipes again that were completed, of disks that have newer data.
This process refuses a wipe that it has completed itself; a restarted process does not know about it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, NotFound
from orlop.kube.cache.informer import Watched, without_managed_fields
from orlop.kube.client import Selection
from orlop.kube.patches import guarded_by_generation
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.status_writing import REPORT_BACKOFF, ObjectsOfNode
from orlop.records.api_record import new_object, part_of
from orlop.records.provisioner_status import (
    PROVISIONER_STATUS,
    DeleteOperation,
    DeleteStatus,
    ProvisionerSpec,
    ProvisionerStatusStatus,
)
from orlop.static_pv.configuration_watch import ConfigurationWatch, StaticMachine
from orlop.static_pv.disk_watch import PERIOD_SECONDS, DiskWatch
from orlop.static_pv.wipe_rules import (
    COMPLETE,
    IN_PROGRESS,
    RecordStatus,
    StartWipe,
    WaitForWipe,
    WipeProgress,
    forgotten,
    next_wipe_step,
)
from orlop.static_pv.wiping import DEFAULT_LIMITS, WipeLimits, Wiping
from orlop.static_pv.worker_events import WorkerEvents
from orlop.static_pv.worker_metrics import WorkerMetrics
from orlop.static_pv.worker_status_rules import WorkerObservation, worker_status

if TYPE_CHECKING:
    from orlop.foundation.runtime import Runtime
    from orlop.kube.cache.informers import Informers
    from orlop.kube.client import KubeClient
    from orlop.kube.events.event_recorder import EventRecorder
    from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

ApiObject = Mapping[str, Any]
POOL: Final = "static-worker"
PROGRESS_SECONDS: Final = 2.0
"""How often the progress of wipes is written: the API server may have thousands of nodes."""


@dataclass(slots=True)
class _Decisions:
    """What one pass decides of all operations."""

    statuses: dict[str, DeleteStatus]
    begun: list[DeleteOperation] = field(default_factory=list)
    starts: list[tuple[DeleteOperation, WipeProgress]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


WIPED_BEFORE: Final = (
    "The disk was wiped for this volume already, and may have newer data: the objects of the API server are older than "
    "before, as after the restore of a backup. Check the disk. To keep it as it is, release the volume as it is; to "
    "wipe it, restart the worker."
)


class PastWipes:
    """The completed wipes, and whether the API server was restored from a backup since.

    A uid alone proves nothing: a volume that an admin had bound again is wiped a second time.
    """

    def __init__(self) -> None:
        self._complete: set[str] = set()
        self._generations: dict[str, int] = {}
        """By uid of an object: its generation when the API server last returned it."""
        self._current = ""
        self._is_restored = False

    def observe(self, obj: ApiObject) -> bool:
        """Note an object that the API server returned, not a cache; return whether it is the first older one."""
        uid, generation = objects.uid(obj), objects.generation(obj)
        last = self._generations.get(uid)
        # Unless a backup is restored, generations only grow, and an object that was replaced does not come back.
        is_older = last is not None and (generation < last or uid != self._current)
        self._generations[uid], self._current = generation, uid
        is_first, self._is_restored = is_older and not self._is_restored, self._is_restored or is_older
        return is_first

    def add(self, uid: str) -> None:
        """Note a completed wipe whose result is written."""
        self._complete.add(uid)

    def may_have_newer_data(self, uid: str) -> bool:
        """Return whether the disk of an operation may have been used since it was wiped for it."""
        return self._is_restored and uid in self._complete


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker is built from, besides its machine."""

    client: KubeClient
    informers: Informers
    events: EventRecorder
    runtime: Runtime
    queue_metrics: WorkqueueMetrics


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is configured with."""

    node: str
    namespace: str
    """Of the ProvisionerStatus objects."""
    configuration_folder: str
    limits: WipeLimits = DEFAULT_LIMITS
    period: float = PERIOD_SECONDS
    """Seconds between two passes without an event."""


class StaticWorker:
    def __init__(
        self,
        disks: DiskWatch,
        wiping: Wiping,
        own: ObjectsOfNode,
        events: WorkerEvents,
        *,
        runtime: Runtime,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._disks = disks
        self._wiping = wiping
        self._own = own
        self._events = events
        self._past = PastWipes()
        self._clock, self._log = runtime.clock, runtime.log
        self._queue: Workqueue[str] = Workqueue(
            (POOL,), clock=runtime.clock, random=runtime.random, backoff=REPORT_BACKOFF, metrics=queue_metrics
        )
        pools = (WorkerPool(POOL, 1, self._reconcile),)
        self._loop = ReconcileLoop(self._queue, pools, clock=runtime.clock, log=runtime.log)

    async def run(self) -> None:
        """Keep the object and wipe disks, until cancelled."""
        node = self._disks.node
        self._disks.listen(lambda: self._queue.add(POOL, node))
        self._wiping.listen(self._wipe_changed)
        stop: Callable[[], None] = self._own.listen(lambda name: self._queue.add(POOL, name))
        self._queue.add(POOL, node)
        try:
            async with self._wiping, TaskGroup() as tasks:
                tasks.start(self._disks.run(), name="watch of disks")
                await self._loop.run()
        finally:
            stop()

    def _wipe_changed(self, has_ended: bool) -> None:  # noqa: FBT001 - the one fact of a listener
        if has_ended:
            self._queue.add(POOL, self._disks.node)
        else:
            self._queue.add_after(POOL, self._disks.node, PROGRESS_SECONDS)

    async def _reconcile(self, name: str) -> Outcome:
        if name != self._disks.node:
            return Done()
        if not self._own.is_synced:
            return RetryAfter(0.2)
        obj = self._own.get(name) or await self._created(name)
        spec = part_of(obj, "spec", ProvisionerSpec)
        if spec.node_name != name:
            return Failed(ValueError(f"the ProvisionerStatus {name} is of the node {spec.node_name}: delete it"))
        before = part_of(obj, "status", ProvisionerStatusStatus)
        self._disks.begin(before.local_volumes or ())
        decided = self._decide(spec, before)
        await self._write(obj, spec, decided)
        await self._start(name, decided)
        if any(self._wiping.run_of(each.uid) is None for each, _ in decided.starts):  # the cache is behind
            decided.waits.append(PROGRESS_SECONDS)
        elif decided.begun:  # its entry was written: start it
            decided.waits.append(0.0)
        return RetryAfter(min(decided.waits)) if decided.waits else Done()

    async def _created(self, name: str) -> ApiObject:
        body = new_object("ProvisionerStatus", name, ProvisionerSpec(node_name=name))
        try:
            created = await self._own.create(body)
        except AlreadyExists:
            return await self._own.read(name)
        self._log.info("created the ProvisionerStatus of this node", node=name)
        return created

    def _decide(self, spec: ProvisionerSpec, before: ProvisionerStatusStatus) -> _Decisions:
        operations = {each.uid: each for each in spec.delete_operations}
        statuses = {each.uid: each for each in before.delete_statuses}
        for uid in forgotten(statuses, operations):
            del statuses[uid]
        for uid in self._wiping.uids():
            if uid not in operations:
                self._wiping.forget(uid)
        decided = _Decisions(statuses)
        for operation in spec.delete_operations:
            self._decide_operation(operation, decided)
        return decided

    def _decide_operation(self, operation: DeleteOperation, decided: _Decisions) -> None:
        uid, present = operation.uid, decided.statuses.get(operation.uid)
        may_start = self._wiping.may_start(operation, decided.begun)
        step = next_wipe_step(present, self._wiping.run_of(uid), operation, may_start=may_start, now=self._clock.now())
        match step:
            case RecordStatus(status):
                decided.statuses[uid] = status
                if status.state == IN_PROGRESS and (present is None or present.state != IN_PROGRESS):
                    decided.begun.append(operation)
            case StartWipe(resume):
                decided.starts.append((operation, resume))
                decided.begun.append(operation)
            case WaitForWipe(seconds) if seconds is not None:
                decided.waits.append(seconds)

    async def _write(self, obj: ApiObject, spec: ProvisionerSpec, decided: _Decisions) -> None:
        observed = WorkerObservation(
            self._disks.configuration.current is not None, self._disks.configuration.fault, self._disks.discovery
        )
        operations = [each.uid for each in spec.delete_operations]
        status = worker_status(obj, observed, decided.statuses, operations, self._clock.now())
        # Guarded by the generation: an entry must not be written for an operation that has just left the spec.
        written = await self._own.write_status(obj, status, ProvisionerStatusStatus, guarded_by_generation)
        if written is not None:
            self._observe(written)
            self._events.written(obj, written, spec.delete_operations)
        for uid, status_of in decided.statuses.items():
            if status_of.state != IN_PROGRESS:
                self._wiping.forget(uid)
            if status_of.state == COMPLETE:
                self._past.add(uid)

    def _observe(self, obj: ApiObject) -> None:
        if self._past.observe(obj):
            self._log.warning("API server has older objects than before", generation=objects.generation(obj))

    async def _start(self, name: str, decided: _Decisions) -> None:
        """Start wipes, if the API server still has their operations and entries: the cache may be behind."""
        if not decided.starts:
            return
        try:
            current = await self._own.read(name)
        except NotFound:
            return
        self._observe(current)
        requested = {each.uid for each in part_of(current, "spec", ProvisionerSpec).delete_operations}
        entries = {each.uid: each for each in part_of(current, "status", ProvisionerStatusStatus).delete_statuses}
        for operation, resume in decided.starts:
            entry = entries.get(operation.uid)
            if operation.uid not in requested or entry is None or entry.state != IN_PROGRESS:
                continue
            if self._past.may_have_newer_data(operation.uid):
                self._wiping.refuse(operation, WIPED_BEFORE)
            else:
                self._wiping.start(operation, resume, entry.attempts)


@asynccontextmanager
async def working(
    settings: WorkerSettings,
    machine: StaticMachine,
    parts: WorkerParts,
    wake: Callable[[Callable[[], object]], AbstractContextManager[None]] = lambda _wake: nullcontext(),
) -> AsyncIterator[StaticWorker]:
    """Work in this context. `wake` calls the function it is passed at every event of a disk or a folder."""
    runtime, metrics = parts.runtime, WorkerMetrics(parts.runtime.metrics)
    read = partial(machine.configuration_files, settings.configuration_folder)
    configuration = ConfigurationWatch(read, metrics.configuration_valid, runtime=runtime)
    disks = DiskWatch(machine, configuration, settings.node, metrics=metrics, runtime=runtime, period=settings.period)
    wiping = Wiping(machine, configuration, settings.node, metrics=metrics, runtime=runtime, limits=settings.limits)
    metrics.register_runs(wiping.counts)
    selection = Selection(namespace=settings.namespace, fields=f"metadata.name={settings.node}")
    watched = Watched(PROVISIONER_STATUS, selection, without_managed_fields)
    async with parts.informers.using(watched) as informer, TaskGroup() as tasks:
        own = ObjectsOfNode(PROVISIONER_STATUS, parts.client, informer, settings.namespace)
        events = WorkerEvents(parts.events, metrics, runtime.clock, configuration.command_of)
        worker = StaticWorker(disks, wiping, own, events, runtime=runtime, queue_metrics=parts.queue_metrics)
        task = tasks.start(worker.run(), name="static worker")
        try:
            with wake(disks.wake):
                yield worker
        finally:
            task.cancel()
