"""What must never happen to a folder, judged at the moment it would: by a model that knows the machine, not the driver.

Sees every move that a process makes. Erased is what goes from the afterlife to the trash: strictly after its time, by
the disk as it was last measured; never while anything has it mounted; for pressure alone only when the disk was
measured after all that could be purged had gone, and from the namespace that retains most.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.host.kernel.disk_usage import DiskRoom
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import Burial, burial_of, decode_record
from orlop.testing.fake_host import FakeFolder, FakeMachine, FakeNodeHost
from support.afterlife.ephemeral_process import HEADROOM, Ground, NodeProcess

TO_THE_MILLISECOND = 0.002
TOO_CLOSE_TO_TELL = 0.5


@dataclass(frozen=True)
class Measured:
    factor: float
    trash: frozenset[str]


class Judge:
    """`process` is the one that runs; it is told anew after each start."""

    def __init__(self, ground: Ground) -> None:
        self.machine: FakeMachine = ground.machine
        self.clock = ground.clock
        self.process: NodeProcess | None = None
        self.started = Moment(0, 0)
        self.erased: list[tuple[str, str]] = []
        """Volume and reason, in order."""
        self.precious: dict[str, bytes] = {}
        """By volume: what a tenant wrote, until it may be lost."""
        self._measured: Measured | None = None
        self._buried: dict[str, tuple[Moment, float]] = {}
        """By name: which process buried it, and when."""

    def host(self, host: FakeNodeHost) -> FakeNodeHost:
        self.started = Moment(self.clock.now().timestamp(), self.clock.elapsed())
        self._measured = None
        host.workdir = Watched(host.workdir, self)  # type: ignore[assignment]
        return host

    def has_measured(self) -> None:
        machine = self.machine
        shares = [
            (machine.total_bytes, machine.free_bytes()),
            (machine.total_inodes, machine.free_inodes()),
        ]
        factor = min(min(1.0, free / math.ceil(total * HEADROOM)) for total, free in shares)
        trash = frozenset(place.name for place in machine.folders if place.state is FolderState.TRASH)
        self._measured = Measured(factor, trash)

    def moves(self, place: FolderPlace, to: FolderPlace) -> None:
        folder = self.machine.folders.get(place)
        if folder is None or to in self.machine.folders:
            return
        match place.state, to.state:
            case FolderState.LIVE, FolderState.RETAINED:
                # A resurrection that failed goes back under its old name: as old as it was, and mounted if it was.
                if to.name not in self._buried:
                    assert not self.is_mounted(folder), f"{place} is buried while something has it mounted"
                    self._buried[to.name] = self.started, self.clock.elapsed()
            case FolderState.LIVE, FolderState.TRASH:
                record = decode_record(folder.record or b"")
                assert not self.is_mounted(folder), f"I1: {place} is erased while something has it mounted"
                never_used = record.volume_id not in self.precious
                assert never_used or record.options.lifespan_seconds == 0, f"{place} is erased with no afterlife"
                self.precious.pop(record.volume_id, None)
            case FolderState.RETAINED, FolderState.TRASH:
                self._erases(place, folder)

    def is_mounted(self, folder: FakeFolder) -> bool:
        mounts = [*self.machine.elsewhere, *(mount for stack in self.machine.mounts.values() for mount in stack)]
        return any(mount.folder is folder for mount in mounts)

    def _erases(self, place: FolderPlace, folder: FakeFolder) -> None:
        assert not self.is_mounted(folder), f"I1: {place} is erased while something has it mounted"
        burial = burial_of(place.name)
        assert burial is not None
        age, lifespan = self.age(burial), burial.lifespan_seconds
        assert self._measured is not None, f"{place} is erased before the disk was ever measured"
        least = lifespan * self._measured.factor
        assert age > least - TO_THE_MILLISECOND, f"{place} is erased at the age of {age}, and may live for {least}"
        if age <= lifespan - TO_THE_MILLISECOND:
            self._erases_for_pressure(place, burial)
        self.erased.append((burial.volume_id, "age" if age > lifespan else "pressure"))
        self.precious.pop(burial.volume_id, None)

    def age(self, burial: Burial) -> float:
        started, buried_at = self._buried.get(burial.folder_name, (None, 0.0))
        if started == self.started:
            return self.clock.elapsed() - buried_at
        return max(0.0, self.started.wall - burial.buried_at) + self.clock.elapsed() - self.started.elapsed

    def _erases_for_pressure(self, place: FolderPlace, burial: Burial) -> None:
        assert self._measured is not None
        assert self.process is not None
        trash = [FolderPlace(FolderState.TRASH, name) for name in self._measured.trash]
        for waiting in trash:
            folder = self.machine.folders.get(waiting)
            excused = folder is None or waiting.name in self.process.purge.failed or self.is_mounted(folder)
            excused = excused or waiting.name in {name for _, name in self.process.reaper._trash._later}
            assert excused, f"{place} is erased for pressure, and {waiting} was not purged before"
        self._is_of_the_greatest_namespace(burial)

    def _is_of_the_greatest_namespace(self, erased: Burial) -> None:
        assert self._measured is not None
        assert self.process is not None
        book = self.process.folders.book
        waiting = [*self.process.reaper._queue._queued, erased.volume_id]
        burials = [book.retained[each].burial for each in waiting]
        namespace = {each: book.retained[each].record.owner.namespace for each in waiting}
        beyond = {each.volume_id: self.age(each) - each.lifespan_seconds * self._measured.factor for each in burials}
        if any(abs(seconds) < TOO_CLOSE_TO_TELL for seconds in beyond.values()):
            return
        counts = Counter(namespace.values())
        most = max(counts[namespace[each]] for each in waiting if beyond[each] > 0)
        assert counts[namespace[erased.volume_id]] == most, f"{erased} goes, and its namespace retains less: {counts}"


class Watched:
    def __init__(self, workdir: Any, judge: Judge) -> None:
        self._workdir = workdir
        self._judge = judge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workdir, name)

    def move(self, place: FolderPlace, to: FolderPlace) -> None:
        if not self._judge.machine.faults.next("move"):
            self._judge.moves(place, to)
        self._workdir.move(place, to)

    def room(self) -> DiskRoom:
        room: DiskRoom = self._workdir.room()
        self._judge.has_measured()
        return room
