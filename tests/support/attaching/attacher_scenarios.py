"""Scenarios of the attacher for the explorer: an API server, a driver, an attacher that dies, and what must hold.

I5: no driver is called before the finalizers stand; nobody says `attached` of what is not published; nothing keeps our
finalizer once its work is over; in the end, what the driver has published is what the objects say.
I8: the secret is told to the driver alone, which quotes it in every error; it never stands on an object.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from onenode.apiserver.store.journal import JournalState, NoJournal
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import DEFAULT_LIMITS, Stored
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, Methods
from orlop.csi.rpc_type import Rpc
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.kube import objects
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.kinds import BUILT_IN, CSI_NODE, PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT, Kind
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import is_attached, recorded_node_id
from orlop.sidecars.attacher.handler import AttacherSettings
from orlop.testing.driver_model import DriverFacts, DriverModel
from orlop.testing.explorer import Act, ExploredTransport, Life, LifeConnection, Process, Stage, explored_methods
from support.api.api_objects import attachment, csi_node, volume
from support.api.api_servers import TestServer, api_server, api_server_on
from support.attaching.attacher_worlds import DRIVER, OURS, PUBLISH, UNPUBLISH, AttacherParts, used_caches
from support.csi.driver_lives import csi_client
from support.csi.indiscreet_drivers import IndiscreetDriver
from support.worlds import Object, controller_parts, runtime_of

SETTINGS = AttacherSettings(DRIVER, OURS, workers=2, drift_check=0.0)
CANARY = "c4n4ry-of-the-secret"
PV, VA, NODE, HANDLE = "pv1", "va1", "n1", "h1"
METRICS = Metrics("explored", of_process=False)
"""Nobody reads them."""


@dataclass
class Drama:
    """One run: what is there, and who does what."""

    stage: Stage
    on: TestServer
    model: DriverModel
    log: list[LogEntry] = field(default_factory=list)
    process: Process | None = None
    settings: AttacherSettings = SETTINGS
    granted: set[str] = field(default_factory=set)
    """Where the driver said that it is published, and was not asked to take it back since: it may have forgotten."""

    def __post_init__(self) -> None:
        self.client = self.on.client()
        self.model.storage.add_volume(HANDLE, 1 << 30)
        self.stage.always(self.nobody_lies)
        self.stage.always(self.no_object_holds_the_secret)
        self.is_wanted = Act("it is wanted", self._want)
        self.is_wanted_no_more = Act("it is wanted no more", self._deletion(VOLUME_ATTACHMENT, VA))
        self.volume_is_deleted = Act("the volume is deleted", self._deletion(PERSISTENT_VOLUME, PV))
        self.node_is_gone = Act("the node is gone", self._deletion(CSI_NODE, NODE))

    # ---- the attacher --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.process = self.stage.run("attacher", self._live)
        numbers = count(1)
        methods = explored_methods(self.process, self._watched(self.model.methods()))
        self.interceptor = CallInterceptor(
            methods,
            driver_name=DRIVER,
            log=collecting_log(self.log),
            metrics=METRICS,
            clock=self.stage.clock,
            new_id=lambda: f"call-{next(numbers)}",
        )

    async def _live(self, life: Life) -> None:
        runtime = runtime_of("attacher", self.stage.clock, self.log)
        transport = ExploredTransport(life, self.on.transport())
        connection = LifeConnection(life, InProcessConnection(IndiscreetDriver(self.interceptor)))
        async with (
            controller_parts(runtime, transport, Reporter("attacher", "attacher-0")) as shared,
            used_caches(shared.informers) as caches,
        ):
            parts = AttacherParts(caches, self.settings, shared, csi_client(connection, runtime))
            await parts.controller(may_act=life.guard).run()

    def _watched(self, methods: Methods) -> Methods:
        def watched(rpc: Rpc[Any, Any], serve: Any) -> Any:
            async def answer(request: Any) -> Any:
                try:
                    self.all_is_protected(rpc.name, request)
                except AssertionError as error:
                    self.stage.broken(error)
                    raise
                answered = await serve(request)
                await self.has_done(rpc.name, request)
                return answered

            return answer

        return {path: (rpc, serve if rpc.streams else watched(rpc, serve)) for path, (rpc, serve) in methods.items()}

    async def has_done(self, method: str, request: Any) -> None:
        """The driver did what it was asked for; whoever asked does not know yet."""
        if method == PUBLISH:
            self.granted.add(request.node_id)
        elif method == UNPUBLISH:
            self.granted.discard(request.node_id)

    # ---- what others do ------------------------------------------------------------------------------------------

    async def make_node(self, node_id: str) -> None:
        await self.client.create(CSI_NODE, csi_node(NODE, {"name": DRIVER, "nodeID": node_id}))

    async def _want(self) -> None:
        """Somebody who waits until the one before is gone, while everybody else goes on."""
        self.stage.later(0.0, self._want_when_gone)

    async def _want_when_gone(self) -> None:
        while self.stored(VOLUME_ATTACHMENT, VA) is not None:
            await self.stage.clock.sleep(0.5)
        await self.client.create(VOLUME_ATTACHMENT, self.what_is_wanted())

    def what_is_wanted(self) -> Object:
        return attachment(VA, attacher=DRIVER, nodeName=NODE, source={"persistentVolumeName": PV})

    def _deletion(self, kind: Kind, name: str) -> Callable[[], Awaitable[object]]:
        return lambda: self.client.delete(kind, ObjectName(None, name))

    def once_attached(self, act: Act) -> Act:
        return replace(act, expects=self.it_is_attached)

    # ---- what must hold ------------------------------------------------------------------------------------------

    def stored(self, kind: Kind, name: str) -> Object | None:
        """As it lies there, without asking: a check takes no time."""
        found = self._stored(kind, name)
        return KindInStore(kind, kind).kept_object(found) if found is not None else None

    def _stored(self, kind: Kind, name: str) -> Stored | None:
        return self.on.store.get(KindInStore(kind, kind).key("", name))

    def all_of(self, kind: Kind) -> list[Object]:
        kept = KindInStore(kind, kind)
        return [kept.kept_object(found) for found in self.on.store.list(kept.resource).items]

    def published(self) -> set[str]:
        found = self.model.storage.volumes.get(HANDLE)
        return set(found.attached) if found is not None else set()

    def nobody_lies(self) -> None:
        found = self.stored(VOLUME_ATTACHMENT, VA)
        if found is not None and is_attached(found) and not objects.is_being_deleted(found):
            assert recorded_node_id(found) in self.granted, "it says attached, and the driver has not published it"

    def all_is_protected(self, method: str, request: Any) -> None:
        """At each call: the objects that say what may be published cannot vanish."""
        if method not in (PUBLISH, UNPUBLISH):
            return
        wanted, persistent = self.stored(VOLUME_ATTACHMENT, VA), self.stored(PERSISTENT_VOLUME, PV)
        if method == PUBLISH:
            for found in (wanted, persistent):
                assert objects.has_finalizer(found or {}, OURS), f"called without its finalizer: {method}"
            assert recorded_node_id(wanted or {}) == request.node_id, "another id than the recorded one"
        assert request.secrets["k"] == CANARY, "without the secret"

    def nothing_is_left(self) -> None:
        """All is over: nothing wanted, nothing published, nothing kept by us."""
        assert self.published() == set(), f"the driver has it still published at {self.published()}"
        assert self.stored(VOLUME_ATTACHMENT, VA) is None, "the attachment is still there"
        found = self.stored(PERSISTENT_VOLUME, PV)
        assert found is None or not objects.has_finalizer(found, OURS), "the volume has our finalizer still"
        self.no_secret_is_told()

    def it_is_attached(self, node_id: str = "id-1") -> None:
        found = self.stored(VOLUME_ATTACHMENT, VA) or {}
        assert is_attached(found), f"not attached: {found.get('status')}"
        assert self.published() == {node_id}, f"published at {self.published()}"
        assert "attachError" not in found["status"], found["status"]
        self.no_secret_is_told()

    def no_object_holds_the_secret(self) -> None:
        """Looked at after every write: an error goes from the object when its time is over."""
        for kind, name in ((VOLUME_ATTACHMENT, VA), (PERSISTENT_VOLUME, PV)):
            found = self._stored(kind, name)
            assert found is None or CANARY.encode() not in found.json, f"the secret stands on {kind.kind} {name}"

    def no_secret_is_told(self) -> None:
        told = repr(self.log) + json.dumps([self.all_of(kind) for kind in (VOLUME_ATTACHMENT, PERSISTENT_VOLUME)])
        told += repr(self.on.store.list("events").items) + repr(self.on.store.list("events.events.k8s.io").items)
        assert CANARY not in told


_PREPARED: list[JournalState] = []
"""What every run finds, made once: it takes as long as a run does."""
FOUND = ("namespaces", "clusterroles", "clusterrolebindings", "persistentvolumes", "csinodes", "secrets")


D = TypeVar("D", bound=Drama)


@asynccontextmanager
async def drama_of(kind: type[D], stage: Stage) -> AsyncIterator[D]:
    if not _PREPARED:
        _PREPARED.append(await _prepared(stage.clock))
    store = ObjectStore(NoJournal(), _PREPARED[0], DEFAULT_LIMITS)
    async with aclosing_store(store), api_server_on(store, stage.clock) as on:
        yield kind(stage, on, DriverModel(DriverFacts(name=DRIVER), stage.clock))


def drama(stage: Stage) -> AbstractAsyncContextManager[Drama]:
    return drama_of(Drama, stage)


@asynccontextmanager
async def aclosing_store(store: ObjectStore) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await store.close()


async def _prepared(clock: Clock) -> JournalState:
    """A volume with a secret, and a node."""
    async with api_server(clock) as on:
        client = on.client()
        reference = {"name": "s", "namespace": "default"}
        source = {"driver": DRIVER, "volumeHandle": HANDLE, "controllerPublishSecretRef": reference}
        await client.create(PERSISTENT_VOLUME, volume(PV, csi=source))
        await client.create(SECRET, {"metadata": reference, "stringData": {"k": CANARY}})
        await client.create(CSI_NODE, csi_node(NODE, {"name": DRIVER, "nodeID": "id-1"}))
        kinds = [kind for kind in BUILT_IN if kind.plural in FOUND]
        found = [stored for kind in kinds for stored in on.store.list(kind.resource).items]
        return JournalState(on.store.revision, on.store.revision, {stored.key: stored for stored in found})


# ---- the scenarios ---------------------------------------------------------------------------------------------------


async def attached_and_given_up(stage: Stage) -> None:
    """Wanted, and wanted no more when it is attached, or before; and the volume is deleted, or is about to be."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_wanted, play.once_attached(play.is_wanted_no_more), play.volume_is_deleted)
        play.nothing_is_left()


