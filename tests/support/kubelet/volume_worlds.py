"""A node on virtual time: an API server, a scripted driver that mounts on a fake machine, and a volume manager.

The world stays when the manager dies: `manager()` begins another life on the same disk, the same driver and the same
API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from zlib import crc32

from onenode.host.volume_host import VolumeHost
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.volumes.volume_manager import VolumeManager
from onenode.kubelet.volumes.volume_paths import BLOCK_ROOT
from onenode.kubelet.volumes.volume_seams import KubeletDisk, OwnNode
from onenode.kubelet.volumes.volume_values import LOCAL_DRIVER
from onenode.testing.fake_kubelet_machine import FakeKubeletMachine
from onenode.testing.fake_volume_host import FakeVolumeHost
from orlop.csi.client import CsiClient
from orlop.csi.in_process_transport import InProcessConnection
from orlop.foundation.clock import Clock
from orlop.host.threads import Threads
from orlop.kube.api_errors import NotConnected
from orlop.kube.kinds import (
    CONFIG_MAP,
    CSI_DRIVER,
    EVENT,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    Kind,
)
from orlop.kube.objects import time_text, uid
from orlop.testing.driver_model import ALL_CAPABILITIES
from orlop.testing.fake_host.machine import KUBELET_DIR
from orlop.testing.kill_points import KillPoints
from orlop.testing.scripted_driver import ScriptedInterceptor
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_objects import claim, config_map, container, csi_driver, named, volume
from support.csi.driver_lives import DriverLives, csi_client
from support.worlds import ClusterWorld, Object, running

T = TypeVar("T")
DRIVER = "d.example"
NODE_NAME = "node1"
STAGED = {"plugin": sorted(ALL_CAPABILITIES.plugin), "node": ["STAGE_UNSTAGE_VOLUME"], "controller": []}
"""Without a controller it knows every volume, as drivers must that are asked to undo what they never did."""
CHANGES = ("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")


@dataclass
class MachineTargets:
    """The driver's own mounts on the fake machine."""

    machine: FakeKubeletMachine
    mounts: bool = True
    """False: says success and leaves a plain folder; see also `makes`."""
    makes: bool = True
    unmounts: bool = True
    blocks: str = "device"
    """What a raw block volume is published as; or "file", or "folder"."""

    def make(self, path: str, *, block: bool) -> None:
        names = tuple(path.removeprefix(f"{KUBELET_DIR}/").split("/"))
        assert names[:-1] in self.machine.kubelet_folders, f"kubelet did not make the parent of {path}"
        if not self.makes:
            return
        if block and self.blocks != "folder":
            self._make_device(names)
            return
        self.machine.kubelet_folders.add(names)
        if self.mounts and not self.machine.mounts.get(names):
            self.machine.mount_something_else(names)

    def remove(self, path: str) -> None:
        names = tuple(path.removeprefix(f"{KUBELET_DIR}/").split("/"))
        if self.unmounts:
            self.machine.take_device(names)
            self.machine.kubelet_folders.discard(names)

    def _make_device(self, names: tuple[str, ...]) -> None:
        """The same device for all pods that have the volume."""
        if self.blocks == "device":
            self.machine.place_device(names, crc32(names[-2].encode()))
        else:
            self.machine.make_empty_file(names)


@dataclass
class Registry:
    clients: dict[str, CsiClient] = field(default_factory=dict)
    objects: dict[str, Object] = field(default_factory=dict)

    def driver(self, name: str) -> CsiClient | None:
        return self.clients.get(name)

    def csi_driver(self, name: str) -> Object | None:
        return self.objects.get(name)


