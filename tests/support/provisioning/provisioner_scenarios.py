"""Scenarios of the provisioner for the explorer: an API server, a driver, a provisioner that dies, and what must hold.

I4: a volume that was created ends as a PersistentVolume or is deleted again. At the end, the driver's volumes are the
volumes of the PersistentVolumes, one each, and neither a finalizer nor a journal entry is left of what is finished.
At each CreateVolume call, the journal in the API server names the volume.
I8: the secret reaches the driver alone, which quotes it in every error.

The driver has no locks, and ends its calls at their deadline: what one does after that is out of reach. The binder is a
model of its own, polled: it binds a claim to the volume that names it, and releases a volume whose claim is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from onenode.apiserver.store.journal import JournalState, NoJournal
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import DEFAULT_LIMITS
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.binding import claim_state_rules as state
from orlop.csi.client import CsiClient
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, Methods
from orlop.csi.rpc_type import Rpc
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects
from orlop.kube.api_errors import ApiError
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import (
    BUILT_IN,
    CSI_NODE,
    LEASE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    SECRET,
    STORAGE_CLASS,
    Kind,
)
from orlop.kube.kinds import NAMESPACE as NAMESPACE_KIND
from orlop.kube.objects import ObjectName
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.records.provision_journal import ANNOTATION, decode_page
from orlop.sidecars.provisioner.order_journal import JournalLost
from orlop.sidecars.provisioner.provisioner_settings import ProvisionerSettings
from orlop.sidecars.provisioner.provisioning_controller import provisioning_controller
from orlop.testing.driver_model import DriverFacts, DriverModel
from orlop.testing.explorer import Act, ExploredTransport, Life, LifeConnection, Process, Stage, explored_methods
from support.api.api_objects import csi_node, named
from support.api.api_servers import TestServer, api_server, api_server_on
from support.csi.indiscreet_drivers import IndiscreetDriver
from support.provisioning.provisioner_worlds import CREATE, DRIVER, JOURNAL_NAMESPACE, NAMESPACE, used_caches

SETTINGS = ProvisionerSettings(driver=DRIVER, identity="p-1", workers=2, timeout=10.0, retry_most=20.0, slow_retry=20.0)
"""Retries come sooner than everything counts as having come to rest."""
ENDS_WITHIN_SECONDS = 8.0
CANARY = "c4n4ry-of-the-secret"
CLAIM, CLASS, NODE_NAME = "data", "fast", "n1"
TOPOLOGY_KEY = "topology.example.com/node"
SECRETS = "csi.storage.k8s.io/provisioner-secret-"
METRICS = Metrics("explored", of_process=False)
QUEUE_METRICS = WorkqueueMetrics(METRICS)
"""Nobody reads them."""
Object = dict[str, Any]


def is_event(request: HttpRequest) -> bool:
    """Nothing depends on Events. Leases hold the journal, so that writes to them are explored."""
    return "/events" in request.path


class NoLocks:
    """The locks of a driver that has none: calls for one volume run side by side, and the last one decides."""

    def try_hold(self, _key: str, *, why: str) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass
class Drama:
    """One run: the objects, the driver, the provisioner, and what others do."""

    stage: Stage
    on: TestServer
    model: DriverModel
    log: list[LogEntry] = field(default_factory=list)
    process: Process | None = None

    def __post_init__(self) -> None:
        self.client = self.on.client()
        self.stage.always(self.no_object_holds_the_secret)
        self.is_created = Act("the claim is created", self.create_claim)
        self.is_deleted = Act("the claim is deleted", self.delete_claim)
        self.class_is_deleted = Act("the class is deleted", lambda: self._delete(STORAGE_CLASS, CLASS))
        self.class_is_changed = Act("the class is changed", self.change_class)
        self.node_is_gone = Act("the node is gone", self.delete_node)

    # ---- the provisioner -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.process = self.stage.run("provisioner", self._live)
        numbers = count(1)
        watched = self._watched(self.model.methods())
        self.interceptor = CallInterceptor(
            explored_methods(self.process, watched, ends_within=ENDS_WITHIN_SECONDS),
            driver_name=DRIVER,
            log=collecting_log(self.log),
            metrics=METRICS,
            clock=self.stage.clock,
            new_id=lambda: f"call-{next(numbers)}",
        )
        self.interceptor._keys = NoLocks()  # type: ignore[assignment]  # a model of a careless driver
        self.binder = asyncio.ensure_future(self.bind_all())

    async def _live(self, life: Life) -> None:
        log, clock, metrics = collecting_log(self.log), self.stage.clock, METRICS
        transport = ExploredTransport(life, self.on.transport(), is_spared=is_event)
        kube = KubeClient(transport, clock=clock, random=Random(2), log=log)
        connection = LifeConnection(life, InProcessConnection(IndiscreetDriver(self.interceptor)))
        csi = CsiClient(connection, log=log, metrics=metrics, clock=clock, random=Random(3))
        events = EventRecorder(kube, Reporter("p", "p-0"), clock=clock, random=Random(4), log=log, metrics=metrics)
        # Each life has an identity of its own, as each process has.
        runtime = Runtime(clock=clock, random=Random(int(clock.elapsed() * 1000)), log=log, metrics=metrics)
        capabilities = self.capabilities
        async with (
            Informers(kube, clock=clock, random=Random(5), log=log) as informers,
            used_caches(informers, capabilities) as caches,
            TaskGroup() as tasks,
        ):
            controller = provisioning_controller(
                caches,
                SETTINGS,
                runtime=runtime,
                kube=kube,
                csi=csi,
                events=events,
                queue_metrics=QUEUE_METRICS,
                namespace=JOURNAL_NAMESPACE,
                capabilities=capabilities,
                may_act=life.guard,
            )
            tasks.start(events.run(), name="events")
            # The process would exit; the explorer's other life leads already.
            with suppress(JournalLost):
                await controller.run()

    @property
    def capabilities(self) -> frozenset[str]:
        facts = self.model.facts.capabilities
        return facts.plugin | facts.controller

    def _watched(self, methods: Methods) -> Methods:
        def watched(rpc: Rpc[Any, Any], serve: Any) -> Any:
            async def answer(request: Any) -> Any:
                if rpc.name == CREATE:
                    try:
                        assert request.name in self.journalled(), "CreateVolume without an entry in the journal"
                        assert request.secrets["k"] == CANARY, "without the secret"
                    except AssertionError as error:
                        self.stage.broken(error)
                        raise
                return await serve(request)

            return answer

        return {path: (rpc, serve if rpc.streams else watched(rpc, serve)) for path, (rpc, serve) in methods.items()}

    # ---- what others do ------------------------------------------------------------------------------------------

    async def create_claim(self) -> None:
        annotations = {state.STORAGE_PROVISIONER: DRIVER, state.SELECTED_NODE: NODE_NAME}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": CLASS,
        }
        metadata = {"name": CLAIM, "namespace": NAMESPACE, "annotations": annotations}
        await self.client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})

    async def delete_claim(self) -> None:
        name = ObjectName(NAMESPACE, CLAIM)
        await self.client.patch(PERSISTENT_VOLUME_CLAIM, name, MergePatch({"metadata": {"finalizers": None}}))
        await self.client.delete(PERSISTENT_VOLUME_CLAIM, name)

    async def change_class(self) -> None:
        await self._delete(STORAGE_CLASS, CLASS)
        await self.client.create(STORAGE_CLASS, storage_class({"tier": "cold"}))

    async def delete_node(self) -> None:
        await self._delete(CSI_NODE, NODE_NAME)
        await self._delete(NODE, NODE_NAME)

    async def _delete(self, kind: Kind, name: str) -> None:
        await self.client.delete(kind, ObjectName(None, name))

    async def bind_all(self) -> None:
        while True:
            await self.stage.clock.sleep(0.5)
            for volume in self.all_of(PERSISTENT_VOLUME):
                # Somebody else may have changed it meanwhile: the next round sees that.
                with suppress(ApiError):
                    await self._bind(volume)

    async def _bind(self, volume: Object) -> None:
        reference, name = volume["spec"]["claimRef"], objects.name_of(volume)
        claim = self.claim()
        if claim is None or objects.uid(claim) != reference["uid"]:
            if volume["status"]["phase"] != "Released":
                await self._set_phase(name, "Released")
            if objects.is_being_deleted(volume) and objects.has_finalizer(volume, state.PV_PROTECTION):
                kept = [each for each in objects.finalizers(volume) if each != state.PV_PROTECTION]
                changed = {**volume, "metadata": {**volume["metadata"], "finalizers": kept}}
                await self.client.replace(PERSISTENT_VOLUME, changed)
            return
        if not state.volume_name(claim):
            bound = {**claim, "spec": {**claim["spec"], "volumeName": name.name}}
            await self.client.replace(PERSISTENT_VOLUME_CLAIM, bound)
        if volume["status"]["phase"] != "Bound":
            await self._set_phase(name, "Bound")

    async def _set_phase(self, name: ObjectName, phase: str) -> None:
        patch = MergePatch({"status": {"phase": phase}})
        await self.client.patch(PERSISTENT_VOLUME, name, patch, subresource="status")

    def once_provisioned(self, act: Act) -> Act:
        return replace(act, expects=self.is_provisioned)

    # ---- what must hold ------------------------------------------------------------------------------------------

    def claim(self) -> Object | None:
        kept = KindInStore(PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME_CLAIM)
        found = self.on.store.get(kept.key(NAMESPACE, CLAIM))
        return kept.kept_object(found) if found is not None else None

    def all_of(self, kind: Kind) -> list[Object]:
        kept = KindInStore(kind, kind)
        return [kept.kept_object(found) for found in self.on.store.list(kept.resource).items]

    def journalled(self) -> list[str]:
        pages = [objects.annotations(lease).get(ANNOTATION, "") for lease in self.all_of(LEASE)]
        return [entry.order.volume_name for page in pages if page for entry in decode_page(page)]

    def no_object_holds_the_secret(self) -> None:
        for kind in (PERSISTENT_VOLUME, LEASE, PERSISTENT_VOLUME_CLAIM):
            for found in self.on.store.list(KindInStore(kind, kind).resource).items:
                assert CANARY.encode() not in found.json, f"the secret is in a {kind.kind}"

    def all_is_consistent(self) -> None:
        handles = sorted(volume["spec"]["csi"]["volumeHandle"] for volume in self.all_of(PERSISTENT_VOLUME))
        existing = sorted(volume.id for volume in self.model.storage.volumes)
        assert existing == handles, f"the driver has {existing}, the PersistentVolumes are of {handles}"
        assert self.journalled() == [], f"left in the journal: {self.journalled()}"
        said = repr(self.log) + json.dumps([self.all_of(kind) for kind in (PERSISTENT_VOLUME, LEASE)])
        said += repr(self.on.store.list("events").items) + repr(self.on.store.list("events.events.k8s.io").items)
        assert CANARY not in said

    def nothing_is_left(self) -> None:
        self.all_is_consistent()
        assert self.all_of(PERSISTENT_VOLUME) == [], "a PersistentVolume is left"

    def is_provisioned(self) -> None:
        self.all_is_consistent()
        claim, volumes = self.claim(), self.all_of(PERSISTENT_VOLUME)
        assert claim is not None
        assert [volume["spec"]["claimRef"]["uid"] for volume in volumes] == [objects.uid(claim)]
        assert state.volume_name(claim) == volumes[0]["metadata"]["name"], "not bound"


def storage_class(parameters: dict[str, str], **fields: Any) -> Object:
    secrets = {f"{SECRETS}name": "s", f"{SECRETS}namespace": NAMESPACE}
    return named(CLASS, provisioner=DRIVER, parameters={**parameters, **secrets}, **fields)


_PREPARED: list[JournalState] = []
"""What every run finds, made once: it takes as long as a run does."""
FOUND = ("namespaces", "clusterroles", "clusterrolebindings", "storageclasses", "csinodes", "nodes", "secrets")


@asynccontextmanager
async def drama(stage: Stage) -> AsyncIterator[Drama]:
    if not _PREPARED:
        _PREPARED.append(await _prepared(stage.clock))
    store = ObjectStore(NoJournal(), _PREPARED[0], DEFAULT_LIMITS)
    try:
        async with api_server_on(store, stage.clock) as on:
            yield Drama(stage, on, DriverModel(DriverFacts(name=DRIVER), stage.clock))
    finally:
        await store.close()


async def _prepared(clock: Clock) -> JournalState:
    """A class of late binding with a secret, and a node with topology."""
    async with api_server(clock) as on:
        client = on.client()
        await client.create(NAMESPACE_KIND, named(NAMESPACE))
        await client.create(SECRET, {"metadata": {"name": "s", "namespace": NAMESPACE}, "stringData": {"k": CANARY}})
        late = "WaitForFirstConsumer"
        await client.create(STORAGE_CLASS, storage_class({"tier": "hot"}, volumeBindingMode=late))
        driver = {"name": DRIVER, "nodeID": "id-1", "topologyKeys": [TOPOLOGY_KEY]}
        await client.create(CSI_NODE, csi_node(NODE_NAME, driver))
        labels = {TOPOLOGY_KEY: NODE_NAME}
        await client.create(NODE, {"metadata": {"name": NODE_NAME, "labels": labels}})
        kinds = [kind for kind in BUILT_IN if kind.plural in FOUND]
        stored = [each for kind in kinds for each in on.store.list(kind.resource).items]
        return JournalState(on.store.revision, on.store.revision, {each.key: each for each in stored})


# ---- the scenarios ---------------------------------------------------------------------------------------------------


async def created_and_deleted(stage: Stage) -> None:
    """A claim is created, and deleted when it is bound, or before."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.once_provisioned(play.is_deleted))
        play.nothing_is_left()


async def recreated(stage: Stage) -> None:
    """Another claim takes the name of one that is gone."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.once_provisioned(play.is_deleted), play.is_created)
        play.is_provisioned()


async def class_deleted(stage: Stage) -> None:
    """The class goes while a claim is being provisioned, or after it."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.class_is_deleted, play.is_deleted)
        play.nothing_is_left()


async def class_changed(stage: Stage) -> None:
    """The class is created anew with other parameters: an order in flight keeps those it began with."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.class_is_changed)
        play.is_provisioned()


async def node_gone(stage: Stage) -> None:
    """The selected node goes: the claim is provisioned already, or is returned to the scheduler."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_created, play.node_is_gone)
        play.all_is_consistent()
        claim = play.claim()
        assert claim is not None
        assert state.volume_name(claim) or not state.is_marked_for_late_provisioning(claim), "stuck on a lost node"
        await stage.acts(play.is_deleted)
        play.nothing_is_left()


SCENARIOS = (created_and_deleted, recreated, class_deleted, class_changed, node_gone)
