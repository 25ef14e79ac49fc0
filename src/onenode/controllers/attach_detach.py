"""The attach/detach controller: has the volumes of pods attached to their nodes, and detached when nobody needs them.

It makes and deletes VolumeAttachments, which a driver's attacher fulfils, and lists in a Node's `volumesAttached` what
kubelet may mount; `attach_detach_rules` decide. Level-triggered: a change of a pod, a claim, a volume, a Node or a
VolumeAttachment puts names of volumes on the queue, and the next step is decided on the current objects. So a new
process resumes where the last one ended.

Order, to attach: the VolumeAttachment → its attacher says attached → the Node's list → kubelet mounts. To detach:
kubelet no longer has it in use → it is off the Node's list → the VolumeAttachment is deleted → it is gone. All nodes of
a volume are in the hands of one worker: two of them never get a volume that is for one.

Must not ask a driver, and must not touch VolumeAttachments that do not bear the name that Kubernetes gives them, or
that name no PersistentVolume.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from onenode.controllers import attach_detach_rules as rules
from onenode.controllers.attach_detach_rules import AttachDetachFacts, NodeFacts
from onenode.controllers.attachable_volumes_rules import needs_attaching
from onenode.controllers.attached_listing import BACKOFF, AttachedListing
from onenode.controllers.known_attachments import AttachmentMemory, KnownAttachments, is_of_unknown_volume, volume_of
from onenode.controllers.storage_protection import PODS_BY_CLAIM, claim_keys
from onenode.controllers.volume_users import Lookups, VolumeUsers
from onenode.kubelet.volumes.volume_values import UniqueName
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import AlreadyExists, ApiError, Conflict, NotFound
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import (
    CSI_DRIVER,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    VOLUME_ATTACHMENT,
)
from orlop.kube.objects import ObjectName, is_being_deleted, name_of, resource_version, uid
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

QUEUE: Final = "attach-detach"
WORKERS: Final = 10
BY_VOLUME: Final = "attachments by the volume they name"
LOOK_AGAIN_SECONDS: Final = 1.0


def volume_keys(attachment: CachedObject) -> list[str]:
    return [name] if (name := volume_of(attachment)) else []


@dataclass(frozen=True, slots=True)
class AttachDetachCaches:
    nodes: Informer
    pods: Informer
    claims: Informer
    volumes: Informer
    csi_drivers: Informer
    attachments: Informer

    def all(self) -> tuple[Informer, ...]:
        return self.nodes, self.pods, self.claims, self.volumes, self.csi_drivers, self.attachments


@asynccontextmanager
async def attach_detach(
    client: KubeClient, informers: Informers, runtime: Runtime, events: EventRecorder, queue_metrics: WorkqueueMetrics
) -> AsyncIterator[None]:
    """Attach and detach volumes while it is entered. The caller keeps `events` running."""
    kinds = (NODE, POD, PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME, CSI_DRIVER, VOLUME_ATTACHMENT)
    async with AsyncExitStack() as stack, TaskGroup() as tasks:
        watched = [Watched(kind, transform=without_managed_fields) for kind in kinds]
        found = [await stack.enter_async_context(informers.using(one)) for one in watched]
        controller = AttachDetach(client, AttachDetachCaches(*found), runtime, events, queue_metrics)
        task = tasks.start(controller.run(), name="attach/detach controller")
        try:
            yield
        finally:
            task.cancel()


class AttachDetach:
    """Nothing is done unless somebody keeps `run` running."""

    def __init__(
        self,
        client: KubeClient,
        caches: AttachDetachCaches,
        runtime: Runtime,
        events: EventRecorder,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._client = client
        self._caches = caches
        self._clock = runtime.clock
        self._log = runtime.log
        self._events = events
        self._places: dict[str, NodeFacts] = {}
        self._drivers_seen: dict[ObjectName, bool] = {}
        self._memory = AttachmentMemory()
        self._users = VolumeUsers(Lookups(caches.claims.get, caches.volumes.get, caches.csi_drivers.get))
        self._known = KnownAttachments(caches.volumes.get, self._told_by)
        self._listing = AttachedListing(client, caches.nodes, runtime, queue_metrics, self._look_again)
        self._queue: Workqueue[UniqueName] = Workqueue(
            (QUEUE,), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pool = WorkerPool(QUEUE, WORKERS, self._settle)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=runtime.clock, log=runtime.log)
        caches.pods.add_index(PODS_BY_CLAIM, claim_keys)
        caches.attachments.add_index(BY_VOLUME, volume_keys)

    async def run(self) -> None:
        """Until it is cancelled; nothing is begun before everything that was there at the beginning is known."""
        caches = self._caches
        for informer in caches.all():
            await informer.wait_synced()
        listening = (
            caches.nodes.add_listener(self._node_changed),
            caches.attachments.add_listener(self._attachment_changed),
            caches.pods.add_listener(self._pod_changed),
            caches.claims.add_listener(self._claim_changed),
            caches.volumes.add_listener(self._volume_changed),
            caches.csi_drivers.add_listener(self._driver_changed),
        )
        try:
            self._note_all()
            async with TaskGroup() as tasks:
                tasks.start(self._listing.run(), name="attached volumes of nodes")
                await self._loop.run()
        finally:
            for stop_listening in listening:
                stop_listening()

    def _note_all(self) -> None:
        """Before any Node is written to: what stands there must not go only because nobody has looked at it yet."""
        for volume in {*self._users.names(), *self._known.names()}:
            for one in self._facts(volume).values():
                self._note_listing(volume, one)

    # ---- what is to be looked at ---------------------------------------------------------------------------------

    def _look_again(self, volume: UniqueName) -> None:
        self._queue.add(QUEUE, volume)

    def _look_at_all(self, volumes: Iterable[UniqueName]) -> None:
        for volume in volumes:
            self._look_again(volume)

    def _pod_changed(self, name: ObjectName) -> None:
        self._look_at_all(self._users.look_at(name, self._caches.pods.get(name)))

    def _claim_changed(self, name: ObjectName) -> None:
        for pod in self._caches.pods.cache.by_index(PODS_BY_CLAIM, str(name)):
            self._pod_changed(name_of(pod))

    def _volume_changed(self, name: ObjectName) -> None:
        volume = self._caches.volumes.get(name)
        claim = ((volume or {}).get("spec") or {}).get("claimRef") or {}
        if claim.get("name"):
            self._claim_changed(ObjectName(claim.get("namespace"), claim["name"]))
        for attachment in self._caches.attachments.cache.by_index(BY_VOLUME, name.name):
            self._attachment_changed(name_of(attachment))

    def _driver_changed(self, name: ObjectName) -> None:
        """It counts alone whether its volumes need attaching."""
        needed = needs_attaching(self._caches.csi_drivers.get(name))
        if self._drivers_seen.get(name, True) == needed:
            return
        self._drivers_seen[name] = needed
        for pod in self._caches.pods.cache.names():
            self._pod_changed(pod)

    def _attachment_changed(self, name: ObjectName) -> None:
        self._look_at_all(self._known.look_at(name, self._caches.attachments.get(name)))

    def _node_changed(self, name: ObjectName) -> None:
        before, node = self._places.get(name.name, NodeFacts()), name.name
        place = self._places[node] = rules.place_of(self._caches.nodes.get(name), before)
        concerned = (place.in_use or frozenset()) ^ (before.in_use or frozenset()) | place.listed ^ before.listed
        if _standing(place) != _standing(before):
            concerned |= self._known.on(node) | self._users.on(node)
        self._look_at_all(concerned)
        if self._listing.differs(node, place.listed):
            self._listing.look_at(node)

    def _told_by(self, node: str) -> Iterable[UniqueName]:
        place = self._places.get(node, NodeFacts())
        return place.listed | (place.in_use or frozenset())

    # ---- what is so ----------------------------------------------------------------------------------------------

    def _facts(self, volume: UniqueName) -> dict[str, AttachDetachFacts]:
        users, attachments = self._users.nodes_of(volume), self._known.of(volume)
        found = {}
        for node in sorted({*users, *attachments}):
            attachment = self._caches.attachments.get(attachments[node]) if node in attachments else None
            found[node] = self._facts_on(volume, node, users.get(node, ()), attachment)
        return found

    def _facts_on(
        self, volume: UniqueName, node: str, users: tuple[rules.UsingPod, ...], attachment: CachedObject | None
    ) -> AttachDetachFacts:
        place = self._places.get(node, NodeFacts())
        remembered, now = self._memory.of(volume, node), self._clock.elapsed()
        is_needed = AttachDetachFacts(node, place, attachment, users).is_needed
        is_awaited = attachment is not None and not rules.is_attached(attachment)
        is_detaching = attachment is not None and is_being_deleted(attachment)
        return AttachDetachFacts(
            node,
            place,
            attachment,
            users,
            is_in_use=place.uses(volume),
            is_listed=volume in place.listed or self._listing.may_list(node, volume),
            seconds_unneeded=remembered.seconds_unneeded(now, is_needed=is_needed),
            seconds_awaited=remembered.seconds_awaited(now, is_awaited=is_awaited),
            seconds_detaching=remembered.seconds_detaching(now, is_detaching=is_detaching),
            volume=volume,
        )

    def _note_listing(self, volume: UniqueName, one: AttachDetachFacts) -> None:
        is_attached = rules.is_to_be_listed(one) and not is_of_unknown_volume(volume)
        self._listing.note(one.node, volume, is_attached=is_attached)

    def _forget_others(self, volume: UniqueName, facts: Iterable[str]) -> None:
        for node in self._memory.nodes_of(volume) - set(facts):
            self._memory.forget(volume, node)
            self._listing.note(node, volume, is_attached=False)

    # ---- what is to be done --------------------------------------------------------------------------------------

    async def _settle(self, volume: UniqueName) -> Outcome:
        """One step on each node; where it is to be detached first. Each step's effect is news, and leads back here."""
        facts = self._facts(volume)
        self._forget_others(volume, facts)
        waits: list[float] = []
        error: ApiError | None = None
        for node in sorted(facts, key=lambda name: (facts[name].is_needed, name)):
            try:
                seconds = await self._settle_on(volume, node)
            except ApiError as raised:
                error = raised
                continue
            waits += [seconds] if seconds is not None else []
        if error is not None:
            return Failed(error)
        return RetryAfter(min(waits)) if waits else Done()

    async def _settle_on(self, volume: UniqueName, node: str) -> float | None:
        """Gives after how many seconds it must be looked at again without any news."""
        facts = self._facts(volume)
        if (one := facts.pop(node, None)) is None:
            return None
        self._note_listing(volume, one)
        match rules.next_step(one, self._users.volume(volume), tuple(facts.values())):
            case rules.Wait(seconds):
                return seconds
            case rules.Attach(body):
                await self._attach(volume, one, body)
            case rules.Taken(by):
                self._tell_taken(volume, one, by)
            case rules.Attached():
                self._tell_attached(volume, one)
            case rules.NotAttached(why, occasion, retry_after):
                self._tell_not_attached(volume, one, why, occasion)
                return retry_after
            case rules.Detach(which):
                return await self._detach(volume, one, which)
            case rules.NotDetached(why, occasion, retry_after):
                self._log_not_detached(volume, one, why, occasion)
                return retry_after
        return None

    async def _attach(self, volume: UniqueName, one: AttachDetachFacts, body: dict[str, Any]) -> None:
        name = ObjectName(None, body["metadata"]["name"])
        try:
            try:
                made = await self._client.create(VOLUME_ATTACHMENT, body)
            except AlreadyExists:
                made = await self._client.get(VOLUME_ATTACHMENT, name)
                if any(made["spec"].get(key) != value for key, value in body["spec"].items()):
                    raise  # else it is ours, and the answer was lost
        except ApiError as error:
            self._tell_not_attached(volume, one, error.message, error.message)
            raise
        await self._caches.attachments.reached(resource_version(made))

    async def _detach(self, volume: UniqueName, one: AttachDetachFacts, which: str) -> float | None:
        remembered = self._memory.of(volume, one.node)
        # Saves a request and no more: until the cache shows the deletion, a second one with this uid would do nothing.
        if remembered.taken == which:
            return None
        name = self._known.of(volume)[one.node]
        if is_of_unknown_volume(volume) and await self._has_volume(name):
            return LOOK_AGAIN_SECONDS
        try:
            with suppress(NotFound):
                await self._client.delete(VOLUME_ATTACHMENT, name, DeleteOptions(uid=which))
        except Conflict:
            return LOOK_AGAIN_SECONDS  # it is another, as the cache will tell; or too many wrote to it at once
        remembered.taken = which
        return None

    async def _has_volume(self, attachment: ObjectName) -> bool:
        """Whether its PersistentVolume is there after all, and only the cache does not have it yet."""
        found = self._caches.attachments.get(attachment)
        if found is None:
            return False
        try:
            await self._client.get(PERSISTENT_VOLUME, ObjectName(None, volume_of(found)))
        except NotFound:
            return False
        return True

    # ---- events ---------------------------------------------------------------------------------------------------

    def _tell_attached(self, volume: UniqueName, one: AttachDetachFacts) -> None:
        if volume in one.place.listed or one.attachment is None:
            return  # as it was before we came, or for pods that came later
        for pod in self._to_be_told(volume, one, f"attached by {uid(one.attachment)}"):
            self._events.normal(pod, rules.ATTACHED_REASON, rules.attached_text(self._name_of(volume)))

    def _tell_not_attached(self, volume: UniqueName, one: AttachDetachFacts, why: str, occasion: str) -> None:
        """Not of an attachment that ends because we want it to: a pod that comes in between waits for it."""
        remembered = self._memory.of(volume, one.node)
        if why == rules.BEING_DELETED and occasion == remembered.taken:
            return
        for pod in self._to_be_told(volume, one, f"{occasion}: {why}"):
            self._events.warning(pod, rules.NOT_ATTACHED_REASON, rules.not_attached_text(self._name_of(volume), why))

    def _tell_taken(self, volume: UniqueName, one: AttachDetachFacts, by: tuple[rules.UsingPod, ...]) -> None:
        others = [rules.PodName(user.namespace, user.name) for user in by]
        for pod in self._to_be_told(volume, one, "taken"):
            self._events.warning(
                pod, rules.NOT_ATTACHED_REASON, rules.taken_text(self._name_of(volume), pod.namespace, others)
            )

    def _to_be_told(self, volume: UniqueName, one: AttachDetachFacts, what: str) -> list[ObjectReference]:
        remembered = self._memory.of(volume, one.node)
        return [
            ObjectReference("v1", "Pod", user.name, user.namespace, user.uid)
            for user in one.users
            if remembered.is_news(user.uid, what)
        ]

    def _log_not_detached(self, volume: UniqueName, one: AttachDetachFacts, why: str, occasion: str) -> None:
        """Log each failure once. Kubernetes records no event for a failed detach."""
        remembered = self._memory.of(volume, one.node)
        if remembered.detach_failure != (occasion, why):
            remembered.detach_failure = (occasion, why)
            self._log.warning("DetachVolume.Detach failed", volume=volume, node=one.node, error=why)

    def _name_of(self, volume: UniqueName) -> str:
        known = self._users.volume(volume)
        return known.volume if known is not None else volume


def _standing(place: NodeFacts) -> tuple[bool, ...]:
    return place.is_there, place.is_managed, place.is_ready, place.is_out_of_service, place.in_use is None
