"""Reconcile the disks of all nodes: PersistentVolumes and operations, as `master_rules` decides.

One queue of node names and one worker, so that no two decisions run at once. Every change of a ProvisionerStatus, a
PersistentVolume, a Node or a StorageClass adds the nodes it may matter to; at the start, when all caches are filled,
every node is added once.

Order of effects: `master_rules`. Each effect is one guarded write. After it, the next step is decided on a view that
contains its result; where its outcome is unknown, the object is read before anything else is decided about the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.static_pv.configuration import StaticConfiguration
from orlop.static_pv.disk_step_rules import LeaveAlone, ReportDisk, ReportFailure, ReportVolume
from orlop.static_pv.master_metrics import MasterMetrics
from orlop.static_pv.master_reports import MasterReports
from orlop.static_pv.master_rules import is_report_over, next_disk_step
from orlop.static_pv.master_view import MasterView, volume_facts
from orlop.static_pv.master_writes import MasterWrites, Stale
from orlop.static_pv.node_disks_rules import NodeDisks

POOL: Final = "static-volumes"
BACKOFF: Final = Backoff(initial=1.0, factor=2.0, cap=300.0, jitter=0.2)
MOST_STEPS: Final = 10
"""Steps of one disk in one reconciliation: the limit only ends an endless loop."""
NODE_GONE_SECONDS: Final = 30.0
"""How long a Node is missing before anything of it is deleted: kubelet registers a deleted Node again at once."""


class Unsettled(Exception):
    """A disk changed in every step."""


class StaticMaster:
    """`configuration` returns the current one; None while none could be read yet."""

    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        view: MasterView,
        configuration: Callable[[], StaticConfiguration | None],
        *,
        runtime: Runtime,
        kube: KubeClient,
        events: EventRecorder,
        metrics: MasterMetrics,
        queue_metrics: WorkqueueMetrics,
        may_act: Callable[[], None],
    ) -> None:
        self._view = view
        self._configuration = configuration
        self._kube = kube
        self._clock = runtime.clock
        self._random = runtime.random
        self._log: Log = runtime.log
        self._may_act = may_act
        metrics.view = view
        self.reports = MasterReports(view.namespace, events, runtime.clock)
        self._writes = MasterWrites(
            view, kube=kube, runtime=runtime, reports=self.reports, metrics=metrics, may_act=may_act
        )
        self._missing_since: dict[str, float] = {}
        """By node: since when its Node is missing, in elapsed time."""
        self._queue: Workqueue[str] = Workqueue(
            (POOL,), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pool = WorkerPool(POOL, 1, self._reconcile)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=runtime.clock, log=runtime.log)

    async def run(self) -> None:
        """Reconcile until stopped or cancelled. Starts when all caches are complete."""
        view = self._view
        await view.wait_synced()
        unsubscribe = (
            view.volumes.informer.add_listener(self._volume_changed),
            view.reports.informer.add_listener(self._report_changed),
            view.nodes.informer.add_listener(self._node_changed),
            view.classes.informer.add_listener(self._class_changed),
        )
        try:
            async with TaskGroup() as tasks:
                resync = tasks.start(self._resync(), name="resync of static volumes")
                await self._loop.run()
                resync.cancel()
        finally:
            for end in unsubscribe:
                end()

    def stop(self) -> None:
        """Start nothing more; `run` returns when the write in flight has ended."""
        self._loop.stop()

    # ---- enqueuing -----------------------------------------------------------------------------------------------

    def enqueue_all(self) -> None:
        """Reconcile every node, as after a change of the configuration."""
        for node in sorted(self._view.known_nodes()):
            self._queue.add(POOL, node)

    async def _resync(self) -> None:
        while True:
            configuration = self._configuration()
            period = configuration.min_resync_seconds if configuration is not None else BACKOFF.cap
            await self._clock.sleep(period * (1 + self._random.random()))
            self.enqueue_all()

    def _volume_changed(self, name: ObjectName) -> None:
        observation = self._view.volumes.observe(name)
        ended = observation.ended.fingerprint if observation.ended is not None else None
        current = volume_facts(self._view.volumes.informer.get(name))
        if ended is not None:
            self.reports.forget(ended.uid)
        self._view.note_claim(ended, current)
        if current is not None and observation.is_news:
            self._queue.add(POOL, current.node)
        if ended is not None:
            self._queue.add(POOL, ended.node)

    def _report_changed(self, name: ObjectName) -> None:
        observation = self._view.reports.observe(name)
        if observation.is_news or observation.ended is not None:
            self._queue.add(POOL, name.name)

    def _node_changed(self, name: ObjectName) -> None:
        observation = self._view.nodes.observe(name)
        if observation.is_news or observation.ended is not None:
            self._queue.add(POOL, name.name)

    def _class_changed(self, name: ObjectName) -> None:
        observation = self._view.classes.observe(name)
        configuration = self._configuration()
        is_ours = configuration is not None and configuration.of_class(name.name) is not None
        if is_ours and observation.is_news:
            self.enqueue_all()

    # ---- reconciling ---------------------------------------------------------------------------------------------

    async def _reconcile(self, node: str) -> Outcome:
        configuration = self._configuration()
        if configuration is None or not self._view.is_known(node):
            self._missing_since.pop(node, None)
            return Done()
        seconds_to_wait = await self._seconds_until_gone(node)
        is_gone = seconds_to_wait == 0
        failures = await self._reconcile_disks(node, configuration, is_gone=is_gone)
        if failures:
            return Failed(failures[0])
        if is_report_over(self._view.disks_of(node, configuration, is_gone=is_gone)):
            await self._writes.delete_report(node)
            # A worker that still runs creates it again: the node has the same time again to appear.
            self._missing_since.pop(node, None)
        return RetryAfter(seconds_to_wait) if seconds_to_wait else Done()

    async def _seconds_until_gone(self, node: str) -> float | None:
        """Return how long until a missing Node counts as gone; None while it exists."""
        if self._view.nodes.get(ObjectName(None, node)) is not None:
            self._missing_since.pop(node, None)
            return None
        since = self._missing_since.setdefault(node, self._clock.elapsed())
        if (seconds := since + NODE_GONE_SECONDS - self._clock.elapsed()) > 0:
            return seconds
        # The cache of Nodes may lag behind that of the ProvisionerStatuses.
        try:
            self._view.nodes.remember(await self._kube.get(NODE, ObjectName(None, node)))
        except NotFound:
            return 0.0
        return None

    async def _reconcile_disks(
        self, node: str, configuration: StaticConfiguration, *, is_gone: bool
    ) -> list[Exception]:
        """Take every step that can be taken now. The failure of one disk does not delay the others."""
        failures: list[Exception] = []

        def disks_now() -> NodeDisks:
            return self._view.disks_of(node, configuration, is_gone=is_gone)

        disks = disks_now()
        for name in disks.disk_names:
            try:
                disks = await self._reconcile_disk(disks, name, disks_now)
            except (ApiError, Unsettled) as error:
                self._log.warning("step of disk failed", disk=name, node=node, error=error)
                failures.append(error)
                disks = disks_now()
        return failures

    async def _reconcile_disk(self, disks: NodeDisks, name: str, disks_now: Callable[[], NodeDisks]) -> NodeDisks:
        """Take steps for one disk until there is none; return the disks as they are then."""
        for _ in range(MOST_STEPS):
            if not await self._take_step(disks, name):
                return disks
            disks = disks_now()
        raise Unsettled(f"the disk {name} of {disks.name} changed in each of {MOST_STEPS} steps")

    async def _take_step(self, disks: NodeDisks, name: str) -> bool:
        """Take the next step of a disk; return whether there may be another one."""
        match next_disk_step(disks, name):
            case LeaveAlone():
                return False
            case ReportVolume(reason, note):
                self.reports.warn_volume(disks.volumes[name].facts, reason, note)
                return False
            case ReportFailure(status):
                self.reports.wipe_failed(disks.volumes[name].facts, status)
                return False
            case ReportDisk(reason, note):
                self.reports.warn_disk(disks, reason, note)
                return False
            case step:
                try:
                    await self._writes.carry_out(disks, name, step)
                except Stale:
                    self._log.debug("object changed; deciding again", disk=name, node=disks.name)
                return True
