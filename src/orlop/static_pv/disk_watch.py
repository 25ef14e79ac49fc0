"""Watch the folders of disks and the configuration: at every event, and slowly in between.

A pass reads the configuration, then the folder of each class, then decides (`discovery_rules`). A wrong configuration
keeps the one before. A folder that cannot be read, or whose disk hangs, keeps its volumes as they were listed. Nothing
is decided before `begin`, which passes what was listed before this process started.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from orlop.foundation.clock import wait_until_set
from orlop.foundation.task_group import TaskGroup
from orlop.host.host_errors import HostError
from orlop.static_pv.discovery_rules import ClassListing, Discovery, discovered, wants_entry

if TYPE_CHECKING:
    from orlop.foundation.runtime import Runtime
    from orlop.host.static_disks.disk_entries import DiskEntry
    from orlop.records.provisioner_status import LocalVolume
    from orlop.static_pv.configuration import StaticClass
    from orlop.static_pv.configuration_watch import ConfigurationWatch, StaticMachine
    from orlop.static_pv.worker_metrics import WorkerMetrics

PERIOD_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.2
"""Between two passes: one disk that is mounted makes several events."""
LONGEST_SURVEY_SECONDS: Final = 30.0


class DiskWatch:
    def __init__(
        self,
        machine: StaticMachine,
        configuration: ConfigurationWatch,
        node: str,
        *,
        metrics: WorkerMetrics,
        runtime: Runtime,
        period: float = PERIOD_SECONDS,
    ) -> None:
        self.configuration = configuration
        self._machine = machine
        self.node = node
        self._metrics = metrics
        self._clock, self._log = runtime.clock, runtime.log
        self._period = period
        self._woken = asyncio.Event()
        self._begun = asyncio.Event()
        self._listed: tuple[LocalVolume, ...] = ()
        self._surveys: dict[str, asyncio.Task[tuple[DiskEntry, ...] | HostError]] = {}
        self._listeners: list[Callable[[], object]] = []
        self.discovery: Discovery | None = None
        """The result of the last pass; None before the first."""

    def wake(self) -> None:
        """Make a pass now."""
        self._woken.set()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` after each pass that found something else than the one before."""
        self._listeners.append(listener)

    def begin(self, listed: Iterable[LocalVolume]) -> None:
        """Start, if it has not begun, with the volumes that are listed."""
        if not self._begun.is_set():
            self._listed = tuple(listed)
            self._begun.set()

    async def run(self) -> None:
        await self._begun.wait()
        async with TaskGroup() as tasks:
            while True:
                self._woken.clear()
                await self._pass(tasks)
                await self._clock.sleep(PAUSE_SECONDS)
                await wait_until_set(self._clock, self._woken, self._period)

    async def _pass(self, tasks: TaskGroup) -> None:
        configuration = self.configuration
        before = configuration.current, configuration.fault, _reported(self.discovery)
        started = self._clock.elapsed()
        await configuration.load()
        if configuration.current is not None:
            listings = [await self._listing(tasks, each) for each in configuration.current.classes]
            result = discovered(configuration.current, listings, self.node, self._listed)
            self._log_changes(result)
            self.discovery, self._listed = result, result.volumes
            self._metrics.discovered(result, self._clock.elapsed() - started)
        if (configuration.current, configuration.fault, _reported(self.discovery)) != before:
            for listener in tuple(self._listeners):
                listener()

    # ---- the folders ---------------------------------------------------------------------------------------------

    async def _listing(self, tasks: TaskGroup, static_class: StaticClass) -> ClassListing:
        self._machine.watch(static_class.mount_dir)
        try:
            entries = await self._survey(tasks, static_class)
        except HostError as error:
            return ClassListing(static_class.name, why=str(error))
        return ClassListing(static_class.name, entries)

    async def _survey(self, tasks: TaskGroup, static_class: StaticClass) -> tuple[DiskEntry, ...]:
        """Read a folder. While an earlier call hangs, no other is made: threads that hang cannot be ended."""
        folder, wanted = static_class.mount_dir, partial(wants_entry, static_class)
        hangs = HostError(errno.ETIMEDOUT, f"The folder {folder}, or a disk in it, does not respond. See dmesg.")
        task = self._surveys.get(static_class.name)
        if task is not None and not task.done():
            raise hangs
        survey = _result_of(self._machine.threads(lambda: self._machine.host.survey(folder, wanted)))
        task = self._surveys[static_class.name] = tasks.start(survey, name=f"survey of {folder}")
        try:
            async with self._clock.timeout(LONGEST_SURVEY_SECONDS):
                result = await asyncio.shield(task)
        except TimeoutError:
            raise hangs from None
        if isinstance(result, HostError):
            raise result
        return result

    def _log_changes(self, found: Discovery) -> None:
        before = {each.name: each for each in self._listed}
        for volume in found.volumes:
            old = before.pop(volume.name, None)
            about = {"volume": volume.name, "storage_class": volume.storage_class, "entry": volume.entry}
            if old is None:
                self._log.info("disk listed", **about, capacity=volume.capacity)
            elif old.capacity_bytes != volume.capacity_bytes:
                self._log.info("disk has another size", **about, capacity=volume.capacity, before=old.capacity)
        for volume in before.values():
            self._log.warning("disk no longer listed", volume=volume.name, entry=volume.entry)
        known = set(self.discovery.problems) if self.discovery is not None else set()
        for problem in found.problems:
            if problem not in known:
                about = {"storage_class": problem.storage_class, "entry": problem.entry}
                self._log.warning("entry not offered", **about, reason=problem.reason, why=problem.message)


def _reported(discovery: Discovery | None) -> object:
    """Return what others are notified of: not the used bytes of entries, which change all the time."""
    return (discovery.volumes, discovery.problems) if discovery is not None else None


async def _result_of(survey: Awaitable[tuple[DiskEntry, ...]]) -> tuple[DiskEntry, ...] | HostError:
    """Return the error too: raised, it would end the task group."""
    try:
        return await survey
    except HostError as error:
        return error
