"""`orlop registrar`: registers any CSI driver with kubelet; its flags are those of the upstream registrar.

`orlop node` builds the same registrar for its own driver, with `make_registrar`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orlop import __version__
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import HIGHEST_PORT, Endpoint, TcpEndpoint, parse_endpoint, parse_optional_http_address
from orlop.csi.server import serving
from orlop.csi.transport import ClientTransport
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import between, boolean, flag, group, integer, one_of, text
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, is_folder, is_some_time, request_ids, run_daemon
from orlop.processes.klog_flags import KlogSettings
from orlop.sidecars.registrar.driver_registration import Registrar, RegistrationRefused
from orlop.sidecars.registrar.registration_socket import RegistrationFolder

if TYPE_CHECKING:
    from orlop.sidecars.registrar.node_metadata_writer import NodeMetadataWriter

REGISTRATION: Final = "registration"
PROBE: Final = "kubelet-registration-probe"
GRACE_SECONDS: Final = 2.0
"""How long to wait at the end for kubelet's running calls; each takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetadataSettings:
    """What to write to the Node object; current kubelets write it themselves."""

    annotate_node: bool = flag(
        boolean,
        default="false",
        help="Write the driver's node id to the Node's annotation csi.volume.kubernetes.io/nodeid.",
    )
    label_topology: bool = flag(
        boolean,
        default="false",
        help="Write the driver's topology to the Node as labels; an existing label is never changed.",
    )
    node_name: str = flag(text, default="", metavar="NAME", help="The name of the Node to write to.")
    kubeconfig: str = flag(
        text,
        default="",
        metavar="FILE",
        help="How to reach the API server. Default: as kubectl does, otherwise the pod's service account.",
    )

    @property
    def requested(self) -> bool:
        return self.annotate_node or self.label_topology

    def cross_check(self) -> Iterator[str]:
        if self.requested and not self.node_name:
            yield "--annotate-node and --label-topology require --node-name: the name of the Node to write to."


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrarSettings:
    csi_address: Endpoint = flag(
        parse_endpoint, default="/run/csi/socket", metavar="ADDRESS", help="The CSI driver's socket."
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
        help="Timeout of one GetPluginInfo call; it is retried until the driver responds.",
    )
    http_endpoint: TcpEndpoint | None = flag(
        parse_optional_http_address,
        metavar="HOST:PORT",
        help="Serve /healthz (does the registration socket respond?), /readyz (has kubelet registered the driver?) and "
        "/metrics here. Default: not served.",
    )
    health_port: int = flag(
        integer,
        default="0",
        metavar="PORT",
        check=between(0, HIGHEST_PORT),
        deprecated="use --http-endpoint=:PORT.",
        help="The port of --http-endpoint, on every interface; 0: none.",
    )
    mode: str = flag(
        one_of(REGISTRATION, PROBE),
        default=REGISTRATION,
        metavar="MODE",
        deprecated="probe /healthz instead.",
        help=f"{REGISTRATION}, or {PROBE}, which does nothing and succeeds.",
    )
    enable_pprof: bool = flag(boolean, default="false", help="Accepted for compatibility with upstream; has no effect.")
    connection_timeout: Duration = flag(
        Duration.parse,
        default="0s",
        metavar="DURATION",
        deprecated="it has no effect; the registrar waits for the driver without a limit.",
        help="Has no effect.",
    )
    version: bool = flag(boolean, default="false", help="Print the version and exit.")
    node: NodeMetadataSettings = group(NodeMetadataSettings)
    log: LogSettings = group(LogSettings)
    klog: KlogSettings = group(KlogSettings)

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
        if not is_folder(self.plugin_registration_path):
            yield (
                f"--plugin-registration-path cannot be '{self.plugin_registration_path}': there is no such folder; "
                "mount kubelet's plugins_registry there."
            )


def printed_instead(settings: RegistrarSettings) -> str | None:
    """Return what to print instead of registering a driver; None to register it."""
    if settings.version:
        return f"orlop registrar {__version__}\n"
    return "" if settings.mode == PROBE else None


