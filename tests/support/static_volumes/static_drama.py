"""A run of the master of static volumes for the explorer: one node with a disk, a worker, claims, and what must hold.

Always: no PersistentVolume is offered for a disk that is being wiped, that has the data of another volume's claim, or
of which an operation or its result is on record; no disk is wiped while a claim has it, or against the policy of its
volume. In the end: the disk is offered once, clean, and no operation is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.records.api_record import part_of
from orlop.records.provisioner_status import PROVISIONER_STATUS, ProvisionerSpec, ProvisionerStatusStatus
from orlop.static_pv.master import StaticMaster
from orlop.static_pv.master_metrics import MasterMetrics
from orlop.static_pv.master_view import master_view
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.static_volume_rules import (
    AS_IS,
    RELEASE,
    WIPE,
    WIPE_FINALIZER,
    StaticVolume,
    read_static_volume,
    release_note,
)
from orlop.testing.explorer import Act, ExploredTransport, Life, Stage
from support.api.api_servers import TestServer, api_server
from support.static_volumes.claim_models import KubernetesModel
from support.static_volumes.static_objects import (
    CLASS,
    CONFIGURATION,
    GIB,
    SPACE,
    all_of,
    create_cluster,
    node_object,
    stored,
)
from support.static_volumes.worker_model import DiskModel, WorkerModel

METRICS = Metrics("explored", of_process=False)
QUEUE_METRICS = WorkqueueMetrics(METRICS)
ENTRY = "disk1"
PV = volume_name(ENTRY, "n1", CLASS)


@dataclass
class StaticDrama:
    stage: Stage
    on: TestServer
    disk: DiskModel = field(default_factory=lambda: DiskModel(ENTRY, "wwn:1"))
    explores_worker: bool = False
    log: list[LogEntry] = field(default_factory=list)
    is_node_there: bool = True
    is_deleted_by_hand: bool = False
    identities: dict[str, str] = field(default_factory=dict)
    """By uid of a volume: the disk that it was offered on."""
    may_be_wiped: set[str] = field(default_factory=set)
    """Uids of volumes that were seen to be deleted, used, not bound, and not to be retained."""
    released_as_is: set[str] = field(default_factory=set)
    uids: list[str] = field(default_factory=list)
    """Every PersistentVolume there ever was, in order."""

    def __post_init__(self) -> None:
        self.client = self.on.client()
        self.disks = {ENTRY: self.disk}
        self.kubernetes = KubernetesModel(self.on, self.client, self.stage.clock, {PV: self.disk})
        self.stage.always(self.observe)
        self.stage.always(self.nothing_dirty_is_offered)
        self.claimed = self.act("a claim comes", self._claim, self.is_offered)
        self.claimed_by_then = self.act("a claim comes", self._claim)
        self.unclaimed = self.act("the claim is deleted", self._unclaim, self.is_bound)
        self.deleted = self.act("the volume is deleted by hand", self._delete)
        self.retained = self.act("its policy becomes Retain", partial(self._set_policy, "Retain"))
        self.unretained = self.act("its policy becomes Delete", partial(self._set_policy, "Delete"))
        self.unreferenced = self.act("its claimRef is removed by hand", self._unreference)
        self.removed = self.act("the disk is removed", self._remove)
        self.inserted = self.act("the disk is back", self._insert)
        self.swapped = self.act("another disk is in its place", self._swap)
        self.grown = self.act("the disk grows", self._grow)
        self.node_gone = self.act("the node is deleted", self._delete_node)
        self.node_back = self.act("the node is back", self._create_node)
        self.released_wiped = self.act("an admin has it wiped", partial(self._release, WIPE))
        self.released_as_is_by_hand = self.act("an admin releases it as it is", partial(self._release, AS_IS))

    def act(self, name: str, do: Callable[[], Awaitable[object]], expects: Callable[[], object] | None = None) -> Act:
        return Act(name, do, expects) if expects is not None else Act(name, do)

    # ---- the processes -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.stage.run("master", self._live)
        if self.explores_worker:
            self.stage.run("worker", self._work)

    async def _live(self, life: Life) -> None:
        log, clock = collecting_log(self.log), self.stage.clock
        transport = ExploredTransport(life, self.on.transport(), is_spared=lambda request: "/events" in request.path)
        kube = KubeClient(transport, clock=clock, random=Random(2), log=log)
        events = EventRecorder(kube, Reporter("m", "m-0"), clock=clock, random=Random(4), log=log, metrics=METRICS)
        runtime = Runtime(clock=clock, random=Random(3), log=log, metrics=Metrics("explored", of_process=False))
        async with (
            Informers(kube, clock=clock, random=Random(5), log=log) as informers,
            TaskGroup() as tasks,
            master_view(informers, SPACE) as view,
        ):
            tasks.start(events.run(), name="events")
            master = StaticMaster(
                view,
                lambda: CONFIGURATION,
                runtime=runtime,
                kube=kube,
                events=events,
                metrics=MasterMetrics(runtime.metrics),
                queue_metrics=QUEUE_METRICS,
                may_act=life.guard,
            )
            await master.run()

    async def _work(self, life: Life) -> None:
        client = KubeClient(
            ExploredTransport(life, self.on.transport()),
            clock=self.stage.clock,
            random=Random(6),
            log=collecting_log(self.log),
        )
        await self.worker(client).run()

    def worker(self, client: KubeClient) -> WorkerModel:
        return WorkerModel("n1", client, self.stage.clock, self.disks, self.may_wipe, lambda: self.is_node_there)

    # ---- what others do ------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        self.kubernetes.want("c")

    async def _unclaim(self) -> None:
        self.kubernetes.unwant("c")

    async def _delete(self) -> None:
        self.is_deleted_by_hand = True
        if self.volume() is not None:
            await self.client.delete(PERSISTENT_VOLUME, ObjectName(None, PV))

    async def _set_policy(self, policy: str) -> None:
        await self._merge({"spec": {"persistentVolumeReclaimPolicy": policy}})

    async def _unreference(self) -> None:
        await self._merge({"spec": {"claimRef": None}})

    async def _release(self, how: str) -> None:
        """As the command does: only a volume that no claim has."""
        facts = self.facts()
        if facts is not None and not facts.is_bound:
            if how == AS_IS and not facts.is_wipe_decided:
                self.released_as_is.add(facts.uid)
            await self._delete()
            if (deleted := self.facts()) is not None and deleted.is_being_deleted:
                note = release_note(how, deleted.deleted_at)
                await self._merge({"metadata": {"annotations": {RELEASE: note}}})

    async def _merge(self, changes: dict[str, Any]) -> None:
        if self.volume() is not None:
            await self.client.patch(PERSISTENT_VOLUME, ObjectName(None, PV), MergePatch(changes))

    async def _remove(self) -> None:
        self.disks.pop(ENTRY, None)

    async def _insert(self) -> None:
        self.disks[ENTRY] = self.disk

    async def _swap(self) -> None:
        self.disk = self.kubernetes.disks[PV] = self.disks[ENTRY] = DiskModel(ENTRY, "wwn:2")  # type: ignore[index]

    async def _grow(self) -> None:
        self.disk.capacity = 40 * GIB

    async def _delete_node(self) -> None:
        """With its Node the pods of a node go, and so its worker."""
        self.is_node_there = False
        if stored(self.on, NODE, "n1") is not None:
            await self.client.delete(NODE, ObjectName(None, "n1"))

    async def _create_node(self) -> None:
        await self.client.create(NODE, node_object("n1"))
        self.is_node_there = True

    # ---- what is there -------------------------------------------------------------------------------------------

    def volume(self) -> dict[str, Any] | None:
        return stored(self.on, PERSISTENT_VOLUME, PV)

    def facts(self) -> StaticVolume | None:
        volume = self.volume()
        return read_static_volume(volume) if volume is not None else None

    def facts_now(self) -> StaticVolume:
        facts = self.facts()
        assert facts is not None, "there is no volume"
        return facts

    def operations(self) -> list[str]:
        found = [part_of(each, "spec", ProvisionerSpec) for each in all_of(self.on, PROVISIONER_STATUS)]
        return [each.uid for spec in found for each in spec.delete_operations]

    def statuses(self) -> dict[str, str]:
        found = [part_of(each, "status", ProvisionerStatusStatus) for each in all_of(self.on, PROVISIONER_STATUS)]
        return {each.uid: each.state for status in found for each in status.delete_statuses}

    # ---- what must hold ------------------------------------------------------------------------------------------

    def observe(self) -> None:
        facts = self.facts()
        if facts is None:
            return
        if facts.uid not in self.uids:
            self.uids.append(facts.uid)
            self.identities[facts.uid] = self.disk.identity
        is_taken_away = facts.is_being_deleted and facts.is_bound and not self.is_deleted_by_hand
        assert not is_taken_away, "a volume that a claim has is being deleted, and nobody deleted it"
        is_free = facts.is_being_deleted and not facts.is_bound
        if is_free and (facts.policy == "Delete" or facts.release == WIPE) and facts.was_ever_bound:
            self.may_be_wiped.add(facts.uid)

    def nothing_dirty_is_offered(self) -> None:
        facts = self.facts()
        if facts is None or facts.is_being_deleted:
            return
        disk = self.disks.get(ENTRY)
        others = [uid for uid in (*self.operations(), *self.statuses()) if uid != facts.uid]
        assert not others, f"a volume is offered, and the operation {others[0]} is on record"
        if disk is None:
            return
        assert not disk.wiped_for, "a volume is offered, and its disk is being wiped"
        owner = self.kubernetes.owners.get(disk.data, "")
        is_own = not disk.data or owner == facts.uid or owner in self.released_as_is
        assert is_own, f"a volume is offered, and its disk has the data of {disk.data}"

    def may_wipe(self, disk: DiskModel, uid: str) -> None:
        """Judge at the moment a wipe begins. A finding ends the run, whoever is being asked."""
        facts = self.facts()
        try:
            assert facts is None or facts.uid != uid or not facts.is_bound, "a disk is wiped, and a claim has it"
            assert facts is None or facts.is_being_deleted, "a disk is wiped, and its volume is offered"
            assert disk.identity == self.identities[uid], "another disk is wiped than the one that was offered"
            assert uid in self.may_be_wiped, "a disk is wiped, and its volume is to be retained"
        except AssertionError as error:
            self.stage.broken(error)
            raise

    def is_offered(self) -> None:
        facts = self.facts()
        assert facts is not None, "there is no volume"
        assert not facts.is_being_deleted, "the volume is being deleted"
        assert self.disk.data in ("", *self._own_data(facts)), "its disk is not clean"
        assert self.operations() == []
        assert self.statuses() == {}

    def _own_data(self, facts: StaticVolume) -> list[str]:
        return [claim for claim, volume in self.kubernetes.owners.items() if volume == facts.uid]

    def is_bound(self) -> None:
        facts = self.facts()
        assert facts is not None, "there is no volume"
        assert facts.phase == "Bound", facts
        assert facts.is_ever_bound_noted

    def is_offered_again(self, volumes: int = 2) -> None:
        """In the end: the disk came back, once for each time that it was released, and clean."""
        facts = self.facts()
        assert facts is not None, "the disk did not come back"
        assert facts.phase == "Available", facts
        self.is_offered()
        assert self.disk.data == "", "it is offered, and not clean"
        assert not facts.was_ever_bound, "the volume of before is there again"
        assert len(self.uids) <= volumes, f"there were {len(self.uids)} volumes"

    def is_kept(self) -> None:
        """In the end: it waits for an admin, with its data."""
        facts = self.facts()
        assert facts is not None, "the volume is gone"
        assert facts.is_being_deleted, facts
        assert facts.finalizers == (WIPE_FINALIZER,)
        assert self.disk.data, "its data is gone"
        assert self.operations() == []


@asynccontextmanager
async def static_drama(
    stage: Stage, *, explores_worker: bool = False, failures: int = 0, **of_class: Any
) -> AsyncIterator[StaticDrama]:
    async with api_server(stage.clock) as on:
        play = StaticDrama(stage, on, explores_worker=explores_worker)
        play.disk.failures = failures
        await create_cluster(play.client, "n1", **of_class)
        running = [asyncio.ensure_future(play.kubernetes.run())]
        if not explores_worker:
            worker = play.worker(play.client)
            await worker.reconcile()
            await worker.reconcile()
            running.append(asyncio.ensure_future(worker.run()))
        play.begin()
        try:
            yield play
        finally:
            for each in running:
                each.cancel()


# ---- the scenarios ---------------------------------------------------------------------------------------------------


async def used_and_released(stage: Stage) -> None:
    """A claim has the disk, and is deleted."""
    async with static_drama(stage) as play:
        await stage.acts(play.claimed, play.unclaimed)
        play.is_offered_again()


async def worker_dies(stage: Stage) -> None:
    """The same, and everything may happen to the worker, whose wipe fails once."""
    async with static_drama(stage, explores_worker=True, failures=1) as play:
        await stage.acts(play.claimed, play.unclaimed)
        play.is_offered_again()


async def deleted_while_bound(stage: Stage) -> None:
    """An admin deletes the volume of a claim, and the claim is deleted afterwards."""
    async with static_drama(stage, failures=2) as play:
        await stage.acts(play.claimed, play.deleted, play.unclaimed)
        play.is_offered_again()


async def deleted_unused(stage: Stage) -> None:
    """An admin deletes a volume that no claim has had. Its disk has data that nobody wants to lose."""
    async with static_drama(stage) as play:
        await stage.acts(play.deleted, play.grown, play.claimed)
        assert play.disk.wiped == []
        play.is_bound()


async def retained(stage: Stage) -> None:
    """The policy is Retain: the disk is kept until an admin has it wiped."""
    async with static_drama(stage, reclaimPolicy="Retain") as play:
        await stage.acts(play.claimed, play.unclaimed, play.deleted)
        if play.kubernetes.owners:
            play.is_kept()
        await stage.acts(play.released_wiped)
        play.is_offered_again()


async def released_as_it_is(stage: Stage) -> None:
    """The policy is Retain: an admin releases the disk with its data."""
    async with static_drama(stage, reclaimPolicy="Retain") as play:
        await stage.acts(play.claimed, play.unclaimed, play.released_as_is_by_hand)
        assert play.disk.wiped == []
        facts = play.facts()
        assert facts is not None
        assert facts.phase == "Available"


async def policy_changed(stage: Stage) -> None:
    """The policy becomes Retain while a claim has the volume, and Delete again when it is Terminating."""
    async with static_drama(stage) as play:
        await stage.acts(play.claimed, play.retained, play.unclaimed, play.deleted, play.unretained)
        play.is_offered_again()


async def reference_removed(stage: Stage) -> None:
    """An admin removes the claim from the volume, and deletes it then. Its phase is Available, and its disk dirty."""
    async with static_drama(stage) as play:
        await stage.acts(play.claimed, play.unreferenced, play.deleted)
        play.is_offered_again()


async def disk_away(stage: Stage) -> None:
    """The disk is removed while a claim has it, and comes back after the claim was deleted."""
    async with static_drama(stage) as play:
        await stage.acts(play.claimed, play.removed, play.unclaimed, play.inserted)
        play.is_offered_again(volumes=3)


async def withdrawn(stage: Stage) -> None:
    """The disk is removed before a claim comes, or just as it comes. Nobody deletes a volume that a claim has."""
    async with static_drama(stage) as play:
        await stage.acts(play.removed, play.claimed_by_then, play.inserted)
        play.is_bound()


async def disk_swapped(stage: Stage) -> None:
    """Another disk is in its place: it is never wiped, and offered when an admin releases the volume."""
    async with static_drama(stage) as play:
        await stage.acts(play.claimed, play.swapped, play.unclaimed, play.released_as_is_by_hand)
        assert play.disk.wiped == []
        play.is_offered()
        assert play.facts_now().identity == "wwn:2"


async def node_away(stage: Stage) -> None:
    """The node is deleted while a claim has its disk, and comes back under its name after the claim was deleted."""
    async with static_drama(stage) as play:
        await stage.acts(play.claimed, play.node_gone, play.unclaimed, play.node_back)
        play.is_offered_again()


SCENARIOS = (
    used_and_released,
    worker_dies,
    deleted_while_bound,
    deleted_unused,
    retained,
    released_as_it_is,
    policy_changed,
    reference_removed,
    disk_away,
    withdrawn,
    disk_swapped,
    node_away,
)
