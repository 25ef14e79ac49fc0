"""Histories of a node with scratch folders: what kubelet, tenants, containers, the disk and the clock do, step by step.

A history is a list of steps and a seed: the same ones take the same course.
Kubelet is played as it is: what was answered with a final code it believes undone, what failed otherwise it asks for
again some day, and a pod deleted by force it forgets.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from orlop.csi.error_codes import CsiError, is_final
from orlop.driver.ephemeral.folder_index import read_index
from orlop.driver.ephemeral.publish_request_rules import PublishOrder
from orlop.driver.ephemeral.upkeep.orphan_watch import CHECK_SECONDS
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, FolderState, Names
from orlop.testing.fake_host import FakeMachine, FakeMount, FakeNodeHost
from orlop.testing.fake_host.machine import BLOCK
from orlop.testing.kill_points import KillAt, Killed, KillMoment, KillPoints
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.afterlife_judge import Judge
from support.afterlife.afterlife_steps import (
    ComeAndGo,
    Fail,
    FailPurges,
    Fill,
    ForcePodAway,
    JumpWall,
    KillSoon,
    LetGo,
    MountElsewhere,
    Pass,
    Publish,
    Reboot,
    Restart,
    Step,
    Together,
    Unpublish,
    Use,
    Write,
)
from support.afterlife.ephemeral_node import folder_ids, order
from support.afterlife.ephemeral_process import GRACE, Ground, NodeProcess, SlowThreads

VOLUMES: Final = (("a", 30.0), ("a", 30.0), ("a", 120.0), ("b", 30.0), ("b", 0.0), ("b", 120.0))
"""Namespace and lifespan."""
TARGETS: Final = ("scratch", "other")
DISK_BLOCKS: Final = 1000
DISK_INODES: Final = 1000
LONGEST_AFTERLIFE: Final = 120.0
LONGEST_BACKOFF: Final = 720.0


def name_of(volume: int) -> str:
    return f"csi-{volume}"


def order_of(volume: int, target: int) -> PublishOrder:
    namespace, lifespan = VOLUMES[volume]
    return order(name_of(volume), name_of(volume), TARGETS[target], namespace=namespace, lifespan_seconds=lifespan)


def names_of(volume: int, target: int) -> Names:
    return tuple(order_of(volume, target).target.split("/"))


Where = tuple[int, int]
"""Volume and target, by their numbers."""


@dataclass
class Kubelet:
    """What it believes."""

    published: set[Where] = field(default_factory=set)
    uncertain: set[Where] = field(default_factory=set)
    """It will ask again."""
    forgotten: set[int] = field(default_factory=set)
    """Volumes of pods that went without a word; the node finds out by itself."""


class History:
    def __init__(self, seed: int) -> None:
        self.machine = FakeMachine(total_bytes=DISK_BLOCKS * BLOCK, total_inodes=DISK_INODES)
        self.clock = VirtualClock()
        ground = Ground(self.machine, self.clock, threads=SlowThreads(self.clock, seed))
        self.judge = Judge(ground)
        ground.host = self.judge.host
        self._ground = ground
        self.kubelet = Kubelet()
        self._mounts: list[FakeMount] = []
        self._kill_at_start: KillAt | None = None
        self._written = 0
        self._mounted_at: dict[str, float] = {}
        """When a live folder was last seen mounted elsewhere."""
        self.process: NodeProcess

    async def play(self, steps: list[Step]) -> None:
        await self._start()
        try:
            for step in steps:
                await self._do(step)
                await self.clock.sleep(0.2)
                await self._go_on()
                self._check()
            await self._end_well()
        finally:
            await self.process.stop()

    # ---- the process -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """As kubelet restarts a container: again and again."""
        while True:
            points, self._kill_at_start = KillPoints(self._kill_at_start), None
            try:
                self.process = NodeProcess(self._ground, points)
            except (HostError, Killed):
                await self.clock.sleep(1.0)
            else:
                self.judge.process = self.process
                return

    async def _go_on(self) -> None:
        self.process.assert_well()
        if self.process.points.dead:
            await self._restart()

    async def _restart(self) -> None:
        await self.process.stop()
        await self._start()

    # ---- steps -------------------------------------------------------------------------------------------------------

    async def _do(self, step: Step) -> None:  # noqa: C901, PLR0912 - one case for each
        machine = self.machine
        match step:
            case Publish(volume, target):
                await self._publish(volume, target)
            case Unpublish(volume, target):
                await self._unpublish(volume, target)
            case Together(asked):
                await asyncio.gather(*(self._do(each) for each in asked))
            case Write(volume, blocks):
                self._write(volume, blocks)
            case ComeAndGo(volume, targets, blocks):
                for each in [*(Publish(volume, target) for target in targets), Write(volume, blocks)]:
                    await self._do(each)
                for target in targets:
                    await self._unpublish(volume, target)
            case ForcePodAway(volume):
                self._pod_goes(volume)
            case MountElsewhere(volume):
                places = [place for place in machine.folders if place.name.endswith(name_of(volume))]
                self._mounts += [machine.mount_elsewhere(place) for place in places[:1]]
            case LetGo(number):
                if self._mounts:
                    machine.unmount_elsewhere(self._mounts.pop(number % len(self._mounts)))
            case Fill(blocks, inodes):
                machine.used_by_others = blocks * BLOCK
                machine.inodes_used_by_others = inodes
            case Pass(seconds):
                await self.clock.sleep(seconds)
            case JumpWall(seconds):
                self.clock.jump_wall(seconds)
            case Fail(function, number, times, moment):
                machine.faults.fail(function, number, times=times, moment=moment)
            case FailPurges(volume, times):
                self._ground.fails[name_of(volume)] = times
            case Use(volume, target, ends):
                (machine.busy.discard if ends else machine.busy.add)(names_of(volume, target))
            case Restart():
                await self._restart()
            case Reboot():
                await self._reboot()
            case KillSoon(effects, moment, at_start):
                self._kill_soon(effects, moment, at_start=at_start)

    async def _publish(self, volume: int, target: int) -> None:
        where = volume, target
        self.machine.kubelet_makes(names_of(*where)[:-1])
        try:
            await self.process.folders.publish(order_of(*where))
        except (CsiError, Killed) as error:
            if where in self.kubelet.published:
                return
            self.kubelet.uncertain.add(where)
            if is_final(error):
                self.kubelet.uncertain.discard(where)
                self._assert_undone(where, error)
        else:
            self.kubelet.published.add(where)
            self.kubelet.uncertain.discard(where)

    def _assert_undone(self, where: Where, error: BaseException) -> None:
        assert not self.machine.mounts.get(names_of(*where)), f"{where} is mounted after a final code: {error}"
        assert names_of(*where) not in self.machine.kubelet_folders, f"{where} is there after a final code: {error}"

    async def _unpublish(self, volume: int, target: int) -> None:
        where = volume, target
        try:
            await self.process.folders.unpublish(name_of(volume), order_of(*where).target)
        except (CsiError, Killed):
            if where in self.kubelet.published:
                self.kubelet.published.discard(where)
                self.kubelet.uncertain.add(where)
        else:
            self.kubelet.published.discard(where)
            self.kubelet.uncertain.discard(where)
            assert not self.machine.mounts.get(names_of(*where)), f"I6: {where} is mounted after its unpublish"
            assert names_of(*where) not in self.machine.kubelet_folders, f"I6: {where} is there after its unpublish"

    def _write(self, volume: int, blocks: int) -> None:
        place = FolderPlace(FolderState.LIVE, name_of(volume))
        if any(published[0] == volume for published in self.kubelet.published):
            self._written += 1
            token = str(self._written).encode()
            self.machine.folders[place].files = {"data": bytes(blocks * BLOCK), "token": token}
            self.judge.precious[name_of(volume)] = token

    def _pod_goes(self, volume: int) -> None:
        self.machine.kubelet_removes(("pods", name_of(volume)))
        self.kubelet.forgotten.add(volume)
        self.kubelet.published = {where for where in self.kubelet.published if where[0] != volume}
        self.kubelet.uncertain = {where for where in self.kubelet.uncertain if where[0] != volume}

    async def _reboot(self) -> None:
        await self.process.stop()
        self.machine.mounts.clear()
        self.machine.elsewhere.clear()
        self.machine.busy.clear()
        self._mounts.clear()
        self.kubelet.uncertain |= self.kubelet.published
        self.kubelet.published.clear()
        await self._start()

    def _kill_soon(self, effects: int, moment: KillMoment, *, at_start: bool) -> None:
        if at_start:
            self._kill_at_start = KillAt(effects, moment)
        else:
            points = self.process.points
            points.kill = KillAt(len(points.seen) + effects, moment)  # type: ignore[misc]

    # ---- what must be ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        for where in self.kubelet.published:
            folder = self.machine.folders.get(FolderPlace(FolderState.LIVE, name_of(where[0])))
            stack = self.machine.mounts.get(names_of(*where), [])
            assert folder is not None, f"{where} was published, and there is no folder"
            assert [mount.folder for mount in stack] == [folder], f"{where} was published, and {stack} is mounted"
        kept = [folder for place, folder in self.machine.folders.items() if place.state is not FolderState.TRASH]
        tokens = {folder.files.get("token") for folder in kept}
        for volume, token in self.judge.precious.items():
            assert token in tokens, f"what was written to {volume} is lost before its time"
        self._check_what_lives()
        self._check_book()

    def _check_what_lives(self) -> None:
        """Somebody has it, or will come again, or has gone without a word, or had it mounted a moment ago."""
        wanted = {volume for volume, _ in self.kubelet.published | self.kubelet.uncertain}
        for volume, name in enumerate(map(name_of, range(len(VOLUMES)))):
            folder = self.machine.folders.get(FolderPlace(FolderState.LIVE, name))
            if folder is None:
                self.kubelet.forgotten.discard(volume)
            elif self.judge.is_mounted(folder):
                self._mounted_at[name] = self.clock.elapsed()
            elif volume not in wanted | self.kubelet.forgotten and not self.process.folders.keys.holder(name):
                seen = self._mounted_at.get(name, -LONGEST_BACKOFF)
                assert self.clock.elapsed() - seen < CHECK_SECONDS + 10, f"{name} lives, and nobody has it"

    def _check_book(self) -> None:
        folders = self.process.folders
        anew = read_index(FakeNodeHost(self._copy()).workdir, self.process.started)
        for volume in map(name_of, range(len(VOLUMES))):
            if volume in folders.in_doubt or folders.keys.holder(volume):
                continue
            assert (volume in folders.book.live) == (volume in anew.live), f"the book is wrong about {volume}"
            assert folders.book.record_of(volume) == anew.record_of(volume), f"the book is wrong about {volume}"
            assert folders.book.burial_of(volume) == anew.burial_of(volume), f"the book is wrong about {volume}"

    def _copy(self) -> FakeMachine:
        """A machine on which nothing fails."""
        copy = FakeMachine()
        copy.folders = dict(self.machine.folders)
        return copy

    async def _end_well(self) -> None:
        """No fault any more; kubelet asks once more for what is not done; time passes. Nothing is left over."""
        self.machine.faults.forget()
        self.machine.busy.clear()
        self.machine.elsewhere.clear()
        self.machine.used_by_others = self.machine.inodes_used_by_others = 0
        self._ground.fails.clear()
        self._kill_at_start = None
        self.process.points.kill = None  # type: ignore[misc]
        for number, where in enumerate(sorted(self.kubelet.uncertain)):
            await (self._publish if number % 2 else self._unpublish)(*where)
        assert not self.kubelet.uncertain, "I6: asked again without any fault, it failed"
        for volume in set(range(len(VOLUMES))) - {volume for volume, _ in self.kubelet.published}:
            self._pod_goes(volume)
        self._check()
        await self.clock.sleep(2 * LONGEST_BACKOFF + GRACE + LONGEST_AFTERLIFE + 100.0)
        self.process.assert_well()
        self._check()
        self._check_nothing_is_left()

    def _check_nothing_is_left(self) -> None:
        machine = self.machine
        live = sorted({name_of(volume) for volume, _ in self.kubelet.published})
        assert folder_ids(machine, FolderState.LIVE) == live
        assert {place.name for place in machine.folders if place.state is not FolderState.LIVE} == set()
        assert machine.half_made == {}
        targets = {names for names in machine.kubelet_folders if names[-1:] == ("mount",)}
        assert targets == {names_of(*where) for where in self.kubelet.published}
        assert {target for target, stack in machine.mounts.items() if stack} == targets
        assert self.process.folders.in_doubt == set()
        assert self.process.reaper._troubles == {}
