"""A disk that hangs: who only wants to know something is told so in time, and takes no thread from who works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from orlop.host.host_errors import HostError
from orlop.host.linux_node_host import LinuxWorkdir
from orlop.host.threads import LONGEST_READ_SECONDS, MOST_PUBLISHERS, READERS, TimedThreads
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.afterlife_node import AfterlifeNode
from support.afterlife.ephemeral_node import right_here
from support.afterlife.kernel_nodes import KernelNode, node, publish, stats, unpublish
from support.host.file_systems import MOUNTS
from support.processes.orlop_process import run

__all__ = ["node"]
pytestmark = MOUNTS

T = TypeVar("T")
MANY = 2 * (MOST_PUBLISHERS + READERS)


@pytest.fixture
def hanging_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """It does not say how much room it has until the event is set."""
    answers, room = threading.Event(), LinuxWorkdir.room

    def hang(workdir: LinuxWorkdir) -> object:
        answers.wait()
        return room(workdir)

    monkeypatch.setattr(LinuxWorkdir, "room", hang)
    yield answers
    answers.set()


async def never(_work: Callable[[], T], /) -> T:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.virtual_time
async def test_a_look_at_a_disk_that_hangs_ends_with_a_sentence_that_says_what_to_look_at():
    clock = VirtualClock()
    with pytest.raises(HostError, match=r"--workdir.*has not answered for 10 seconds.*dmesg"):
        await TimedThreads(never, clock)(int)
    assert clock.elapsed() == LONGEST_READ_SECONDS


@pytest.mark.virtual_time
async def test_a_look_gives_what_it_saw_and_what_went_wrong():
    looks = TimedThreads(right_here, VirtualClock())
    assert await looks(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await looks(lambda: 1 // 0)


async def test_however_many_look_at_a_disk_that_hangs_pods_are_served(node: KernelNode, hanging_disk: threading.Event):
    async with node.side() as side:
        service, target, other = side.node_service, node.pod(), node.pod(volume="other")
        await service.NodePublishVolume(publish(target))
        asked = [asyncio.ensure_future(service.NodeGetVolumeStats(stats(target))) for _ in range(MANY)]
        asked += [asyncio.ensure_future(check()) for check in side.readiness.values()]
        await asyncio.sleep(0)
        for _ in range(3):
            await service.NodePublishVolume(publish(other, "csi-other"))
            await service.NodeUnpublishVolume(unpublish(other, "csi-other"))
        assert not any(each.done() for each in asked)
        assert readers() == READERS
        hanging_disk.set()
        answers = await asyncio.gather(*asked)
        assert answers[-2:] == [None, None]


def readers() -> int:
    return sum(thread.name.startswith("readers") for thread in threading.enumerate())


async def test_what_nobody_waits_for_any_more_is_never_begun(node: KernelNode, hanging_disk: threading.Event):
    async with node.running() as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target))
        asked = [asyncio.ensure_future(service.NodeGetVolumeStats(stats(target))) for _ in range(MANY)]
        await asyncio.sleep(0)
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)
        hanging_disk.set()
        await service.NodeGetVolumeStats(stats(target))  # the threads are free again


@pytest.mark.parametrize("verb", [("list",), ("usage",), ("show", "csi-7")], ids=" ".join)
async def test_a_person_is_told_that_the_disk_hangs(short_folder: Path, hanging_disk: threading.Event, verb):
    node = AfterlifeNode(short_folder, patience=0.2)
    node.bury()
    async with node.running():
        told = await asyncio.to_thread(run, "afterlife", *verb, "--socket", str(node.socket))
        hanging_disk.set()
    assert (told.returncode, told.stdout) == (1, "")
    assert "has not answered for 0.2 seconds" in told.stderr
    assert "dmesg" in told.stderr
