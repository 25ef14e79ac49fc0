"""Watches VolumeAttachments and PersistentVolumes, and has each one brought to where it should be.

Three pools: attaching, detaching, and letting go of volumes. One VolumeAttachment is in the hands of one worker at a
time, whichever pool it is from; attaching never waits behind detaching, and no node's volumes behind those of a node
that hangs. A worker who finds that an object is to go the other way by now leaves it to the other pool.

Who is woken: a VolumeAttachment when something of it changed that our rules look at, and that we have not written
ourselves; also when its PersistentVolume or the CSINode of its node changed and it is not attached yet, or to be
detached. A PersistentVolume when it is being deleted, and when a VolumeAttachment that named it is gone. All of them
from time to time (resync), so that nothing missed stays missed.

Must not decide: `attach_rules` and `volume_release_rules` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects
from orlop.kube.errors import ApiError, NotFound
from orlop.kube.informer import Informer
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.object_cache import CachedObject
from orlop.kube.objects import ObjectName
from orlop.kube.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, WorkerPool
from orlop.kube.workqueue import Crowds, Workqueue
from orlop.sidecars.attacher.attach_rules import (
    attacher_of,
    is_attached,
    is_to_be_detached,
    node_name_of,
    recorded_node_id,
)
from orlop.sidecars.attacher.attachment_work import AttachmentWork, NotSettled
from orlop.sidecars.attacher.node_id_rules import id_in_csi_node
from orlop.sidecars.attacher.node_ids import NodeIds
from orlop.sidecars.attacher.tools import JITTER, AttacherSettings, Tools
from orlop.sidecars.attacher.volume_release_rules import release_patch
from orlop.sidecars.attacher.volume_source_rules import volume_name_of

ATTACH: Final = "csi-attacher-va"
DETACH: Final = "csi-attacher-va-detach"
VOLUMES: Final = "csi-attacher-pv"
"""As their metrics name them; of the first and the last, upstream's names."""
SHARE_OF_A_NODE: Final = 0.8
"""Of the workers of a pool that no other node has: nodes whose volumes hang leave the others some."""
BY_VOLUME, BY_NODE = "attachments by volume", "attachments by node"
Look: TypeAlias = tuple[object, ...]
"""All of a VolumeAttachment that the rules look at."""
GONE: Final[Look] = ()


@dataclass(frozen=True, slots=True)
class Caches:
    attachments: Informer
    volumes: Informer
    csi_nodes: Informer

    @property
    def synced(self) -> bool:
        """Whether all that was there at the beginning is known: nothing is begun before."""
        return self.attachments.synced and self.volumes.synced and self.csi_nodes.synced


@dataclass(frozen=True, slots=True)
class _Seen:
    uid: str
    look: Look
    version: str
    volume_name: str
    pool: str

    def is_news(self, found: CachedObject) -> bool:
        """Not what the cache still shows from before our own write; and not what is of no concern to the rules."""
        return self.look != _look(found) and not is_older(objects.resource_version(found), self.version)


def is_older(version: str, other: str) -> bool:
    return objects.version_order(version) < objects.version_order(other)


