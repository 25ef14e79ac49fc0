"""`orlop registrar`: stands beside any CSI driver and makes it known to kubelet; its flags are the upstream one's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orlop import __version__
from orlop.csi.endpoint import HIGHEST_PORT, Endpoint, TcpEndpoint, parse_endpoint, parse_optional_http_address
from orlop.csi.grpc_transport import GrpcConnection
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import between, boolean, flag, group, integer, one_of, text
from orlop.processes.daemon import Daemon, LogSettings, Surroundings, is_folder, is_some_time, run_daemon
from orlop.processes.klog_flags import KlogSettings
from orlop.processes.registrar_side import NodeSettings, RegistrarOrder, make_registrar, register_until_stopped
from orlop.sidecars.registrar.registrar import Registrar

REGISTERING: Final = "registration"
PROBE: Final = "kubelet-registration-probe"


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
        parse_optional_http_address,
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
        await register_until_stopped(registrar, given)


async def _registrar(settings: RegistrarSettings, given: Surroundings, stack: AsyncExitStack) -> Registrar:
    given.log.info("waiting for the driver", address=str(settings.csi_address))
    order = RegistrarOrder(
        settings.plugin_registration_path, settings.kubelet_registration_path, settings.timeout, settings.node
    )
    return await make_registrar(order, GrpcConnection(settings.csi_address), given, stack)


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