DAEMON: Final = Daemon(
    "orlop registrar", "Registers a CSI driver with the kubelet of its node.", RegistrarSettings, printed_instead
)


async def run(settings: RegistrarSettings, runtime: Runtime, stop: asyncio.Event) -> None:
    if settings.enable_pprof:
        runtime.log.warning("--enable-pprof has no effect: pprof is a Go tool")
    async with AsyncExitStack() as stack:
        runtime.log.info("waiting for the driver", address=str(settings.csi_address))
        registrar = await make_registrar(
            _connect(settings.csi_address),
            registration_folder(settings.plugin_registration_path, settings.kubelet_registration_path, runtime),
            runtime,
            stack,
            call_seconds=settings.timeout.seconds,
            node=settings.node,
        )
        if settings.http_address is not None:
            await _serve_http(settings, runtime, registrar, stack, settings.http_address)
        await register_until_stopped(registrar.run(), stop)


async def _serve_http(
    settings: RegistrarSettings, runtime: Runtime, registrar: Registrar, stack: AsyncExitStack, address: TcpEndpoint
) -> None:
    from orlop.processes.http_wiring import serving_http  # noqa: PLC0415 - saves memory where no HTTP is served

    async def healthz() -> tuple[int, str]:
        health = await registrar.health(settings.timeout.seconds)
        return health.status, health.text

    readiness = {"registered": registrar.why_not_registered}
    await stack.enter_async_context(serving_http(address, runtime, readiness, healthz=healthz))


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)


# ---- also for `orlop node` -------------------------------------------------------------------------------------------


def registration_folder(folder: Path, driver_endpoint: str, runtime: Runtime) -> RegistrationFolder:
    """Return kubelet's registration folder; `driver_endpoint` is the driver's socket as kubelet sees it."""
    serve = partial(serving, grace=GRACE_SECONDS, log=runtime.log)
    return RegistrationFolder(folder=folder, driver_endpoint=driver_endpoint, serve=serve, connect=_connect)


async def make_registrar(
    connection: ClientTransport,
    folder: RegistrationFolder,
    runtime: Runtime,
    stack: AsyncExitStack,
    *,
    call_seconds: float,
    node: NodeMetadataSettings,
) -> Registrar:
    """Build a registrar for the driver at the other end of `connection`, which is closed with the stack."""
    stack.push_async_callback(connection.close)
    driver = CsiClient(
        connection,
        log=runtime.log,
        metrics=runtime.metrics,
        clock=runtime.clock,
        random=runtime.random,
        timeout=call_seconds,
    )
    writer = await _node_writer(node, runtime, stack) if node.requested else None
    return Registrar(driver, folder, runtime, new_id=request_ids(runtime.random), node_writer=writer)


def _connect(endpoint: Endpoint) -> ClientTransport:
    from orlop.csi.grpc.grpc_transport import GrpcConnection  # noqa: PLC0415 - `orlop node` calls its driver in process

    return GrpcConnection(endpoint)


async def _node_writer(settings: NodeMetadataSettings, runtime: Runtime, stack: AsyncExitStack) -> NodeMetadataWriter:
    from orlop.processes.kube_wiring import client_of_cluster  # noqa: PLC0415 - saves memory where nothing is written to the Node
    from orlop.sidecars.registrar.node_metadata_writer import NodeMetadataWriter  # noqa: PLC0415 - as above

    kube = await stack.enter_async_context(client_of_cluster(settings.kubeconfig, runtime, name="orlop-registrar"))
    return NodeMetadataWriter(
        kube, settings.node_name, runtime, annotate=settings.annotate_node, label=settings.label_topology
    )


async def register_until_stopped(registration: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run a registrar's `run` or `keep_running` until `stop` is set; raise `CannotGoOn` if a refusal ends it."""
    try:
        async with TaskGroup() as tasks:
            task = tasks.start(registration, name="registrar")
            await stop.wait()
            task.cancel()
    except RegistrationRefused as error:
        raise CannotGoOn(str(error)) from None
