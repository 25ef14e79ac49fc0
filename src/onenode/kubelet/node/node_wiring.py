"""A kubelet's node, put together: its Node and Lease, its CSINode, and the drivers that register with it.

What waits for what is decided here: the node is ready when its CSINode is there, and hears so at once; what the drivers
say is written again on a Node that was made anew. Volumes and pods are built elsewhere: they add theirs
to the status (`registration.add_part`) and find their drivers here (`plugins.find`, `plugins.wait_for`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from onenode.kubelet.node.allocatable_refresh import AllocatableRefresh
from onenode.kubelet.node.csi_node_objects import CsiNodeObjects
from onenode.kubelet.node.kubelet_folders import PluginSockets
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.node_registration import NodeLease, NodeRegistration
from onenode.kubelet.node.node_status_rules import Contribution, Machine, NodeSettings
from onenode.kubelet.node.plugin_registration import Connect, PluginRegistration
from onenode.kubelet.node.plugin_watcher import PluginWatcher
from onenode.kubelet.node.registered_drivers import RegisteredDrivers
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informer import Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.kinds import CSI_DRIVER


@dataclass(frozen=True, slots=True)
class PluginPlaces:
    """Where plugins announce themselves, where their files are, and how to reach one at its socket."""

    registry: PluginSockets
    folder: str
    connect: Connect


@dataclass(frozen=True, slots=True)
class RunningNode:
    registration: NodeRegistration
    plugins: PluginWatcher
    limits: AllocatableRefresh

    @property
    def drivers(self) -> RegisteredDrivers:
        return self.plugins.drivers


@asynccontextmanager
async def running_node(
    settings: NodeSettings,
    machine: Callable[[], Awaitable[Machine]],
    places: PluginPlaces,
    informers: Informers,
    api: NodeApi,
    runtime: Runtime,
) -> AsyncIterator[RunningNode]:
    """Run the node's parts while the context is entered. The owner of `api` runs its event recorder.

    `machine` reads the facts of the machine.
    """
    async with informers.using(Watched(CSI_DRIVER, transform=without_managed_fields)) as csi_drivers:
        registration = NodeRegistration(settings, machine, api, runtime)
        objects, drivers = CsiNodeObjects(api, runtime), RegisteredDrivers()
        registrations = PluginRegistration(places.connect, objects, drivers, runtime)
        plugins = PluginWatcher(places.registry, places.folder, registrations, drivers, api, runtime)
        node = RunningNode(registration, plugins, AllocatableRefresh(csi_drivers, drivers, objects, runtime))
        registration.add_part(lambda: _csi_node_part(objects))
        registration.when_made(lambda _node: plugins.node_was_made())
        async with _running(node, objects, NodeLease(registration.node, api, runtime)):
            yield node


@asynccontextmanager
async def _running(node: RunningNode, objects: CsiNodeObjects, lease: NodeLease) -> AsyncIterator[None]:
    async def begin() -> None:
        """Drivers are looked for when there is a Node to write on: none fails, and waits, for the lack of it."""
        await node.registration.node()
        await objects.begin()
        node.registration.report_soon()
        await node.plugins.run()

    async with TaskGroup() as tasks:
        started = [
            tasks.start(node.registration.run(), name="the Node"),
            tasks.start(lease.run(), name="the node's lease"),
            tasks.start(begin(), name="the node's plugins"),
            tasks.start(node.limits.run(), name="the limits of drivers"),
        ]
        try:
            yield
        finally:
            for task in started:
                task.cancel()


def _csi_node_part(objects: CsiNodeObjects) -> Contribution:
    problem = objects.not_ready()
    return Contribution(not_ready=(problem,) if problem else ())
