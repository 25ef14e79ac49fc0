"""A whole kubelet, put together from its parts: the node's side, the volumes of its pods, the pods themselves.

Order, up: the CSIDrivers are known, so that no volume is judged without its driver's → what an earlier life has mounted
is in the books → the Node, its Lease and its plugins → the driver that is expected, for a while → pods. Only when all
pods of the node are known does anything that nobody wants go. Down: pods' workers end → what runs is asked to end, and
given a moment → everything else. Mounts stay, as when a kubelet is stopped: the next life finds them.

The machine is handed in; whoever answers for the pods from outside (logs, commands inside) finds all parts here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from orlop.csi.client import CsiClient
from orlop.embedded.kubelet.managed_volumes import ManagedVolumes
from orlop.embedded.kubelet.node_side import NodeSide, Surroundings, node_side
from orlop.embedded.kubelet.node_status_rules import Contribution, NodeSettings, allocatable
from orlop.embedded.kubelet.plain_volumes.plain_tools import PlainTools
from orlop.embedded.kubelet.plain_volumes.plain_volumes import plain_volumes
from orlop.embedded.kubelet.plugin_watcher import PluginWatcher
from orlop.embedded.kubelet.pods.containers import Containers
from orlop.embedded.kubelet.pods.environment_rules import api_services
from orlop.embedded.kubelet.pods.pod_manager import PodManager, pod_manager
from orlop.embedded.kubelet.pods.tools import PodSettings, PodTools
from orlop.embedded.kubelet.registered_drivers import RegisteredDriver, RegisteredDrivers
from orlop.embedded.kubelet.tools import Tools
from orlop.embedded.kubelet.volumes.volume_manager import VolumeManager
from orlop.embedded.kubelet.volumes.volume_tools import InThread, VolumeTools
from orlop.foundation.http_edge import ListenAddress
from orlop.foundation.task_group import TaskGroup
from orlop.host.plain_volume_host import PlainVolumeHost
from orlop.host.volume_host import VolumeHost
from orlop.kube.client import Selection
from orlop.kube.informer import Informer, Watched, without_managed_fields
from orlop.kube.informers import Informers
from orlop.kube.kinds import CSI_DRIVER, NODE
from orlop.kube.objects import ObjectName

DRIVER_SECONDS: Final = 5.0
"""How long pods wait for the driver that is expected: their volumes would only fail without it."""
FAREWELL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """`hidden` are absolute paths that no container sees; `expected_driver` may be none.

    `api` is where pods reach the API server; without it they are not told.
    """

    node: NodeSettings
    hidden: tuple[str, ...] = ()
    expected_driver: str = ""
    api: ListenAddress | None = None


@dataclass(frozen=True, slots=True)
class KubeletMachine:
    """All that a kubelet has of its machine; `in_thread` runs what blocks."""

    surroundings: Surroundings
    volumes: VolumeHost
    plain_volumes: PlainVolumeHost
    containers: Containers
    in_thread: InThread


@dataclass(frozen=True, slots=True)
class KubeletSide:
    node: NodeSide
    volumes: VolumeManager
    pods: PodManager


@asynccontextmanager
async def kubelet_side(
    settings: KubeletSettings, machine: KubeletMachine, informers: Informers, tools: Tools
) -> AsyncIterator[KubeletSide]:
    """Runs while it is entered; the events in `tools` are kept running by whoever made them."""
    csi_drivers = Watched(CSI_DRIVER, transform=without_managed_fields)
    own_node = Watched(NODE, Selection(fields=f"metadata.name={tools.node_name}"), without_managed_fields)
    async with (
        informers.using(csi_drivers) as known,
        informers.using(own_node) as seen_nodes,
        node_side(settings.node, machine.surroundings, informers, tools) as node,
        _joined_volumes(node, Seen(known, seen_nodes), machine, tools) as volumes,
        _pods(settings, volumes, machine, informers, node, tools) as pods,
    ):
        yield KubeletSide(node, volumes.manager, pods)


@dataclass(frozen=True, slots=True)
class Seen:
    """Caches; `nodes` has this one alone."""

    csi_drivers: Informer
    nodes: Informer


@asynccontextmanager
async def _joined_volumes(
    node: NodeSide, seen: Seen, machine: KubeletMachine, tools: Tools
) -> AsyncIterator[ManagedVolumes]:
    """Those of drivers, and those of Kubernetes' own kinds."""
    volume_tools = VolumeTools(
        node=tools.node_name,
        client=tools.kube,
        csi_driver=lambda name: seen.csi_drivers.get(ObjectName(None, name)),
        drivers=_PluginsDrivers(node.plugins),
        host=machine.volumes,
        in_thread=machine.in_thread,
        events=tools.events,
        clock=tools.clock,
        log=tools.log,
        report_node=node.registration.report_soon,
        seen_node=lambda: seen.nodes.get(ObjectName(None, tools.node_name)),
    )
    plain_tools = PlainTools(volume_tools, machine.plain_volumes, allocatable(await machine.surroundings.machine()))
    async with _volumes(node, seen.csi_drivers, volume_tools) as manager, plain_volumes(plain_tools) as plain:
        yield ManagedVolumes(manager, plain, tools.clock, tools.random)


