"""Run `orlop driver`: the CSI services of this node on one socket, without registration, for use with any sidecars."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from orlop.admin.node_socket import SUFFIX_BESIDE_ENDPOINT
from orlop.csi.endpoint import Endpoint, UnixEndpoint, parse_endpoint
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.runtime import Runtime
from orlop.processes.csi_wiring import (
    DEFAULT_WORKDIR,
    CsiSettings,
    EphemeralSettings,
    ServedSettings,
    serving_csi,
)
from orlop.processes.daemon import Daemon, LogSettings, folder_exists, run_daemon
from orlop.processes.drive_settings import DriveSettings
from orlop.processes.klog_flags import KlogSettings

DEFAULT_ENDPOINT: Final = "unix:///csi/csi.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    endpoint: Endpoint = flag(
        parse_endpoint,
        default=DEFAULT_ENDPOINT,
        metavar="ADDRESS",
        help="The address to serve CSI calls on: unix:///path or tcp://host:port.",
    )
    csi: CsiSettings = group(CsiSettings)
    ephemeral: EphemeralSettings = group(EphemeralSettings)
    drives: DriveSettings = group(DriveSettings)
    kubeconfig: str = flag(
        text,
        default="",
        metavar="FILE",
        help="Accepted and not used: the services of a node need no credentials.",
    )
    log: LogSettings = group(LogSettings)
    klog: KlogSettings = group(KlogSettings)

    @property
    def ephemeral_beside_endpoint(self) -> EphemeralSettings:
        """The settings of scratch folders; with its own endpoint and workdir, the admin socket is beside the endpoint.

        A user who sets both flags expects this process to write nowhere else, and may run two drivers of one name. With
        the default of either flag, the process is the driver of this machine.
        """
        own_endpoint = isinstance(self.endpoint, UnixEndpoint) and str(self.endpoint) != DEFAULT_ENDPOINT
        if self.ephemeral.admin_socket or not own_endpoint or self.ephemeral.workdir == DEFAULT_WORKDIR:
            return self.ephemeral
        path = str(self.endpoint).removeprefix("unix://").removesuffix(".sock") + SUFFIX_BESIDE_ENDPOINT
        return replace(self.ephemeral, admin_socket=path)

    def cross_check(self) -> Iterator[str]:
        # Not a check of the flag: those do not run for the default, whose folder may be missing too.
        if objection := folder_exists(self.endpoint):
            yield f"--endpoint cannot be {str(self.endpoint)!r}: {objection}."


DAEMON: Final = Daemon("orlop driver", "Serves the CSI services of this node on a socket.", DriverSettings)


async def run(settings: DriverSettings, runtime: Runtime, stop: asyncio.Event) -> None:
    served = ServedSettings(settings.csi, settings.ephemeral_beside_endpoint, settings.drives)
    async with serving_csi(settings.endpoint, served, runtime, {}):
        await stop.wait()


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
