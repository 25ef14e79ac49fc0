"""Watch claims and PersistentVolumes, and reconcile each: provision claims, delete the volumes of released PVs.

Three pools of workers:

- Claims, by uid, because an order may outlive its claim and a new claim may have the same name. A claim is enqueued
  when it is to be provisioned, when it changes while its order is open, and when its class was created or replaced:
  a failed attempt may have waited for that.
- PersistentVolumes, by name: when the rules have a step for one, also when a VolumeAttachment of it is gone.
- Claims that others are cloned from, by uid: to remove their finalizer after the last clone.

Order at the start: wait until the caches are complete → take the journal over → resume its orders → start listeners and
workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.csi.client import CsiClient
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.objects import ObjectName
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.sidecars.provisioner.claim_cache import BY_UID, ClaimCache
from orlop.sidecars.provisioner.clone_rules import CLONING_PROTECTION, may_release_source, source_claim_name
from orlop.sidecars.provisioner.journal_leases import JournalLost
from orlop.sidecars.provisioner.open_orders import OpenOrders
from orlop.sidecars.provisioner.order_building import OrderBuilder
from orlop.sidecars.provisioner.order_journal import OrderJournal
from orlop.sidecars.provisioner.provision_handler import ProvisionHandler
from orlop.sidecars.provisioner.provisioner_metrics import ProvisionerMetrics
from orlop.sidecars.provisioner.provisioner_settings import ProvisionerCaches, ProvisionerSettings
from orlop.sidecars.provisioner.unconfirmed_claims import UnconfirmedClaims
from orlop.sidecars.provisioner.volume_calls import VolumeCalls
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source
from orlop.sidecars.provisioner.volume_handler import BY_VOLUME, VolumeHandler
from orlop.sidecars.provisioner.volume_order_rules import why_not_wanted
from orlop.sidecars.provisioner.volume_saving import BY_HANDLE, VolumeSaving, handle_key

CLAIMS: Final = "claims"
VOLUMES: Final = "volumes"
SOURCES: Final = "clone-sources"
"""Names of the pools, which are labels of their metrics; the first two are upstream's."""
BY_CLASS: Final = "claims by class"
BY_SOURCE: Final = "claims by the claim they are cloned from"
BY_PROTECTION: Final = "claims with cloning protection by namespace"
SOURCE_CHECK_SECONDS: Final = 5.0
"""How often to check a clone's source whose order is still open."""


@dataclass(frozen=True, slots=True)
class QueueKey:
    """The uid of a claim or the name of a PersistentVolume, which differ by their pool."""

    pool: str
    name: str

    def __str__(self) -> str:
        return self.name


