"""`orlop attacher`: attach and detach the volumes of any CSI driver. Its flags are upstream's.

The process itself is `processes/sidecar`; this module has the attacher's own flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orlop.csi.driver_name import sanitized_driver_name
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import between, boolean, flag, integer, text
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.processes.sidecar import Caches, Sidecar, SidecarFlags, SidecarSession, run_sidecar
from orlop.sidecars.attacher.attachment_controller import attachment_controller
from orlop.sidecars.attacher.driver_request_rules import CAN_ATTACH
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.attacher.handler import AttacherCaches, AttacherSettings

LARGEST_PAGE: Final = 2**31 - 1
"""The largest number that CSI's `max_entries` holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttacherFlags(SidecarFlags):
    resync: Duration = flag(
        Duration.parse, default="10m", metavar="DURATION", help="Interval of reconciling all objects again; 0s: never."
    )
    reconcile_sync: Duration = flag(
        Duration.parse,
        default="1m",
        metavar="DURATION",
        help="Interval of comparing all objects with the driver's list of published volumes, if it has one; 0s: never.",
    )
    max_entries: int = flag(
        integer,
        default="0",
        metavar="COUNT",
        check=between(0, LARGEST_PAGE),
        help="Entries on one page of that list; 0: the driver chooses.",
    )
    default_fstype: str = flag(
        text, default="", metavar="TYPE", help="File system of volumes that name none; if not set, the driver chooses."
    )
    trivial_handler: bool = flag(
        boolean, default="false", hidden=True, help="For tests: act as if the driver had no attach capability."
    )


async def run(session: SidecarSession[AttacherFlags], caches: Caches) -> None:
    flags = session.settings
    driver = session.driver.driver
    settings = AttacherSettings(
        driver,
        finalizer_of(driver),
        flags.default_fstype,
        flags.timeout.seconds,
        flags.worker_threads,
        flags.retry_interval_start.seconds,
        flags.retry_interval_max.seconds,
        flags.resync.seconds,
        flags.reconcile_sync.seconds,
        flags.max_entries,
    )
    await session.run_workers(
        lambda capabilities: attachment_controller(
            AttacherCaches(caches[VOLUME_ATTACHMENT], caches[PERSISTENT_VOLUME], caches[CSI_NODE]),
            settings,
            runtime=session.runtime,
            kube=session.kube,
            csi=session.driver.csi,
            events=session.events,
            queue_metrics=session.queue_metrics,
            may_act=session.may_act,
            trivial=flags.trivial_handler or CAN_ATTACH not in capabilities,
        )
    )


def lease_of(driver: str) -> str:
    return f"external-attacher-leader-{sanitized_driver_name(driver)}"


SIDECAR: Final = Sidecar(
    name="attacher",
    summary="Attaches and detaches the volumes of a CSI driver.",
    flags=AttacherFlags,
    event_source="external-attacher",
    lease_of=lease_of,
    kinds=(VOLUME_ATTACHMENT, PERSISTENT_VOLUME, CSI_NODE),
    run=run,
)
DAEMON: Final = SIDECAR.daemon


def main(arguments: Sequence[str]) -> int:
    return run_sidecar(SIDECAR, arguments)
