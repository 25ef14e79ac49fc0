"""`orlop up`: a whole Kubernetes side of CSI on this machine, and our driver; two processes, one folder of state.

Order: the folder is made and locked → it is bound on itself and made shared, since `/` may be private → `orlop node`,
our child, begins → the API server, the controllers and the kubelet → what runs beside a driver that is not ours → when
the node is ready and the driver registered, what to try is printed. Down: pods' processes end → what runs beside the
driver → the kubelet, the API server → the child → the folder is unbound if nothing is mounted below it any more → the
lock. Pods' volumes stay mounted, as when a kubelet is stopped.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orlop.admin.up_state import DEFAULT_STATE, UpState
from orlop.csi.endpoint import TcpEndpoint, UnixEndpoint, parse_http_address, parse_unix_endpoint
from orlop.embedded.kubelet.kubelet_folders import PLUGINS_REGISTRY
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.structured_log import Level, level_named
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import LONGEST_PATH
from orlop.processes.apiserver import ADDRESS_OF, is_loopback
from orlop.processes.daemon import EXIT_USAGE, CannotGoOn, Daemon, LogSettings, Surroundings, run_daemon
from orlop.processes.node_child import kept_running
from orlop.processes.sidecar_choice import Sidecars, parse_sidecars
from orlop.processes.up_console import Console, greeting, state_line
from orlop.processes.up_folder import held_folder, node_name

if TYPE_CHECKING:
    from orlop.processes.up_side import UpSide

DRIVER: Final = "csi.orlop.dev"
MOST_CONNECTIONS: Final = 2000
ORLOP: Final = (sys.executable, "-P", "-m", "orlop")
LONGEST_SOCKET: Final = f"kubelet/plugins_registry/{DRIVER}-reg.sock"
READY_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.02
STATE_SECONDS: Final = 1.0
NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
HELP_WORDS: Final = frozenset({"-h", "-help", "--help"})
NOT_ROOT: Final = (
    "orlop up: pods and their volumes are processes and mounts, which only root can make: run it as root.\n"
)


def folder(value: str) -> Path:
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise ValueError("it is there and is no folder")
    return path.absolute()


def is_node_name(name: str) -> str | None:
    if not name or NODE_NAME.fullmatch(name):
        return None
    return "allowed are up to 63 small letters, digits, '-' and '.', with a letter or digit at both ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpLogSettings(LogSettings):
    """Whoever looks at a terminal wants to know what goes wrong."""

    log_level: Level = flag(
        level_named, default="warning", metavar="LEVEL", help="The least that is logged: debug, info, warning or error."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    state: Path = flag(
        folder,
        default=str(DEFAULT_STATE),
        metavar="DIR",
        help="The folder that holds everything; made where there is none.",
    )
    node_name: str = flag(
        text,
        default="",
        metavar="NAME",
        check=is_node_name,
        help="What the node is called; not given: as before, or like this machine.",
    )
    driver: UnixEndpoint | None = flag(
        parse_unix_endpoint,
        metavar="ADDRESS",
        help="The unix socket of a driver of your own, which is used in place of ours.",
    )
    sidecars: Sidecars = flag(
        parse_sidecars,
        default="auto",
        metavar="auto|attacher|none",
        help="What runs beside a driver of your own; auto: our attacher when it has volumes that may need it; "
        "attacher: our attacher in any case; none: nothing, as it brings its own.",
    )
    listen: TcpEndpoint = flag(
        parse_http_address,
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        check=is_loopback,
        help="Where the API server serves TLS, on this machine alone; port 0: as before, or whichever is free.",
    )
    log: LogSettings = group(UpLogSettings)

    def cross_check(self) -> Iterator[str]:
        longest = LONGEST_PATH - len(LONGEST_SOCKET) - 1
        if len(os.fsencode(os.path.realpath(self.state))) > longest:
            yield f"--state cannot be {str(self.state)!r}: the path may have {longest} bytes, as it holds sockets."
        if self.sidecars is Sidecars.ATTACHER and self.driver is None:
            yield "--sidecars=attacher is for a driver of your own: name its socket with --driver."


DAEMON: Final = Daemon(
    "orlop up", "Runs an API server, a kubelet and our CSI driver on this machine, as root.", UpSettings
)


async def run(settings: UpSettings, given: Surroundings, console: Console) -> None:
    if find_spec("cryptography") is None:
        raise CannotGoOn(
            "the certificates of the API server are made with the package cryptography, which is not installed. "
            "Install it with: pip install 'orlop[certificates]'"
        )
    with held_folder(settings.state, given, str(settings.driver or "")) as state:
        async with AsyncExitStack() as stack:
            await _begin(settings, state, given, console, stack)
            await given.stop.wait()
            console.end()
            console.say("Stopping: pods' processes end, and what they have written stays.")


async def _begin(
    settings: UpSettings, state: UpState, given: Surroundings, console: Console, stack: AsyncExitStack
) -> None:
    name = node_name(settings.node_name, state)
    child = child_words(settings, state, name)
    await stack.enter_async_context(kept_running(f"orlop {child[0]}", [*ORLOP, *child], console.say, given))
    await given.clock.sleep(0)  # it begins while the rest is imported here

    from orlop.foundation.http_edge import ListenAddress  # noqa: PLC0415 - as above
    from orlop.processes.up_side import UpOrder, up_side  # noqa: PLC0415 - as above
    from orlop.processes.up_sidecars import DriverBeside, sidecars_beside  # noqa: PLC0415 - as above

    host = ADDRESS_OF.get(settings.listen.host, settings.listen.host.strip("[]"))
    order = UpOrder(
        state, name, ListenAddress(host, settings.listen.port), MOST_CONNECTIONS, "" if settings.driver else DRIVER
    )
    side = await stack.enter_async_context(up_side(order, given))
    if settings.driver is not None:
        beside = DriverBeside(settings.driver.path, settings.sidecars, attacher_words(settings, settings.driver, state))
        drivers = side.kubelet.node.drivers
        await stack.enter_async_context(sidecars_beside(beside, drivers, side.api, console.say, given))
    await _until_ready(side, given)
    if not given.stop.is_set():
        console.say(greeting(settings.state, name, tuple(side.drivers()), is_ours=settings.driver is None))
        await stack.enter_async_context(_state_shown(side, given, console, str(settings.driver or "")))


def child_words(settings: UpSettings, state: UpState, name: str) -> list[str]:
    """Our driver, as it runs on a node of a cluster; for another one what stands beside it there."""
    if settings.driver is not None:
        role, flags = "registrar", _registrar_flags(settings.driver.path, state)
    else:
        role, flags = "node", _node_flags(state, name)
    return _words(role, flags, settings)


def attacher_words(settings: UpSettings, driver: UnixEndpoint, state: UpState) -> list[str]:
    flags = {"csi-address": f"unix://{driver.path}", "kubeconfig": state.kubeconfig}
    return [*ORLOP, *_words("attacher", flags, settings)]


def _words(role: str, flags: Mapping[str, object], settings: UpSettings) -> list[str]:
    every = {**flags, "log-level": settings.log.level.name.lower(), "log-format": settings.log.style}
    return [role, *(f"--{key}={value}" for key, value in every.items())]


def _node_flags(state: UpState, name: str) -> dict[str, object]:
    return {
        "nodeid": name,
        "drivername": DRIVER,
        "kubelet-dir": state.kubelet,
        "workdir": state.scratch,
        "adminsocket": state.node_socket,
    }


def _registrar_flags(socket: str, state: UpState) -> dict[str, object]:
    return {
        "csi-address": f"unix://{socket}",
        "kubelet-registration-path": socket,
        "plugin-registration-path": state.kubelet / PLUGINS_REGISTRY,
    }


async def _until_ready(side: UpSide, given: Surroundings) -> None:
    """Or until it takes too long: then the line that shows the state tells what is missing."""
    with suppress(TimeoutError):
        async with given.clock.timeout(READY_SECONDS):
            while not given.stop.is_set() and not await side.is_ready():
                await given.clock.sleep(LOOK_SECONDS)


@asynccontextmanager
async def _state_shown(side: UpSide, given: Surroundings, console: Console, awaited: str) -> AsyncIterator[None]:
    async def show() -> None:
        while True:
            ready = await side.is_node_ready()
            drivers, pods = side.drivers(), side.pods()
            console.show_state(state_line(side.node_name, is_ready=ready, drivers=drivers, pods=pods, awaited=awaited))
            await given.clock.sleep(STATE_SECONDS)

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

    async def on_console(settings: UpSettings, given: Surroundings) -> None:
        await run(settings, given, console)

    return run_daemon(DAEMON, arguments, on_console, log_to=console)
