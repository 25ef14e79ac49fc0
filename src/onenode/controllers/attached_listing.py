"""Keeps `status.volumesAttached` of the Nodes: what kubelet may rely on to be attached.

However many volumes change, a Node is written to once for all that have changed since. Order: the list is written → the
cache has it → those who wait for the write are notified. From before a write until the cache has it, a volume in it
counts as listed: also after a write of which nobody knows whether it was done, until the Node was read anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onenode.controllers import attach_detach_rules as rules
from onenode.kubelet.volumes.volume_values import UniqueName
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informer import Informer
from orlop.kube.client import KubeClient
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName, resource_version
from orlop.kube.patches import JsonPatch
from orlop.kube.queue.reconcile_loop import Done, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

QUEUE: Final = "attached-volumes-of-nodes"
WORKERS: Final = 4
PAUSE_SECONDS: Final = 0.1
BACKOFF: Final = Backoff(initial=0.5, factor=2.0, cap=122.0, jitter=0.1)
"""Kubernetes' for operations on volumes."""


class AttachedListing:
    """Writes only while `run` runs; `written` is called with the volumes that waited for a write."""

    def __init__(
        self,
        client: KubeClient,
        nodes: Informer,
        runtime: Runtime,
        queue_metrics: WorkqueueMetrics,
        written: Callable[[UniqueName], None],
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._clock = runtime.clock
        self._written = written
        self._wanted: dict[str, set[UniqueName]] = {}
        self._under_way: dict[str, frozenset[UniqueName]] = {}
        """What a write that is not over, or whose end is not known, lists."""
        self._waiting: dict[str, set[UniqueName]] = {}
        self._not_before: dict[str, float] = {}
        self._queue: Workqueue[ObjectName] = Workqueue(
            (QUEUE,), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pool = WorkerPool(QUEUE, WORKERS, self._settle)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=runtime.clock, log=runtime.log)

    async def run(self) -> None:
        await self._loop.run()

    def note(self, node: str, volume: UniqueName, *, is_attached: bool) -> None:
        """How it should be listed from now on."""
        wanted = self._wanted.setdefault(node, set())
        if is_attached != (volume in wanted):
            (wanted.add if is_attached else wanted.discard)(volume)
            self.look_at(node)
        if not wanted:
            del self._wanted[node]

    def look_at(self, node: str) -> None:
        """The Node has changed, or should."""
        self._queue.add(QUEUE, ObjectName(None, node))

    def differs(self, node: str, listed: frozenset[UniqueName]) -> bool:
        return self._wanted.get(node, set()) != {name for name in listed if rules.is_of_a_csi_driver(name)}

    def may_list(self, node: str, volume: UniqueName) -> bool:
        """Whether a write that the cache does not know yet may have it; then `written` will be called."""
        if volume not in self._under_way.get(node, ()):
            return False
        self._waiting.setdefault(node, set()).add(volume)
        return True

    async def _settle(self, name: ObjectName) -> Outcome:
        """At most as often as Kubernetes does, and no more than half of the time: a long list takes its time."""
        begun = self._clock.elapsed()
        if (early := self._not_before.get(name.name, 0.0) - begun) > 0:
            return RetryAfter(early)
        node = self._nodes.get(name)
        if name.name in self._under_way:  # how the last write ended is not known
            node = await self._read_anew(name)
        if node is not None and (patch := rules.listing_patch(node, self._wanted.get(name.name, ()))) is not None:
            await self._write(name, patch)
            now = self._clock.elapsed()
            self._not_before[name.name] = now + max(PAUSE_SECONDS, now - begun)
        elif node is None:
            self._not_before.pop(name.name, None)
        self._over(name.name)
        return Done()

    async def _write(self, name: ObjectName, patch: JsonPatch) -> None:
        listed = self._wanted.get(name.name, set()) | self._under_way.get(name.name, frozenset())
        self._under_way[name.name] = frozenset(listed)
        try:
            written = await self._client.patch(NODE, name, patch, subresource="status")
        except NotFound:
            return
        # After any other error, also a refusal, the volumes stay under way until the Node was read anew: what changed
        # the list and had us refused may be an earlier write of ours that broke off and arrived late.
        await self._nodes.reached(resource_version(written))

    async def _read_anew(self, name: ObjectName) -> dict[str, object] | None:
        try:
            node = await self._client.get(NODE, name)
        except NotFound:
            return None
        await self._nodes.reached(resource_version(node))
        return node

    def _over(self, node: str) -> None:
        self._under_way.pop(node, None)
        for volume in self._waiting.pop(node, ()):
            self._written(volume)
