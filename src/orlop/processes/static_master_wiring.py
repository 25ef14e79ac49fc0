"""Wiring of the master of static volumes, which `orlop static-master` and `orlop controller` share.

The configuration is read from files, as the workers read it. Files that cannot be used keep the configuration before;
until the first that can, the master does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import flag, text
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.processes.daemon import is_not_negative, is_some_time
from orlop.static_pv.configuration import ConfigurationFault, StaticConfiguration, parse_configuration
from orlop.static_pv.lost_claims import LostClaims
from orlop.static_pv.master import StaticMaster
from orlop.static_pv.master_view import master_view

DEFAULT_CONFIGURATION: Final = "/etc/provisioner/config"
STATIC_NAMESPACE: Final = "orlop-static"
MOST_BYTES: Final = 1 << 20
"""Of one file: a ConfigMap has no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMasterFlags:
    static_config: str = flag(
        text,
        default="",
        metavar="DIR",
        help="The folder of the configuration of static volumes, a ConfigMap of local-static-provisioner's keys; "
        "empty: serve no static volumes.",
    )
    static_namespace: str = flag(
        text,
        default=STATIC_NAMESPACE,
        metavar="NAMESPACE",
        help="The namespace of the ProvisionerStatus objects; only its admins should have rights there.",
    )
    static_lost_claim_delay: Duration = flag(
        Duration.parse,
        default="0s",
        metavar="DURATION",
        check=is_not_negative,
        help="How long after the deletion of a node the claims of its static volumes are deleted; 0s: never.",
    )
    static_config_sync_period: Duration = flag(
        Duration.parse,
        default="5s",
        aliases=("config-sync-period",),
        metavar="DURATION",
        check=is_some_time,
        help="How often the files of the configuration are read again.",
    )


class ConfigurationFiles:
    """The configuration of a folder. `load` reads it again."""

    def __init__(self, folder: str, runtime: Runtime) -> None:
        self._folder = Path(folder)
        self._log = runtime.log
        self._files: dict[str, str] | None = None
        self.current: StaticConfiguration | None = None
        self.fault = ""
        """Why the files that are there now are not used; empty if they are."""
        runtime.metrics.gauge_from(
            "orlop_static_configuration_valid",
            "Whether the configuration files that are there could be used.",
            lambda: float(not self.fault),
        )

    async def load(self) -> bool:
        """Read the files, in a thread. Return whether the configuration has changed."""
        try:
            files = await asyncio.to_thread(_read_files, self._folder)
            if files == self._files:
                return False
            configuration = parse_configuration(files)
        except (OSError, UnicodeDecodeError, ConfigurationFault) as error:
            self._note(f"{self._folder}: {error}" if not isinstance(error, ConfigurationFault) else str(error))
            self._files = None
            return False
        self._files = files
        self._note("")
        is_other, self.current = configuration != self.current, configuration
        if is_other:
            self._log.info("configuration loaded", classes=[each.name for each in configuration.classes])
            for remark in configuration.remarks:
                self._log.info("configuration key without effect", remark=remark)
        return is_other

    async def why_not_ready(self) -> str | None:
        return None if self.current is not None else f"no configuration: {self.fault or 'not read yet'}"

    def _note(self, fault: str) -> None:
        if fault and fault != self.fault:
            in_use = "the one before" if self.current is not None else "none"
            self._log.warning("configuration not usable", error=fault, in_use=in_use)
        self.fault = fault


def _read_files(folder: Path) -> dict[str, str]:
    """Read every file. A ConfigMap's volume has folders whose names begin with two dots, and links to their files."""
    found = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".") and path.is_file():
            with path.open("rb") as file:
                found[path.name] = file.read(MOST_BYTES).decode()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterServices:
    """What a process that leads has for the master."""

    runtime: Runtime
    kube: KubeClient
    events: EventRecorder
    queue_metrics: WorkqueueMetrics
    may_act: Callable[[], None]
    stop: asyncio.Event


async def run_static_master(flags: StaticMasterFlags, files: ConfigurationFiles, services: MasterServices) -> None:
    """Run the master until `stop` is set; the write in flight then ends."""
    runtime = services.runtime
    async with (
        Informers(services.kube, clock=runtime.clock, random=runtime.random, log=runtime.log) as informers,
        master_view(informers, flags.static_namespace) as view,
        TaskGroup() as tasks,
    ):
        master = StaticMaster(
            view,
            lambda: files.current,
            runtime=runtime,
            kube=services.kube,
            events=services.events,
            queue_metrics=services.queue_metrics,
            may_act=services.may_act,
        )
        running = [tasks.start(_reload(flags, files, master, runtime), name="configuration of static volumes")]
        if flags.static_lost_claim_delay.nanoseconds:
            lost = LostClaims(
                view,
                flags.static_lost_claim_delay.seconds,
                runtime=runtime,
                kube=services.kube,
                events=services.events,
                may_act=services.may_act,
            )
            running.append(tasks.start(lost.run(), name="claims of lost nodes"))
        running.append(tasks.start(_stop_with(services.stop, master), name="stop of static master"))
        runtime.log.info("serving static volumes", namespace=flags.static_namespace, folder=flags.static_config)
        await master.run()
        for task in running:
            task.cancel()


async def _reload(flags: StaticMasterFlags, files: ConfigurationFiles, master: StaticMaster, runtime: Runtime) -> None:
    while True:
        if await files.load():
            master.enqueue_all()
        await runtime.clock.sleep(flags.static_config_sync_period.seconds)


async def _stop_with(stop: asyncio.Event, master: StaticMaster) -> None:
    await stop.wait()
    master.stop()
