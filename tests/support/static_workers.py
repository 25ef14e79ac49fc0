"""Workers of static volumes on virtual time: each a fake machine, and a process with the rights of a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from onenode.apiserver.access.rbac_rules import User, service_account_user
from onenode.apiserver.store.versions import Key, Put, Stored
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import EVENT, NAMESPACE, kind_of_object
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.definitions import definitions
from orlop.records.node_policy import NODE_OF_TOKEN
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.records.static_policy import WORKER_ACCOUNT, worker_access, worker_policy
from orlop.static_pv.configuration_watch import StaticMachine
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.wiping import DEFAULT_LIMITS, WipeLimits
from orlop.static_pv.worker import StaticWorker, WorkerParts, WorkerSettings, working
from orlop.testing.fake_host import FakeMachine, FakeStaticDisk, FakeStaticHost
from orlop.testing.kill_points import KillPoints
from support.api.api_wires import Wire
from support.drives.watched_nodes import right_here
from support.worlds import ClusterWorld

Object = dict[str, Any]
GIB = 1 << 30
NODE = "n1"
SPACE = "static"
CONFIG = "/etc/provisioner/config"
FOLDER = "/mnt/fast"
FILES = {"storageClassMap": f"fast:\n  hostDir: {FOLDER}\n"}


def machine_with(files: dict[str, str] | None = None, **disks: FakeStaticDisk) -> FakeMachine:
    machine = FakeMachine()
    machine.configuration_files[CONFIG] = dict(FILES if files is None else files)
    machine.static_folders[FOLDER] = dict(disks)
    return machine


def operation(entry: str, uid: str = "u1", identity: str = "", storage_class: str = "fast") -> Object:
    name = volume_name(entry, NODE, storage_class)
    about = {"uid": uid, "persistentVolume": name, "volume": name, "storageClass": storage_class, "entry": entry}
    return about | ({"identity": identity} if identity else {})


class WorkerWorld(ClusterWorld):
    """The API server enforces definitions, roles and the policy of workers."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire()
        """The worker's connection to the API server."""

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        await self.create(NAMESPACE, {"metadata": {"name": SPACE}})
        for obj in (*definitions(), *worker_access(SPACE), *worker_policy(SPACE)):
            kind = kind_of_object(obj["apiVersion"], obj["kind"])
            assert kind is not None
            await self.client.create(kind, obj)

    @asynccontextmanager
    async def worker(
        self,
        machine: FakeMachine,
        points: KillPoints | None = None,
        limits: WipeLimits = DEFAULT_LIMITS,
        way: StaticMachine | None = None,
    ) -> AsyncIterator[StaticWorker]:
        """Run the process of a worker. `way` is how it reaches its machine; default: directly."""
        user = User(service_account_user(SPACE, WORKER_ACCOUNT), extra={NODE_OF_TOKEN: (NODE,)})
        transport = self.wire.around(self.on.transport(user))
        host = way or StaticMachine(FakeStaticHost(machine, points), right_here, right_here)
        settings = WorkerSettings(NODE, SPACE, CONFIG, limits)
        async with self.controller_parts("orlop-static-worker", transport, instance=NODE) as parts:
            built = WorkerParts(parts.kube, parts.informers, parts.events, parts.runtime, parts.queue_metrics)
            async with working(settings, host, built) as worker:
                yield worker

    def cut(self) -> None:
        """From now on the worker's requests reach no API server; `mend` ends it."""

        async def away(_request: HttpRequest) -> HttpResponse | None:
            raise ConnectionBroken("the API server is away")

        self.wire.before = away

    def mend(self) -> None:
        self.wire.before = Wire().before

    # ---- objects -------------------------------------------------------------------------------------------------

    async def object(self) -> Object:
        return await self.client.get(PROVISIONER_STATUS, ObjectName(SPACE, NODE))

    async def status(self) -> Object:
        found = (await self.client.list(PROVISIONER_STATUS)).items
        return next((each.get("status") or {} for each in found if each["metadata"]["name"] == NODE), {})

    async def listed(self) -> dict[str, Object]:
        return {each["entry"]: each for each in (await self.status()).get("localVolumes") or []}

    async def problems(self) -> dict[str, str]:
        return {each.get("entry", ""): each["reason"] for each in (await self.status()).get("problems") or []}

    async def deletion(self, uid: str = "u1") -> Object:
        found = (await self.status()).get("deleteStatuses") or []
        return next((each for each in found if each["uid"] == uid), {})

    async def is_in(self, state: str, uid: str = "u1") -> bool:
        return (await self.deletion(uid)).get("state") == state

    async def condition(self, kind: str) -> Object:
        return next((each for each in (await self.status()).get("conditions") or [] if each["type"] == kind), {})

    async def request(self, *operations: Object) -> None:
        """Make these the operations of the spec, as the master does."""
        patch = JsonPatch().add("spec", "deleteOperations", value=list(operations))
        await self.client.patch(PROVISIONER_STATUS, ObjectName(SPACE, NODE), patch)

    async def wiped(self, *operations: Object) -> None:
        """Request wipes and wait until all are complete."""
        await self.until(self.listed)
        await self.request(*operations)
        for each in operations:
            await self.until(lambda uid=each["uid"]: self.is_in("Complete", uid))

    def backup(self) -> Stored:
        """Return the object of the worker as the store has it."""
        kept = self.on.store.get(self._key())
        assert kept is not None
        return kept

    async def restore(self, kept: Stored) -> None:
        """Put an object back, as a restore that keeps the revisions ascending."""

        def older(_newest: Stored | None, revision: int) -> Put:
            before, now = (f'"resourceVersion":"{each}"'.encode() for each in (kept.revision, revision))
            return Put(kept.json.replace(before, now))

        await self.on.store.write(self._key(), older)

    def _key(self) -> Key:
        return KindInStore(PROVISIONER_STATUS, PROVISIONER_STATUS).key(SPACE, NODE)

    async def events(self) -> list[tuple[str, str]]:
        found = (await self.client.list(EVENT)).items
        return [(each["reason"], each["note"]) for each in found]
