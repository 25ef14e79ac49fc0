"""Keep the table of drives: survey the node, mount and open its drives, and record the state of each.

A survey is made at start, at every event of a device and every `wake`, and every half minute. Each drive then gets one
step (`drive_state_rules`), in a thread of its own, because a disk may hang; after a step everything is surveyed again.

Order for a drive that appears: mount → open, and check that it is this node's → add it to the table. For one that
disappears, or fails while no volume is in use: remove it from the table → close its root after its last user → unmount.

Nothing here needs the API server. Objects of drives only add what is expected: `expect`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from orlop.driver.persistent.drive_errors import DriveFailure, disk_error_behind
from orlop.driver.persistent.drive_table import DriveStanding, DriveTable, OpenDrive
from orlop.driver.persistent.upkeep.drive_opening import DamagedDrive, DriveOpening, ForeignDrive
from orlop.driver.persistent.upkeep.drive_probes import DriveProbes
from orlop.driver.persistent.upkeep.drive_sightings import ExpectedDrive, SurveyedDrives, UnreadableFolder, sightings_of
from orlop.driver.persistent.upkeep.drive_state_rules import (
    CALL_RECOVERY_SECONDS,
    CloseDrive,
    DriveFinding,
    DriveSighting,
    MountDrive,
    NothingToDo,
    OpenDrivePlace,
    ReleaseDrive,
    RemountDrive,
    UnmountDrive,
    UpkeepStep,
    finding_of,
    is_gone,
    next_drive_step,
    next_state,
    why_in_state,
)
from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import wait_until_set
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.drive_host import DriveSurvey
from orlop.host.host_errors import HostError
from orlop.host.threads import Threads
from orlop.records.drive_record import DriveState, DriveType

SURVEY_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.2
"""Between two surveys: the kernel announces many events for one disk."""
REMOUNT_SECONDS: Final = 60.0
"""How often a drive that fails is mounted again."""
IO_ERRORS: Final = frozenset({errno.EIO, errno.ESHUTDOWN})
"""The errors of a file system that has shut down."""
RETRY: Final = Backoff(initial=2.0, factor=2.0, cap=300.0, jitter=0.2)
BUSY_RETRY: Final = Backoff(initial=2.0, factor=2.0, cap=30.0, jitter=0.2)
"""While something has the drive in use: the kernel does not report the end of it."""


@dataclass(frozen=True, slots=True)
class _FailedAttempt:
    """An attempt that failed, and the facts of the drive then: if they change, it is repeated at once."""

    why: str
    is_disk_error: bool
    is_damaged: bool
    facts: tuple[object, ...]
    failures: int
    retry_at: float


class DriveWatch:
    """`threads` runs each call in a thread that may hang. `keys` are held, by drive, while a drive is changed."""

    def __init__(
        self,
        opening: DriveOpening,
        table: DriveTable,
        *,
        runtime: Runtime,
        threads: Threads,
    ) -> None:
        self.keys = KeyedLock()
        self._opening = opening
        self._host = opening.host
        self._table = table
        self._clock, self._random, self._log = runtime.clock, runtime.random, runtime.log
        self._threads = threads
        self.probes = DriveProbes(table, threads, runtime.clock, self._update_table)
        self._woken = asyncio.Event()
        self._survey: DriveSurvey | None = None
        self._drives = SurveyedDrives()
        self._expected: Mapping[str, ExpectedDrive] = {}
        self._trusted: frozenset[str] = frozenset()
        self._types: dict[str, DriveType] = {}
        self._troubles: dict[str, _FailedAttempt] = {}
        self._remounted: dict[str, float] = {}
        """When a drive that failed was last mounted again, in elapsed time."""
        self._failures: dict[str, tuple[str, float]] = {}
        """The last failure of each drive that a call met, and when it did, in elapsed time."""
        self._released: set[str] = set()
        self._warned: set[UnreadableFolder] = set()
        self._working: set[str] = set()
        self._listeners: list[Callable[[], object]] = []
        self._problem = ""

    # ---- for others ----------------------------------------------------------------------------------------------

    @property
    def survey(self) -> DriveSurvey | None:
        """Return the last survey; None before the first."""
        return self._survey

    @property
    def drives(self) -> SurveyedDrives:
        """Return the drives of the last survey."""
        return self._drives

    @property
    def problem(self) -> str:
        """Return why the last survey failed, as a sentence; empty if it did not."""
        return self._problem

    def wake(self) -> None:
        """Survey the node now."""
        self._woken.set()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` after each survey."""
        self._listeners.append(listener)

    def expect(self, drives: Mapping[str, ExpectedDrive]) -> None:
        """Replace the drives that have an object naming this node. One that the survey does not show is Lost."""
        if drives != self._expected:
            self._expected = dict(drives)
            self.wake()

    def trust(self, drive_id: str) -> None:
        """Treat a disk as this node's: it was made or adopted here."""
        self._trusted |= {drive_id}
        self._released.discard(drive_id)
        self._troubles.pop(drive_id, None)
        self._failures.pop(drive_id, None)
        self.wake()

    def note_error(self, drive_id: str, error: BaseException) -> None:
        """Note the error of a call that used a drive: a failure of the drive counts at once, others start a probe."""
        match disk_error_behind(error):
            case DriveFailure() as failure:
                self._failures[drive_id] = (str(failure), self._clock.elapsed())
                if drive_id in self._table.standings():
                    self._update_table(drive_id)
                self.wake()
            case HostError():
                self.probes.probe_now(drive_id)

    def damaged(self) -> Mapping[str, tuple[str, ...]]:
        """Return where disks of this node are whose record is missing or damaged, by id."""
        places = {drive_id: self._seen(drive_id).places for drive_id, each in self._troubles.items() if each.is_damaged}
        return {
            drive_id: each for drive_id, each in places.items() if each and self._types.get(drive_id) is DriveType.DISK
        }

    def expected_capacity(self, drive_id: str) -> int:
        """Return the capacity that the object of a drive has; 0 if it has none, or no object names this node."""
        expected = self._expected.get(drive_id)
        return expected.capacity if expected is not None else 0

    def retry_soon(self, drive_id: str) -> None:
        """Repeat a step that failed: the last volume in use on the drive was unstaged. A drive that works needs none.

        The delays begin anew: the mount namespace of a pod that was killed ends a moment after the unstaging.
        """
        trouble = self._troubles.get(drive_id)
        if trouble is not None:
            self._troubles[drive_id] = replace(trouble, failures=0, retry_at=self._clock.elapsed())
        standing = self._table.standings().get(drive_id)
        if standing is not None and standing.state is not DriveState.READY:
            self.wake()

    def has_released(self, drive_id: str) -> bool:
        """Return whether a drive that is being removed is no longer used by anything on this node."""
        sighting = self._sighting(drive_id)
        return self._survey is not None and sighting.removing and is_gone(sighting)

    # ---- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the table up to date, until cancelled."""
        async with TaskGroup() as tasks:
            tasks.start(self.probes.run(), name="probes of drives")
            while True:
                self._woken.clear()
                await self._survey_node()
                for drive_id in sorted({*self._drives.sightings, *self._table.standings()}):
                    self._update_table(drive_id)
                    step = next_drive_step(self._sighting(drive_id))
                    if not isinstance(step, NothingToDo) and drive_id not in self._working:
                        self._working.add(drive_id)
                        tasks.start(self._work(drive_id), name=f"work on the drive {drive_id}")
                for listener in tuple(self._listeners):
                    listener()
                await self._clock.sleep(PAUSE_SECONDS)
                await wait_until_set(self._clock, self._woken, self._longest_wait())

    def _longest_wait(self) -> float:
        """Return the seconds until the next survey: earlier if an attempt that failed is due again."""
        now = self._clock.elapsed()
        return min([SURVEY_SECONDS, *(max(0.0, each.retry_at - now) for each in self._attempts_due())])

    def _attempts_due(self) -> list[_FailedAttempt]:
        """Return the attempts that the next survey could repeat: not those that a change has outdated."""
        return [
            each for drive_id, each in self._troubles.items() if each.facts == _changeable_facts(self._seen(drive_id))
        ]

    async def _survey_node(self) -> None:
        try:
            survey = await self._threads(self._host.survey)
        except HostError as error:
            if str(error) != self._problem:
                self._log.warning("drives not surveyed", error=error)
            self._problem = str(error)
            return
        self._problem, self._survey, before = "", survey, self._drives
        self._drives = self._drives_of(survey)
        self._types |= {drive_id: sighting.type for drive_id, sighting in self._drives.sightings.items()}
        # Warn when two surveys show it: a folder that is being made a drive is half made for a moment.
        unreadable = set(self._drives.unreadable) & set(before.unreadable)
        for each in unreadable - self._warned:
            self._log.warning("folder has no readable record of a drive", folder=each.path, why=each.why)
        self._warned = unreadable
        for drive_id in self._drives.foreign.keys() - before.foreign.keys():
            places = ", ".join(self._drives.foreign[drive_id])
            self._log.info("drive of another node, or of a lost cluster", drive=drive_id, at=places)

    def _drives_of(self, survey: DriveSurvey) -> SurveyedDrives:
        return sightings_of(survey, self._opening.node_name, self._expected, self._trusted)

    def _sighting(
        self, drive_id: str, new: OpenDrive | None = None, surveyed: SurveyedDrives | None = None
    ) -> DriveSighting:
        """Return what a survey, otherwise the last one, shows of a drive, with what is remembered of it.

        `new`: opened just now.
        """
        seen = self._seen(drive_id, surveyed)
        drive = new or self._table.open_drive(drive_id)
        probed = self.probes.result(drive)
        trouble = self._troubles.get(drive_id)
        if trouble is not None and trouble.facts != _changeable_facts(seen):
            trouble = None
        now = self._clock.elapsed()
        remounted = self._remounted.get(drive_id)
        failures = [each for each in (probed.failed_at, remounted) if each is not None]
        # A single error may be temporary: first try to open the drive again, and only then mount it again.
        cannot_be_opened = trouble is not None and trouble.is_disk_error and trouble.failures > 1
        failure, failed_at = self._failures.get(drive_id, ("", 0.0))
        # Mounted anew once for each failure that a call met: only the next call shows whether that helped.
        is_untried = bool(failure) and (remounted is None or remounted < failed_at)
        fails = cannot_be_opened or (probed.failing and not probed.is_hanging) or is_untried
        return replace(
            seen,
            opened=drive.path if drive is not None else "",
            failing=probed.failing,
            seconds_since_failure=now - max(failures) if failures else None,
            failed_call=failure if now - failed_at < CALL_RECOVERY_SECONDS else "",
            may_remount=bool(fails) and (remounted is None or now - remounted >= REMOUNT_SECONDS),
            trouble=trouble.why if trouble is not None else probed.shortage,
            may_retry=trouble is None or now >= trouble.retry_at,
            is_released=drive_id in self._released,
        )

    def _seen(self, drive_id: str, surveyed: SurveyedDrives | None = None) -> DriveSighting:
        type_ = self._types.get(drive_id, DriveType.DISK)
        gone = DriveSighting(drive_id=drive_id, type=type_, is_ours=True)
        return (surveyed or self._drives).sightings.get(drive_id, gone)

    def _update_table(self, drive_id: str, new: OpenDrive | None = None) -> None:
        """Write the state of a drive into the table. `new`: opened just now."""
        sighting = self._sighting(drive_id, new)
        if not sighting.places:
            self._failures.pop(drive_id, None)  # calls failed because the disk was pulled out
        if is_gone(sighting) and drive_id in self._released and drive_id not in self._expected:
            self._table.discard(drive_id)
            return
        before = self._table.standings().get(drive_id)
        state = next_state(before.state if before is not None else None, sighting)
        is_being_opened = finding_of(sighting) is DriveFinding.UNUSABLE and not sighting.trouble
        if is_being_opened and not isinstance(next_drive_step(sighting), NothingToDo):
            return  # its next steps decide the state
        standing = DriveStanding(state, why_in_state(state, sighting))
        if before != standing:
            log = self._log.info if state in {DriveState.READY, DriveState.REMOVING} else self._log.warning
            log("state of drive", drive=drive_id, state=state.value, why=standing.why)
        self._table.put(drive_id, standing, new or self._table.open_drive(drive_id))

    # ---- steps ---------------------------------------------------------------------------------------------------

    async def _work(self, drive_id: str) -> None:
        """Take one step, decided again under the drive's key."""
        is_taken = True
        try:
            async with self.keys.hold(drive_id, "the watch of drives"):
                seen = self._seen(drive_id)
                step = next_drive_step(self._sighting(drive_id))
                try:
                    is_taken = await self._take(drive_id, step)
                    self._troubles.pop(drive_id, None)
                except HostError as error:
                    self._note_trouble(drive_id, seen, error)
        finally:
            self._working.discard(drive_id)
            if is_taken:
                self.wake()

    async def _take(self, drive_id: str, step: UpkeepStep) -> bool:
        """Take a step; return False if it cannot be taken before something else changes."""
        drive = self._table.open_drive(drive_id)
        match step:
            case MountDrive(device):
                await self._threads(lambda: self._mount(drive_id, device))
                self._log.info("drive mounted", drive=drive_id, device=device)
            case OpenDrivePlace(path):
                type_ = self._types.get(drive_id, DriveType.DISK)
                self._put_open(await self._threads(lambda: self._opening.open(drive_id, path, type_)))
            case CloseDrive():
                self._table.put(drive_id, self._table.standings()[drive_id], None)
            case RemountDrive():
                return await self._unmount_failing(drive_id)
            case UnmountDrive(forget):
                await self._threads(lambda: self._host.unmount_disk(drive_id, forget=forget))
                self._trusted -= {drive_id} if forget else frozenset()
                self._log.info("drive unmounted", drive=drive_id)
            case ReleaseDrive() if drive is not None:
                await self._threads(lambda: self._opening.release(drive))
                self._released.add(drive_id)
                self._log.info("drive released", drive=drive_id)
        return True

    async def _unmount_failing(self, drive_id: str) -> bool:
        """Unmount a drive to mount it again, unless a volume is in use or being staged; return whether it was done.

        The last survey may be old, and a volume staged since then would keep the file system as it is. So surveyed
        again, while no volume can be staged.
        """
        with self._table.without_staging(drive_id) as is_free:
            if not is_free:
                return False
            surveyed = self._drives_of(await self._threads(self._host.survey))
            if not isinstance(next_drive_step(self._sighting(drive_id, surveyed=surveyed)), RemountDrive):
                return False
            self._remounted[drive_id] = self._clock.elapsed()
            # From here on the table refuses stagings, because the drive is not open.
            if self._table.open_drive(drive_id) is not None:
                self._table.put(drive_id, self._table.standings()[drive_id], None)
        await self._threads(lambda: self._host.unmount_disk(drive_id))
        self._log.warning("drive that fails unmounted, to mount it again", drive=drive_id)
        return True

    def _mount(self, drive_id: str, device: str) -> None:
        # Surveyed again under the key: a request may have made and mounted the drive since the last survey.
        survey = self._host.survey()
        if drive_id not in survey.mounted:
            self._opening.mount(drive_id, device, survey)

    def _put_open(self, drive: OpenDrive) -> None:
        if drive.record.removed:
            self._released.add(drive.drive_id)
        self._troubles.pop(drive.drive_id, None)
        self._log.info("drive opened", drive=drive.drive_id, path=drive.path)
        self._update_table(drive.drive_id, drive)

    def _note_trouble(self, drive_id: str, seen: DriveSighting, error: HostError) -> None:
        known = self._troubles.get(drive_id)
        failures = known.failures + 1 if known is not None and known.facts == _changeable_facts(seen) else 1
        # A foreign drive stays one until an admin changes something, and then its facts differ.
        retry = BUSY_RETRY if error.errno == errno.EBUSY else RETRY
        delay = retry.cap if isinstance(error, ForeignDrive) else retry.delay(failures, self._random)
        self._troubles[drive_id] = _FailedAttempt(
            str(error),
            error.errno in IO_ERRORS,
            isinstance(error, DamagedDrive),
            _changeable_facts(seen),
            failures,
            self._clock.elapsed() + delay,
        )
        self._log.warning("drive not usable", drive=drive_id, error=error, retry_after_seconds=round(delay, 1))
        self._update_table(drive_id)


def _changeable_facts(seen: DriveSighting) -> tuple[object, ...]:
    """Return the facts that an admin can change; not the mount, which a failed attempt may have changed."""
    return seen.places, seen.is_ours, seen.removing
