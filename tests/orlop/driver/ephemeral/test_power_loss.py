"""The power fails, again and again, on disks of their own: what was acknowledged is there, and nothing is half.

A node lives through many lives on one image. In each, kubelet asks for random things and has its answers; then some
more are under way when the power goes. The next life must find what was acknowledged, and of each thing that was under
way either all or nothing. That tenants' files are there is only claimed of what they made durable themselves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from subprocess import CalledProcessError

import pytest

from conftest import SOAK
from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.node_service import EphemeralNodeService
from orlop.foundation.duration import Duration
from orlop.processes.daemon import CannotGoOn
from support.afterlife.kernel_nodes import KernelNode, made, publish, unpublish
from support.host.kernel_rooms import DiskImage, descriptor, disk_image, run
from support.waiting import eventually

LIVES = 500 if SOAK else 10
IDS = [f"csi-{letter}" for letter in "abcdefgh"]
LIFESPANS = ("0s", SHORT := "1ms", LONG := "1h", LONG)
"""Of each volume for ever: some go straight to the trash, some after a moment of afterlife."""


@dataclass(frozen=True)
class Volume:
    """What is on disk of it; `content` is what its tenant wrote when it was new."""

    shelf: str | None = None
    targets: frozenset[str] = frozenset()
    content: str = ""


GONE = Volume()
Outcomes = tuple[Volume, ...]


class Life:
    """The model: what each volume may be, and how that is found out."""

    def __init__(self, node: KernelNode, disk: DiskImage, random: Random) -> None:
        self.node = node
        self.disk = disk
        self.random = random
        self.may_be: dict[str, Outcomes] = dict.fromkeys(IDS, (GONE,))
        self.lifespans = {each: LIFESPANS[number % len(LIFESPANS)] for number, each in enumerate(IDS)}
        self._incarnations = 0
        self._power = True
        self._told_before: dict[str, int] = {}

    # ---- what kubelet does -------------------------------------------------------------------------------------------

    async def do_something(self, service: EphemeralNodeService, volume_id: str) -> None:
        """Until it is answered, or the power has gone."""
        (before,) = self.may_be[volume_id]
        self._told_before[volume_id] = len(self.node.log)
        act, after = self._choose(service, volume_id, before)
        self.may_be[volume_id] = (before, *after)
        with suppress(CsiError, OSError):
            await act
            self.may_be[volume_id] = after
            await self._tenant_writes(volume_id)
            await self._short_afterlife_ends(volume_id)

    def _choose(
        self, service: EphemeralNodeService, volume_id: str, before: Volume
    ) -> tuple[Awaitable[object], Outcomes]:
        volume = self.random.choice(["scratch", "second"])
        target, name = self.node.pod(volume_id, volume), self._name(volume_id, volume)
        if name in before.targets and before.shelf == "live":
            return service.NodeUnpublishVolume(unpublish(target, volume_id)), self._without(volume_id, before, name)
        lifespan = self.lifespans[volume_id]
        act = service.NodePublishVolume(publish(target, volume_id, afterlifespan=lifespan))
        others = before.targets if before.shelf == "live" else frozenset()
        return act, (replace(before, shelf="live", targets=others | {name}),)

    def _without(self, volume_id: str, before: Volume, name: str) -> Outcomes:
        left = before.targets - {name}
        if left:
            return (replace(before, targets=left),)
        return (GONE if self.lifespans[volume_id] == "0s" else Volume("retained", content=before.content),)

    async def _tenant_writes(self, volume_id: str) -> None:
        (volume,) = self.may_be[volume_id]
        if volume.shelf != "live" or volume.content:
            return
        self._incarnations += 1
        content = str(self._incarnations)
        self.may_be[volume_id] = (volume, replace(volume, content=content))
        await asyncio.to_thread(_leave_durably, self.node.live(volume_id), content)
        self.may_be[volume_id] = (replace(volume, content=content),)

    async def _short_afterlife_ends(self, volume_id: str) -> None:
        """What was told to be on its way to the trash is there for good."""
        (volume,) = self.may_be[volume_id]
        if volume.shelf != "retained" or self.lifespans[volume_id] != SHORT:
            return
        self.may_be[volume_id] = (volume, GONE)
        await eventually(lambda: not self._power or self._told_to_be_erased(volume_id))
        if self._told_to_be_erased(volume_id):
            self.may_be[volume_id] = (GONE,)

    def _told_to_be_erased(self, volume_id: str) -> bool:
        """Since it was last asked for, or the node began."""
        told = self.node.log[self._told_before[volume_id] :]
        return any(entry.message == "erasing folder" and entry.fields["volume"] == volume_id for entry in told)

    def _name(self, volume_id: str, volume: str) -> str:
        return str(self.node.target(volume_id, volume).relative_to(self.node.kubelet))

    # ---- the power ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def living(self) -> AsyncIterator[EphemeralNodeService]:
        self._power = True
        self._told_before = dict.fromkeys(IDS, len(self.node.log))
        async with self.node.running(prune_interval=Duration.parse("20ms")) as service:
            await self.look()
            yield service

    async def until_the_power_goes(self) -> None:
        with suppress(CannotGoOn):  # when the disk is gone
            async with self.living() as service:
                for _ in range(self.random.randint(0, 6)):
                    await self.do_something(service, self.random.choice(IDS))
                under_way = [self.do_something(service, each) for each in self.random.sample(IDS, 4)]
                await asyncio.gather(*under_way, self._lose_power_soon())
        await eventually(self._is_off)
        await eventually(self._is_on)

    def _is_off(self) -> bool:
        """Threads that were in the middle of something end a moment later."""
        try:
            for point in reversed(self.node.mounts()):
                run("umount", point)
            self.disk.switch_off()
        except CalledProcessError:
            return False
        return True

    def _is_on(self) -> bool:
        """While a test beside this one has a copy of our mounts in a namespace of its own, the dead disk lives on."""
        self.disk.switch_on()
        try:
            os.utime(self.disk.folder)
        except OSError:
            self.disk.switch_off()
            return False
        return True

    async def _lose_power_soon(self) -> None:
        for _ in range(self.random.randint(0, 40)):
            await asyncio.sleep(0)
        await asyncio.to_thread(self.disk.lose_power)
        self._power = False

    # ---- what is found -----------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Just after a start, when nobody has asked for anything."""
        assert [entry for entry in self.node.log if entry.message.startswith("left alone")] == []
        assert [name for name in self.node.names("live") if name.startswith(".")] == []
        for volume_id, outcomes in self.may_be.items():
            found = self._found(volume_id)
            assert found in (*outcomes, *(GONE for each in outcomes if self._goes_soon(volume_id, each)))
            self.may_be[volume_id] = (found,)
            await self._short_afterlife_ends(volume_id)

    def _goes_soon(self, volume_id: str, volume: Volume) -> bool:
        return volume.shelf == "retained" and self.lifespans[volume_id] == SHORT

    def _found(self, volume_id: str) -> Volume:
        if self.node.live(volume_id).exists():
            record = self.node.record(self.node.live(volume_id))
            assert record.volume_id == volume_id
            content = _content(self.node.live(volume_id))
            return Volume("live", frozenset(record.targets), content)
        if volume_id not in self.node.volumes("retained"):
            return GONE
        folder = self.node.buried(volume_id)
        assert self.node.record(folder).volume_id == volume_id
        return Volume("retained", content=_content(folder))


