"""`orlop node`: the CSI services of a node, their registration with kubelet, and static volumes, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orlop.csi.endpoint import PLUGINS, PLUGINS_REGISTRY, Endpoint, UnixEndpoint, parse_endpoint
from orlop.csi.in_process_transport import InProcessConnection
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.runtime import Runtime
from orlop.host.block.device_events import DeviceEvents
from orlop.processes.csi_wiring import CsiSettings, EphemeralSettings, ServedSettings, serving_csi
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, folder_exists, is_folder, run_daemon
from orlop.processes.drive_settings import DriveSettings
from orlop.processes.klog_flags import KlogSettings
from orlop.processes.registrar import (
    NodeMetadataSettings,
    make_registrar,
    register_until_stopped,
    registration_folder,
)
from orlop.processes.static_settings import StaticSettings
from orlop.sidecars.registrar.driver_registration import Registrar

if TYPE_CHECKING:
    from orlop.driver.persistent.upkeep.node_drives import NodeDrives
    from orlop.processes.node_reporting import ApiUse

NAME: Final = "orlop-node"
SOCKET_FOLDER_MODE: Final = 0o750
TIMEOUT_IN_PROCESS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcessSettings:
    endpoint_flag: Endpoint | None = flag(
        parse_endpoint,
        name="endpoint",
        metavar="ADDRESS",
        help="The address to serve CSI calls on; default: plugins/<driver>/csi.sock below --kubelet-dir.",
    )
    csi: CsiSettings = group(CsiSettings)
    ephemeral: EphemeralSettings = group(EphemeralSettings)
    drives: DriveSettings = group(DriveSettings)
    static: StaticSettings = group(StaticSettings)
    registration_path_flag: str = flag(
        text,
        name="kubelet-registration-path",
        default="",
        metavar="PATH",
        help="The path of our socket as kubelet sees it; default: the path in --endpoint.",
    )
    registry_flag: Path | None = flag(
        Path,
        name="plugin-registration-path",
        metavar="DIR",
        help="Kubelet's registration folder; default: plugins_registry below --kubelet-dir.",
    )
    node: NodeMetadataSettings = group(NodeMetadataSettings)
    log: LogSettings = group(LogSettings)
    klog: KlogSettings = group(KlogSettings)

    @property
    def endpoint(self) -> Endpoint:
        return self.endpoint_flag or UnixEndpoint(f"{self._own_folder}/csi.sock")

    @property
    def _own_folder(self) -> str:
        return f"{self.ephemeral.kubelet_dir.rstrip('/')}/{PLUGINS}/{self.csi.driver_name}"

    @property
    def registration_path(self) -> str:
        if self.registration_path_flag or not isinstance(self.endpoint, UnixEndpoint):
            return self.registration_path_flag
        return self.endpoint.path

    @property
    def registry(self) -> Path:
        return self.registry_flag or Path(self.ephemeral.kubelet_dir) / PLUGINS_REGISTRY

    def cross_check(self) -> Iterator[str]:
        if not self.registration_path:
            yield "With --endpoint=tcp://… the flag --kubelet-registration-path is required: kubelet needs a socket."
        if self.endpoint_flag is not None and (objection := folder_exists(self.endpoint_flag)):
            yield f"--endpoint cannot be {str(self.endpoint_flag)!r}: {objection}."
        if not self.ephemeral.lacks_root and not is_folder(self.registry):
            yield f"--plugin-registration-path cannot be '{self.registry}': there is no such folder."

    def make_own_folder(self) -> None:
        """Create the folder of our socket, unless --endpoint names another."""
        if self.endpoint_flag is not None:
            return
        try:
            Path(self._own_folder).mkdir(SOCKET_FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotGoOn(f"the folder {self._own_folder} cannot be made: {error.strerror}") from None


DAEMON: Final = Daemon(
    "orlop node",
    "Serves the CSI services of this node and registers them with its kubelet; run one on every node.",
    NodeProcessSettings,
)


async def run(settings: NodeProcessSettings, runtime: Runtime, stop: asyncio.Event) -> None:
    # Check this first: without root the next steps fail too, and their error would blame a folder.
    settings.ephemeral.refuse_without_root()
    settings.drives.refuse_without_root()
    settings.static.refuse_without_root()
    settings.make_own_folder()
    served = ServedSettings(settings.csi, settings.ephemeral, settings.drives)
    registrar: Registrar | None = None

    async def registered() -> str | None:
        return await registrar.why_not_registered() if registrar is not None else "the registrar is starting"

    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(
            serving_csi(settings.endpoint, served, runtime, {"registered": registered})
        )
        registrar = await make_registrar(
            InProcessConnection(services.interceptor),
            registration_folder(settings.registry, settings.registration_path, runtime),
            runtime,
            stack,
            call_seconds=TIMEOUT_IN_PROCESS,
            node=settings.node,
        )
        drives = services.persistent.drives if services.persistent is not None else None
        if drives is not None:
            await stack.enter_async_context(_noticing_devices(drives, settings.drives.folder_root))
        if uses := _api_uses(settings, drives, runtime):
            from orlop.processes.node_reporting import using_api  # noqa: PLC0415 - saves memory if nothing is reported

            api = using_api(uses, NAME, settings.csi.node_id, settings.node.kubeconfig, runtime)
            await stack.enter_async_context(api)
        await register_until_stopped(registrar.keep_running(), stop)


def _api_uses(settings: NodeProcessSettings, drives: NodeDrives | None, runtime: Runtime) -> list[ApiUse]:
    """Return what this node does with the API server. Each imports much, so that a node without it saves memory."""
    uses: list[ApiUse] = []
    if drives is not None:
        from orlop.driver.persistent.reports.reporting import reporting  # noqa: PLC0415 - as the docstring has it

        uses.append(lambda api: reporting(drives, api.client, api.informers, api.events, runtime, api.queue_metrics))
    if settings.static.static_config:
        from orlop.processes.static_wiring import static_work  # noqa: PLC0415 - as above

        uses.append(static_work(settings.static, settings.csi.node_id, runtime))
    return uses


@asynccontextmanager
async def _noticing_devices(drives: NodeDrives, folder_root: str) -> AsyncIterator[None]:
    """Survey the node at once whenever a device or a folder comes or goes."""
    events = DeviceEvents(("/dev", folder_root))
    try:
        with events.waking(asyncio.get_running_loop(), drives.watch.wake):
            yield
    finally:
        events.close()


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
