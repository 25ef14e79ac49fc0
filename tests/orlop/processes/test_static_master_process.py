"""`orlop static-master`, and in `orlop controller`, beside a real worker: a folder is offered, and comes back empty."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.client import MergePatch
from orlop.kube.kinds import LEASE, NODE, PERSISTENT_VOLUME, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.static_volume_rules import WIPE_FINALIZER
from support.host.kernel_rooms import mount_room
from support.processes.orlop_process import Running, running
from support.static_volumes.static_nodes import DiskNode, disk_node
from support.waiting import eventually_answered

Object = dict[str, Any]
CLAIM = {"namespace": "default", "name": "c", "uid": "c1"}


@pytest.fixture
def room(short_folder: Path) -> Iterator[Path]:
    with mount_room(short_folder / "r") as made:
        (made / "disks").mkdir()
        (made / "config").mkdir()
        yield made


class Installed:
    """A node, its worker's configuration, a class of its own and a Node; `name` is that of the only volume."""

    def __init__(self, node: DiskNode) -> None:
        self.node = node
        self.client = node.the.client
        self.storage_class = node.the.named("static")
        self.name = volume_name("disk1", node.name, self.storage_class)
        self.object_name = ObjectName(None, self.name)

    def master(self, *more: str) -> AbstractContextManager[Running]:
        return running(self.node.room, "static-master", *self.flags(), *more)

    def flags(self) -> list[str]:
        return [
            f"--static-config={self.node.room}/config",
            f"--static-namespace={self.node.namespace}",
            "--static-config-sync-period=200ms",
            f"--kubeconfig={self.node.the.kubeconfig}",
        ]

    def configure(self) -> None:
        keys = f"{self.storage_class}:\n  hostDir: {self.node.disks}\n  directories:\n    'disk*': 1Gi\n"
        (self.node.room / "config/storageClassMap").write_text(keys)

    async def volume(self) -> Object | None:
        with suppress(NotFound):
            return await self.client.get(PERSISTENT_VOLUME, self.object_name)
        return None

    async def is_offered(self) -> bool:
        found = await self.volume()
        return found is not None and not objects.is_being_deleted(found)

    async def is_offered_after(self, uid: str) -> bool:
        found = await self.volume()
        return found is not None and objects.uid(found) != uid

    async def release(self) -> None:
        """Bind a claim by hand, and release it: nothing else binds here."""
        await self.client.patch(PERSISTENT_VOLUME, self.object_name, MergePatch({"spec": {"claimRef": CLAIM}}))
        phase = MergePatch({"status": {"phase": "Released"}})
        await self.client.patch(PERSISTENT_VOLUME, self.object_name, phase, subresource="status")

    async def unprotect(self) -> bool:
        """As the protection controller does, which does not run here; return whether the volume is gone."""
        found = await self.volume()
        if found is None:
            return True
        kept = [each for each in objects.finalizers(found) if each == WIPE_FINALIZER]
        if objects.is_being_deleted(found) and len(kept) < len(objects.finalizers(found)):
            patch = MergePatch({"metadata": {"finalizers": kept, "resourceVersion": objects.resource_version(found)}})
            with suppress(Exception):
                await self.client.patch(PERSISTENT_VOLUME, self.object_name, patch)
        return False


@asynccontextmanager
async def installed(room: Path, api: Path) -> AsyncIterator[Installed]:
    async with disk_node(room, api) as node:
        made = Installed(node)
        made.configure()
        labels = {"kubernetes.io/hostname": node.name}
        await made.client.create(NODE, {"metadata": {"name": node.name, "labels": labels}})
        provisioner = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
        await made.client.create(STORAGE_CLASS, {"metadata": {"name": made.storage_class}, **provisioner})
        try:
            yield made
        finally:
            with suppress(NotFound):
                await made.client.patch(
                    PERSISTENT_VOLUME, made.object_name, MergePatch({"metadata": {"finalizers": None}})
                )
                await made.client.delete(PERSISTENT_VOLUME, made.object_name)
            await made.client.delete(NODE, ObjectName(None, node.name))
            await made.client.delete(STORAGE_CLASS, ObjectName(None, made.storage_class))


async def a_disk_is_offered_and_comes_back_empty(made: Installed) -> None:
    (made.node.disks / "disk1").mkdir()
    await eventually_answered(made.is_offered)
    found = await made.volume()
    assert found is not None
    assert found["spec"]["local"] == {"path": f"{made.node.disks}/disk1"}
    assert found["spec"]["capacity"] == {"storage": "1Gi"}

    (made.node.disks / "disk1/secret").write_text("data of the claim")
    await made.release()

    async def is_back() -> bool:
        await made.unprotect()
        return await made.is_offered_after(objects.uid(found))

    await eventually_answered(is_back)
    assert list((made.node.disks / "disk1").iterdir()) == []


async def test_a_folder_becomes_a_volume_and_comes_back_empty(room: Path, api_kubeconfig: Path):
    async with installed(room, api_kubeconfig) as made:
        with made.node.worker(), made.master():
            await a_disk_is_offered_and_comes_back_empty(made)


async def test_of_two_masters_one_leads_and_the_other_takes_over(room: Path, api_kubeconfig: Path):
    flags = ["--leader-election", "--leader-election-namespace=default", "--leader-election-lease-duration=3s"]
    flags += ["--leader-election-renew-deadline=2s", "--leader-election-retry-period=500ms"]
    async with installed(room, api_kubeconfig) as made:
        with made.node.worker(), made.master(*flags) as first:
            await first.says("serving static volumes")
            with made.master(*flags) as second:
                await second.says("using the API server")
                assert "serving static volumes" not in second.logged()
                first.signal(signal.SIGTERM)
                assert await first.exit_code() == 0
                await a_disk_is_offered_and_comes_back_empty(made)
        await made.client.delete(LEASE, ObjectName("default", "orlop-static-master"))


async def test_a_wrong_configuration_is_reported_and_the_one_before_stays_in_use(room: Path, api_kubeconfig: Path):
    async with installed(room, api_kubeconfig) as made:
        (room / "config/storageClassMap").write_text("- no mapping")
        with made.master() as master:
            await master.says("configuration not usable")
            made.configure()
            await master.says("configuration loaded")
            with made.node.worker():
                (made.node.disks / "disk1").mkdir()
                await eventually_answered(made.is_offered)


async def test_the_controller_contains_the_master(room: Path, api_kubeconfig: Path):
    async with installed(room, api_kubeconfig) as made:
        flags = [*made.flags(), f"--csi-address={room}/c.sock", f"--drivername={made.node.the.driver_name}"]
        with made.node.worker(), running(room, "controller", *flags):
            await a_disk_is_offered_and_comes_back_empty(made)
