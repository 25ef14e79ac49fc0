"""Nodes of a cluster on virtual time: each a fake machine, and a process that reports its drives, with its rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from onenode.apiserver.access.rbac_rules import User, service_account_user
from orlop.driver.persistent.reports.reporting import reporting
from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, Transport
from orlop.kube.kinds import EVENT, NAMESPACE, kind_of_object
from orlop.records.api_record import new_object
from orlop.records.cluster_objects import NODE_ACCOUNT, SYSTEM_NAMESPACE, cluster_objects
from orlop.records.drive import DRIVE
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec
from orlop.records.node_devices import NODE_DEVICES
from orlop.records.node_policy import NODE_OF_TOKEN
from orlop.records.volume import ERASE_FINALIZER, VOLUME, DriveVolumeSpec, VolumeClaim
from orlop.records.volume_record import VolumeRecord, decode_volume, encode_volume
from orlop.testing.fake_host import FakeDrive, FakeDriveHost, FakeMachine, FakeVolume
from orlop.testing.kill_points import KillPoints
from support.api.api_wires import Wire
from support.drives.watched_nodes import GIB, ID, NODE, ROOT, right_here
from support.worlds import ClusterWorld

Object = dict[str, Any]
UID = "11112222-3333-4444-5555-666677778888"
VOLUME_ID = f"pvc-{UID}"
STAGED = "plugins/csi.orlop.dev/staging"


def node_user(node: str = NODE) -> User:
    return User(service_account_user(SYSTEM_NAMESPACE, NODE_ACCOUNT), extra={NODE_OF_TOKEN: (node,)})


def volume_spec(drive: str = ID, node: str = NODE, **facts: Any) -> DriveVolumeSpec:
    made: Object = {
        "bytes": GIB,
        "backing": "directory",
        "file_system": "xfs",
        "volume_mode": "Filesystem",
        "persistent_volume": VOLUME_ID,
        "claim": VolumeClaim(namespace="team", name="data"),
    }
    return DriveVolumeSpec(drive=drive, node_name=node, **(made | facts))


def volume_on_disk(volume_id: str = VOLUME_ID, drive: str = ID, **facts: Any) -> VolumeRecord:
    made: Object = {
        "bytes": GIB,
        "backing": "directory",
        "file_system": "xfs",
        "volume_mode": "Filesystem",
        "created_at": 0.0,
        "persistent_volume": volume_id,
        "claim_namespace": "team",
        "claim_name": "data",
    }
    return VolumeRecord(volume_id=volume_id, drive=drive, **(made | facts))


def put_volume(drive: FakeDrive | None, record: VolumeRecord, content: bytes | None = None) -> FakeVolume:
    assert drive is not None
    made = FakeVolume(100 + len(drive.volumes), 0o777, encode_volume(record) if content is None else content)
    drive.volumes[record.volume_id] = made
    return made


def record_on(drive: FakeDrive | None, volume_id: str = VOLUME_ID) -> VolumeRecord:
    assert drive is not None
    record = drive.volumes[volume_id].record
    assert record is not None
    return decode_volume(record)


class ReportingWorld(ClusterWorld):
    """The API server enforces definitions, roles and the policy of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire()
        """The node's connection to the API server."""

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        for obj in cluster_objects():
            kind = kind_of_object(obj["apiVersion"], obj["kind"])
            assert kind is not None
            await self.client.create(kind, obj)
        await self.create(NAMESPACE, {"metadata": {"name": "team"}})

    @asynccontextmanager
    async def node(
        self,
        machine: FakeMachine,
        name: str = NODE,
        points: KillPoints | None = None,
        transport: Transport | None = None,
    ) -> AsyncIterator[NodeDrives]:
        """Run the process of a node."""
        host = FakeDriveHost(machine, ROOT, points)
        transport = transport or self.wire.around(self.on.transport(node_user(name)))
        async with self.controller_parts("orlop-node", transport, instance=name) as parts:
            drives = NodeDrives(
                host,
                host.volumes_of,
                node_name=name,
                kubelet_dir="/var/lib/kubelet",
                threads=right_here,
                runtime=parts.runtime,
            )
            reports = reporting(drives, parts.kube, parts.informers, parts.events, parts.runtime, parts.queue_metrics)
            async with drives.running(), reports:
                yield drives
            drives.table.close()

    def cut(self) -> None:
        """From now on the node's requests reach no API server; `mend` ends it."""

        async def away(_request: HttpRequest) -> HttpResponse | None:
            raise ConnectionBroken("the API server is away")

        self.wire.before = away

    def mend(self) -> None:
        self.wire.before = Wire().before

    # ---- objects -------------------------------------------------------------------------------------------------

    async def status(self, drive_id: str = ID) -> Object:
        obj = await self.find(DRIVE, drive_id)
        return (obj or {}).get("status") or {}

    async def state(self, drive_id: str = ID) -> str:
        return str((await self.status(drive_id)).get("state", ""))

    async def is_ready(self, drive_id: str = ID) -> bool:
        return await self.state(drive_id) == "Ready"

    async def devices(self, node: str = NODE) -> dict[str, Object]:
        obj = await self.find(NODE_DEVICES, node)
        return {each["name"]: each for each in ((obj or {}).get("status") or {}).get("devices") or []}

    async def allocate(self, *volumes: str, drive_id: str = ID, size: int = GIB) -> None:
        allocations = [{"volume": each, "bytes": size} for each in volumes]
        await self.merge(DRIVE, drive_id, {"spec": {"allocations": allocations}})

    async def add_volume(self, volume_id: str = VOLUME_ID, **facts: Any) -> None:
        await self.create(VOLUME, new_object("Volume", volume_id, volume_spec(**facts), finalizers=[ERASE_FINALIZER]))

    async def volume(self, volume_id: str = VOLUME_ID) -> Object:
        obj = await self.find(VOLUME, volume_id)
        return (obj or {}).get("status") or {}

    async def phase(self, volume_id: str = VOLUME_ID) -> str:
        return str((await self.volume(volume_id)).get("phase", ""))

    async def order_erasure(self, volume_id: str = VOLUME_ID) -> None:
        await self.merge(VOLUME, volume_id, {"spec": {"erase": True}})

    async def request(self, name: str = "r1", **spec: Any) -> None:
        await self.create(DRIVE_REQUEST, new_object("DriveRequest", name, DriveRequestSpec(node_name=NODE, **spec)))

    async def request_status(self, name: str = "r1") -> Object:
        obj = await self.find(DRIVE_REQUEST, name)
        return (obj or {}).get("status") or {}

    async def ended(self, name: str = "r1") -> Object:
        async def status() -> Object | None:
            found = await self.request_status(name)
            return found if found.get("state") in {"Done", "Error"} else None

        found = await self.until(status)
        assert found is not None
        return found

    async def events(self) -> list[tuple[str, str, str]]:
        """The kind, the name and the reason of each Event, in order."""
        found = (await self.client.list(EVENT)).items
        about = [(each["regarding"], each["reason"]) for each in found]
        return [(regarding["kind"], regarding["name"], reason) for regarding, reason in about]
