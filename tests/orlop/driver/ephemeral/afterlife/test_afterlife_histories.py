"""Pods, readers and people in any order: what is read is never erased, what is kept is kept, and the book is true."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.afterlife.reaper import Reaper, ReaperSettings
from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.driver.ephemeral.folder_index import read_index
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.upkeep.size_watch import SizeWatch
from orlop.foundation.keyed_lock import KeyHeld
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace
from orlop.records.ephemeral_folder import burial_of
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.afterlife.ephemeral_node import FakePurge, machine_with_pods, order, right_here

IDS = st.sampled_from(["csi-1", "csi-2"])
LIFESPAN, LONGEST = 1000.0, 4000.0
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), IDS),
        st.tuples(st.just("unpublish"), IDS),
        st.tuples(st.just("come and go"), IDS),
        st.tuples(st.just("read"), IDS),
        st.tuples(st.just("stop reading"), IDS),
        st.tuples(st.just("erase"), IDS),
        st.tuples(st.just("keep"), IDS, st.floats(1, LONGEST)),
        st.tuples(st.just("sleep"), st.sampled_from([1.0, 500.0, 3000.0])),
    ),
    min_size=10,
    max_size=30,
)


class NoNotes:
    def noted(self, _place: FolderPlace, _true_of: str) -> int | None:
        return None

    def note(self, _place: FolderPlace, _size: int, _true_of: str) -> None:
        pass


class Life:
    def __init__(self, clock: VirtualClock) -> None:
        self.machine = machine_with_pods("csi-1", "csi-2")
        self.clock = clock
        host = FakeNodeHost(self.machine)
        book = read_index(host.workdir, Moment(clock.now().timestamp(), clock.elapsed()))
        self.folders = Folders(host, book, threads=right_here, clock=clock, log=silent_log())
        metrics = Metrics("test", of_process=False)
        runtime = Runtime(clock=clock, random=Random(1), log=silent_log(), metrics=metrics)
        settings = ReaperSettings(500.0, Fraction(0))
        purge = PurgeOfTheUnread(self.machine, self.folders)
        self.reaper = Reaper(self.folders, host, purge, settings, runtime, threads=right_here)
        self.sizes = SizeWatch(self.folders, host.workdir, NoNotes(), right_here, clock, silent_log())
        self.readers: dict[str, list[ExitStack]] = {"csi-1": [], "csi-2": []}
        self.kept_until: dict[str, float] = {}

    async def take(self, step: str, *of: object) -> None:
        match step, of:
            case "publish", (str(volume_id),):
                await self.folders.publish(order(volume_id, volume_id, lifespan_seconds=LIFESPAN))
                self.kept_until.pop(volume_id, None)
            case "unpublish", (str(volume_id),):
                await self.folders.unpublish(volume_id, order(volume_id, volume_id).target)
            case "come and go", (str(volume_id),):
                await self.take("publish", volume_id)
                await self.take("unpublish", volume_id)
            case "read", (str(volume_id),) if volume_id in self.folders.book.retained:
                self.readers[volume_id].append(ExitStack())
                self.readers[volume_id][-1].enter_context(self.folders.book.being_read(volume_id))
            case "stop reading", (str(volume_id),) if self.readers[volume_id]:
                self.readers[volume_id].pop().close()
            case "erase", (str(volume_id),) if volume_id in self.folders.book.retained:
                with suppress(HostError, CsiError, KeyHeld):
                    await self.reaper.erase_on_request(volume_id)
                    self.kept_until.pop(volume_id, None)
            case "keep", (str(volume_id), float(seconds)) if volume_id in self.folders.book.retained:
                age = self.folders.book.age(self.folders.book.retained[volume_id], self.now())
                await self.folders.keep(volume_id, age + seconds)
                self.kept_until[volume_id] = max(self.clock.elapsed() + seconds, self.kept_until.get(volume_id, 0.0))
            case "sleep", (float(seconds),):
                await self.clock.sleep(seconds)

    def now(self) -> Moment:
        return Moment(self.clock.now().timestamp(), self.clock.elapsed())

    def check(self) -> None:
        anew = read_index(FakeNodeHost(self.machine).workdir, self.folders.book.started)
        assert self.folders.book.live == anew.live
        assert {key: each.burial for key, each in self.folders.book.retained.items()} == {
            key: each.burial for key, each in anew.retained.items()
        }
        there = {place.name if burial is None else burial.volume_id for place, burial in self._places()}
        assert {volume_id for volume_id, readers in self.readers.items() if readers} <= there
        kept = {each for each, until in self.kept_until.items() if until > self.clock.elapsed() + 1}
        assert kept <= {*self.folders.book.retained, *self.folders.book.live}

    def _places(self) -> list[tuple[FolderPlace, object]]:
        return [(place, burial_of(place.name)) for place in self.machine.folders]


class PurgeOfTheUnread(FakePurge):
    def __init__(self, machine: FakeMachine, folders: Folders) -> None:
        super().__init__(machine)
        self._folders = folders

    def __call__(self, name: str) -> None:
        burial = burial_of(name)
        assert burial is not None
        assert burial.volume_id not in self._folders.book.readers, f"{name} is erased while it is read"
        super().__call__(name)


@given(STEPS)
def test_what_is_read_or_kept_is_never_erased_and_everything_else_goes_in_its_time(steps):
    async def live(clock: VirtualClock) -> None:
        life = Life(clock)
        tasks = [asyncio.ensure_future(each.run()) for each in (life.reaper, life.sizes)]
        for step in steps:
            await life.take(*step)
            await clock.sleep(0)
            life.check()
            assert not any(task.done() for task in tasks), "it failed"
        for readers in life.readers.values():
            while readers:
                readers.pop().close()
        await clock.sleep(4 * LONGEST)
        life.check()
        assert not any(task.done() for task in tasks), "it failed"
        assert life.folders.book.retained == {}
        assert {place.name for place in life.machine.folders} == set(life.folders.book.live)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run_virtual(live)