@asynccontextmanager
async def _volumes(node: NodeSide, csi_drivers: Informer, volume_tools: VolumeTools) -> AsyncIterator[VolumeManager]:
    manager = VolumeManager(volume_tools)
    node.registration.add_part(lambda: Contribution(volumes_in_use=manager.volumes_in_use()))
    async with TaskGroup() as tasks:
        running = [
            tasks.start(manager.run(), name="volumes"),
            tasks.start(_tell_of_drivers(node.drivers, manager.driver_came), name="volumes: drivers that come"),
        ]
        try:
            await csi_drivers.wait_synced()
            await manager.wait_reconstructed()
            yield manager
        finally:
            for task in running:
                task.cancel()


@asynccontextmanager
async def _pods(
    settings: KubeletSettings,
    volumes: ManagedVolumes,
    machine: KubeletMachine,
    informers: Informers,
    node: NodeSide,
    tools: Tools,
) -> AsyncIterator[PodManager]:
    facts = await machine.surroundings.machine()
    services = api_services(settings.api) if settings.api is not None else {}
    pod_tools = PodTools(
        client=tools.kube,
        containers=machine.containers,
        volumes=volumes,
        events=tools.events,
        clock=tools.clock,
        random=tools.random,
        log=tools.log,
        settings=PodSettings(tools.node_name, facts.address, settings.hidden, services, allocatable(facts)),
    )
    async with TaskGroup() as tasks:
        syncing = tasks.start(volumes.run(), name="volumes: syncs of pods")
        try:
            await _wait_for_driver(settings.expected_driver, node, tools)
            async with pod_manager(informers, pod_tools) as pods:
                yield pods
            await _say_farewell(machine.containers, tools)
        finally:
            syncing.cancel()


async def _wait_for_driver(name: str, node: NodeSide, tools: Tools) -> None:
    if not name:
        return
    with suppress(TimeoutError):
        async with tools.clock.timeout(DRIVER_SECONDS):
            await node.drivers.wait_for(name)


async def _say_farewell(containers: Containers, tools: Tools) -> None:
    """What does not end in time is killed with the machine's containers."""
    with suppress(TimeoutError):
        async with tools.clock.timeout(FAREWELL_SECONDS):
            await containers.end_all()


async def _tell_of_drivers(drivers: RegisteredDrivers, came: Callable[[str], None]) -> None:
    known: dict[str, RegisteredDriver] = {}
    while True:
        now = dict(drivers)
        for name, driver in now.items():
            if known.get(name) is not driver:
                came(name)
        known = now
        await drivers.changed()


class _PluginsDrivers:
    """The registered drivers as volumes ask for them; one that is not announced is looked for."""

    def __init__(self, plugins: PluginWatcher) -> None:
        self._plugins = plugins

    def driver(self, name: str) -> CsiClient | None:
        found = self._plugins.find(name)
        return None if found is None else found.client
