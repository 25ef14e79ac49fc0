"""The binder: binds claims to PersistentVolumes, marks claims for their provisioners, and releases volumes.

Kubernetes' PersistentVolume controller for one machine; `binder_rules` decide. Level-triggered: a change of a claim, a
volume, a class or a pod puts the claims and volumes it concerns on the queue, at once. Kubernetes notices most of these
only at its resync every 15 seconds; the resync here is slow, and only a safety net.

Order: one step is decided, one object is written (a PUT with the resourceVersion it was decided on), the cache has
caught up with that write, and the next step is decided on what is there then. A bind is four such writes
(`bind_write_rules`), and a process that ends after any of them is continued by the next one.

There is one worker for claims and volumes together. Two could choose one volume for two claims; the API server would
refuse the second write, but each such race costs a retry.

Must not delete anything, and must not provision: it marks claims, and leaves volumes Released for their provisioner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from onenode.controllers import binder_rules as rules
from onenode.controllers import binding_notice_rules as notices
from onenode.controllers.binding_notice_rules import About, Notice
from onenode.controllers.storage_protection import PODS_BY_CLAIM, claim_keys
from orlop.binding import claim_state_rules as state
from orlop.binding.storage_protection_rules import claims_named_by
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import ApiError, Conflict, NotFound
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, STORAGE_CLASS, Kind
from orlop.kube.objects import ObjectName, name_of, resource_version, uid
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

QUEUE: Final = "binder"
WORKERS: Final = 1
BACKOFF: Final = Backoff(initial=0.005, factor=2.0, cap=60.0, jitter=0.5)
RESYNC_SECONDS: Final = 600.0
LOOK_AGAIN_SECONDS: Final = 1.0
MOST_STEPS: Final = 20
"""In a row for one object. Nothing needs more than six; a writer who keeps changing it must not keep the worker."""
SEARCHING: Final = "claims that name no volume"
CLAIMS_BY_VOLUME: Final = "claims by the volume they name"
VOLUMES_BY_CLAIM: Final = "volumes by the claim they name"


class BindingRefused(Exception):
    """A claim and a volume contradict each other; only their owners can mend that."""


@dataclass(frozen=True, slots=True)
class BinderCaches:
    claims: Informer
    volumes: Informer
    classes: Informer
    pods: Informer

    def all(self) -> tuple[Informer, ...]:
        return self.claims, self.volumes, self.classes, self.pods


@dataclass(frozen=True, slots=True)
class Subject:
    """What is on the queue: a claim or a volume."""

    kind: Kind
    name: ObjectName

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Read:
    """An object as the API server has it; None if it has none."""

    object: CachedObject | None


def searching(claim: CachedObject) -> list[str]:
    return [SEARCHING] if rules.names_no_volume(claim) else []


def named_volumes(claim: CachedObject) -> list[str]:
    return [name] if (name := state.volume_name(claim)) else []


def named_claims(volume: CachedObject) -> list[str]:
    name = _claim_of(volume)
    return [] if name is None else [str(name)]


def _claim_of(volume: CachedObject) -> ObjectName | None:
    reference = state.claim_reference(volume) or {}
    name = reference.get("name")
    return ObjectName(reference.get("namespace"), name) if name else None


@asynccontextmanager
async def binder(
    client: KubeClient, informers: Informers, runtime: Runtime, events: EventRecorder, queue_metrics: WorkqueueMetrics
) -> AsyncIterator[None]:
    """Bind claims while it is entered. The caller keeps `events` running."""
    kinds = (PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME, STORAGE_CLASS, POD)
    async with AsyncExitStack() as stack, TaskGroup() as tasks:
        watched = [Watched(kind, transform=without_managed_fields) for kind in kinds]
        shared = [await stack.enter_async_context(informers.using(one)) for one in watched]
        task = tasks.start(Binder(client, BinderCaches(*shared), runtime, events, queue_metrics).run(), name="binder")
        try:
            yield
        finally:
            task.cancel()


class Binder:
    """Nothing is bound unless `run` runs."""

    def __init__(
        self,
        client: KubeClient,
        caches: BinderCaches,
        runtime: Runtime,
        events: EventRecorder,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._client = client
        self._caches = caches
        self._claims = caches.claims.cache
        self._volumes = caches.volumes.cache
        self._clock = runtime.clock
        self._events = events
        self._recorded: dict[Subject, tuple[str, tuple[Notice, ...], float]] = {}
        """By subject: its uid, what was last recorded about it, and when."""
        self._pods_seen: dict[ObjectName, tuple[Any, ...]] = {}
        self._queue: Workqueue[Subject] = Workqueue(
            (QUEUE,), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pool = WorkerPool(QUEUE, WORKERS, self._reconcile)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=runtime.clock, log=runtime.log)
        caches.claims.add_index(SEARCHING, searching)
        caches.claims.add_index(CLAIMS_BY_VOLUME, named_volumes)
        caches.volumes.add_index(VOLUMES_BY_CLAIM, named_claims)
        caches.pods.add_index(PODS_BY_CLAIM, claim_keys)

    async def run(self) -> None:
        """Run until cancelled."""
        caches = self._caches
        # Before all caches are filled, an object that one of them lacks would count as gone.
        for informer in caches.all():
            await informer.wait_synced()
        listening = (
            caches.claims.add_listener(self._claim_changed, resync=RESYNC_SECONDS),
            caches.volumes.add_listener(self._volume_changed, resync=RESYNC_SECONDS),
            caches.classes.add_listener(self._class_changed),
            caches.pods.add_listener(self._pod_changed),
        )
        try:
            await self._loop.run()
        finally:
            for stop_listening in listening:
                stop_listening()

    # ---- which objects a change concerns -------------------------------------------------------------------------

    def _add(self, kind: Kind, names: Iterable[ObjectName]) -> None:
        for name in names:
            self._queue.add(QUEUE, Subject(kind, name))

    def _claim_changed(self, name: ObjectName) -> None:
        self._add(PERSISTENT_VOLUME_CLAIM, [name])
        self._add(PERSISTENT_VOLUME, map(name_of, self._volumes.by_index(VOLUMES_BY_CLAIM, str(name))))

    def _volume_changed(self, name: ObjectName) -> None:
        self._add(PERSISTENT_VOLUME, [name])
        self._add(PERSISTENT_VOLUME_CLAIM, map(name_of, self._claims.by_index(CLAIMS_BY_VOLUME, name.name)))
        volume = self._volumes.get(name)
        if volume is None:
            return
        if (claim := _claim_of(volume)) is not None:
            self._add(PERSISTENT_VOLUME_CLAIM, [claim])
            return
        classes = tuple(self._caches.classes.cache)
        waiting = self._claims.by_index(SEARCHING, SEARCHING)
        takers = (name_of(claim) for claim in waiting if rules.would_bind(claim, volume, classes))
        self._add(PERSISTENT_VOLUME_CLAIM, takers)

    def _class_changed(self, name: ObjectName) -> None:
        """A claim without a class is concerned by every class, which may be the new default."""
        waiting = self._claims.by_index(SEARCHING, SEARCHING)
        concerned = (one for one in waiting if not state.has_class(one) or state.class_name(one) == name.name)
        self._add(PERSISTENT_VOLUME_CLAIM, map(name_of, concerned))

    def _pod_changed(self, name: ObjectName) -> None:
        """Wake the pod's claims when it came, went, got its node or ended; its other changes are many."""
        pod = self._caches.pods.get(name)
        before = self._pods_seen.pop(name, ())
        now: tuple[Any, ...] = ()
        if pod is not None and (claims := claims_named_by(pod)):
            now = self._pods_seen[name] = (uid(pod), rules.waiting_pods([pod]), rules.using_pods([pod]), *claims)
        if now == before:
            return
        for claim in {one for one in (*before, *now) if isinstance(one, ObjectName)}:
            self._claim_changed(claim)

    # ---- one claim or volume -------------------------------------------------------------------------------------

    async def _reconcile(self, subject: Subject) -> Outcome:
        try:
            if subject.kind is PERSISTENT_VOLUME_CLAIM:
                return await self._reconcile_claim(subject)
            return await self._reconcile_volume(subject)
        except NotFound:
            # An object went between the decision and the write. The cache will show it, but nothing wakes a claim
            # whose chosen volume has gone.
            return RetryAfter(LOOK_AGAIN_SECONDS)

    async def _reconcile_claim(self, subject: Subject) -> Outcome:
        read: Read | None = None
        for _ in range(MOST_STEPS):
            claim = self._claims.get(subject.name)
            if claim is None:
                return self._forget(subject)
            facts = self._claim_facts(claim, read)
            match step := rules.next_claim_step(facts):
                case rules.Wait(_, events_due):
                    self._record_while_it_lasts(subject, events_due, {About.CLAIM: claim})
                    return Done()
                case rules.RefuseBinding(why):
                    return Failed(BindingRefused(why))
                case rules.ReadVolume():
                    read = await self._read(PERSISTENT_VOLUME, ObjectName(None, state.volume_name(claim)))
                case _:
                    await self._write(step, claim)
                    # Older than our own write from here on.
                    read = None
        return RetryAfter(LOOK_AGAIN_SECONDS)

    async def _reconcile_volume(self, subject: Subject) -> Outcome:
        read: Read | None = None
        for _ in range(MOST_STEPS):
            volume = self._volumes.get(subject.name)
            if volume is None:
                return self._forget(subject)
            claim_name = _claim_of(volume)
            facts = self._volume_facts(volume, claim_name, read)
            match step := rules.next_volume_step(facts):
                case rules.Wait(_, events_due):
                    about = {About.VOLUME: volume, **({About.CLAIM: facts.claim} if facts.claim else {})}
                    self._record_while_it_lasts(subject, events_due, about)
                    return Done()
                case rules.ReadClaim() if claim_name is not None:
                    read = await self._read(PERSISTENT_VOLUME_CLAIM, claim_name)
                case rules.ReplaceVolume() | rules.ReplaceVolumeStatus():
                    await self._write(step, volume)
        return RetryAfter(LOOK_AGAIN_SECONDS)

    def _claim_facts(self, claim: CachedObject, read: Read | None) -> rules.BindingClaimFacts:
        named = state.volume_name(claim)
        cached = self._volumes.get(ObjectName(None, named)) if named else None
        return rules.BindingClaimFacts(
            claim,
            volume=cached if read is None else read.object,
            is_volume_read=read is not None,
            volumes=() if named else tuple(self._volumes),
            classes=tuple(self._caches.classes.cache),
            waiting_pods=rules.waiting_pods(self._pods_of(name_of(claim))),
        )

    def _volume_facts(
        self, volume: CachedObject, claim: ObjectName | None, read: Read | None
    ) -> rules.BindingVolumeFacts:
        cached = None if claim is None else self._claims.get(claim)
        return rules.BindingVolumeFacts(
            volume,
            claim=cached if read is None else read.object,
            is_claim_read=read is not None,
            users=() if claim is None else rules.using_pods(self._pods_of(claim)),
        )

    def _pods_of(self, claim: ObjectName) -> tuple[CachedObject, ...]:
        return self._caches.pods.cache.by_index(PODS_BY_CLAIM, str(claim))

    # ---- effects -------------------------------------------------------------------------------------------------

    async def _read(self, kind: Kind, name: ObjectName) -> Read:
        try:
            return Read(await self._client.get(kind, name))
        except NotFound:
            return Read(None)

    async def _write(self, step: rules.WriteObject, subject: CachedObject) -> None:
        match step:
            case rules.ReplaceVolume(body):
                await self._replace(self._caches.volumes, body)
            case rules.ReplaceVolumeStatus(body, events_due):
                await self._replace(self._caches.volumes, body, "status")
                self._record(events_due, {About.VOLUME: subject})
            case rules.ReplaceClaim(body, is_for_provisioner):
                try:
                    await self._replace(self._caches.claims, body)
                except ApiError as error:
                    # A conflict is nothing a person must know of: it is retried at once.
                    if is_for_provisioner and not isinstance(error, Conflict | NotFound):
                        self._record((notices.not_saved(error),), {About.CLAIM: subject})
                    raise
            case rules.ReplaceClaimStatus(body, events_due):
                await self._replace(self._caches.claims, body, "status")
                self._record(events_due, {About.CLAIM: subject})

    async def _replace(self, informer: Informer, body: Mapping[str, Any], subresource: str = "") -> None:
        written = await self._client.replace(informer.watched.kind, body, subresource=subresource)
        # The next decision, of this object or another, must not be made on the state before this write: a volume
        # reserved for one claim would look free to the next.
        await informer.reached(resource_version(written))

    # ---- events --------------------------------------------------------------------------------------------------

    def _record_while_it_lasts(
        self, subject: Subject, events_due: tuple[Notice, ...], about: Mapping[About, CachedObject]
    ) -> None:
        """Record what is waited for when it is new, and again at the slow resync: Events expire."""
        if not events_due:
            self._recorded.pop(subject, None)
            return
        now = self._clock.elapsed()
        which = uid(about[About.CLAIM if subject.kind is PERSISTENT_VOLUME_CLAIM else About.VOLUME])
        known_uid, known, since = self._recorded.get(subject, ("", (), 0.0))
        if (known_uid, known) == (which, events_due) and now - since < RESYNC_SECONDS:
            return
        self._recorded[subject] = which, events_due, now
        self._record(events_due, about)

    def _record(self, events_due: Iterable[Notice], about: Mapping[About, CachedObject]) -> None:
        for notice in events_due:
            record = self._events.warning if notice.is_warning else self._events.normal
            record(about[notice.about], notice.reason, notice.text)

    def _forget(self, subject: Subject) -> Outcome:
        self._recorded.pop(subject, None)
        return Done()
