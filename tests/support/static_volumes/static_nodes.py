"""A node of this machine with a folder of disks, for `orlop static-worker` and `orlop static-master` as processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orlop.kube.api_errors import AlreadyExists, NotFound
from orlop.kube.kinds import NAMESPACE, kind_of_object
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.definitions import definitions
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.naming_rules import volume_name
from support.attaching.attacher_places import Place, place
from support.processes.orlop_process import Running, running

Object = dict[str, Any]


@dataclass
class DiskNode:
    """A node with a folder of disks, and the worker's configuration."""

    the: Place
    room: Path

    @property
    def name(self) -> str:
        return self.the.named("node")

    @property
    def namespace(self) -> str:
        return self.the.named("static")

    @property
    def disks(self) -> Path:
        return self.room / "disks"

    def configure(self, **more: str) -> None:
        keys = "".join(f"  {key}: {value}\n" for key, value in {"hostDir": str(self.disks), **more}.items())
        (self.room / "config/storageClassMap").write_text(f"fast:\n{keys}")

    def worker(self, *more: str) -> AbstractContextManager[Running]:
        flags = [f"--node-name={self.name}", f"--static-config={self.room}/config"]
        flags += [f"--static-namespace={self.namespace}", f"--kubeconfig={self.the.kubeconfig}"]
        # Only events: without one, nothing is looked for.
        return running(self.room, "static-worker", *flags, "--static-discovery-period=1000s", *more)

    async def status(self) -> Object:
        with suppress(NotFound):
            found = await self.the.client.get(PROVISIONER_STATUS, ObjectName(self.namespace, self.name))
            return dict(found.get("status") or {})
        return {}

    async def listed(self) -> dict[str, Object]:
        return {each["entry"]: each for each in (await self.status()).get("localVolumes") or []}

    async def lists(self, *entries: str) -> bool:
        return set(await self.listed()) == set(entries) and "localVolumes" in await self.status()

    async def deletion(self) -> Object:
        return next(iter((await self.status()).get("deleteStatuses") or []), {})

    async def request(self, entry: str, identity: str = "") -> None:
        name = volume_name(entry, self.name, "fast")
        about = {"uid": "u1", "persistentVolume": name, "volume": name, "storageClass": "fast", "entry": entry}
        operations = [about | ({"identity": identity} if identity else {})]
        patch = JsonPatch().add("spec", "deleteOperations", value=operations)
        await self.the.client.patch(PROVISIONER_STATUS, ObjectName(self.namespace, self.name), patch)

    async def is_in(self, state: str) -> bool:
        return (await self.deletion()).get("state") == state


@asynccontextmanager
async def disk_node(room: Path, api: Path, **configuration: str) -> AsyncIterator[DiskNode]:
    async with place(room, api) as the:
        for obj in definitions():
            kind = kind_of_object(obj["apiVersion"], obj["kind"])
            assert kind is not None
            with suppress(AlreadyExists):
                await the.client.create(kind, obj)
        made = DiskNode(the, room)
        await the.client.create(NAMESPACE, {"metadata": {"name": made.namespace}})
        made.configure(**configuration)
        yield made
        await the.client.delete(NAMESPACE, ObjectName(None, made.namespace))