def _leave_durably(folder: Path, name: str) -> None:
    (folder / name).touch()
    with descriptor(folder) as opened:
        os.fsync(opened)
        os.fstat(opened)  # which fails, also where an fsync does not, when the disk is gone


def _content(folder: Path) -> str:
    return "".join(path.name for path in folder.iterdir())


@pytest.mark.timeout(2400 if SOAK else 300)
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
async def test_what_was_acknowledged_survives_every_loss_of_power_and_nothing_is_half(tmp_path: Path, file_system: str):
    with disk_image(tmp_path / "room", file_system) as disk:
        workdir = made(disk.folder / "work")
        run("sync", "--file-system", disk.folder)
        life = Life(KernelNode(workdir, made(tmp_path / "room" / "kubelet")), disk, Random(file_system))
        for _ in range(LIVES):
            await life.until_the_power_goes()
        async with life.living() as service:
            await _everything_ends(life, service)


async def _everything_ends(life: Life, service: EphemeralNodeService) -> None:
    """kubelet unpublishes all there is, and nothing stays behind but what is retained."""
    for volume_id, (volume,) in life.may_be.items():
        for name in volume.targets if volume.shelf == "live" else ():
            await service.NodeUnpublishVolume(unpublish(life.node.kubelet / name, volume_id))
    await eventually(lambda: life.node.volumes("live") + life.node.volumes("trash") == [])
    assert life.node.mounts() == []
