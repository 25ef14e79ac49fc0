"""Takes the finalizers off claims and volumes that are being deleted and that nobody uses, so that they go.

Two controllers of Kubernetes, pvc-protection and pv-protection, on one queue. Level-triggered: a change of a claim, a
volume or a pod puts names on the queue, and the next step is decided on the current objects.

Order for a claim: the cache says that a pod uses it → wait for that pod. Else all pods of the namespace are asked of
the API server, because the cache may lack one that came before the deletion → only then the finalizer is taken off.
A finalizer that is missing where nobody deletes is added: admission adds it at creation, and somebody removed it since.

Must not delete anything: what others hold with their own finalizers stays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from orlop.binding import storage_protection_rules as rules
from orlop.binding.storage_protection_rules import (
    CLAIM_FINALIZER,
    VOLUME_FINALIZER,
    ApiObject,
    claims_named_by,
    is_claim_used,
)
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import KubeClient, Selection
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, Kind
from orlop.kube.objects import ObjectName, is_being_deleted, name_of, resource_version, version_order
from orlop.kube.patches import JsonPatch
from orlop.kube.queue.reconcile_loop import Done, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

# ---- the pods of now -------------------------------------------------------------------------------------------------

# The pods that may use a claim, asked of the API server itself: no cache is new enough to say that there is none.
#
# One answer serves many claims: each that was being deleted before the answer was given, because a pod that gets its
# node later is not started any more. So a namespace with a thousand claims is emptied without listing its pods a
# thousand times. Only that there is no pod is believed of an answer given to another; that there is one may be over
# by now.


@dataclass(frozen=True, slots=True)
class _PodsListed:
    """`version` is the server's when it answered, which it counts for all kinds together."""

    namespace: str | None = None
    version: str = "0"
    users: dict[ObjectName, list[ApiObject]] = field(default_factory=dict)

    def is_about(self, claim: ApiObject) -> bool:
        is_new_enough = version_order(self.version) >= version_order(resource_version(claim))
        return is_new_enough and self.namespace == name_of(claim).namespace

    def uses(self, claim: ApiObject) -> bool:
        return is_claim_used(claim, self.users.get(name_of(claim), ()))


class LivePods:
    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._last = _PodsListed()

    async def use(self, claim: ApiObject) -> bool:
        """Whether one uses this claim, which must have been read while it was being deleted."""
        if self._last.is_about(claim) and not self._last.uses(claim):
            return False
        answer = self._last = await self._ask(name_of(claim).namespace)
        return answer.uses(claim)

    def forget(self) -> None:
        """Nobody is waiting who could share the last answer."""
        self._last = _PodsListed()

    async def _ask(self, namespace: str | None) -> _PodsListed:
        pods = await self._client.list(POD, Selection(namespace))
        users: dict[ObjectName, list[ApiObject]] = {}
        for pod in pods.items:
            for claim in claims_named_by(pod):
                users.setdefault(claim, []).append(pod)
        return _PodsListed(namespace, pods.version, users)


CLAIMS: Final = "pvcprotection"
VOLUMES: Final = "pvprotection"
"""The names of Kubernetes' own queues, as their metrics show them."""
WORKERS: Final = 4
BACKOFF: Final = Backoff(initial=0.005, factor=2.0, cap=60.0, jitter=0.5)
UNSEEN_POD_SECONDS: Final = 2.0
"""When to look again at a claim whose pod the cache has not seen: it may never see it, and so never tell its end."""
PODS_BY_CLAIM: Final = "pods by claim"


def claim_keys(pod: CachedObject) -> list[str]:
    return [str(claim) for claim in rules.claims_named_by(pod)]


@dataclass(frozen=True, slots=True)
class ProtectionCaches:
    claims: Informer
    volumes: Informer
    pods: Informer


@asynccontextmanager
async def storage_protection(
    client: KubeClient, informers: Informers, runtime: Runtime, queue_metrics: WorkqueueMetrics
) -> AsyncIterator[None]:
    """Keep finalizers on claims and volumes that are in use, and remove them from others, while it is entered."""
    claims, volumes, pods = (
        Watched(kind, transform=without_managed_fields) for kind in (PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME, POD)
    )
    async with (
        informers.using(claims) as all_claims,
        informers.using(volumes) as all_volumes,
        informers.using(pods) as all_pods,
        TaskGroup() as tasks,
    ):
        protection = StorageProtection(
            client, ProtectionCaches(all_claims, all_volumes, all_pods), runtime, queue_metrics
        )
        task = tasks.start(protection.run(), name="storage protection")
        try:
            yield
        finally:
            task.cancel()


