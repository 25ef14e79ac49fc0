"""`orlop driver`: the CSI services of this node on one socket, and nothing else, for use with any sidecars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orlop.csi.endpoint import Endpoint, parse_endpoint
from orlop.foundation.go_flags import flag, group, text
from orlop.processes.csi_side import CsiSettings, csi_side
from orlop.processes.daemon import Daemon, LogSettings, Surroundings, folder_exists, run_daemon
from orlop.processes.ephemeral_settings import EphemeralSettings
from orlop.processes.klog_flags import KlogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    endpoint: Endpoint = flag(
        parse_endpoint,
        default="unix:///csi/csi.sock",
        metavar="ADDRESS",
        help="Where to answer CSI calls: unix:///path or tcp://host:port.",
    )
    csi: CsiSettings = group(CsiSettings)
    ephemeral: EphemeralSettings = group(EphemeralSettings)
    kubeconfig: str = flag(
        text,
        default="",
        metavar="FILE",
        help="Not needed by anything that is served today: what a node does takes no credentials.",
    )
    log: LogSettings = group(LogSettings)
    klog: KlogSettings = group(KlogSettings)

    def cross_check(self) -> Iterator[str]:
        # Not a check of the flag itself: its default cannot know whether this machine has the folder.
        if objection := folder_exists(self.endpoint):
            yield f"--endpoint cannot be {str(self.endpoint)!r}: {objection}."


DAEMON: Final = Daemon("orlop driver", "Serves the CSI services of this node on a socket.", DriverSettings)


async def run(settings: DriverSettings, given: Surroundings) -> None:
    async with csi_side(settings.endpoint, settings.csi, settings.ephemeral, given, {}):
        await given.stop.wait()


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
