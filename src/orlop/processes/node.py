"""`orlop node`: all that a node of a cluster needs, in one process: the CSI services, and their registration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orlop.csi.endpoint import Endpoint, UnixEndpoint, parse_endpoint
from orlop.csi.in_process import InProcessConnection
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import flag, group, text
from orlop.processes.csi_side import CsiSettings, csi_side
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, Surroundings, folder_exists, is_folder, run_daemon
from orlop.processes.ephemeral_settings import EphemeralSettings
from orlop.processes.klog_flags import KlogSettings
from orlop.processes.registrar_side import NodeSettings, RegistrarOrder, make_registrar, register_until_stopped
from orlop.sidecars.registrar.registrar import Registrar

PLUGINS: Final = "plugins"
PLUGINS_REGISTRY: Final = "plugins_registry"
SOCKET_FOLDER_MODE: Final = 0o750
ASKING_OURSELVES: Final = Duration.of(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcessSettings:
    given_endpoint: Endpoint | None = flag(
        parse_endpoint,
        name="endpoint",
        metavar="ADDRESS",
        help="Where to answer CSI calls; not given: plugins/<driver>/csi.sock below --kubelet-dir.",
    )
    csi: CsiSettings = group(CsiSettings)
    ephemeral: EphemeralSettings = group(EphemeralSettings)
    given_registration_path: str = flag(
        text,
        name="kubelet-registration-path",
        default="",
        metavar="PATH",
        help="The path of our socket as kubelet sees it; not given: that of --endpoint.",
    )
    given_registry: Path | None = flag(
        Path,
        name="plugin-registration-path",
        metavar="DIR",
        help="kubelet's registration folder; not given: plugins_registry below --kubelet-dir.",
    )
    node: NodeSettings = group(NodeSettings)
    log: LogSettings = group(LogSettings)
    klog: KlogSettings = group(KlogSettings)

    @property
    def endpoint(self) -> Endpoint:
        return self.given_endpoint or UnixEndpoint(f"{self._own_folder}/csi.sock")

    @property
    def _own_folder(self) -> str:
        return f"{self.ephemeral.kubelet_dir.rstrip('/')}/{PLUGINS}/{self.csi.driver_name}"

    @property
    def registration_path(self) -> str:
        if self.given_registration_path or not isinstance(self.endpoint, UnixEndpoint):
            return self.given_registration_path
        return self.endpoint.path

    @property
    def registry(self) -> Path:
        return self.given_registry or Path(self.ephemeral.kubelet_dir) / PLUGINS_REGISTRY

    def cross_check(self) -> Iterator[str]:
        if not self.registration_path:
            yield "With --endpoint=tcp://… the flag --kubelet-registration-path is required: kubelet needs a socket."
        if self.given_endpoint is not None and (objection := folder_exists(self.given_endpoint)):
            yield f"--endpoint cannot be {str(self.given_endpoint)!r}: {objection}."
        if not is_folder(self.registry):
            yield f"--plugin-registration-path cannot be '{self.registry}': there is no such folder."

    def make_own_folder(self) -> None:
        """Below kubelet's `plugins`, where every driver has one."""
        if self.given_endpoint is not None:
            return
        try:
            Path(self._own_folder).mkdir(SOCKET_FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotGoOn(f"the folder {self._own_folder} cannot be made: {error.strerror}") from None


DAEMON: Final = Daemon(
    "orlop node",
    "Serves the CSI services of this node and makes them known to its kubelet; one of these on every node.",
    NodeProcessSettings,
)


async def run(settings: NodeProcessSettings, given: Surroundings) -> None:
    settings.make_own_folder()
    registrars: list[Registrar] = []

    async def registered() -> str | None:
        return await registrars[0].why_not_registered() if registrars else "it has only just started"

    async with AsyncExitStack() as stack:
        side = await stack.enter_async_context(
            csi_side(settings.endpoint, settings.csi, settings.ephemeral, given, {"registered": registered})
        )
        order = RegistrarOrder(settings.registry, settings.registration_path, ASKING_OURSELVES, settings.node)
        registrars.append(await make_registrar(order, InProcessConnection(side.interceptor), given, stack))
        await register_until_stopped(registrars[0], given)


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