class StorageProtection:
    def __init__(
        self, client: KubeClient, caches: ProtectionCaches, runtime: Runtime, queue_metrics: WorkqueueMetrics
    ) -> None:
        self._client = client
        self._caches = caches
        self._live_pods = LivePods(client)
        self._claims_of: dict[ObjectName, list[ObjectName]] = {}
        self._queue: Workqueue[ObjectName] = Workqueue(
            (CLAIMS, VOLUMES), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pools = (WorkerPool(CLAIMS, WORKERS, self._settle_claim), WorkerPool(VOLUMES, WORKERS, self._settle_volume))
        self._loop = ReconcileLoop(self._queue, pools, clock=runtime.clock, log=runtime.log)
        caches.pods.add_index(PODS_BY_CLAIM, claim_keys)

    async def run(self) -> None:
        """Until it is cancelled; nothing is begun before everything that was there at the beginning is known."""
        caches = self._caches
        listening = (
            caches.claims.add_listener(self._claim_changed),
            caches.volumes.add_listener(self._volume_changed),
            caches.pods.add_listener(self._pod_changed),
        )
        try:
            # Saves requests and no more: before a finalizer goes, the API server is asked for the pods, and a patch is
            # refused where its object has changed. Without the caches that would be asked for every claim in use.
            for informer in (caches.claims, caches.volumes, caches.pods):
                await informer.wait_synced()
            await self._loop.run()
        finally:
            for stop_listening in listening:
                stop_listening()

    # ---- what is to be looked at ---------------------------------------------------------------------------------

    def _claim_changed(self, name: ObjectName) -> None:
        claim = self._caches.claims.get(name)
        if claim is not None and _concerns_us(claim, CLAIM_FINALIZER):
            self._queue.add(CLAIMS, name)

    def _volume_changed(self, name: ObjectName) -> None:
        volume = self._caches.volumes.get(name)
        if volume is not None and _concerns_us(volume, VOLUME_FINALIZER):
            self._queue.add(VOLUMES, name)

    def _pod_changed(self, name: ObjectName) -> None:
        """Only what it named before can be free now: it may be gone, or shut down, or another pod of the same name."""
        pod = self._caches.pods.get(name)
        before = self._claims_of.pop(name, [])
        if pod is not None and (now := rules.claims_named_by(pod)):
            self._claims_of[name] = now
        for claim in before:
            self._claim_changed(claim)

    # ---- what is to be done --------------------------------------------------------------------------------------

    async def _settle_claim(self, name: ObjectName) -> Outcome:
        claim = self._caches.claims.get(name)
        if claim is None or not _concerns_us(claim, CLAIM_FINALIZER):
            return Done()
        if not is_being_deleted(claim):
            return await self._patch(PERSISTENT_VOLUME_CLAIM, name, rules.protecting_patch(claim, CLAIM_FINALIZER))
        if rules.is_claim_used(claim, self._caches.pods.cache.by_index(PODS_BY_CLAIM, str(name))):
            return Done()  # the end of that pod queues the claim again
        if await self._is_used_after_all(claim):
            return RetryAfter(UNSEEN_POD_SECONDS)
        return await self._patch(PERSISTENT_VOLUME_CLAIM, name, rules.claim_releasing_patch(claim))

    async def _is_used_after_all(self, claim: CachedObject) -> bool:
        used = await self._live_pods.use(claim)
        if not self._queue.depth(CLAIMS):
            self._live_pods.forget()
        return used

    async def _settle_volume(self, name: ObjectName) -> Outcome:
        volume = self._caches.volumes.get(name)
        if volume is None or not _concerns_us(volume, VOLUME_FINALIZER):
            return Done()
        if not is_being_deleted(volume):
            return await self._patch(PERSISTENT_VOLUME, name, rules.protecting_patch(volume, VOLUME_FINALIZER))
        if rules.is_volume_used(volume):
            return Done()  # the change of its phase queues it again
        return await self._patch(PERSISTENT_VOLUME, name, rules.volume_releasing_patch(volume))

    async def _patch(self, kind: Kind, name: ObjectName, patch: JsonPatch | None) -> Outcome:
        """Refused when the object is not what was seen; the loop then looks at it again."""
        if patch is not None:
            with suppress(NotFound):
                await self._client.patch(kind, name, patch)
        return Done()


def _concerns_us(obj: CachedObject, finalizer: str) -> bool:
    return rules.lacks_protection(obj, finalizer) or rules.waits_for_release(obj, finalizer)
