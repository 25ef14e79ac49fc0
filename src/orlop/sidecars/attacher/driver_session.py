"""Attaches for one driver for as long as it is there: the right kind of attacher, and an end when the driver is lost.

A driver that came back may be another version: its name and what it can do are asked anew whenever there is another
connection. Another name ends all of it (`AnotherDriver`). Another ability to attach changes the kind of attacher, when
the work under way has ended.

A driver that cannot be reached is waited out, at most so long since its last answer, to whatever call; then
`DriverLost`, so that a replica whose driver is well can take the lease. One that can be reached and is silent may be
busy with calls of ours: while there are any, it has in addition the time that one may take. One that came back and does
not say what it is can be asked for nothing, and is as good as away. It must answer when the work begins, too: somebody
may have waited long for the lease, and his driver died or became another meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from orlop.csi.error_codes import CsiError, DeadlineExceeded, Unimplemented
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.task_group import TaskGroup
from orlop.sidecars.attacher.attacher import Attacher, Caches
from orlop.sidecars.attacher.driver_request_rules import ATTACHES
from orlop.sidecars.attacher.published_volumes import PublishedVolumes
from orlop.sidecars.attacher.tools import AttacherSettings, Tools
from orlop.sidecars.attacher.trivial_attacher import TrivialAttacher

LOOKS: Final = 4
"""So often a driver is looked at, at least, before it counts as lost."""
LONGEST_LOOK_SECONDS: Final = 5.0
LOOK_AGAIN_SECONDS: Final = 1.0


class DriverLost(Exception):
    """It has not answered for too long."""


class AnotherDriver(Exception):
    """The driver that came back has another name: nothing of it is ours to attach."""


def came_back_as(name: str, was: str) -> str:
    return f"the driver came back as {name!r}, and was {was!r}: this attacher is for that"


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """In seconds."""

    patience: float
    """How long a driver may be away."""
    reconcile: float = 60.0
    page: int = 0
    grace: float = 20.0
    """For what is under way when it is told to stop."""

    @property
    def look(self) -> float:
        """How often a driver that answers is looked at, and how long it may take to answer."""
        return min(LONGEST_LOOK_SECONDS, self.patience / LOOKS)


@dataclass(frozen=True, slots=True)
class _Fault:
    """What a driver has not done, since when, and how long that is borne."""

    lacks: str
    since: float
    patience: float


class DriverSession:
    def __init__(self, caches: Caches, settings: AttacherSettings, times: SessionTimes, tools: Tools) -> None:
        self._caches = caches
        self._settings = settings
        self._times = times
        self._tools = tools
        self._csi = tools.csi
        self._clock = tools.clock
        self._log = tools.log
        self._changed = asyncio.Event()
        self._connection = tools.csi.connections
        self._abilities: frozenset[str] = frozenset()
        """Of its Controller service."""
        self._answered = 0.0
        self._known = 0.0
        """When it last answered, and when it was last known what it is."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until it is told to stop; then what is under way has its time to end."""
        self._abilities = await self._greet()
        async with TaskGroup() as tasks:
            watching = tasks.start(self._watch_driver(), name="watching the driver")
            while not stop.is_set():
                self._changed.clear()
                attaches = ATTACHES in self._abilities
                self._log.info("attaching" if attaches else "the driver attaches nothing: all is told to be attached")
                await self._attach(self._attacher(attaches), stop)
            watching.cancel()

    def _attacher(self, attaches: bool) -> Attacher | TrivialAttacher:  # noqa: FBT001 - a fact, not a switch
        kind = Attacher if attaches else TrivialAttacher
        return kind(self._caches, self._settings, self._tools)

    async def _attach(self, attacher: Attacher | TrivialAttacher, stop: asyncio.Event) -> None:
        """Until it is told to stop, or the driver can something else."""
        async with TaskGroup() as tasks:
            working = tasks.start(attacher.run(), name="attacher")
            listing = None
            if isinstance(attacher, Attacher):
                published = PublishedVolumes(self._caches, self._settings, self._tools, attacher.differs)
                listing = tasks.start(published.run(self._times.reconcile, self._times.page), name="listing volumes")
            await self._until_over(stop)
            if listing is not None:
                listing.cancel()
            attacher.stop()
            if not self._caches.synced:
                working.cancel()  # it waits for the API server, and has no call under way
            try:
                async with self._clock.timeout(self._times.grace):
                    await asyncio.wait([working])
            except TimeoutError:
                self._log.warning("calls were still under way: the next attacher ends what they began")
                working.cancel()

    async def _until_over(self, stop: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._changed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.wait(waits)

    # ---- the driver ----------------------------------------------------------------------------------------------

    async def _greet(self) -> frozenset[str]:
        """What it can, of the driver that is there now: it must be the one we are for."""
        try:
            async with self._clock.timeout(self._times.patience):
                return await self._asked_anew()
        except (CsiError, TimeoutError) as error:
            why = error if isinstance(error, CsiError) else f"nothing came for {self._times.patience:g} s"
            raise DriverLost(f"the driver {self._settings.driver} does not answer: {why}") from error

    async def _watch_driver(self) -> None:
        self._answered = self._known = self._clock.elapsed()
        often = min(LOOK_AGAIN_SECONDS, self._times.look)
        fault: _Fault | None = None
        while True:
            await self._clock.sleep(self._times.look if fault is None else often)
            before, fault = fault, await self._fault_now()
            if fault is None and before is not None:
                self._log.info("the driver answers again")
            if fault is not None and self._clock.elapsed() + often > fault.since + fault.patience:
                lacks = f"has not {fault.lacks} for {fault.patience:g} s"
                raise DriverLost(f"the driver {self._settings.driver} {lacks}")

    async def _fault_now(self) -> _Fault | None:
        began = self._clock.elapsed()
        if (error := await self._why_silent()) is not None:
            self._answered = max(self._answered, self._csi.answered)
            return _Fault("answered", self._answered, self._patience_after(error))
        self._answered = began
        if (error := await self._why_unknown()) is not None:
            return _Fault("said what it is", self._known, self._patience_after(error))
        self._known = began
        return None

    async def _why_silent(self) -> CsiError | None:
        try:
            await self._csi.call(rpc.PROBE, csi_pb2.ProbeRequest(), within=self._times.look)
        except Unimplemented:
            return None
        except CsiError as error:
            self._log.warning("the driver does not answer", error=error)
            return error
        return None

    def _patience_after(self, error: CsiError) -> float:
        """A driver that takes one call after another answers a look when it is done with those before."""
        may_be_busy = isinstance(error, DeadlineExceeded) and self._csi.under_way > 0
        return self._times.patience + (self._settings.timeout if may_be_busy else 0.0)

    async def _why_unknown(self) -> CsiError | None:
        """None where it is known what it is, and can: on the same connection it is the same driver."""
        connection = self._csi.connections
        if connection == self._connection:
            return None
        try:
            async with self._clock.timeout(self._times.patience):
                found = await self._asked_anew()
        except (CsiError, TimeoutError) as error:
            self._log.warning("the driver came back and does not say what it can", error=error)
            return error if isinstance(error, CsiError) else DeadlineExceeded("nothing came")
        self._note_abilities(connection, found)
        return None

    def _note_abilities(self, connection: int, found: frozenset[str]) -> None:
        self._connection = connection
        if found != self._abilities:
            self._log.info("the driver can something else than before", abilities=sorted(found))
            self._changed.set()
        self._abilities = found

    async def _asked_anew(self) -> frozenset[str]:
        name = (await self._csi.plugin_info()).name
        if name != self._settings.driver:
            raise AnotherDriver(came_back_as(name, self._settings.driver))
        return await self._csi.controller_abilities()
