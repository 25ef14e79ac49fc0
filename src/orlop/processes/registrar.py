"""`orlop registrar`: stands beside any CSI driver and makes it known to kubelet; its flags are the upstream one's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orlop import __version__
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import HIGHEST_PORT, Endpoint, TcpEndpoint, parse_endpoint, parse_http_address
from orlop.csi.grpc_transport import GrpcConnection
from orlop.csi.server import serving
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import between, boolean, flag, group, integer, one_of, text
from orlop.foundation.task_group import TaskGroup
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, Surroundings, request_ids, run_daemon
from orlop.sidecars.registrar.registrar import Registrar, RegistrationRefused, Sockets
from orlop.sidecars.registrar.tools import Tools

if TYPE_CHECKING:
    from orlop.sidecars.registrar.node_annotation import NodeAnnotation

REGISTERING: Final = "registration"
PROBE: Final = "kubelet-registration-probe"
GRACE_SECONDS: Final = 2.0
"""For kubelet's questions under way; each takes milliseconds."""


def optional_http_address(written: str) -> TcpEndpoint | None:
    """An empty one is upstream's default, and stands in many manifests."""
    return parse_http_address(written) if written else None


def is_some_time(duration: Duration) -> str | None:
    return None if duration.nanoseconds > 0 else "allowed is more than 0s"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrarSettings:
    csi_address: Endpoint = flag(
        parse_endpoint, default="/run/csi/socket", metavar="ADDRESS", help="Where the CSI driver answers."
    )
    kubelet_registration_path: str = flag(
        text, default="", metavar="PATH", help="Required. The path of the driver's socket on the host, for kubelet."
    )
    plugin_registration_path: Path = flag(
        Path, default="/registration", metavar="FOLDER", help="kubelet's registration folder, as it is mounted here."
    )
    timeout: Duration = flag(
        Duration.parse,
        default="1s",
        metavar="DURATION",
        check=is_some_time,
        help="How long the driver may take to say its name; it is asked again until it does.",
    )
    http_endpoint: TcpEndpoint | None = flag(
        optional_http_address,
        metavar="HOST:PORT",
        help="Where to serve /healthz (does the registration socket answer?), /readyz (has kubelet registered the "
        "driver?) and /metrics; not given: nowhere.",
    )
    health_port: int = flag(
        integer,
        default="0",
        metavar="PORT",
        check=between(0, HIGHEST_PORT),
        deprecated="--http-endpoint=:PORT says the same.",
        help="The port of --http-endpoint, on every interface; 0: none.",
    )
    mode: str = flag(
        one_of(REGISTERING, PROBE),
        default=REGISTERING,
        metavar="MODE",
        deprecated="probe /healthz instead.",
        help=f"{REGISTERING}, or {PROBE}, which does nothing and succeeds.",
    )
    enable_pprof: bool = flag(boolean, default="false", help="Accepted for upstream's sake: there is no pprof here.")
    connection_timeout: Duration = flag(
        Duration.parse,
        default="0s",
        metavar="DURATION",
        deprecated="it has no effect; the driver is waited for as long as it takes.",
        help="Has no effect.",
    )
    version: bool = flag(boolean, default="false", help="Print the version and exit.")
    node: NodeSettings = group(NodeSettings)
    log: LogSettings = group(LogSettings)

    @property
    def http_address(self) -> TcpEndpoint | None:
        return TcpEndpoint("0.0.0.0", self.health_port) if self.health_port else self.http_endpoint

    def cross_check(self) -> Iterator[str]:
        if printed_instead(self) is not None:
            return
        if not self.kubelet_registration_path:
            yield "The flag --kubelet-registration-path is required: the path of the driver's socket on the host."
        if self.health_port and self.http_endpoint is not None:
            yield "Only one of --health-port and --http-endpoint can be set."
        if not self.plugin_registration_path.is_dir():
            yield (
                f"--plugin-registration-path cannot be '{self.plugin_registration_path}': there is no such folder; "
                "mount kubelet's plugins_registry there."
            )


def printed_instead(settings: RegistrarSettings) -> str | None:
    if settings.version:
        return f"orlop registrar {__version__}\n"
    return "" if settings.mode == PROBE else None


DAEMON: Final = Daemon(
    "orlop registrar", "Makes a CSI driver known to the kubelet of its node.", RegistrarSettings, printed_instead
)


async def run(settings: RegistrarSettings, given: Surroundings) -> None:
    if settings.enable_pprof:
        given.log.warning("there is no pprof here: --enable-pprof has no effect")
    async with AsyncExitStack() as stack:
        registrar = await _registrar(settings, given, stack)
        if settings.http_address is not None:
            await _serve_http(settings, given, registrar, stack, settings.http_address)
        try:
            async with TaskGroup() as tasks:
                task = tasks.start(registrar.run(), name="registrar")
                await given.stop.wait()
                task.cancel()
        except RegistrationRefused as error:
            raise CannotGoOn(str(error)) from None


async def _registrar(settings: RegistrarSettings, given: Surroundings, stack: AsyncExitStack) -> Registrar:
    connection = GrpcConnection(settings.csi_address)
    stack.push_async_callback(connection.close)
    driver = CsiClient(
        connection,
        log=given.log,
        metrics=given.metrics,
        clock=given.clock,
        random=given.random,
        timeout=settings.timeout.seconds,
    )
    given.log.info("waiting for the driver", address=str(settings.csi_address))
    sockets = Sockets(
        settings.plugin_registration_path,
        settings.kubelet_registration_path,
        partial(serving, grace=GRACE_SECONDS, log=given.log),
        GrpcConnection,
    )
    tools = Tools(given.clock, given.random, given.log, given.metrics, request_ids(given.random))
    node = await _node(settings.node, given, tools, stack) if settings.node.wanted else None
    return Registrar(driver, sockets, tools, node=node)


async def _node(settings: NodeSettings, given: Surroundings, tools: Tools, stack: AsyncExitStack) -> NodeAnnotation:
    from orlop.processes.kube_side import kube_side  # noqa: PLC0415 - only who asks for it pays for it
    from orlop.sidecars.registrar.node_annotation import NodeAnnotation, NodeMarks  # noqa: PLC0415 - as above

    kube = await stack.enter_async_context(kube_side(settings.kubeconfig, given, name="orlop-registrar"))
    return NodeAnnotation(kube, settings.node_name, NodeMarks(settings.annotate_node, settings.label_topology), tools)


async def _serve_http(
    settings: RegistrarSettings, given: Surroundings, registrar: Registrar, stack: AsyncExitStack, address: TcpEndpoint
) -> None:
    from orlop.processes.http_side import http_side  # noqa: PLC0415 - only who asks for it pays for it

    async def healthz() -> tuple[int, str]:
        found = await registrar.health(settings.timeout.seconds)
        return found.status, found.text

    readiness = {"registered": registrar.why_not_registered}
    await stack.enter_async_context(http_side(address, given, readiness, healthz=healthz))


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
