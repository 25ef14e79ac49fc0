"""Stands in for an attacher where the driver has nothing to attach: says of each VolumeAttachment that it is attached.

No finalizers and no calls. Finalizers of ours that are left from a time when the driver did attach are taken off, from
VolumeAttachments and PersistentVolumes: there is nobody any more who could be asked to detach.
"""

from __future__ import annotations

from typing import Final

from orlop.kube import patches
from orlop.kube.errors import NotFound
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT, Kind
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.kube.reconcile_loop import Done, Outcome, ReconcileLoop, WorkerPool
from orlop.kube.workqueue import Workqueue
from orlop.sidecars.attacher.attach_rules import Nothing, attacher_of
from orlop.sidecars.attacher.attacher import ATTACH, VOLUMES, Caches
from orlop.sidecars.attacher.tools import AttacherSettings, Tools
from orlop.sidecars.attacher.trivial_rules import LetGo, MarkAttached, next_trivial_step
from orlop.sidecars.attacher.volume_release_rules import may_be_of

STATUS: Final = "status"


class TrivialAttacher:
    """Nothing is done unless somebody keeps `run` running."""

    def __init__(self, caches: Caches, settings: AttacherSettings, tools: Tools) -> None:
        self._attachments = caches.attachments
        self._volumes = caches.volumes
        self._driver = settings.driver
        self._finalizer = settings.finalizer
        self._resync = settings.resync
        self._kube = tools.kube
        self._may_act = tools.may_act
        self._queue: Workqueue[ObjectName] = Workqueue(
            (ATTACH, VOLUMES),
            clock=tools.clock,
            random=tools.random,
            backoff=settings.backoff,
            metrics=tools.metrics,
        )
        pools = (
            WorkerPool(ATTACH, settings.workers, self._settle_attachment),
            WorkerPool(VOLUMES, settings.workers, self._settle_volume),
        )
        self._loop = ReconcileLoop(self._queue, pools, clock=tools.clock, log=tools.log)

    async def run(self) -> None:
        """Until it is stopped or cancelled."""
        await self._attachments.wait_synced()
        await self._volumes.wait_synced()
        listening = (
            self._attachments.add_listener(lambda name: self._queue.add(ATTACH, name), resync=self._resync),
            self._volumes.add_listener(lambda name: self._queue.add(VOLUMES, name), resync=self._resync),
        )
        try:
            await self._loop.run()
        finally:
            for stop_listening in listening:
                stop_listening()

    def stop(self) -> None:
        self._loop.stop()

    async def _settle_attachment(self, name: ObjectName) -> Outcome:
        found = self._attachments.get(name)
        if found is None or attacher_of(found) != self._driver:
            return Done()
        match next_trivial_step(found, self._finalizer):
            case LetGo(patch):
                return await self._patch(VOLUME_ATTACHMENT, name, patch)
            case MarkAttached(patch):
                return await self._patch(VOLUME_ATTACHMENT, name, patch, STATUS)
            case Nothing():
                return Done()

    async def _settle_volume(self, name: ObjectName) -> Outcome:
        found = self._volumes.get(name)
        if found is None or not may_be_of(found, self._driver):
            return Done()
        patch = patches.remove_finalizer(found, self._finalizer)
        return Done() if patch is None else await self._patch(PERSISTENT_VOLUME, name, patch)

    async def _patch(self, kind: Kind, name: ObjectName, patch: JsonPatch, subresource: str = "") -> Outcome:
        """Refused when the object is not what was seen; the loop then looks at it again."""
        self._may_act()
        try:
            await self._kube.patch(kind, name, patch, subresource=subresource)
        except NotFound:
            return Done()
        return Done()
