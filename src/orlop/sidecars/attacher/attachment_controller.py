"""Watch VolumeAttachments and PersistentVolumes, and pass each one to the handler for the driver's capabilities.

Three pools of workers: attach, detach, and volumes (removing finalizers). At any time one worker at most reconciles a
VolumeAttachment, from whichever pool. Attaching never waits behind detaching, and the volumes of a node that hangs do
not delay those of other nodes. A worker that gets an object of the other direction moves it to the other pool.

A VolumeAttachment is enqueued when another client changed a field that the rules read; when its PersistentVolume or the
CSINode of its node changed while it was not attached yet or was being detached; and when the driver's list of published
volumes disagrees with it (drift). A PersistentVolume is enqueued when it is being deleted, and when a VolumeAttachment
that named it is gone. All of them are enqueued at every resync, so that a missed change has no lasting effect.

`attach_handler` or `trivial_handler` reconciles a VolumeAttachment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from orlop.csi.client import CsiClient
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from orlop.kube.queue.own_writes import LatestState
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, WorkerPool
from orlop.kube.queue.workqueue import FairShare, Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.sidecars.attacher.attach_handler import AttachHandler
from orlop.sidecars.attacher.attach_rules import (
    attacher_of,
    id_in_csi_node,
    is_attached,
    is_to_be_detached,
    node_name_of,
)
from orlop.sidecars.attacher.finalizer_rules import volume_release_patch
from orlop.sidecars.attacher.handler import (
    ATTACH,
    DETACH,
    JITTER,
    VOLUMES,
    AttacherCaches,
    AttacherSettings,
    AttachmentFingerprint,
    AttachmentHandler,
    AttachmentWrites,
    NotReconciled,
    attachment_writes,
    fingerprint_of,
)
from orlop.sidecars.attacher.trivial_handler import TrivialHandler, finalizers_kept
from orlop.sidecars.attacher.volume_source_rules import volume_name_of

SHARE_OF_A_NODE: Final = 0.8
"""The share one node may have of the workers that no other node has: one with hanging volumes leaves some to others."""
BY_VOLUME, BY_NODE = "attachments by volume", "attachments by node"


@dataclass(frozen=True, slots=True)
class VolumeFingerprint:
    """The fields of a PersistentVolume that attaching depends on."""

    uid: str
    is_being_deleted: bool
    spec: str


class AttachmentController:
    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        handler: AttachmentHandler,
        caches: AttacherCaches,
        settings: AttacherSettings,
        *,
        runtime: Runtime,
        kube: KubeClient,
        own_writes: AttachmentWrites,
        queue_metrics: WorkqueueMetrics,
        may_act: Callable[[], None],
    ) -> None:
        """`own_writes` is shared with the handler. `may_act` raises if this process has lost its lease."""
        self._handler = handler
        self._attachments = caches.attachments
        self._volumes = caches.volumes
        self._csi_nodes = caches.csi_nodes
        self._settings = settings
        self._kube = kube
        self._may_act = may_act
        self._clock = runtime.clock
        self._random = runtime.random
        self._own_writes = own_writes
        self._drifted: dict[ObjectName, bool] = {}
        """Whether the driver lists the volume, for objects that disagree with its list."""
        self._volumes_seen: dict[ObjectName, VolumeFingerprint] = {}
        self._node_ids_seen: dict[ObjectName, str] = {}
        self._queue: Workqueue[ObjectName] = Workqueue(
            (ATTACH, DETACH, VOLUMES),
            clock=runtime.clock,
            random=runtime.random,
            backoff=settings.backoff,
            metrics=queue_metrics,
            fair_share=FairShare(self._node_of, settings.workers, SHARE_OF_A_NODE),
        )
        pools = (
            WorkerPool(ATTACH, settings.workers, partial(self._reconcile_attachment, ATTACH)),
            WorkerPool(DETACH, settings.workers, partial(self._reconcile_attachment, DETACH)),
            WorkerPool(VOLUMES, settings.workers, self._reconcile_volume),
        )
        self._loop = ReconcileLoop(self._queue, pools, clock=runtime.clock, log=runtime.log)
        # The caches outlive a controller: the next one, for other capabilities, must add the same index functions.
        caches.attachments.add_index(BY_VOLUME, _volume_keys)
        caches.attachments.add_index(BY_NODE, _node_keys)

    async def run(self) -> None:
        """Reconcile until stopped or cancelled. Starts when all caches are complete."""
        for informer in (self._attachments, self._volumes, self._csi_nodes):
            await informer.wait_synced()
        unsubscribe = (
            self._attachments.add_listener(self._attachment_changed),
            self._volumes.add_listener(self._volume_changed, resync=self._settings.resync),
            self._csi_nodes.add_listener(self._node_changed),
        )
        try:
            async with TaskGroup() as tasks:
                background = (
                    tasks.start(self._resync_attachments(), name="resync of attachments"),
                    tasks.start(self._check_drift(), name="drift of attachments"),
                )
                await self._loop.run()
                for task in background:
                    task.cancel()
        finally:
            for end in unsubscribe:
                end()

    def stop(self) -> None:
        """Start nothing more; `run` returns when the work in flight has ended."""
        self._loop.stop()

    def _node_of(self, name: ObjectName) -> str | ObjectName:
        """Return the key by which workers are shared: the node; for a volume, which has no node, its own name."""
        attachment = self._attachments.get(name)
        return node_name_of(attachment) if attachment is not None else name

    # ---- enqueuing -----------------------------------------------------------------------------------------------

    def _attachment_changed(self, name: ObjectName) -> None:
        observation = self._own_writes.observe(name, self._attachments.get(name), self._attachments.version)
        if observation.ended is not None:
            self._forget(name, observation.ended)
        if observation.is_news:
            self._enqueue(name)

    def _forget(self, name: ObjectName, ended: LatestState[AttachmentFingerprint]) -> None:
        """Forget the drift and the failures of an object that is gone: a new object of its name must not get them."""
        self._drifted.pop(name, None)
        for pool in (ATTACH, DETACH):
            self._queue.forget(pool, name)
        if ended.fingerprint.volume_name:
            self._queue.add(VOLUMES, ObjectName(None, ended.fingerprint.volume_name))

    def _enqueue(self, name: ObjectName) -> None:
        attachment = self._attachments.get(name)
        if attachment is None or attacher_of(attachment) != self._settings.driver:
            return
        self._own_writes.remember(name, attachment)
        self._queue.add(fingerprint_of(attachment).pool, name)

    async def _resync_attachments(self) -> None:
        # Do not use the informer's own resync: the listener could not distinguish it from our own writes.
        while self._settings.resync > 0:
            await self._clock.sleep(self._settings.resync * (1 + JITTER * self._random.random()))
            for name in self._attachments.cache.names():
                self._enqueue(name)

    async def _check_drift(self) -> None:
        while self._settings.drift_check > 0:
            await self._clock.sleep(self._settings.drift_check)
            for name, published in (await self._handler.drifted()).items():
                self._drifted[name] = published
                self._enqueue(name)

    def _volume_changed(self, name: ObjectName) -> None:
        volume = self._volumes.get(name)
        if volume is None:
            fingerprint = None
        else:
            is_being_deleted = objects.is_being_deleted(volume)
            fingerprint = VolumeFingerprint(objects.uid(volume), is_being_deleted, repr(volume.get("spec")))
            if is_being_deleted and objects.has_finalizer(volume, self._settings.finalizer):
                self._queue.add(VOLUMES, name)
        if _is_new(self._volumes_seen, name, fingerprint):
            self._enqueue_unsettled(BY_VOLUME, name)

    def _node_changed(self, name: ObjectName) -> None:
        node_id = id_in_csi_node(self._csi_nodes.get(name), self._settings.driver)
        if _is_new(self._node_ids_seen, name, node_id):
            self._enqueue_unsettled(BY_NODE, name)

    def _enqueue_unsettled(self, index: str, name: ObjectName) -> None:
        for attachment in self._attachments.cache.by_index(index, name.name):
            if not is_attached(attachment) or is_to_be_detached(attachment):
                self._enqueue(objects.name_of(attachment))

    # ---- reconciling ---------------------------------------------------------------------------------------------

    async def _reconcile_attachment(self, pool: str, name: ObjectName) -> Outcome:
        attachment = await self._current(name)
        if attachment is None or attacher_of(attachment) != self._settings.driver:
            return Done()
        if fingerprint_of(attachment).pool != pool:
            self._leave_to_other_pool(name, attachment)
            return Done()
        try:
            with self._own_writes.working(name):
                return await self._handle(name, attachment)
        finally:
            self._attachment_changed(name)
            self._hand_over(pool, name)

    async def _current(self, name: ObjectName) -> CachedObject | None:
        """Return the cached object once the cache is as new as our last write; None if the object is gone."""
        attachment = self._attachments.get(name)
        remembered = self._own_writes.get(name)
        if attachment is None or self._own_writes.is_gone(name, attachment):
            return None
        if remembered is not None and self._own_writes.is_stale(name, attachment):
            # A retry or a resync may run before the watch has delivered the last attempt's write. With that stale
            # object, the driver would be called again for a volume that is already attached.
            await self._attachments.reached(remembered.version)
            return self._attachments.get(name)
        return attachment

    def _leave_to_other_pool(self, name: ObjectName, attachment: CachedObject) -> None:
        """Move a retry to the other pool: the object switched between attach and detach while it waited here."""
        # Usually the event, or the response to our write, that showed the switch has enqueued it there already. Adding
        # it again makes sure.
        self._own_writes.remember(name, attachment)
        other = fingerprint_of(attachment).pool
        # After failures in the other pool, its retry is already scheduled; adding it now would end the backoff.
        if not self._queue.failures(other, name):
            self._queue.add(other, name)

    def _hand_over(self, pool: str, name: ObjectName) -> None:
        # The response to our own write may have been the first to show the deletion. The watch event for it counts as
        # our own write, and enqueues nothing.
        remembered = self._own_writes.get(name)
        if remembered is not None and remembered.fingerprint.pool != pool:
            self._queue.add(remembered.fingerprint.pool, name)

    async def _handle(self, name: ObjectName, attachment: CachedObject) -> Outcome:
        self._own_writes.remember(name, attachment)
        published = self._drifted.pop(name, None)
        try:
            result = await self._handler.reconcile_attachment(name, attachment, published)
        except NotReconciled as error:
            return Failed(error)
        except ApiError:
            if published is False:
                # Keep the drift for the retry, which would otherwise read `attached` and do nothing.
                self._drifted.setdefault(name, published)
            raise
        if result is None:
            self._own_writes.remember_gone(name, objects.uid(attachment))
        return Done()

    async def _reconcile_volume(self, name: ObjectName) -> Outcome:
        """Remove our finalizer from a volume when it is not needed any more. It does not depend on the handler."""
        volume = self._volumes.get(name)
        if volume is None:
            return Done()
        attachments = self._attachments.cache.by_index(BY_VOLUME, name.name)
        patch = volume_release_patch(volume, attachments, self._settings.finalizer)
        if patch is None:
            return Done()
        self._may_act()
        try:
            await self._kube.patch(PERSISTENT_VOLUME, name, patch)
        except NotFound:
            return Done()
        return Done()


def _volume_keys(attachment: CachedObject) -> list[str]:
    return [name] if (name := volume_name_of(attachment)) else []


def _node_keys(attachment: CachedObject) -> list[str]:
    return [name] if (name := node_name_of(attachment)) else []


def _is_new(seen: dict[ObjectName, Any], name: ObjectName, now: object | None) -> bool:
    """Remember the fingerprint of an object, None if there is none, and return whether it has changed."""
    if seen.get(name) == now:
        return False
    if now is None:
        del seen[name]  # otherwise the map would grow with every object that ever existed
    else:
        seen[name] = now
    return True


def attachment_controller(  # noqa: PLR0913 - all of it by name
    caches: AttacherCaches,
    settings: AttacherSettings,
    *,
    runtime: Runtime,
    kube: KubeClient,
    csi: CsiClient,
    events: EventRecorder,
    queue_metrics: WorkqueueMetrics,
    may_act: Callable[[], None],
    trivial: bool,
) -> AttachmentController:
    """Build a controller with the handler for a driver that can attach, or the trivial one."""
    kube = kube.guarded(may_act)
    own_writes = attachment_writes()
    handler: AttachmentHandler
    if trivial:
        runtime.log.info("driver has no attach capability; marking every VolumeAttachment attached")
        handler = TrivialHandler(caches, settings, runtime=runtime, kube=kube, own_writes=own_writes, may_act=may_act)
    else:
        runtime.log.info("attaching")
        finalizers_kept(runtime.metrics).set(0)
        handler = AttachHandler(
            caches,
            settings,
            runtime=runtime,
            kube=kube,
            csi=csi,
            events=events,
            own_writes=own_writes,
            may_act=may_act,
        )
    return AttachmentController(
        handler,
        caches,
        settings,
        runtime=runtime,
        kube=kube,
        own_writes=own_writes,
        queue_metrics=queue_metrics,
        may_act=may_act,
    )
