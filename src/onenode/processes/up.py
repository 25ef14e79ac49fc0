"""`orlop up`: a whole Kubernetes cluster of CSI on this machine, and our driver; three processes, one folder of state.

Order: the folder is made and locked → it is bound on itself and made shared, since `/` may be private → `orlop node`,
our child, begins → the API server, the controllers and the kubelet → `orlop controller`, our other child, or what runs
beside a driver that is not ours → when the node is ready and the driver registered, what to try is printed. Down: pods'
processes end → `orlop controller`, or what runs beside the driver → the kubelet, the API server → the first child → the
folder is unbound if nothing is mounted below it any more → the lock. Pods' volumes stay mounted, as when a kubelet is
stopped.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onenode.kubelet.node.kubelet_folders import PLUGINS_REGISTRY
from onenode.processes.apiserver import ADDRESS_OF, is_loopback
from onenode.processes.up_children import (
    DriverBeside,
    Sidecars,
    controller_of_drives,
    kept_running,
    parse_sidecars,
    sidecars_beside,
)
from onenode.processes.up_console import Console, greeting, state_line, static_greeting
from onenode.processes.up_folder import held_folder, make_first_drive, node_name
from onenode.processes.up_static import prepare_static_dir
from orlop.admin.up_state import DEFAULT_STATE, UpState
from orlop.csi.endpoint import TcpEndpoint, UnixEndpoint, parse_http_address, parse_unix_endpoint
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.quantity import Quantity
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Level, level_named
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import LONGEST_PATH
from orlop.processes.daemon import EXIT_USAGE, CannotGoOn, Daemon, LogSettings, is_size, run_daemon
from orlop.processes.drive_settings import patterns

if TYPE_CHECKING:
    from onenode.processes.up_wiring import RunningCluster

DRIVER: Final = "csi.orlop.dev"
MOST_CONNECTIONS: Final = 2000
ORLOP: Final = (sys.executable, "-P", "-m", "orlop")
LONGEST_SOCKET: Final = f"kubelet/plugins_registry/{DRIVER}-reg.sock"
READY_SECONDS: Final = 10.0
REGISTERED_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.02
STATE_SECONDS: Final = 1.0
NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
HELP_WORDS: Final = frozenset({"-h", "-help", "--help"})
NOT_ROOT: Final = "orlop up: starting processes and mounting volumes needs root: run it as root.\n"


def folder(value: str) -> Path:
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise ValueError("it is there and is no folder")
    return path.absolute()


def is_node_name(name: str) -> str | None:
    if not name or NODE_NAME.fullmatch(name):
        return None
    return "allowed are up to 63 small letters, digits, '-' and '.', with a letter or digit at both ends"


def is_capacity(quantity: Quantity) -> str | None:
    return None if quantity.value() >= 0 else "allowed is 0 (no drive) or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpLogSettings(LogSettings):
    """Logs warnings by default: a user at a terminal wants to see problems."""

    log_level: Level = flag(
        level_named, default="warning", metavar="LEVEL", help="The least that is logged: debug, info, warning or error."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    state: Path = flag(
        folder,
        default=str(DEFAULT_STATE),
        metavar="DIR",
        help="The folder for all state; created if missing, refused if it holds anything else.",
    )
    node_name: str = flag(
        text,
        default="",
        metavar="NAME",
        check=is_node_name,
        help="Name of the node. Default: the name it had before, else this machine's host name.",
    )
    driver: UnixEndpoint | None = flag(
        parse_unix_endpoint,
        metavar="ADDRESS",
        help="The unix socket of your own driver, used instead of ours.",
    )
    sidecars: Sidecars = flag(
        parse_sidecars,
        default="auto",
        metavar="auto|all|provisioner|attacher|none",
        help="Our sidecars for your own driver. auto: the provisioner from when a StorageClass names the driver, the "
        "attacher from when a volume may need attaching; all: both, always; none: the driver brings its own.",
    )
    listen: TcpEndpoint = flag(
        parse_http_address,
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        check=is_loopback,
        help="Loopback address of the API server (TLS). Port 0: the port it had before, else any free one.",
    )
    drive_capacity: Quantity | None = flag(
        Quantity.parse,
        metavar="QUANTITY",
        check=is_capacity,
        help="Capacity of the drive that is made in the state folder, for persistent volumes. Default: a fifth of what "
        "is free there, at most 20Gi; 0: none.",
    )
    allowed_devices: tuple[str, ...] = flag(
        patterns,
        name="allow-devices",
        default="",
        metavar="PATTERN,...",
        help="The only disks that can become drives; default: all but loop devices. To allow those: 'loop*'.",
    )
    static_dir: Path | None = flag(
        folder,
        metavar="DIR",
        help="A folder of disks for static volumes, created if missing: each disk that is mounted or linked there, and "
        "each folder, becomes a PersistentVolume, and is erased when a claim has released it.",
    )
    static_wipe_rate: Quantity = flag(
        Quantity.parse,
        default="0",
        metavar="QUANTITY",
        check=is_size,
        help="The most bytes per second that are overwritten on released disks, for example 10Mi to watch a wipe; "
        "0: no limit.",
    )
    log: LogSettings = group(UpLogSettings)

    @property
    def capacity(self) -> int | None:
        return self.drive_capacity.value() if self.drive_capacity is not None else None

    def cross_check(self) -> Iterator[str]:
        longest = LONGEST_PATH - len(LONGEST_SOCKET) - 1
        if len(os.fsencode(os.path.realpath(self.state))) > longest:
            yield f"--state cannot be {str(self.state)!r}: the path may have {longest} bytes, as it holds sockets."
        if self.sidecars not in (Sidecars.AUTO, Sidecars.NONE) and self.driver is None:
            yield f"--sidecars={self.sidecars.value} is for a driver of your own: name its socket with --driver."
        if self.static_dir is not None and self.driver is not None:
            yield "--static-dir is served by our own node process, which does not run beside --driver."


DAEMON: Final = Daemon(
    "orlop up", "Run an API server, a kubelet and our CSI driver on this machine, as root.", UpSettings
)


async def run(settings: UpSettings, runtime: Runtime, stop: asyncio.Event, console: Console) -> None:
    if find_spec("cryptography") is None:
        raise CannotGoOn(
            "the certificates of the API server are made with the package cryptography, which is not installed. "
            "Install it with: pip install 'orlop[onenode]'"
        )
    with held_folder(settings.state, runtime, str(settings.driver or "")) as state:
        async with AsyncExitStack() as stack:
            name = node_name(settings.node_name, state)
            if settings.driver is None:
                make_first_drive(state, settings.capacity, name, runtime)
            if settings.static_dir is not None:
                prepare_static_dir(settings.static_dir, state)
            cluster = await _begin(settings, state, name, runtime, console, stack)
            await _until_ready(cluster, runtime, stop)
            if settings.driver is not None and os.access(settings.driver.path, os.F_OK):
                await _until_registered(cluster, runtime, stop)
            if not stop.is_set():
                ours, has_drive = settings.driver is None, settings.capacity != 0
                drivers = tuple(cluster.drivers())
                console.say(greeting(settings.state, name, drivers, is_ours=ours, has_drive=has_drive))
                if settings.static_dir is not None:
                    console.say(static_greeting(settings.state, settings.static_dir))
                shown = _state_shown(cluster, runtime, console, str(settings.driver or ""))
                await stack.enter_async_context(shown)
            await stop.wait()
            console.end()
            console.say("Stopping: pods' processes end, and what they have written stays.")


async def _begin(
    settings: UpSettings, state: UpState, name: str, runtime: Runtime, console: Console, stack: AsyncExitStack
) -> RunningCluster:
    child = child_words(settings, state, name)
    await stack.enter_async_context(kept_running(f"orlop {child[0]}", [*ORLOP, *child], console.say, runtime))
    await runtime.clock.sleep(0)  # it begins while the rest is imported here

    from onenode.processes.up_wiring import UpOrder, running_cluster  # noqa: PLC0415 - it begins meanwhile
    from orlop.foundation.http_edge import ListenAddress  # noqa: PLC0415 - as above

    host = ADDRESS_OF.get(settings.listen.host, settings.listen.host.strip("[]"))
    order = UpOrder(
        state,
        name,
        ListenAddress(host, settings.listen.port),
        MOST_CONNECTIONS,
        "" if settings.driver else DRIVER,
        has_static_volumes=settings.static_dir is not None,
    )
    cluster = await stack.enter_async_context(running_cluster(order, runtime))
    if settings.driver is None:
        from orlop.records.cluster_objects import SYSTEM_NAMESPACE  # noqa: PLC0415 - imported by the cluster anyway

        flags = _controller_flags(state, SYSTEM_NAMESPACE) | _static_flags(settings, state)
        command = [*ORLOP, *_words("controller", flags, settings)]
        control = controller_of_drives(
            command, cluster.stored, state.controller_kubeconfig.exists, console.say, runtime
        )
        await stack.enter_async_context(control)
    else:
        words = {role: sidecar_words(role, settings, settings.driver, state) for role in settings.sidecars.roles}
        beside = DriverBeside(settings.driver.path, settings.sidecars, words)
        drivers = cluster.kubelet.node.drivers
        await stack.enter_async_context(sidecars_beside(beside, drivers, cluster.api, console.say, runtime))
    return cluster


def child_words(settings: UpSettings, state: UpState, name: str) -> list[str]:
    """Our driver, as it runs on a node of a cluster; for another one what stands beside it there."""
    if settings.driver is not None:
        role, flags = "registrar", _registrar_flags(settings.driver.path, state)
    else:
        role, flags = "node", _node_flags(state, name, settings.allowed_devices) | _static_flags(settings, state)
        if settings.static_dir is not None:
            flags["static-wipe-rate"] = settings.static_wipe_rate
    return _words(role, flags, settings)


def sidecar_words(role: str, settings: UpSettings, driver: UnixEndpoint, state: UpState) -> list[str]:
    flags = {"csi-address": f"unix://{driver.path}", "kubeconfig": state.kubeconfig}
    return [*ORLOP, *_words(role, flags, settings)]


def _words(role: str, flags: Mapping[str, object], settings: UpSettings) -> list[str]:
    every = {**flags, "log-level": settings.log.level.name.lower(), "log-format": settings.log.style}
    return [role, *(f"--{key}={value}" for key, value in every.items())]


def _node_flags(state: UpState, name: str, allowed_devices: Sequence[str]) -> dict[str, object]:
    return {
        "nodeid": name,
        "drivername": DRIVER,
        "kubelet-dir": state.kubelet,
        "workdir": state.scratch,
        "drives-dir": state.drives,
        "folder-root": state.folders,
        "allow-devices": ",".join(allowed_devices),
        "kubeconfig": state.node_kubeconfig,
        "adminsocket": state.node_socket,
    }


def _controller_flags(state: UpState, namespace: str) -> dict[str, object]:
    return {
        "csi-address": f"unix://{state.controller_socket}",
        "kubeconfig": state.controller_kubeconfig,
        "drivername": DRIVER,
        "leader-election-namespace": namespace,
    }


def _static_flags(settings: UpSettings, state: UpState) -> dict[str, object]:
    """Return the flags that node and controller have in common."""
    return {"static-config": state.static} if settings.static_dir is not None else {}


def _registrar_flags(socket: str, state: UpState) -> dict[str, object]:
    return {
        "csi-address": f"unix://{socket}",
        "kubelet-registration-path": socket,
        "plugin-registration-path": state.kubelet / PLUGINS_REGISTRY,
    }


async def _until_ready(cluster: RunningCluster, runtime: Runtime, stop: asyncio.Event) -> None:
    """Wait until the cluster is ready, but not too long: the status line shows what is missing then."""
    with suppress(TimeoutError):
        async with runtime.clock.timeout(READY_SECONDS):
            while not stop.is_set() and not await cluster.is_ready():
                await runtime.clock.sleep(LOOK_SECONDS)


async def _until_registered(cluster: RunningCluster, runtime: Runtime, stop: asyncio.Event) -> None:
    """Wait a moment for a driver whose socket is there, so that what is printed has its name."""
    with suppress(TimeoutError):
        async with runtime.clock.timeout(REGISTERED_SECONDS):
            while not stop.is_set() and not cluster.drivers():
                await runtime.clock.sleep(LOOK_SECONDS)


@asynccontextmanager
async def _state_shown(
    cluster: RunningCluster, runtime: Runtime, console: Console, awaited: str
) -> AsyncIterator[None]:
    async def show() -> None:
        while True:
            ready = await cluster.is_node_ready()
            drivers, pods = cluster.drivers(), cluster.pods()
            console.show_state(
                state_line(cluster.node_name, is_ready=ready, drivers=drivers, pods=pods, awaited=awaited)
            )
            await runtime.clock.sleep(STATE_SECONDS)

    async with TaskGroup() as tasks:
        task = tasks.start(show(), name="the line of state")
        try:
            yield
        finally:
            task.cancel()


def main(arguments: Sequence[str]) -> int:
    if os.geteuid() != 0 and not HELP_WORDS & set(arguments):
        sys.stderr.write(NOT_ROOT)
        return EXIT_USAGE
    console = Console(sys.stdout)

    async def on_console(settings: UpSettings, runtime: Runtime, stop: asyncio.Event) -> None:
        await run(settings, runtime, stop, console)

    return run_daemon(DAEMON, arguments, on_console, log_to=console)