async def wanted_again(stage: Stage) -> None:
    """Another object under the same name, as soon as the first is gone, or while it is on its way out."""
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_wanted, play.once_attached(play.is_wanted_no_more), play.is_wanted)
        play.it_is_attached()


async def volume_deleted_while_attached(stage: Stage) -> None:
    async with drama(stage) as play:
        play.begin()
        await stage.acts(play.is_wanted, play.once_attached(play.volume_is_deleted), play.is_wanted_no_more)
        play.nothing_is_left()


async def node_gone(stage: Stage) -> None:
    async with drama(stage) as play:
        play.begin()
        gone = play.once_attached(play.node_is_gone)
        await stage.acts(play.is_wanted, gone, play.is_wanted_no_more, play.volume_is_deleted)
        play.nothing_is_left()


async def node_under_another_id(stage: Stage) -> None:
    """It went and came back under its name: the driver knows it by another id from then on."""
    async with drama(stage) as play:
        play.begin()
        gone, back = play.once_attached(play.node_is_gone), Act("the node is back", lambda: play.make_node("id-2"))
        await stage.acts(play.is_wanted, gone, back, play.is_wanted_no_more, play.is_wanted)
        play.it_is_attached("id-2")


SCENARIOS = (
    attached_and_given_up,
    wanted_again,
    volume_deleted_while_attached,
    node_gone,
    node_under_another_id,
)
