"""A run of the provisioner for the explorer: an API server, a driver, a provisioner that dies, and what must hold.

I4: a volume that was created ends as a PersistentVolume or is deleted again. At the end, the driver's volumes are the
volumes of the PersistentVolumes, one each, and neither a finalizer nor a journal entry is left of what is finished.
At each CreateVolume call the journal in the API server names the volume, and unless the call finishes what the journal
named before, the claim is there as far as the provisioner knows, and never had a PersistentVolume.
I8: the secret reaches the driver alone, which quotes it in every error.

The driver has no locks, and ends its calls at their deadline: what one does after that is out of reach.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.binding import claim_state_rules as state
from orlop.csi.client import CsiClient
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, Methods
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.rpc_type import Rpc
from orlop.csi.transport import Shape
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects
from orlop.kube.cache.informer import Informer
from orlop.kube.cache.informers import Informers
from orlop.kube.client import DeleteOptions, KubeClient, MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import (
    CSI_NODE,
    LEASE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    Kind,
)
from orlop.kube.lease_rules import holder_of
from orlop.kube.objects import ObjectName
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.records.provision_journal import ANNOTATION, decode_page
from orlop.sidecars.provisioner.clone_rules import CLONING_PROTECTION
from orlop.sidecars.provisioner.order_journal import JournalLost
from orlop.sidecars.provisioner.provisioner_settings import ProvisionerSettings
from orlop.sidecars.provisioner.provisioning_controller import provisioning_controller
from orlop.testing.driver_model import DriverModel
from orlop.testing.explorer import Act, ExploredTransport, Life, LifeConnection, Process, Stage, explored_methods
from support.api.api_objects import pod
from support.api.api_servers import TestServer
from support.csi.indiscreet_drivers import IndiscreetDriver
from support.provisioning.binding_controllers import BindingControllers, stored_objects
from support.provisioning.prepared_clusters import (
    CANARY,
    CLAIM,
    CLASS,
    NODE_NAME,
    SOURCE,
    prepared_cluster,
    storage_class,
)
from support.provisioning.provisioner_worlds import CREATE, DRIVER, JOURNAL_NAMESPACE, NAMESPACE, used_caches

SETTINGS = ProvisionerSettings(driver=DRIVER, identity="p-1", workers=2, timeout=10.0, retry_most=20.0, slow_retry=20.0)
"""Retries come sooner than everything counts as having come to rest."""
ENDS_WITHIN_SECONDS = 8.0
METRICS = Metrics("explored", of_process=False)
QUEUE_METRICS = WorkqueueMetrics(METRICS)
"""Nobody reads them."""
Object = dict[str, Any]


def is_event(request: HttpRequest) -> bool:
    """Nothing depends on Events. Leases hold the journal, so that writes to them are explored."""
    return "/events" in request.path


def journalled_in(lease: Object) -> list[str]:
    page = objects.annotations(lease).get(ANNOTATION, "")
    return [entry.order.volume_name for entry in decode_page(page)] if page else []


class CheckedCalls:
    """Checks each CreateVolume call on its way to the driver."""

    def __init__(self, inner: IndiscreetDriver, check: Callable[[csi_pb2.CreateVolumeRequest], object]) -> None:
        self._inner = inner
        self._check = check

    def shape_of(self, path: str) -> Shape | None:
        return self._inner.shape_of(path)

    async def answer(self, path: str, message: bytes) -> bytes:
        if path == rpc.CREATE_VOLUME.path:
            self._check(csi_pb2.CreateVolumeRequest.FromString(message))
        return await self._inner.answer(path, message)

    def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        return self._inner.answers(path, message)


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
    recorded_by: dict[str, str] = field(default_factory=dict)
    """Who put each volume's name into the journal, of those that it has now."""
    called: set[str] = field(default_factory=set)
    """Names of `recorded_by` for which CreateVolume was called."""
    saved: set[str] = field(default_factory=set)
    """Names of all PersistentVolumes that ever were."""
    checked_revision: int = 0

    def __post_init__(self) -> None:
        self.client = self.on.client()
        self.stage.always(self.check_objects)
        self.is_created = Act("the claim is created", self.create_claim)
        self.is_deleted = Act("the claim is deleted", lambda: self.delete_claim(CLAIM))
        self.is_force_deleted = Act("the claim is force-deleted", self.force_delete_claim)
        self.clone_is_created = Act(
            "the clone is created",
            lambda: self.create_claim(dataSource={"kind": "PersistentVolumeClaim", "name": SOURCE}),
        )
        self.clone_is_deleted = Act("the clone is deleted", lambda: self.delete_claim(CLAIM))
        self.source_is_deleted = Act("the source is deleted", lambda: self.delete_claim(SOURCE))
        self.pod_is_gone = Act("the pod is gone", self.delete_pod)
        self.class_is_deleted = Act("the class is deleted", lambda: self._delete(STORAGE_CLASS, CLASS))
        self.class_is_changed = Act("the class is changed", self.change_class)
        self.node_is_gone = Act("the node is gone", self.delete_node)
        self.driver_is_unregistered = Act("the driver is unregistered", lambda: self._delete(CSI_NODE, NODE_NAME))

    # ---- the provisioner -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.process = self.stage.run("provisioner", self._live)
        numbers = count(1)
        self.interceptor = CallInterceptor(
            explored_methods(self.process, self._watched(self.model.methods()), ends_within=ENDS_WITHIN_SECONDS),
            driver_name=DRIVER,
            log=collecting_log(self.log),
            metrics=METRICS,
            clock=self.stage.clock,
            new_id=lambda: f"call-{next(numbers)}",
        )
        self.interceptor._keys = NoLocks()  # type: ignore[assignment]  # a model of a careless driver
        self.binder = asyncio.ensure_future(BindingControllers(self.on, self.stage.clock).run())

    async def _live(self, life: Life) -> None:
        log, clock, metrics = collecting_log(self.log), self.stage.clock, METRICS
        transport = ExploredTransport(life, self.on.transport(), is_spared=is_event)
        kube = KubeClient(transport, clock=clock, random=Random(2), log=log)
        events = EventRecorder(kube, Reporter("p", "p-0"), clock=clock, random=Random(4), log=log, metrics=metrics)
        # Each life has an identity of its own, as each process has.
        runtime = Runtime(clock=clock, random=Random(int(clock.elapsed() * 1000)), log=log, metrics=metrics)
        capabilities = self.capabilities
        async with (
            Informers(kube, clock=clock, random=Random(5), log=log) as informers,
            used_caches(informers, capabilities) as caches,
            TaskGroup() as tasks,
        ):
            driver = CheckedCalls(IndiscreetDriver(self.interceptor), partial(self.check_call, claims=caches.claims))
            connection = LifeConnection(life, InProcessConnection(driver))
            csi = CsiClient(connection, log=log, metrics=metrics, clock=clock, random=Random(3))
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
        """Return the methods with a check when CreateVolume takes effect, which may be long after it was called."""

        def watched(rpc: Rpc[Any, Any], serve: Any) -> Any:
            async def answer(request: Any) -> Any:
                if rpc.name == CREATE:
                    self._hold(request.name in self.journalled(), "CreateVolume without an entry in the journal")
                return await serve(request)

            return answer

        return {path: (rpc, serve if rpc.streams else watched(rpc, serve)) for path, (rpc, serve) in methods.items()}

    def check_objects(self) -> None:
        """Check what is in the API server, and note what appears there. Called after every effect and event."""
        if self.on.store.revision == self.checked_revision:
            return
        self.checked_revision = self.on.store.revision
        self.no_object_holds_the_secret()
        holders = {name: holder_of(lease) for lease in self.all_of(LEASE) for name in journalled_in(lease)}
        self.recorded_by = {name: self.recorded_by.get(name, holder) for name, holder in holders.items()}
        self.called &= holders.keys()
        self.saved |= {objects.name(volume) for volume in self.all_of(PERSISTENT_VOLUME)}

    def check_call(self, request: csi_pb2.CreateVolumeRequest, claims: Informer) -> None:
        """Check a CreateVolume call as its caller makes it, before anything can happen to it."""
        name = request.name
        self._hold(name in self.journalled(), "CreateVolume without an entry in the journal")
        self._hold(request.secrets["k"] == CANARY, "without the secret")
        holders = {holder_of(lease) for lease in self.all_of(LEASE) if name in journalled_in(lease)}
        # Another process recorded it, or it was called for before: the call finishes what is in the journal.
        if name not in self.called and holders == {self.recorded_by[name]}:
            claim = next((each for each in claims.cache if f"pvc-{objects.uid(each)}" == name), None)
            self._hold(claim is not None, "CreateVolume for a claim that is known to be gone")
            self._hold(not objects.is_being_deleted(claim or {}), "CreateVolume for a claim known to be Terminating")
            self._hold(name not in self.saved, "CreateVolume for a claim that had its PersistentVolume")
        self.called.add(name)

    def _hold(self, is_so: bool, finding: str) -> None:  # noqa: FBT001 - as `assert`
        """Assert, and make it a finding even where the controller swallows it."""
        try:
            assert is_so, finding
        except AssertionError as error:
            self.stage.broken(error)
            raise

    # ---- what others do ------------------------------------------------------------------------------------------

    async def create_claim(self, **fields: Any) -> None:
        annotations = {state.STORAGE_PROVISIONER: DRIVER, state.SELECTED_NODE: NODE_NAME}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": CLASS,
            **fields,
        }
        metadata = {"name": CLAIM, "namespace": NAMESPACE, "annotations": annotations}
        await self.client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})

    async def delete_claim(self, name: str) -> None:
        """Delete a claim as users do: it is Terminating until the protection of claims lets it go."""
        await self.client.delete(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, name))

    async def force_delete_claim(self) -> None:
        name = ObjectName(NAMESPACE, CLAIM)
        await self.client.patch(PERSISTENT_VOLUME_CLAIM, name, MergePatch({"metadata": {"finalizers": None}}))
        await self.client.delete(PERSISTENT_VOLUME_CLAIM, name)

    async def create_pod(self) -> None:
        """Create a pod that uses the claim: a claim that is deleted is Terminating until the pod is gone."""
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}
        body = pod("p", volumes=[volume])
        await self.client.create(POD, {**body, "metadata": {"name": "p", "namespace": NAMESPACE}})

    async def delete_pod(self) -> None:
        await self.client.delete(POD, ObjectName(NAMESPACE, "p"), DeleteOptions(grace_seconds=0))

    async def change_class(self) -> None:
        await self._delete(STORAGE_CLASS, CLASS)
        await self.client.create(STORAGE_CLASS, storage_class({"tier": "cold"}))

    async def delete_node(self) -> None:
        await self._delete(CSI_NODE, NODE_NAME)
        await self._delete(NODE, NODE_NAME)

    async def _delete(self, kind: Kind, name: str) -> None:
        await self.client.delete(kind, ObjectName(None, name))

    def once_provisioned(self, act: Act) -> Act:
        return replace(act, expects=self.is_provisioned)

    # ---- what must hold ------------------------------------------------------------------------------------------

    def claim(self) -> Object | None:
        kept = KindInStore(PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME_CLAIM)
        found = self.on.store.get(kept.key(NAMESPACE, CLAIM))
        return kept.kept_object(found) if found is not None else None

    def all_of(self, kind: Kind) -> list[Object]:
        return stored_objects(self.on, kind)

    def journalled(self) -> list[str]:
        return [name for lease in self.all_of(LEASE) for name in journalled_in(lease)]

    def no_object_holds_the_secret(self) -> None:
        for kind in (PERSISTENT_VOLUME, LEASE, PERSISTENT_VOLUME_CLAIM):
            for found in self.on.store.list(KindInStore(kind, kind).resource).items:
                assert CANARY.encode() not in found.json, f"the secret is in a {kind.kind}"

    def all_is_consistent(self) -> None:
        handles = sorted(volume["spec"]["csi"]["volumeHandle"] for volume in self.all_of(PERSISTENT_VOLUME))
        existing = sorted(volume.id for volume in self.model.storage.volumes)
        assert existing == handles, f"the driver has {existing}, the PersistentVolumes are of {handles}"
        assert self.journalled() == [], f"left in the journal: {self.journalled()}"
        claims = self.all_of(PERSISTENT_VOLUME_CLAIM)
        assert not any(objects.has_finalizer(each, CLONING_PROTECTION) for each in claims), (
            "a claim has the finalizer of sources of clones, and no clone is unfinished"
        )
        said = repr(self.log) + json.dumps([self.all_of(kind) for kind in (PERSISTENT_VOLUME, LEASE)])
        said += repr(self.on.store.list("events").items) + repr(self.on.store.list("events.events.k8s.io").items)
        assert CANARY not in said

    def nothing_is_left(self) -> None:
        self.all_is_consistent()
        assert self.all_of(PERSISTENT_VOLUME) == [], "a PersistentVolume is left"
        assert self.all_of(PERSISTENT_VOLUME_CLAIM) == [], "a claim is left"

    def is_provisioned(self) -> None:
        self.all_is_consistent()
        claims, volumes = self.all_of(PERSISTENT_VOLUME_CLAIM), self.all_of(PERSISTENT_VOLUME)
        owners = {volume["spec"]["claimRef"]["uid"]: objects.name(volume) for volume in volumes}
        assert self.claim() is not None
        assert len(owners) == len(volumes), "two PersistentVolumes of one claim"
        assert owners == {objects.uid(claim): state.volume_name(claim) for claim in claims}, "not bound"


@asynccontextmanager
async def drama(stage: Stage, *, with_source: bool = False) -> AsyncIterator[Drama]:
    async with prepared_cluster(stage.clock, with_source=with_source) as (on, model):
        yield Drama(stage, on, model)