class ProvisioningController:
    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        caches: ProvisionerCaches,
        settings: ProvisionerSettings,
        *,
        runtime: Runtime,
        provisioning: ProvisionHandler,
        unconfirmed: UnconfirmedClaims,
        deletion: VolumeHandler,
        orders: OrderBuilder,
        open_orders: OpenOrders,
        journal: OrderJournal,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._caches = caches
        self._driver = settings.driver
        self._provisioning = provisioning
        self._unconfirmed = unconfirmed
        self._deletion = deletion
        self._orders = orders
        self._open = open_orders
        self._clock = runtime.clock
        self._log = runtime.log
        self._journal = journal
        self._uids: dict[ObjectName, str] = {}
        """Uids of claims as last observed, to recognise a claim that is gone or was replaced under its name."""
        self._volume_uids: dict[ObjectName, str] = {}
        self._attached: dict[ObjectName, str] = {}
        """The volume of each VolumeAttachment as last observed: a VolumeAttachment that is gone has no fields."""
        self._class_uids: dict[ObjectName, str] = {}
        self._queue: Workqueue[QueueKey] = Workqueue(
            (CLAIMS, VOLUMES, SOURCES),
            clock=runtime.clock,
            random=runtime.random,
            backoff=settings.backoff,
            metrics=queue_metrics,
        )
        pools = (
            WorkerPool(CLAIMS, settings.workers, self._reconcile_claim),
            WorkerPool(VOLUMES, settings.workers, self._reconcile_volume),
            WorkerPool(SOURCES, 1, self._reconcile_source),
        )
        self._loop = ReconcileLoop(self._queue, pools, clock=runtime.clock, log=runtime.log)
        caches.claims.add_index(BY_UID, _uid_keys)
        caches.claims.add_index(BY_CLASS, _class_keys)
        caches.claims.add_index(BY_SOURCE, _source_keys)
        caches.claims.add_index(BY_PROTECTION, _protection_keys)
        caches.volumes.add_index(BY_HANDLE, _handle_keys)
        if caches.attachments is not None:
            caches.attachments.add_index(BY_VOLUME, _attached_volume_keys)

    async def run(self) -> None:
        """Reconcile until stopped or cancelled. Raises `JournalLost` if another process took the journal over."""
        caches = self._caches
        for informer in (
            caches.claims,
            caches.volumes,
            caches.classes,
            caches.attachments,
            caches.nodes,
            caches.csi_nodes,
        ):
            if informer is not None:
                await informer.wait_synced()
        await self._unconfirmed.begin(caches.claims.cache)
        # Resume orders before the listeners enqueue claims: a claim whose order is open must not get a second order.
        resumed = self._open.resume(await self._journal.open(), self._clock.elapsed())
        self._log.info("provisioning", resumed_orders=len(resumed))
        for uid in resumed:
            self._queue.add(CLAIMS, QueueKey(CLAIMS, uid))
        unsubscribe = [
            caches.claims.add_listener(self._claim_changed),
            caches.volumes.add_listener(self._volume_changed),
            caches.classes.add_listener(self._class_changed),
        ]
        if caches.attachments is not None:
            unsubscribe.append(caches.attachments.add_listener(self._attachment_changed))
        try:
            async with TaskGroup() as tasks:
                writing = tasks.start(self._journal.run(), name="journal writer")
                await self._loop.run()
                writing.cancel()
            await self._journal.flush()
        finally:
            for end in unsubscribe:
                end()

    def stop(self) -> None:
        """Start nothing more; `run` returns when the calls in flight have ended."""
        self._loop.stop()

    # ---- enqueuing -----------------------------------------------------------------------------------------------

    def _claim_changed(self, name: ObjectName) -> None:
        claim = self._caches.claims.get(name)
        uid = objects.uid(claim) if claim is not None else ""
        former = self._uids.get(name, "")
        if former and former != uid:
            if former in self._open:
                self._add_claim(former)
            else:
                self._provisioning.forget_claim(former)
        if claim is None:
            self._uids.pop(name, None)
            # A deleted claim no longer shows which claim it was a clone of, so check every source of the namespace.
            self._check_sources(name.namespace or "")
            return
        self._uids[name] = uid
        if state.volume_name(claim):
            self._unconfirmed.forget(uid)
        if why_not_wanted(claim, self._driver) is None or uid in self._open:
            self._add_claim(uid)
        if objects.has_finalizer(claim, CLONING_PROTECTION):
            self._queue.add(SOURCES, QueueKey(SOURCES, uid))
        if source_claim_name(claim):
            self._check_sources(name.namespace or "")

    def _check_sources(self, namespace: str) -> None:
        """Enqueue the claims of a namespace that have our finalizer because others are cloned from them."""
        for source in self._caches.claims.cache.by_index(BY_PROTECTION, namespace):
            self._queue.add(SOURCES, QueueKey(SOURCES, objects.uid(source)))

    def _add_claim(self, uid: str) -> None:
        self._queue.add(CLAIMS, QueueKey(CLAIMS, uid))

    def _class_changed(self, name: ObjectName) -> None:
        storage_class = self._caches.classes.get(name)
        uid = objects.uid(storage_class) if storage_class is not None else ""
        # Provisioning reads immutable fields of a class only, so a change that keeps the uid changes nothing.
        if self._class_uids.get(name, "") == uid:
            return
        self._class_uids[name] = uid
        for claim in self._caches.claims.cache.by_index(BY_CLASS, name.name):
            if why_not_wanted(claim, self._driver) is None:
                self._add_claim(objects.uid(claim))

    def _volume_changed(self, name: ObjectName) -> None:
        volume = self._caches.volumes.get(name)
        uid = objects.uid(volume) if volume is not None else ""
        former = self._volume_uids.get(name, "")
        if former and former != uid:
            self._deletion.forget(former)
        if volume is None:
            self._volume_uids.pop(name, None)
            return
        self._volume_uids[name] = uid
        if self._deletion.needs_step(volume):
            self._queue.add(VOLUMES, QueueKey(VOLUMES, name.name))
        reference = state.claim_reference(volume) or {}
        if (claim_uid := str(reference.get("uid") or "")) in self._open:
            self._add_claim(claim_uid)

    def _attachment_changed(self, name: ObjectName) -> None:
        attachments = self._caches.attachments
        attachment = attachments.get(name) if attachments is not None else None
        former = self._attached.pop(name, "")
        if attachment is not None:
            self._attached[name] = next(iter(_attached_volume_keys(attachment)), "")
        volume = self._caches.volumes.get(ObjectName(None, former)) if former else None
        if volume is not None and self._deletion.needs_step(volume):
            self._queue.add(VOLUMES, QueueKey(VOLUMES, former))

    # ---- reconciling ---------------------------------------------------------------------------------------------

    async def _reconcile_claim(self, key: QueueKey) -> Outcome:
        try:
            return await self._provisioning.reconcile(key.name)
        except JournalLost as error:
            # Do not raise: the task that writes the journal ends the process with the same error, and here it would be
            # logged with a traceback by every worker that waited for the write.
            return Failed(error)

    async def _reconcile_volume(self, key: QueueKey) -> Outcome:
        return await self._deletion.reconcile(key.name)

    async def _reconcile_source(self, key: QueueKey) -> Outcome:
        """Remove our finalizer from a claim when no clone of it is unfinished."""
        source = next(iter(self._caches.claims.cache.by_index(BY_UID, key.name)), None)
        if source is None or not objects.has_finalizer(source, CLONING_PROTECTION):
            return Done()
        clones = self._caches.claims.cache.by_index(BY_SOURCE, str(objects.name_of(source)))
        volume = self._caches.volumes.get(ObjectName(None, state.volume_name(source)))
        handle = str(csi_source(volume).get("volumeHandle") or "") if volume is not None else ""
        if not may_release_source(source, clones):
            return Done()
        if handle and self._open.copies_from(handle):
            # A CreateVolume call may still copy from it. Poll: no object changes when that call ends.
            return RetryAfter(SOURCE_CHECK_SECONDS)
        remaining = tuple(each for each in objects.finalizers(source) if each != CLONING_PROTECTION)
        await self._orders.write_finalizers(source, remaining)
        return Done()


