"""The node's side of a kubelet, put together: its Node and Lease, its CSINode, and the drivers that register with it.

What waits for what is decided here: the node is ready when its CSINode is there, and hears so at once; what the drivers
say is written again on a Node that was made anew. The volumes and pods of the node are others' parts: they add theirs
to the status (`registration.add_part`) and find their drivers here (`plugins.find`, `plugins.wait_for`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from orlop.embedded.kubelet.allocatable_refresh import AllocatableRefresh
from orlop.embedded.kubelet.csi_node_objects import CsiNodeObjects
from orlop.embedded.kubelet.node_lease import NodeLease
from orlop.embedded.kubelet.node_registration import NodeRegistration
from orlop.embedded.kubelet.node_status_rules import Contribution, Machine, NodeSettings
from orlop.embedded.kubelet.plugin_registration import Connect, PluginRegistration
from orlop.embedded.kubelet.plugin_watcher import PluginWatcher
from orlop.embedded.kubelet.registered_drivers import RegisteredDrivers
from orlop.embedded.kubelet.registration_folder import RegistrationFolder
from orlop.embedded.kubelet.tools import Tools
from orlop.foundation.task_group import TaskGroup
from orlop.kube.informer import Watched, without_managed_fields
from orlop.kube.informers import Informers
from orlop.kube.kinds import CSI_DRIVER


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine, kubelet's folders on it, and the way to a plugin's socket."""

    machine: Callable[[], Awaitable[Machine]]
    registry: RegistrationFolder
    plugins_folder: str
    connect: Connect


@dataclass(frozen=True, slots=True)
class NodeSide:
    registration: NodeRegistration
    plugins: PluginWatcher
    limits: AllocatableRefresh

    @property
    def drivers(self) -> RegisteredDrivers:
        return self.plugins.drivers


@asynccontextmanager
async def node_side(
    settings: NodeSettings, surroundings: Surroundings, informers: Informers, tools: Tools
) -> AsyncIterator[NodeSide]:
    """Runs while it is entered; the events in `tools` are kept running by whoever made them."""
    async with informers.using(Watched(CSI_DRIVER, transform=without_managed_fields)) as csi_drivers:
        registration = NodeRegistration(settings, surroundings.machine, tools)
        objects, drivers = CsiNodeObjects(tools), RegisteredDrivers()
        registrations = PluginRegistration(surroundings.connect, objects, drivers, tools)
        plugins = PluginWatcher(surroundings.registry, surroundings.plugins_folder, registrations, drivers, tools)
        side = NodeSide(registration, plugins, AllocatableRefresh(csi_drivers, drivers, objects, tools))
        registration.add_part(lambda: _csi_node_part(objects))
        registration.when_made(lambda _node: plugins.node_was_made())
        async with _running(side, objects, NodeLease(registration.node, tools)):
            yield side


@asynccontextmanager
async def _running(side: NodeSide, objects: CsiNodeObjects, lease: NodeLease) -> AsyncIterator[None]:
    async def begin() -> None:
        """Drivers are looked for when there is a Node to write on: none fails, and waits, for the lack of it."""
        await side.registration.node()
        await objects.begin()
        side.registration.report_soon()
        await side.plugins.run()

    async with TaskGroup() as tasks:
        started = [
            tasks.start(side.registration.run(), name="the Node"),
            tasks.start(lease.run(), name="the node's lease"),
            tasks.start(begin(), name="the node's plugins"),
            tasks.start(side.limits.run(), name="the limits of drivers"),
        ]
        try:
            yield
        finally:
            for task in started:
                task.cancel()


def _csi_node_part(objects: CsiNodeObjects) -> Contribution:
    problem = objects.not_ready()
    return Contribution(not_ready=(problem,) if problem else ())
