"""A worker and a master in all situations use every right that deploy/manifests/static grants."""

from __future__ import annotations

from random import Random

import pytest

from onenode.apiserver.access.rbac_rules import User, service_account_user
from orlop.host.static_disks.disk_entries import EntryKind
from orlop.kube.client import KubeClient
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName
from orlop.processes.lease_wiring import LeaderSettings, LeaseWiring
from orlop.processes.static_master import LEASE
from orlop.records.api_record import new_object
from orlop.records.provisioner_status import PROVISIONER_STATUS, ProvisionerSpec
from orlop.records.static_policy import MASTER_ACCOUNT, master_access, worker_access
from orlop.static_pv.master import NODE_GONE_SECONDS
from orlop.testing.fake_host import FakeStaticDisk
from support.api.api_wires import Before, refusal
from support.static_volumes.static_objects import SPACE
from support.static_volumes.static_worlds import StaticWorld
from support.static_workers import CONFIG, FILES, GIB, WorkerWorld, machine_with, operation
from support.static_workers import NODE as WORKERS_NODE
from support.static_workers import SPACE as WORKERS_SPACE
from support.used_rights import Right, granted_rights, note_used_rights

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[Right]:
    return note_used_rights(monkeypatch)


EXCUSED: set[Right] = {(MASTER_ACCOUNT, group, "events", "patch") for group in ("", "events.k8s.io")}
"""An Event that repeats within minutes is counted in the one before; warnings of the master seldom do."""


def refused_once(*resources: str) -> Before:
    """The first patch of each resource is refused, as if the object had changed."""
    left = [*resources]

    async def before(request: HttpRequest) -> HttpResponse | None:
        for each in left:
            if request.method == "PATCH" and each in request.path:
                left.remove(each)
                return refusal(409, "Conflict")
        return None

    return before


async def old_events(request: HttpRequest) -> HttpResponse | None:
    """The server has only the older group of Events."""
    return refusal(404, "NotFound") if request.path.startswith("/apis/events.k8s.io/") else None


async def test_every_right_of_a_worker_is_used(used: set[Right]):
    async with WorkerWorld() as world:
        for old in (False, True):
            if old:
                world.wire.before = old_events
            disk = FakeStaticDisk(EntryKind.DEVICE, GIB, used_by=("it is mounted",))
            machine = machine_with(disk1=disk)
            async with world.worker(machine):
                await world.until(world.listed)
                await world.request(operation("disk1", uid=f"u{old}"))
                await world.settle(30)
                disk.used_by = ()
                await world.until(lambda uid=f"u{old}": world.is_in("Complete", uid))
                await world.request()
                for text in ("no: [yaml", FILES["storageClassMap"]) * 3:
                    machine.configuration_files[CONFIG]["storageClassMap"] = text
                    await world.settle(60)
        await _created_by_another(world)

    assert sorted(granted_rights(worker_access(SPACE)) - used) == []


async def _created_by_another(world: WorkerWorld) -> None:
    """An earlier process has created the object, and this one has not seen it yet."""
    name = ObjectName(WORKERS_SPACE, WORKERS_NODE)
    await world.client.delete(PROVISIONER_STATUS, name)
    left = True

    async def before(request: HttpRequest) -> HttpResponse | None:
        nonlocal left
        if left and request.method == "POST" and request.path.endswith("/provisionerstatuses"):
            left = False
            obj = new_object("ProvisionerStatus", WORKERS_NODE, ProvisionerSpec(node_name=WORKERS_NODE))
            await world.client.create(PROVISIONER_STATUS, obj, namespace=WORKERS_SPACE)
        return None

    world.wire.before = before
    async with world.worker(machine_with(disk1=FakeStaticDisk(EntryKind.DEVICE, GIB))):
        await world.until(world.listed)


async def test_every_right_of_the_master_is_used(used: set[Right]):
    async with StaticWorld("n1", "n2") as world:
        await _lead(world)
        for old in (False, True):
            world.wire.before = old_events if old else refused_once("/persistentvolumes/", "/provisionerstatuses/")
            async with world.master():
                await world.settle(30.0)
                world.kubernetes.want("c")
                await world.settle(30.0)
                for node in world.nodes.values():
                    node.disks["disk0"].failures = 20
                world.kubernetes.unwant("c")
                await world.settle(120.0)
        async with world.master():
            world.nodes.pop("n2")
            await world.delete(NODE, "n2")
            await world.settle(2 * NODE_GONE_SECONDS)
            assert await world.report("n2") is None

    assert sorted(granted_rights(master_access(SPACE)) - used - EXCUSED) == []


async def _lead(world: StaticWorld) -> None:
    """Lead for a while, with the account of the master."""
    runtime = world.runtime("lease")
    transport = world.on.transport(User(service_account_user(SPACE, MASTER_ACCOUNT)))
    kube = KubeClient(transport, clock=world.clock, random=Random(2), log=runtime.log, name="static-master")
    leases = LeaseWiring(LeaderSettings(leader_election=True), runtime, kube, SPACE)
    async with leases.leading(LEASE):
        await world.settle(30.0)
