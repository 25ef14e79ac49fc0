"""`orlop apiserver`: the one-machine API server (onenode) alone, for one machine, with its state in one folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Final

from orlop.csi.endpoint import TcpEndpoint, parse_http_address
from orlop.foundation.go_flags import flag, group, integer
from orlop.foundation.runtime import Runtime
from orlop.foundation.unix_socket import LONGEST_PATH
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, run_daemon

SOCKET: Final = "api.sock"
LOOPBACK: Final = ("127.0.0.1", "[::1]", "::1", "localhost")
ADDRESS_OF: Final = {"localhost": "127.0.0.1"}


def is_loopback(address: TcpEndpoint) -> str | None:
    return None if address.host in LOOPBACK else "allowed are addresses of this machine alone: 127.0.0.1 and [::1]"


def is_positive(number: int) -> str | None:
    return None if number > 0 else "allowed is 1 or more"


def folder(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ValueError("it is there and is no folder")
    return path.absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerSettings:
    state: Path = flag(
        folder,
        required=True,
        metavar="DIR",
        help="The folder for the database, keys and the kubeconfig; created if missing, readable by its owner only.",
    )
    listen: TcpEndpoint = flag(
        parse_http_address,
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        check=is_loopback,
        help="Loopback address to serve TLS on. Port 0: the port it had before, else any free one.",
    )
    most_connections: int = flag(
        integer,
        name="max-connections",
        default="2000",
        metavar="NUMBER",
        check=is_positive,
        help="Most connections open on each socket; more are closed at once.",
    )
    log: LogSettings = group(LogSettings)

    def cross_check(self) -> Iterator[str]:
        if len(os.fsencode(self.state / SOCKET)) > LONGEST_PATH:
            longest = LONGEST_PATH - len(SOCKET) - 1
            yield f"--state cannot be {str(self.state)!r}: the path may have {longest} bytes, as it holds a socket."


DAEMON: Final = Daemon("orlop apiserver", "Serves the Kubernetes API on this machine.", ApiServerSettings)


async def run(settings: ApiServerSettings, runtime: Runtime, stop: asyncio.Event) -> None:
    if find_spec("cryptography") is None:
        raise CannotGoOn(
            "the certificates of the API server are made with the package cryptography, which is not installed. "
            "Install it with: pip install 'orlop[onenode]'"
        )
    from onenode.processes.api_wiring import ApiSettings, serving_api  # noqa: PLC0415 - after the check for cryptography
    from orlop.foundation.http_edge import ListenAddress  # noqa: PLC0415 - only who serves pays for it

    host = ADDRESS_OF.get(settings.listen.host, settings.listen.host.strip("[]"))
    address = ListenAddress(host, settings.listen.port)
    async with serving_api(ApiSettings(settings.state, address, settings.most_connections), runtime) as running:
        runtime.log.info("listening", url=running.url, socket=running.socket)
        runtime.log.info("use it with", command=f"kubectl --kubeconfig {quote(str(running.kubeconfig))} get ns")
        await stop.wait()


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
