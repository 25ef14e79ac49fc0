"""Adoption that is killed before and after each of its writes, and then done again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

from onenode.testing.api_server import api_server
from orlop.admin.drives.adopted_object_rules import spec_of
from orlop.admin.drives.adoption import Adoption, AdoptionTerms
from orlop.admin.drives.drive_adoption import DriveAdoption
from orlop.binding import claim_state_rules as state
from orlop.binding.node_affinity_rules import volume_allows_node
from orlop.foundation.clock import SystemClock
from orlop.kube.client import KubeClient, MergePatch, Patch
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.records.api_record import new_object
from orlop.records.drive import DRIVE
from orlop.records.drive_request import DRIVE_REQUEST
from orlop.records.volume import ERASE_FINALIZER, VOLUME
from orlop.records.volume_context import TOPOLOGY_NODE, context_of, encode_context
from orlop.testing.kill_points import KillPoints, explore_kills
from support.drives.adoption_worlds import AdoptionWorld, Disk, on_disk
from support.drives.typed_commands import PassingClock, drive_id, kinds_of_drives

D1 = drive_id(1)


def described(kind: Kind, obj: Any, *_: Any, **__: Any) -> str:
    return f"{kind.kind} {obj.name if isinstance(obj, ObjectName) else obj['metadata']['name'][:6]}"


class Worlds:
    """Opens worlds, and closes all of them in the end; in each, everything that is written is watched."""

    def __init__(self, ends: AsyncExitStack) -> None:
        self._ends = ends

    async def open(self, disk: Disk) -> AdoptionWorld:
        server = await self._ends.enter_async_context(api_server(SystemClock()))
        client = server.client()
        for definition in kinds_of_drives():
            await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
        await client.create(NAMESPACE, {"metadata": {"name": "team"}})
        made = AdoptionWorld(server, [disk])
        await made.begin()
        self._ends.push_async_callback(made.end)
        await made.settle()
        return made


@asynccontextmanager
async def worlds() -> AsyncIterator[Worlds]:
    async with AsyncExitStack() as ends:
        yield Worlds(ends)


class CarefulClient:
    """Refuses what would be the end of data: an order to erase, and a PersistentVolume that goes with a policy."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def delete(self, kind: Kind, name: ObjectName, options: Any) -> Object:
        if kind == PERSISTENT_VOLUME:
            obj = await self._client.get(kind, name)
            assert obj["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
            volume = await self._client.get(VOLUME, ObjectName(None, obj["spec"]["csi"]["volumeHandle"]))
            assert "orlop.dev/persistent-volume" in volume["metadata"]["annotations"]
        return await self._client.delete(kind, name, options)

    async def patch(self, kind: Kind, name: ObjectName, patch: Patch, **options: Any) -> Object:
        assert "/spec/erase" not in str(patch)
        return await self._client.patch(kind, name, patch, **options)


async def adopt(world: AdoptionWorld, points: KillPoints) -> None:
    client: Any = points.wrap(CarefulClient(world.client), "create", "patch", "delete", describe=described)
    clock = PassingClock()
    drives = DriveAdoption(client, clock, Random(str(points.fate)))
    plan = await drives.plan("", ())
    await drives.carry_out(plan, 60.0, lambda _result: None, dry_run=False)
    await world.settle()
    volumes = Adoption(client, clock, AdoptionTerms())
    plans = [each for each in await volumes.plans() if not each.why_not]
    assert await volumes.adopt(plans, 60.0, lambda _result: None)


async def bound_again(world: AdoptionWorld) -> None:
    """Check that the claim has its volume on the node that has the disk, and that nothing else is left."""
    await world.settle()
    client = world.client
    drive = await client.get(DRIVE, ObjectName(None, D1))
    volume = await client.get(VOLUME, ObjectName(None, "v1"))
    persistent = await client.get(PERSISTENT_VOLUME, ObjectName(None, "v1"))
    claim = await client.get(PERSISTENT_VOLUME_CLAIM, ObjectName("team", "data"))
    node = world.disks[0].place
    assert (drive["spec"]["nodeName"], drive["status"]["state"]) == (node, "Ready")
    assert [each["volume"] for each in drive["spec"]["allocations"]] == ["v1"]
    assert volume["spec"]["nodeName"] == node
    assert volume_allows_node(persistent, {TOPOLOGY_NODE: node})
    assert (claim["status"]["phase"], claim["spec"]["volumeName"]) == ("Bound", "v1")
    assert persistent["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    marks = {**volume["metadata"].get("annotations", {}), **persistent["metadata"].get("annotations", {})}
    assert [key for key in marks if key.startswith("orlop.dev/")] == []
    await world.end()
    left = [each for each in (await client.list(DRIVE_REQUEST)).items if not each.get("status")]
    assert left == []


async def lost_claim(client: KubeClient) -> Object:
    metadata = {"name": "data", "namespace": "team", "annotations": {state.BIND_COMPLETED: "yes"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "v1"}
    return await client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})


async def test_a_lost_cluster_is_restored_whenever_the_command_is_killed():
    async with worlds() as opened:

        async def build() -> AdoptionWorld:
            world = await opened.open(Disk(D1, "n1", "former", {"v1": on_disk("v1")}))
            await lost_claim(world.client)
            return world

        report = await explore_kills(build, adopt, bound_again)
    assert len(report.effects) >= 4


async def test_a_moved_disk_is_used_again_whenever_the_command_is_killed():
    async with worlds() as opened:

        async def build() -> AdoptionWorld:
            world = await opened.open(Disk(D1, "n1", "n1", {"v1": on_disk("v1")}))
            await bound(world)
            world.disks[0].place = "n2"
            await world.settle()
            return world

        report = await explore_kills(build, adopt, policy_is_delete)
    assert len(report.effects) >= 10


async def policy_is_delete(world: AdoptionWorld) -> None:
    await bound_again(world)
    persistent = await world.client.get(PERSISTENT_VOLUME, ObjectName(None, "v1"))
    assert persistent["spec"]["persistentVolumeReclaimPolicy"] == "Delete"


async def bound(world: AdoptionWorld) -> None:
    """Make the objects of a volume in use, as the provisioner and the binder have left them."""
    client = world.client
    claim = await lost_claim(client)
    spec = spec_of(on_disk("v1"), D1, "n1")
    await client.create(VOLUME, new_object("Volume", "v1", spec, finalizers=[ERASE_FINALIZER]))
    expression = {"key": TOPOLOGY_NODE, "operator": "In", "values": ["n1"]}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": "team", "name": "data", "uid": claim["metadata"]["uid"]},
        "csi": {
            "driver": "csi.orlop.dev",
            "volumeHandle": "v1",
            "volumeAttributes": encode_context(context_of(spec)),
        },
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }
    finalizers = ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"]
    await client.create(PERSISTENT_VOLUME, {"metadata": {"name": "v1", "finalizers": finalizers}, "spec": volume})
    status = MergePatch({"status": {"phase": "Bound"}})
    await client.patch(PERSISTENT_VOLUME, ObjectName(None, "v1"), status, subresource="status")
    await world.settle()
