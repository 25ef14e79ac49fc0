"""Every right that deploy/manifests/drives grants is used by a node and a controller that live through everything.

The API server enforces the roles, and each right that a request needed is noted. A right that nothing uses fails here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from onenode.apiserver.access.rbac_rules import User, service_account_user
from orlop.binding import claim_state_rules as state
from orlop.csi.client import CsiClient
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import csi_pb2
from orlop.driver.identity_service import DriverIdentity, IdentityService
from orlop.foundation.go_flags.parsing import parse_flags
from orlop.kube.client import KubeClient
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import CSI_NODE, NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from orlop.kube.objects import ObjectName
from orlop.processes.controller import ControllerFlags, DriveControl, controller_sidecar
from orlop.processes.daemon import request_ids
from orlop.processes.lease_wiring import LeaseWiring
from orlop.processes.sidecar import SidecarLife
from orlop.records.api_record import new_object
from orlop.records.cluster_objects import CONTROLLER_ACCOUNT, SYSTEM_NAMESPACE, cluster_objects
from orlop.records.drive import DRIVE
from orlop.records.drive_request import RequestedFolder
from orlop.records.node_devices import NODE_DEVICES, NodeDevicesSpec
from orlop.records.volume import VOLUME
from orlop.records.volume_context import TOPOLOGY_NODE
from orlop.testing.fake_host import FakeMachine
from support.api.api_objects import csi_node
from support.api.api_wires import Before, Wire, refusal
from support.drives.reporting_nodes import ReportingWorld, put_volume, volume_on_disk
from support.drives.watched_nodes import GIB, ID, OTHER, ROOT, drive_disk, machine_with
from support.drives.watched_nodes import NODE as NODE_NAME
from support.used_rights import Right, granted_rights, note_used_rights

pytestmark = pytest.mark.virtual_time
Object = dict[str, Any]
DRIVER = "csi.orlop.dev"
EXCUSED: dict[Right, str] = {
    (
        CONTROLLER_ACCOUNT,
        "coordination.k8s.io",
        "leases",
        "delete",
    ): "A journal has a second page, which is deleted later, only while hundreds of volumes are provisioned.",
}
"""Rights of paths that are too rare to be driven here, with the reason of each."""


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[Right]:
    return note_used_rights(monkeypatch)


class WholeLife(ReportingWorld):
    def __init__(self) -> None:
        super().__init__()
        self.controllers_wire = Wire()

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[None]:
        """Run `orlop controller` with its account; its driver is called in this process."""
        runtime = self.runtime("controller")
        control = DriveControl(runtime)
        sidecar = controller_sidecar(control)
        flags = parse_flags(
            ControllerFlags,
            ["--leader-election"],
            program=sidecar.daemon.program,
            summary="",
            environment={},
            warn=lambda _: None,
        )
        kinds = csi_pb2.PluginCapability.Service
        identity = IdentityService(
            DriverIdentity(DRIVER, "1", (kinds.CONTROLLER_SERVICE, kinds.VOLUME_ACCESSIBILITY_CONSTRAINTS)), _is_ready
        )
        about: Any = {"log": runtime.log, "metrics": runtime.metrics, "clock": runtime.clock}
        methods = {**methods_of(identity), **control.leader_service.methods()}
        interceptor = CallInterceptor(methods, driver_name=DRIVER, new_id=request_ids(runtime.random), **about)
        connection = InProcessConnection(interceptor)
        csi = CsiClient(connection, random=Random(3), **about)
        user = User(service_account_user(SYSTEM_NAMESPACE, CONTROLLER_ACCOUNT))
        transport = self.controllers_wire.around(self.on.transport(user))
        kube = KubeClient(transport, clock=self.clock, random=Random(2), log=runtime.log, name="orlop-controller")
        leases = LeaseWiring(flags.leader, runtime, kube, SYSTEM_NAMESPACE)
        life = SidecarLife(sidecar, flags, runtime=runtime, csi=csi, kube=kube, leases=leases)
        stop = asyncio.Event()
        running = self.start(life.run(stop), "controller")
        yield
        stop.set()
        await running
        await csi.close()

    async def claim(self, name: str, size: str, storage_class: str = "orlop", **annotations: str) -> str:
        """Create a claim whose pod was scheduled to the node; return the name of its volume."""
        marks = {state.STORAGE_PROVISIONER: DRIVER, state.SELECTED_NODE: NODE_NAME, **annotations}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            "storageClassName": storage_class,
        }
        made = await self.client.create(
            PERSISTENT_VOLUME_CLAIM,
            {"metadata": {"name": name, "namespace": "team", "annotations": marks}, "spec": spec},
        )
        return f"pvc-{made['metadata']['uid']}"

    async def delete_claim(self, name: str, volume: str) -> None:
        """Delete a claim, and release its volume as the binder does."""
        await self.client.delete(PERSISTENT_VOLUME_CLAIM, ObjectName("team", name))
        obj = await self.find(PERSISTENT_VOLUME, volume)
        assert obj is not None
        kept = [each for each in obj["metadata"]["finalizers"] if each != state.PV_PROTECTION]
        await self.merge(PERSISTENT_VOLUME, volume, {"metadata": {"finalizers": kept}})
        await self.merge(PERSISTENT_VOLUME, volume, {"status": {"phase": "Released"}}, "status")

    async def is_gone(self, *names: str) -> bool:
        return all([await self.find(kind, name) is None for name in names for kind in (VOLUME, PERSISTENT_VOLUME)])


async def _is_ready() -> bool:
    return True


def first(method: str, path: str, act: Any) -> Before:
    """Act once, before the first request of a kind; then it is carried."""
    left = 1

    async def before(request: HttpRequest) -> HttpResponse | None:
        nonlocal left
        if left and request.method == method and request.path.endswith(path):
            left = 0
            await act(request)
        return None

    return before


async def old_events(request: HttpRequest) -> HttpResponse | None:
    """The server has only the older group of Events."""
    return refusal(404, "NotFound") if request.path.startswith("/apis/events.k8s.io/") else None


async def test_every_right_of_node_and_controller_is_used(used: set[Right]):
    machine = machine_with(sdb=drive_disk(), sdc=drive_disk(OTHER))
    put_volume(machine.disks["sdc"].drive, volume_on_disk("pvc-found", drive=OTHER))  # its object lists nothing

    async with WholeLife() as world:
        await world.create(NODE, {"metadata": {"name": NODE_NAME, "labels": {TOPOLOGY_NODE: NODE_NAME}}})
        registered = {"name": DRIVER, "nodeID": NODE_NAME, "topologyKeys": [TOPOLOGY_NODE]}
        await world.client.create(CSI_NODE, csi_node(NODE_NAME, registered))
        # An earlier process has created the object, and this one has not seen it yet.
        devices = new_object("NodeDevices", NODE_NAME, NodeDevicesSpec(node_name=NODE_NAME))
        world.wire.before = first("POST", "/nodedevices", lambda _: world.create(NODE_DEVICES, devices))
        async with world.node(machine):
            # Somebody else writes the Drive before a reservation.
            cordon = {"spec": {"tier": "hot"}}
            world.controllers_wire.before = first("PATCH", f"/drives/{ID}", lambda _: world.merge(DRIVE, ID, cordon))
            async with world.controller():
                await world.until(world.is_ready)
                await _live(world, machine)
            # One claim waits among many of others, so that it is read alone; and the response to a creation is lost.
            for number in range(25):
                await world.claim(
                    f"others-{number}", "1Gi", "other", **{state.STORAGE_PROVISIONER: "other.example.com"}
                )
            volume = await world.claim("again", "1Gi")
            world.controllers_wire.before = first("POST", "/persistentvolumes", lambda request: _create(world, request))
            async with world.controller():
                await world.until(lambda: world.find(PERSISTENT_VOLUME, volume))
        await _live_with_old_events(world, machine)

    assert granted_rights(cluster_objects()) - used == EXCUSED.keys()


async def _live(world: WholeLife, machine: FakeMachine) -> None:
    volume = await world.claim("data", "8Gi")
    await world.until(lambda: world.find(PERSISTENT_VOLUME, volume))
    await world.claim("more", "9Gi")  # does not fit: its pod has to go elsewhere
    await world.claim("too-large", "1000Gi")
    await world.claim("without-class", "1Gi", storage_class="missing")
    await world.claim("astray", "1Gi", **{state.SELECTED_NODE: "a-node-that-is-gone"})
    await world.request(folder=RequestedFolder(path=f"{ROOT}/new", capacity_bytes=GIB))
    await world.ended()
    for options in ("It lacks 'nodev'.", "", "It lacks 'nodev'.", "", "It lacks 'nodev'.", ""):
        machine.disks["sdb"].wrong_options = options
        await world.settle(60)
    await world.settle(1800)
    for name in ("more", "astray", "without-class", "too-large"):
        await world.client.delete(PERSISTENT_VOLUME_CLAIM, ObjectName("team", name))
    await world.delete_claim("data", volume)
    await world.until(lambda: world.is_gone(volume))
    await world.merge(DRIVE, ID, {"spec": {"removing": True}})
    await world.until(lambda: _is_removed(world))


async def _create(world: WholeLife, request: HttpRequest) -> None:
    await world.create(PERSISTENT_VOLUME, json.loads(request.body))


async def _is_removed(world: WholeLife) -> bool:
    return await world.find(DRIVE, ID) is None


async def _live_with_old_events(world: WholeLife, machine: FakeMachine) -> None:
    world.wire.before = world.controllers_wire.before = old_events
    async with world.node(machine), world.controller():
        await world.claim("large", "1000Gi")
        for options in ("It lacks 'nodev'.", "", "It lacks 'nodev'.", "", "It lacks 'nodev'.", ""):
            machine.disks["sdc"].wrong_options = options
            await world.settle(120)
        await world.settle(600)
