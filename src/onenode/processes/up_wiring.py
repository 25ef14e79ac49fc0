"""What `orlop up` has in its own process: the API server, the controllers beside it, and the kubelet of this machine.

Imported when everything was checked: all of it together costs half a second and 60 MB.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from onenode.apiserver.access.rbac_rules import AUTHENTICATED, MASTERS, User
from onenode.apiserver.edge.in_process_client import InProcessTransport
from onenode.containers.seccomp_filter_rules import filter_program
from onenode.controllers.attach_detach import attach_detach
from onenode.controllers.binder import binder
from onenode.controllers.ephemeral_claims import ephemeral_claims
from onenode.controllers.scheduler import scheduler
from onenode.controllers.workloads.workloads import workloads
from onenode.kubelet.node.kubelet_wiring import KubeletSettings, RunningKubelet, linux_machine, running_kubelet
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.node_status_rules import NodeSettings, is_ready
from onenode.kubelet.server.kubelet_server import KUBELET_SOCKET, serve_kubelet
from onenode.processes.api_wiring import CONTROLLERS, VERSION, ApiSettings, RunningApi, serving_api
from onenode.processes.child_credentials import ApiAddress, ChildAccount, ChildCredentials
from onenode.processes.up_objects import drive_objects, first_objects, static_objects, store_objects
from orlop import __version__
from orlop.admin.up_state import DEFAULT_STATE, UpState
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.foundation.http_edge import ListenAddress
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import SocketUnusable
from orlop.host.host_errors import HostError
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import recording
from orlop.kube.objects import ObjectName
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.processes.daemon import CannotGoOn
from orlop.records.cluster_objects import CONTROLLER_ACCOUNT, NODE_ACCOUNT, SYSTEM_NAMESPACE


@dataclass(frozen=True, slots=True)
class UpOrder:
    """`driver` is the name of the driver that pods may wait for; empty: it is not known."""

    state: UpState
    node_name: str
    listen: ListenAddress
    most_connections: int
    driver: str
    has_static_volumes: bool = False


@dataclass(frozen=True, slots=True)
class RunningCluster:
    api: RunningApi
    kubelet: RunningKubelet
    node_name: str
    driver: str
    stored: asyncio.Event
    """Set when the objects of our driver are stored."""

    async def is_ready(self) -> bool:
        """Whether pods run, with volumes of the expected driver; one of somebody else comes when he starts it."""
        return self.stored.is_set() and all(self.drivers().values()) and await self.is_node_ready()

    async def is_node_ready(self) -> bool:
        return is_ready(await self.kubelet.node.registration.node())

    def drivers(self) -> dict[str, bool]:
        """All that are there, and the expected one also when it is not."""
        found = dict.fromkeys(self.kubelet.node.drivers, True)
        return {**({self.driver: False} if self.driver else {}), **found}

    def pods(self) -> Counter[str]:
        return self.kubelet.pods.phases()


@asynccontextmanager
async def running_cluster(order: UpOrder, runtime: Runtime) -> AsyncIterator[RunningCluster]:
    """Raises `CannotGoOn` with the reason."""
    kubelets = {order.node_name: str(order.state.kubelet / KUBELET_SOCKET)}
    settings = ApiSettings(order.state.api, order.listen, order.most_connections, kubelets.get)

    @asynccontextmanager
    async def controllers(client: KubeClient, informers: Informers, metrics: WorkqueueMetrics) -> AsyncIterator[None]:
        async with (
            recording(client, Reporter("default-scheduler", order.node_name), runtime) as of_scheduler,
            # In Kubernetes too the scheduler alone writes events.k8s.io/v1.
            recording(client, Reporter("attachdetach-controller", "", in_core=True), runtime) as of_attaching,
            recording(client, Reporter("persistentvolume-controller", "", in_core=True), runtime) as of_binding,
            recording(client, Reporter("ephemeral_volume", "", in_core=True), runtime) as of_ephemeral,
            scheduler(client, informers, runtime, of_scheduler, metrics),
            attach_detach(client, informers, runtime, of_attaching, metrics),
            binder(client, informers, runtime, of_binding, metrics),
            ephemeral_claims(client, informers, runtime, of_ephemeral, metrics),
            workloads(client, informers, runtime, metrics),
        ):
            yield

    async with (
        serving_api(settings, runtime, controllers) as api,
        _driver_objects(order, api, runtime) as objects,
        _kubelet(order, api, runtime) as kubelet,
    ):
        yield RunningCluster(api, kubelet, order.node_name, order.driver, objects)


@asynccontextmanager
async def _driver_objects(order: UpOrder, api: RunningApi, runtime: Runtime) -> AsyncIterator[asyncio.Event]:
    """Store the objects of our driver and keep its credentials; what is yielded is set when all are stored."""
    clock, random, log = runtime.clock, runtime.random, runtime.log
    transport = InProcessTransport(api.server, CONTROLLERS)
    client = KubeClient(transport, clock=clock, random=random, log=log, name="orlop-up")
    stored = asyncio.Event()

    async def store() -> None:
        await store_objects([*drive_objects(), *(static_objects() if order.has_static_volumes else [])], client, log)
        stored.set()
        # Nobody has a token of the account before the policy that holds it to its own node.
        async with credentials.kept(accounts):
            await asyncio.Event().wait()

    if not order.driver:
        stored.set()
        yield stored
        return
    await store_objects(first_objects(), client, log)
    accounts = [
        ChildAccount(ObjectName(SYSTEM_NAMESPACE, NODE_ACCOUNT), order.state.node_kubeconfig, is_of_node=True),
        ChildAccount(ObjectName(SYSTEM_NAMESPACE, CONTROLLER_ACCOUNT), order.state.controller_kubeconfig),
    ]
    credentials = ChildCredentials(ApiAddress(api.url, api.ca_certificate), client, order.node_name, runtime)
    async with TaskGroup() as tasks:
        # The kubelet begins meanwhile: compiling the rules of the definitions takes as long as all the rest.
        task = tasks.start(store(), name="objects of the driver")
        try:
            yield stored
        finally:
            task.cancel()


@asynccontextmanager
async def _kubelet(order: UpOrder, api: RunningApi, runtime: Runtime) -> AsyncIterator[RunningKubelet]:
    clock, random, log = runtime.clock, runtime.random, runtime.log
    # The rights are a master's, as Kubernetes' own authorizer for nodes is not here.
    user = User(f"system:node:{order.node_name}", ("system:nodes", MASTERS, AUTHENTICATED))
    client = KubeClient(InProcessTransport(api.server, user), clock=clock, random=random, log=log, name="kubelet")
    if filter_program(machine_name := os.uname().machine) is None:
        log.warning("no seccomp filter for this machine type, pods run without one", machine=machine_name)
    node = NodeSettings(order.node_name, VERSION, f"orlop://{__version__}")
    hidden = tuple(dict.fromkeys(map(str, (order.state.folder, DEFAULT_STATE))))
    settings = KubeletSettings(node, hidden, order.driver, api.address)
    try:
        async with (
            recording(client, Reporter("kubelet", order.node_name, in_core=True), runtime) as events,
            Informers(client, clock=clock, random=random, log=log) as informers,
            linux_machine(order.state.kubelet, GrpcConnection, clock) as machine,
        ):
            node_api = NodeApi(order.node_name, client, events)
            async with (
                running_kubelet(settings, machine, informers, node_api, runtime) as kubelet,
                serve_kubelet(order.state.kubelet, kubelet, order.node_name, machine.for_containers, runtime),
            ):
                yield kubelet
    except (HostError, SocketUnusable) as error:
        raise CannotGoOn(str(error)) from None
