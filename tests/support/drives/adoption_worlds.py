"""A cluster for adoption: disks that hold volumes, the nodes that have them, and what controllers would do.

The nodes report and adopt as `orlop node` does, the controller restores allocations by its own patch, and claims are
bound as Kubernetes binds them. All of it in one task, which acts whenever others wait.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from onenode.testing.api_server import RunningServer
from orlop.binding import claim_state_rules as state
from orlop.driver.persistent.reservation_rules import missing_allocations, read_drive, restoration
from orlop.kube.api_errors import ApiError, Conflict, NotFound, PatchRefused
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.records.api_record import new_object, part_of
from orlop.records.drive import DRIVE, DriveSpec, UnrecordedVolume
from orlop.records.drive_record import DriveType
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec
from orlop.records.node_devices import NODE_DEVICES, NodeDevicesSpec
from orlop.records.volume import VOLUME, DriveVolumeSpec

GIB = 1 << 30


@dataclass
class Disk:
    """A drive: where its disk is, which node has written its name into it, and the volumes on it."""

    drive: str
    place: str
    owner: str
    volumes: dict[str, UnrecordedVolume] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        return self.place == self.owner


@dataclass
class AdoptionWorld:
    server: RunningServer
    disks: list[Disk]
    nodes: tuple[str, ...] = ("n1", "n2")
    dead: set[str] = field(default_factory=set)
    """Nodes whose process does not run."""
    _task: asyncio.Task[None] | None = None
    turns: int = 0

    @property
    def client(self) -> KubeClient:
        return self.server.client()

    async def begin(self) -> None:
        for node in self.nodes:
            await self.client.create(NODE, {"metadata": {"name": node}})
            await self.client.create(NODE_DEVICES, new_object("NodeDevices", node, NodeDevicesSpec(node_name=node)))
        self._task = asyncio.create_task(self._live())

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def settle(self) -> None:
        """Wait until nobody has anything to do."""
        until = self.turns + 4
        while self.turns < until:
            await asyncio.sleep(0)

    async def _live(self) -> None:
        seen: object = None
        while True:
            now = (self.server.store.revision, [disk.place for disk in self.disks], set(self.dead))
            if now != seen:
                seen = now
                with suppress(Conflict, NotFound, PatchRefused):
                    await self._act()
            else:
                self.turns += 1
            await asyncio.sleep(0)

    async def _act(self) -> None:
        for node in self.nodes:
            if node not in self.dead:
                await self._devices(node)
                await self._requests(node)
                await self._drives(node)
        await self._controller()
        await self._binder()

    # ---- nodes ---------------------------------------------------------------------------------------------------

    async def _devices(self, node: str) -> None:
        seen = [
            {"name": f"sd{number}", "drive": disk.drive, "unusable": ["it is a drive"]}
            for number, disk in enumerate(self.disks)
            if disk.place == node
        ]
        await self._status(NODE_DEVICES, node, {"devices": seen})

    async def _requests(self, node: str) -> None:
        for request in (await self.client.list(DRIVE_REQUEST)).items:
            spec = part_of(request, "spec", DriveRequestSpec)
            if spec.node_name != node or (request.get("status") or {}).get("state") in {"Done", "Error"}:
                continue
            results = [
                result
                for disk in self.disks
                if disk.place == node
                and not disk.is_known
                and (result := await self._adopt(disk, node, dry_run=spec.dry_run))
            ]
            failed = any("error" in each for each in results)
            await self._status(
                DRIVE_REQUEST,
                request["metadata"]["name"],
                {"state": "Error" if failed else "Done", "results": results, "message": f"{len(results)} drives"},
            )

    async def _adopt(self, disk: Disk, node: str, *, dry_run: bool) -> Object:
        owner = await self._find(DRIVE, disk.drive)
        if owner is not None and owner["spec"]["nodeName"] != node:
            return {"target": disk.drive[:8], "error": f"the object is of the node {owner['spec']['nodeName']}"}
        if dry_run:
            return {"target": disk.drive[:8], "message": "It would be taken over."}
        disk.owner = node
        return {"target": disk.drive[:8], "drive": disk.drive, "message": "It was taken over."}

    async def _drives(self, node: str) -> None:
        for disk in self.disks:
            if disk.owner == node and disk.place == node and await self._find(DRIVE, disk.drive) is None:
                spec = DriveSpec(node_name=node, type=DriveType.DISK)
                await self.client.create(DRIVE, new_object("Drive", disk.drive, spec))
        described = {
            obj["metadata"]["name"]
            for obj in (await self.client.list(VOLUME)).items
            if not part_of(obj, "spec", DriveVolumeSpec).reservation_only and obj["spec"]["nodeName"] == node
        }
        for drive in (await self.client.list(DRIVE)).items:
            if drive["spec"]["nodeName"] != node:
                continue
            disk = next((each for each in self.disks if each.drive == drive["metadata"]["name"]), None)
            if disk is None or disk.place != node or disk.owner != node:
                await self._status(DRIVE, drive["metadata"]["name"], {"state": "Lost", "message": "It is not there."})
                continue
            listed = {each["volume"] for each in drive["spec"].get("allocations") or ()}
            missing = [each for name, each in disk.volumes.items() if name not in listed]
            unrecorded = [each for name, each in disk.volumes.items() if name not in listed or name not in described]
            status = {
                "state": "Error" if missing else "Ready",
                "message": "",
                "capacityBytes": 100 * GIB,
                "fileSystem": "xfs",
                "backings": ["directory", "image"],
                "unrecordedVolumes": [msgspec.to_builtins(each) for each in unrecorded],
                "allocationsRestored": not missing,
            }
            await self._status(DRIVE, drive["metadata"]["name"], status)

    # ---- controllers ---------------------------------------------------------------------------------------------

    async def _controller(self) -> None:
        for obj in (await self.client.list(DRIVE)).items:
            drive = read_drive(obj)
            volumes = {
                each["metadata"]["name"]: part_of(each, "spec", DriveVolumeSpec)
                for each in (await self.client.list(VOLUME)).items
                if each["spec"]["drive"] == drive.name and not each["spec"].get("reservationOnly")
            }
            if not drive.removing and (missing := missing_allocations(drive, volumes)):
                await self.client.patch(DRIVE, ObjectName(None, drive.name), restoration(drive, missing))

    async def _binder(self) -> None:
        volumes = {each["metadata"]["name"]: each for each in (await self.client.list(PERSISTENT_VOLUME)).items}
        for claim in (await self.client.list(PERSISTENT_VOLUME_CLAIM)).items:
            name = ObjectName("team", claim["metadata"]["name"])
            wanted = state.volume_name(claim)
            volume = volumes.get(wanted) or next((v for v in volumes.values() if self._is_for(v, claim)), None)
            if volume is None:
                phase = "Lost" if wanted else "Pending"
                await self._status(PERSISTENT_VOLUME_CLAIM, name.name, {"phase": phase}, "team")
                continue
            reference = state.claim_reference(volume) or {}
            if reference.get("uid") not in {None, "", claim["metadata"]["uid"]}:
                continue
            if wanted and not reference.get("uid"):
                # As Kubernetes: a claim that was bound takes back no volume that names it without its uid.
                await self._status(PERSISTENT_VOLUME_CLAIM, name.name, {"phase": "Lost"}, "team")
                continue
            await self._bind(claim, volume)

    @staticmethod
    def _is_for(volume: Object, claim: Object) -> bool:
        reference = state.claim_reference(volume) or {}
        named = (reference.get("namespace"), reference.get("name"))
        return not state.volume_name(claim) and named == ("team", claim["metadata"]["name"])

    async def _bind(self, claim: Object, volume: Object) -> None:
        name, volume_name = claim["metadata"]["name"], volume["metadata"]["name"]
        uid = {"spec": {"claimRef": {"uid": claim["metadata"]["uid"]}}}
        protected = {"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}}
        if "deletionTimestamp" not in volume["metadata"] and (
            (state.claim_reference(volume) or {}).get("uid") != claim["metadata"]["uid"]
            or not volume["metadata"].get("finalizers")
        ):
            await self.client.patch(PERSISTENT_VOLUME, ObjectName(None, volume_name), MergePatch({**uid, **protected}))
        if state.volume_name(claim) != volume_name:
            changes = {"spec": {"volumeName": volume_name}}
            await self.client.patch(PERSISTENT_VOLUME_CLAIM, ObjectName("team", name), MergePatch(changes))
        await self._status(PERSISTENT_VOLUME, volume_name, {"phase": "Bound"})
        await self._status(PERSISTENT_VOLUME_CLAIM, name, {"phase": "Bound"}, "team")

    # ---- objects -------------------------------------------------------------------------------------------------

    async def _find(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        try:
            return await self.client.get(kind, ObjectName(namespace, name))
        except NotFound:
            return None

    async def _status(self, kind: Kind, name: str, status: dict[str, Any], namespace: str | None = None) -> None:
        before = ((await self._find(kind, name, namespace)) or {}).get("status") or {}
        if all(before.get(key) == value for key, value in status.items()):
            return
        with suppress(ApiError):
            patch = MergePatch({"status": status})
            await self.client.patch(kind, ObjectName(namespace, name), patch, subresource="status")


def on_disk(name: str, claim: str = "data", size: int = GIB, **facts: Any) -> UnrecordedVolume:
    """Return a volume as the record on the disk describes it."""
    return UnrecordedVolume(
        volume=name,
        bytes=size,
        persistent_volume=name,
        claim_namespace="team" if claim else "",
        claim_name=claim,
        backing="image",
        file_system="xfs",
        volume_mode="Filesystem",
        **facts,
    )