class Attacher:
    """Nothing is done unless somebody keeps `run` running."""

    def __init__(self, caches: Caches, settings: AttacherSettings, tools: Tools) -> None:
        self._attachments = caches.attachments
        self._volumes = caches.volumes
        self._csi_nodes = caches.csi_nodes
        self._driver = settings.driver
        self._finalizer = settings.finalizer
        self._resync = settings.resync
        self._kube = tools.kube
        self._may_act = tools.may_act
        self._clock = tools.clock
        self._random = tools.random
        node_ids = NodeIds(caches.csi_nodes, tools.kube, settings.driver)
        self._work = AttachmentWork(node_ids, settings, tools, self._note)
        self._seen: dict[ObjectName, _Seen] = {}
        """What was last looked at, or written by us."""
        self._worked_on: set[ObjectName] = set()
        self._said: dict[ObjectName, bool] = {}
        """Whether the driver says that it is published, where that is not what the object says."""
        self._others_seen: dict[tuple[str, ObjectName], Look] = {}
        """Of volumes and nodes: what attaching depends on."""
        self._ended: dict[ObjectName, str] = {}
        """Uids of those that are gone, as we know and the cache does not yet."""
        self._queue: Workqueue[ObjectName] = Workqueue(
            (ATTACH, DETACH, VOLUMES),
            clock=tools.clock,
            random=tools.random,
            backoff=settings.backoff,
            metrics=tools.metrics,
            crowds=Crowds(self._node_of, settings.workers, SHARE_OF_A_NODE),
        )
        pools = (
            WorkerPool(ATTACH, settings.workers, partial(self._settle_attachment, ATTACH)),
            WorkerPool(DETACH, settings.workers, partial(self._settle_attachment, DETACH)),
            WorkerPool(VOLUMES, settings.workers, self._settle_volume),
        )
        self._loop = ReconcileLoop(self._queue, pools, clock=tools.clock, log=tools.log)
        caches.attachments.add_index(BY_VOLUME, _volume_keys)
        caches.attachments.add_index(BY_NODE, _node_keys)

    async def run(self) -> None:
        """Until it is stopped or cancelled; nothing is begun before all that was there at the beginning is known."""
        informers = (self._attachments, self._volumes, self._csi_nodes)
        for informer in informers:
            await informer.wait_synced()
        listening = (
            self._attachments.add_listener(self._attachment_changed),
            self._volumes.add_listener(self._volume_changed, resync=self._resync),
            self._csi_nodes.add_listener(self._node_changed),
        )
        try:
            async with TaskGroup() as tasks:
                looking = tasks.start(self._look_at_all_again(), name="resync of attachments")
                await self._loop.run()
                looking.cancel()
        finally:
            for stop_listening in listening:
                stop_listening()

    def stop(self) -> None:
        """What is under way ends; nothing else is begun."""
        self._loop.stop()

    def _node_of(self, name: ObjectName) -> str | ObjectName:
        """Volumes that are let go of belong to no node, and so to no crowd but themselves."""
        found = self._attachments.get(name)
        return node_name_of(found) if found is not None else name

    # ---- what is to be looked at ---------------------------------------------------------------------------------

    def _attachment_changed(self, name: ObjectName) -> None:
        found = self._attachments.get(name)
        before = self._seen.get(name)
        if found is None or objects.uid(found) != self._ended.get(name):
            self._ended.pop(name, None)
        is_news = found is None or before is None or before.is_news(found)
        if before is not None and is_news and (found is None or objects.uid(found) != before.uid):
            self._forget(name, before)
        if found is not None and is_news and name not in self._worked_on:
            self._look_again(name)  # of those that are worked on, it is looked when that ends

    def _forget(self, name: ObjectName, gone: _Seen) -> None:
        """What was said of this one, and how often it failed, is nothing to the next of its name."""
        self._seen.pop(name, None)
        self._said.pop(name, None)
        for pool in (ATTACH, DETACH):
            self._queue.forget(pool, name)
        if gone.volume_name:
            self._queue.add(VOLUMES, ObjectName(None, gone.volume_name))

    def differs(self, name: ObjectName, published: bool) -> None:  # noqa: FBT001 - a fact, not a switch
        """The driver says otherwise than the object: it is brought to its end once more."""
        self._said[name] = published
        self._look_again(name)

    async def _look_at_all_again(self) -> None:
        """A listener that is told of all again could not tell that from our own writes."""
        while self._resync > 0:
            await self._clock.sleep(self._resync * (1 + JITTER * self._random.random()))
            for name in self._attachments.cache.names():
                self._look_again(name)

    def _look_again(self, name: ObjectName) -> None:
        found = self._attachments.get(name)
        if found is None or attacher_of(found) != self._driver:
            return
        self._note(name, found)
        self._queue.add(_pool_of(found), name)

    def _note(self, name: ObjectName, found: Mapping[str, Any]) -> None:
        self._seen[name] = _Seen(
            objects.uid(found),
            _look(found),
            objects.resource_version(found),
            volume_name_of(found),
            _pool_of(found),
        )

    def _volume_changed(self, name: ObjectName) -> None:
        volume = self._volumes.get(name)
        if volume is not None and objects.is_being_deleted(volume) and objects.has_finalizer(volume, self._finalizer):
            self._queue.add(VOLUMES, name)
        self._wake_unsettled(BY_VOLUME, name, _look_at_volume(volume))

    def _node_changed(self, name: ObjectName) -> None:
        node_id = id_in_csi_node(self._csi_nodes.get(name), self._driver)
        self._wake_unsettled(BY_NODE, name, GONE if node_id is None else (node_id,))

    def _wake_unsettled(self, index: str, name: ObjectName, look: Look) -> None:
        if self._others_seen.get((index, name), GONE) == look:
            return
        if look == GONE:
            del self._others_seen[index, name]  # else all that ever was would be kept
        else:
            self._others_seen[index, name] = look
        for found in self._attachments.cache.found_by(index, name.name):
            is_settled = is_attached(found) and not is_to_be_detached(found)
            if attacher_of(found) == self._driver and not is_settled:
                self._look_again(objects.name_of(found))

    # ---- what is to be done --------------------------------------------------------------------------------------

    async def _settle_attachment(self, pool: str, name: ObjectName) -> Outcome:
        found = self._attachments.get(name)
        if found is None or attacher_of(found) != self._driver or self._ended.get(name) == objects.uid(found):
            return Done()
        if _pool_of(found) != pool:
            self._leave_to_the_other(name, found)
            return Done()
        self._worked_on.add(name)
        try:
            return await self._settle(name, found)
        finally:
            self._worked_on.discard(name)
            self._attachment_changed(name)
            self._hand_over(pool, name)

    def _leave_to_the_other(self, name: ObjectName, found: CachedObject) -> None:
        """What was to be tried again in this pool, before it was to go the other way."""
        self._note(name, found)
        if not self._queue.failures(_pool_of(found), name):  # else that pool has its own time for it
            self._queue.add(_pool_of(found), name)

    def _hand_over(self, pool: str, name: ObjectName) -> None:
        """Our own write may have been the first to show that it is to go the other way: nothing else would wake it."""
        seen = self._seen.get(name)
        if seen is not None and seen.pool != pool:
            self._queue.add(seen.pool, name)

    async def _settle(self, name: ObjectName, found: CachedObject) -> Outcome:
        self._note(name, found)
        volume_name = volume_name_of(found)
        volume = self._volumes.get(ObjectName(None, volume_name)) if volume_name else None
        said = self._said.pop(name, None)
        try:
            left = await self._work.bring_to_its_end(name, found, volume, said)
        except NotSettled as error:
            return Failed(error)
        except ApiError:
            if said is False:
                self._said.setdefault(name, said)  # else it would be found attached when it is tried again
            raise
        if left is None:
            self._ended[name] = objects.uid(found)
        else:
            await self._attachments.reached(objects.resource_version(left))
        return Done()

    async def _settle_volume(self, name: ObjectName) -> Outcome:
        volume = self._volumes.get(name)
        if volume is None:
            return Done()
        naming = self._attachments.cache.found_by(BY_VOLUME, name.name)
        patch = release_patch(volume, naming, self._finalizer)
        if patch is not None:
            self._may_act()
            try:
                await self._kube.patch(PERSISTENT_VOLUME, name, patch)
            except NotFound:
                return Done()
        return Done()


def _look(attachment: CachedObject) -> Look:
    return (
        objects.uid(attachment),
        objects.is_being_deleted(attachment),
        objects.finalizers(attachment),
        recorded_node_id(attachment),
        is_attached(attachment),
        repr(attachment.get("spec")),
    )


def _look_at_volume(volume: CachedObject | None) -> Look:
    if volume is None:
        return GONE
    return objects.uid(volume), objects.is_being_deleted(volume), repr(volume.get("spec"))


def _pool_of(attachment: Mapping[str, Any]) -> str:
    return DETACH if is_to_be_detached(attachment) else ATTACH


def _volume_keys(attachment: CachedObject) -> list[str]:
    return [name] if (name := volume_name_of(attachment)) else []


def _node_keys(attachment: CachedObject) -> list[str]:
    return [name] if (name := node_name_of(attachment)) else []
