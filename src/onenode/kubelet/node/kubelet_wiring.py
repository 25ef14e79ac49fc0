"""A whole kubelet, put together from its parts: its node, the volumes of its pods, the pods themselves.

Order, up: the CSIDrivers are known, so that no volume is judged without its driver's → what an earlier process has
mounted is known → the Node, its Lease and its plugins → the driver that is expected, for a while → pods. Only when all
pods of the node are known does anything that nobody wants go. Down: pods' workers end → what runs is asked to end, and
given a moment → everything else. Mounts stay, as when a kubelet is stopped: the next life finds them.

The machine is handed in; the kubelet's server (logs, commands inside) finds all parts in `RunningKubelet`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onenode.host.linux_plain_volume_host import LinuxPlainVolumeHost
from onenode.host.linux_volume_host import LinuxVolumeHost
from onenode.host.machine_facts import MachineFacts, read_machine
from onenode.host.volume_host import PlainVolumeHost, VolumeHost
from onenode.kubelet.node.kubelet_folders import PLUGINS, PLUGINS_REGISTRY, watched_folder
from onenode.kubelet.node.managed_volumes import ManagedVolumes
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.node_status_rules import Contribution, NodeSettings, allocatable
from onenode.kubelet.node.node_wiring import PluginPlaces, RunningNode, running_node
from onenode.kubelet.node.plugin_registration import Connect
from onenode.kubelet.node.plugin_watcher import PluginWatcher
from onenode.kubelet.node.registered_drivers import RegisteredDriver, RegisteredDrivers
from onenode.kubelet.plain_volumes.plain_volumes import plain_volumes
from onenode.kubelet.pods.container_runtime import ContainerRuntime
from onenode.kubelet.pods.environment_rules import api_services
from onenode.kubelet.pods.linux_container_runtime import linux_container_runtime
from onenode.kubelet.pods.pod_manager import PodManager, pod_manager
from onenode.kubelet.pods.pod_seams import PodSettings
from onenode.kubelet.volumes.volume_manager import VolumeManager
from onenode.kubelet.volumes.volume_seams import KubeletDisk, OwnNode
from onenode.kubelet.volumes.volume_values import ApiObject
from orlop.csi.client import CsiClient
from orlop.foundation.clock import Clock
from orlop.foundation.http_edge import ListenAddress
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.kernel.confined_paths import opened_root
from orlop.host.threads import Threads, end_in_time, end_of, threads_of
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.client import Selection
from orlop.kube.kinds import CSI_DRIVER, NODE
from orlop.kube.objects import ObjectName

DRIVER_SECONDS: Final = 5.0
"""How long pods wait for the driver that is expected: their volumes would only fail without it."""
FAREWELL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """`hidden` are absolute paths that no container sees; `expected_driver` may be none.

    `api` is where pods reach the API server; without it they do not get the address.
    """

    node: NodeSettings
    hidden: tuple[str, ...] = ()
    expected_driver: str = ""
    api: ListenAddress | None = None


@dataclass(frozen=True, slots=True)
class KubeletMachine:
    """The machine, as its kubelet reads and changes it."""

    facts: Callable[[], Awaitable[MachineFacts]]
    """Read the facts of the machine."""
    plugins: PluginPlaces
    volumes: VolumeHost
    plain_volumes: PlainVolumeHost
    containers: ContainerRuntime
    for_volumes: Threads
    """The threads for calls that block on a volume, which may hang."""
    for_containers: Threads
    """The threads for starts of containers, logs and measurements: a volume that hangs does not delay these."""


@dataclass(frozen=True, slots=True)
class RunningKubelet:
    node: RunningNode
    volumes: VolumeManager
    pods: PodManager


@asynccontextmanager
async def running_kubelet(
    settings: KubeletSettings, machine: KubeletMachine, informers: Informers, api: NodeApi, runtime: Runtime
) -> AsyncIterator[RunningKubelet]:
    """Runs while it is entered; the recorder of events in `api` is run by its owner."""
    csi_drivers = Watched(CSI_DRIVER, transform=without_managed_fields)
    own_node = Watched(NODE, Selection(fields=f"metadata.name={api.node_name}"), without_managed_fields)
    wiring = _Wiring(settings, machine, informers, api, runtime)
    async with (
        informers.using(csi_drivers) as known,
        informers.using(own_node) as seen_nodes,
        running_node(settings.node, machine.facts, machine.plugins, informers, api, runtime) as node,
        wiring.volumes(node, _Caches(known, seen_nodes)) as volumes,
        wiring.pods(node, volumes) as pods,
    ):
        yield RunningKubelet(node, volumes.manager, pods)


@dataclass(frozen=True, slots=True)
class _Caches:
    """`nodes` has this one alone."""

    csi_drivers: Informer
    nodes: Informer


@dataclass(frozen=True, slots=True)
class _Wiring:
    """What all parts are built from."""

    settings: KubeletSettings
    machine: KubeletMachine
    informers: Informers
    api: NodeApi
    runtime: Runtime

    @asynccontextmanager
    async def volumes(self, node: RunningNode, caches: _Caches) -> AsyncIterator[ManagedVolumes]:
        """Run the volumes of drivers and those of Kubernetes' own kinds."""
        disk, facts = KubeletDisk(self.machine.volumes, self.machine.for_volumes), await self.machine.facts()
        host, node_has = self.machine.plain_volumes, allocatable(facts)
        async with (
            self._driver_volumes(node, caches, disk) as manager,
            plain_volumes(self.api, disk, host, node_has, self.runtime) as plain,
        ):
            yield ManagedVolumes(manager, plain, self.runtime)

    @asynccontextmanager
    async def _driver_volumes(
        self, node: RunningNode, caches: _Caches, disk: KubeletDisk
    ) -> AsyncIterator[VolumeManager]:
        name = ObjectName(None, self.api.node_name)
        own_node = OwnNode(node.registration.report_soon, lambda: caches.nodes.get(name))
        drivers = _PluginsDrivers(node.plugins, caches.csi_drivers)
        manager = VolumeManager(self.api, own_node, drivers, disk, self.runtime)
        node.registration.add_part(lambda: Contribution(volumes_in_use=manager.volumes_in_use()))
        async with TaskGroup() as tasks:
            running = [
                tasks.start(manager.run(), name="volumes"),
                tasks.start(_report_drivers(node.drivers, manager.driver_came), name="volumes: drivers that come"),
            ]
            try:
                await caches.csi_drivers.wait_synced()
                await manager.wait_reconstructed()
                yield manager
            finally:
                for task in running:
                    task.cancel()

    @asynccontextmanager
    async def pods(self, node: RunningNode, volumes: ManagedVolumes) -> AsyncIterator[PodManager]:
        containers, pod_settings = self.machine.containers, await self._pod_settings()
        async with TaskGroup() as tasks:
            syncing = tasks.start(volumes.run(), name="volumes: syncs of pods")
            try:
                await self._wait_for_driver(node)
                async with pod_manager(
                    self.informers, self.api, containers, volumes, pod_settings, self.runtime
                ) as pods:
                    yield pods
                await self._end_containers()
            finally:
                syncing.cancel()

    async def _pod_settings(self) -> PodSettings:
        facts, api = await self.machine.facts(), self.settings.api
        services = api_services(api) if api is not None else {}
        return PodSettings(self.api.node_name, facts.address, self.settings.hidden, services, allocatable(facts))

    async def _wait_for_driver(self, node: RunningNode) -> None:
        if not self.settings.expected_driver:
            return
        with suppress(TimeoutError):
            async with self.runtime.clock.timeout(DRIVER_SECONDS):
                await node.drivers.wait_for(self.settings.expected_driver)

    async def _end_containers(self) -> None:
        """What does not end in time is killed with the machine's containers."""
        with suppress(TimeoutError):
            async with self.runtime.clock.timeout(FAREWELL_SECONDS):
                await self.machine.containers.end_all()