class VolumeWorld(ClusterWorld):
    """`clock` is a `SystemClock` where the kernel is this machine's."""

    def __init__(self, clock: Clock | None = None, **capabilities: Any) -> None:
        used = clock or VirtualClock()
        super().__init__(used, reviews=TokenIssuer(used))
        self.machine = FakeKubeletMachine()
        self.targets = MachineTargets(self.machine)
        self.capabilities: Mapping[str, Any] = {**STAGED, **capabilities}
        self.lives = DriverLives(self.runtime("driver"))
        self.storage = self.lives.storage
        self.drivers = Registry()
        self.csi_drivers = self.drivers.objects
        self._start_life({})
        self.connection = InProcessConnection(self.interceptor)
        self.register()

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        self.way = AwayTransport(self.on.transport())
        await self.create(CONFIG_MAP, config_map("kube-root-ca.crt", **{"ca.crt": "x"}))
        await self.create(NODE, named(NODE_NAME, metadata={"name": NODE_NAME, "labels": {"zone": "a"}}))
        ends.push_async_callback(self.lives.end)
        ends.push_async_callback(self.connection.close)
        ends.push(self._check_removals)

    def _check_removals(self, kind: object, *_error: object) -> None:
        # The failure of a test is raised as itself.
        refused = self.machine.refused_removals
        assert kind or refused == [], "kubelet must look for a mount before it removes a folder or file"

    # ---- the driver ----------------------------------------------------------------------------------------------

    def play(self, script: Mapping[str, Any]) -> None:
        """The driver begins anew, on the same storage, with this script."""
        self._start_life(script)
        self.connection.mend(self.interceptor)

    def _start_life(self, script: Mapping[str, Any]) -> None:
        self.interceptor = self.start_driver(DRIVER, script)
        self.driver = self.lives.drivers[-1]

    def start_driver(self, name: str, script: Mapping[str, Any], **options: Any) -> ScriptedInterceptor:
        played = {"driver": {"name": name}, "node": {"id": "n"}, "capabilities": self.capabilities, "script": script}
        return self.lives.start(played, targets=self.targets, **options)

    def register(self, name: str = DRIVER, connection: Any = None) -> None:
        self.drivers.clients[name] = csi_client(connection or self.connection, self.runtime("kubelet's driver client"))

    def deregister(self, name: str = DRIVER) -> None:
        del self.drivers.clients[name]

    def calls(self, *methods: str) -> list[str]:
        """Node calls that change something, in order."""
        return self.lives.calls(*(methods or CHANGES))

    def requests(self, method: str) -> list[Any]:
        return self.lives.requests(method)

    # ---- the manager ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def manager(
        self,
        points: KillPoints | None = None,
        *,
        host: VolumeHost | None = None,
        known: bool = True,
        threads: Threads | None = None,
        seen_node: Callable[[], Object | None] = lambda: None,
    ) -> AsyncIterator[VolumeManager]:
        async with self.controller_parts("kubelet", self.way, NODE_NAME) as self.parts:
            self.api = NodeApi(NODE_NAME, self.parts.kube, self.parts.events)
            self.disk = KubeletDisk(host or FakeVolumeHost(self.machine, points), threads or in_thread)
            own_node = OwnNode(seen=seen_node)
            self.volumes = VolumeManager(self.api, own_node, self.drivers, self.disk, self.parts.runtime)
            async with running(self.volumes.run()):
                if known:
                    self.volumes.all_pods_known()
                yield self.volumes

    # ---- objects -------------------------------------------------------------------------------------------------

    async def csi_driver(self, name: str = DRIVER, **spec: Any) -> None:
        self.csi_drivers[name] = await self.create(CSI_DRIVER, csi_driver(name, **spec))

    async def inline_pod(self, name: str = "p", **source: Any) -> Object:
        inline = {"name": "scratch", "csi": {"driver": DRIVER, **source}}
        return await self.pod(name, inline)

    async def pod(self, name: str, *volumes: Object, **spec: Any) -> Object:
        mounts = [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes]
        containers = [container(volumeMounts=mounts)]
        body = named(name, spec={"containers": containers, "volumes": list(volumes), "nodeName": NODE_NAME, **spec})
        return await self.create(POD, body)

    async def claimed_pod(self, name: str = "p", claim_name: str = "c", **spec: Any) -> Object:
        return await self.pod(name, {"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}, **spec)

    async def device_pod(self, name: str = "p", claim_name: str = "c", **source: Any) -> Object:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim_name, **source}}
        devices = [{"name": "data", "devicePath": "/dev/xvda"}]
        return await self.pod(name, volume, containers=[container(volumeDevices=devices)])

    async def bound_claim(self, claim_name: str = "c", pv: str = "pv1", handle: str = "h1", **spec: Any) -> None:
        """With `csi` None, `spec` names another source."""
        if self.storage.volumes.get(handle) is None:
            self.storage.add_volume(handle, 1 << 30)
        csi = spec.pop("csi", {})
        source = None if csi is None else {"driver": DRIVER, "volumeHandle": handle, **csi}
        made = await self.create(PERSISTENT_VOLUME_CLAIM, claim(claim_name, volumeName=pv))
        reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim_name, "uid": uid(made)}
        await self.create(PERSISTENT_VOLUME, volume(pv, csi=source, claimRef=reference, **spec))
        await self.bind(claim_name)

    async def local_claim(self, path: str, fs_type: str = "", **spec: Any) -> None:
        """A claim that is bound to a PersistentVolume of the type `local`, on this node."""
        here = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
        source = {"path": path, **({"fsType": fs_type} if fs_type else {})}
        spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [here]}}, **spec}
        await self.bound_claim(csi=None, local=source, **spec)

    async def bind(self, claim_name: str) -> None:
        bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
        await self.merge(PERSISTENT_VOLUME_CLAIM, claim_name, bound, "status")

    async def events(self) -> list[str]:
        found = (await self.client.list(EVENT)).items
        return [f"{event['reason']}: {event['note']}" for event in found]

    # ---- what is left --------------------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Folders, files and mounts that belong to a volume or a pod."""
        machine = self.machine
        base = {("pods",), ("plugins",), ("plugins", "kubernetes.io"), ("plugins", "kubernetes.io", "csi")}
        base |= {("plugins", "kubernetes.io", "csi", name) for name in (DRIVER, LOCAL_DRIVER)} | {()}
        base |= {BLOCK_ROOT, (*BLOCK_ROOT, "staging"), (*BLOCK_ROOT, "publish")}
        names = (
            (machine.kubelet_folders - base) | machine.kubelet_files | {at for at, it in machine.mounts.items() if it}
        )
        published = [volume.id for volume in self.volumes_of_driver() if volume.published]
        staged = [volume.id for volume in self.volumes_of_driver() if volume.staged]
        return sorted(["/".join(name) for name in names] + published + staged + [*machine.loops.values()])

    def volumes_of_driver(self) -> list[Any]:
        return list(self.storage.volumes)

    def contents(self) -> dict[str, str]:
        return {"/".join(names): content.decode() for names, content in self.machine.kubelet_contents.items()}


@dataclass
class AwayTransport:
    """The way to an API server that may be away."""

    inner: Any
    is_away: bool = False
    is_refused: Callable[[Any], bool] = lambda _request: False
    """Of a request: whether it never gets there."""
    held: asyncio.Event | None = None
    """Until it is set, responses are on their way: they say what was true when they were made."""

    async def exchange(self, request: Any, timeout: float) -> Any:  # noqa: ASYNC109 - the seam's own signature
        if self.is_away or self.is_refused(request):
            raise NotConnected("the API server is away")
        response = await self.inner.exchange(request, timeout)
        if self.held is not None:
            await self.held.wait()
        return response

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class TokenIssuer:
    """Gives out tokens that can be told apart; who they are for was checked elsewhere."""

    clock: Clock
    count: int = 0

    async def review(self, kind: Kind, body: Object, user: Any, namespace: str, name: str) -> Object:
        self.count += 1
        assert body["spec"]["boundObjectRef"]["kind"] == "Pod"
        expires = self.clock.now() + timedelta(seconds=body["spec"]["expirationSeconds"])
        return {**body, "status": {"token": f"token-canary-{self.count}", "expirationTimestamp": time_text(expires)}}


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