# Functions of the module, and no methods: when the driver's capabilities change, another controller is built on the
# same caches, and it must add the same indexes.


def _handle_keys(volume: CachedObject) -> list[str]:
    source = csi_source(volume)
    return [handle_key(str(source.get("driver")), str(source.get("volumeHandle")))] if source else []


def _uid_keys(claim: CachedObject) -> list[str]:
    return [objects.uid(claim)]


def _class_keys(claim: CachedObject) -> list[str]:
    return [name] if (name := state.class_name(claim)) else []


def _source_keys(claim: CachedObject) -> list[str]:
    return [str(ObjectName(objects.namespace(claim), name))] if (name := source_claim_name(claim)) else []


def _protection_keys(claim: CachedObject) -> list[str]:
    return [objects.namespace(claim) or ""] if objects.has_finalizer(claim, CLONING_PROTECTION) else []


def _attached_volume_keys(attachment: CachedObject) -> list[str]:
    source = (attachment.get("spec") or {}).get("source") or {}
    return [name] if (name := source.get("persistentVolumeName")) else []


def provisioning_controller(  # noqa: PLR0913 - all of it by name
    caches: ProvisionerCaches,
    settings: ProvisionerSettings,
    *,
    runtime: Runtime,
    kube: KubeClient,
    csi: CsiClient,
    events: EventRecorder,
    queue_metrics: WorkqueueMetrics,
    namespace: str,
    capabilities: frozenset[str],
    may_act: Callable[[], None],
) -> ProvisioningController:
    """Build a controller; its journal is kept in Leases of `namespace`."""
    kube = kube.guarded(may_act)
    metrics = ProvisionerMetrics(runtime.metrics)
    journal = OrderJournal(kube, namespace, settings.driver, runtime=runtime, may_act=may_act)
    calls = VolumeCalls(settings.driver, timeout=settings.timeout, runtime=runtime, csi=csi, kube=kube, may_act=may_act)
    orders = OrderBuilder(caches, settings, kube=kube, may_act=may_act)
    open_orders = OpenOrders()
    saving = VolumeSaving(
        caches,
        settings,
        clock=runtime.clock,
        kube=kube,
        events=events,
        open_orders=open_orders,
        metrics=metrics,
        may_act=may_act,
    )
    unconfirmed = UnconfirmedClaims(kube, settings.driver)
    provisioning = ProvisionHandler(
        caches,
        settings,
        runtime=runtime,
        calls=calls,
        events=events,
        journal=journal,
        orders=orders,
        open_orders=open_orders,
        claims=ClaimCache(caches.claims, kube=kube, may_act=may_act),
        saving=saving,
        unconfirmed=unconfirmed,
        metrics=metrics,
        capabilities=capabilities,
        may_act=may_act,
    )
    deletion = VolumeHandler(
        caches,
        settings,
        runtime=runtime,
        kube=kube,
        calls=calls,
        events=events,
        metrics=metrics,
        may_run_until=open_orders.may_run_until,
        may_act=may_act,
    )
    return ProvisioningController(
        caches,
        settings,
        runtime=runtime,
        provisioning=provisioning,
        unconfirmed=unconfirmed,
        deletion=deletion,
        orders=orders,
        open_orders=open_orders,
        journal=journal,
        queue_metrics=queue_metrics,
    )