async def _report_drivers(drivers: RegisteredDrivers, came: Callable[[str], None]) -> None:
    known: dict[str, RegisteredDriver] = {}
    while True:
        now = dict(drivers)
        for name, driver in now.items():
            if known.get(name) is not driver:
                came(name)
        known = now
        await drivers.changed()


class _PluginsDrivers:
    """The registered drivers, for the volume manager. One that is not announced is searched for."""

    def __init__(self, plugins: PluginWatcher, csi_drivers: Informer) -> None:
        self._plugins = plugins
        self._csi_drivers = csi_drivers

    def driver(self, name: str) -> CsiClient | None:
        found = self._plugins.find(name)
        return None if found is None else found.client

    def csi_driver(self, name: str) -> ApiObject | None:
        return self._csi_drivers.get(ObjectName(None, name))


THREADS: Final = 16
"""The threads of each pool. Some may hang, and the other work must go on."""


@asynccontextmanager
async def linux_machine(folder: Path, connect: Connect, clock: Clock) -> AsyncIterator[KubeletMachine]:
    """`folder` is kubelet's, a shared mount, with its parts made."""
    volume_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="volumes")
    container_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="containers")
    for_volumes, for_containers = threads_of(volume_pool), threads_of(container_pool)

    async def facts() -> MachineFacts:
        return await for_volumes(lambda: read_machine(root))

    with ExitStack() as opened:
        root = opened.enter_context(opened_root(str(folder)))
        volumes = opened.enter_context(LinuxVolumeHost(str(folder)))
        plain = opened.enter_context(LinuxPlainVolumeHost(str(folder)))
        registry = opened.enter_context(watched_folder(folder / PLUGINS_REGISTRY))
        plugins = PluginPlaces(registry, str(folder / PLUGINS), connect)
        try:
            async with linux_container_runtime(root, for_containers) as containers:
                yield KubeletMachine(facts, plugins, volumes, plain, containers, for_volumes, for_containers)
        finally:
            if not await end_in_time(clock, end_of(volume_pool), end_of(container_pool)):
                # A hanging thread may still use the descriptors: closed, their numbers would soon be other files.
                opened.pop_all()
