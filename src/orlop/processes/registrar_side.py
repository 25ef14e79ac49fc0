"""A registrar as a part of a process: `orlop registrar`, for any driver, and `orlop node`, for its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.server import serving
from orlop.csi.transport import ClientTransport
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import boolean, flag, text
from orlop.foundation.task_group import TaskGroup
from orlop.processes.daemon import CannotGoOn, Surroundings, request_ids
from orlop.sidecars.registrar.registrar import Registrar, RegistrationRefused, Sockets
from orlop.sidecars.registrar.tools import Tools

if TYPE_CHECKING:
    from orlop.sidecars.registrar.node_annotation import NodeAnnotation

GRACE_SECONDS: Final = 2.0
"""For kubelet's questions under way; each takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What is written on the Node object, which kubelet of today does by itself."""

    annotate_node: bool = flag(
        boolean,
        default="false",
        help="Write the driver's node id into the Node's annotation csi.volume.kubernetes.io/nodeid.",
    )
    label_topology: bool = flag(
        boolean, default="false", help="Write the driver's topology as labels of the Node; none is ever changed."
    )
    node_name: str = flag(text, default="", metavar="NAME", help="The Node to write on.")
    kubeconfig: str = flag(
        text,
        default="",
        metavar="FILE",
        help="How to reach the API server; not given: as kubectl finds it, else with the pod's own credentials.",
    )

    @property
    def wanted(self) -> bool:
        return self.annotate_node or self.label_topology

    def cross_check(self) -> Iterator[str]:
        if self.wanted and not self.node_name:
            yield "--annotate-node and --label-topology need --node-name: which Node is to be written on."


@dataclass(frozen=True, slots=True)
class RegistrarOrder:
    """What a registrar needs to know, whichever process it is a part of."""

    plugin_registration_path: Path
    kubelet_registration_path: str
    timeout: Duration
    node: NodeSettings


async def make_registrar(
    order: RegistrarOrder, connection: ClientTransport, given: Surroundings, stack: AsyncExitStack
) -> Registrar:
    """The connection to its driver is closed with the stack."""
    stack.push_async_callback(connection.close)
    driver = CsiClient(
        connection,
        log=given.log,
        metrics=given.metrics,
        clock=given.clock,
        random=given.random,
        timeout=order.timeout.seconds,
    )
    sockets = Sockets(
        order.plugin_registration_path,
        order.kubelet_registration_path,
        partial(serving, grace=GRACE_SECONDS, log=given.log),
        _connect,
    )
    tools = Tools(given.clock, given.random, given.log, given.metrics, request_ids(given.random))
    node = await _node(order.node, given, tools, stack) if order.node.wanted else None
    return Registrar(driver, sockets, tools, node=node)


def _connect(endpoint: UnixEndpoint) -> ClientTransport:
    from orlop.csi.grpc_transport import GrpcConnection  # noqa: PLC0415 - only who asks after its socket pays for it

    return GrpcConnection(endpoint)


async def _node(settings: NodeSettings, given: Surroundings, tools: Tools, stack: AsyncExitStack) -> NodeAnnotation:
    from orlop.processes.kube_side import kube_side  # noqa: PLC0415 - only who asks for it pays for it
    from orlop.sidecars.registrar.node_annotation import NodeAnnotation, NodeMarks  # noqa: PLC0415 - as above

    kube = await stack.enter_async_context(kube_side(settings.kubeconfig, given, name="orlop-registrar"))
    return NodeAnnotation(kube, settings.node_name, NodeMarks(settings.annotate_node, settings.label_topology), tools)


async def register_until_stopped(registrar: Registrar, given: Surroundings) -> None:
    try:
        async with TaskGroup() as tasks:
            task = tasks.start(registrar.run(), name="registrar")
            await given.stop.wait()
            task.cancel()
    except RegistrationRefused as error:
        raise CannotGoOn(str(error)) from None
