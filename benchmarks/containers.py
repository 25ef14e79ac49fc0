"""How fast a container starts on this machine, and what one costs in memory, beside the floor of bare processes.

The floor is `true` started and waited for by subprocess. Ours is a container with a root of its own and one volume,
from the request to its program running, and to the moment when nothing of it is left; one at a time, then 50 at once.
Needs root. Nothing is mounted where this machine sees it, so there is nothing to clean up but a folder.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from onenode.containers.container_request import Command, ContainerRequest, RootRequest, VolumePlace
from onenode.kubelet.pods.container_runtime import WantedContainer
from onenode.kubelet.pods.linux_container_runtime import LinuxContainerRuntime, linux_container_runtime
from orlop.host.threads import OwnThreads

ROUNDS = 200
AT_ONCE = 50


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "volume").mkdir()
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        async with linux_container_runtime(opened, OwnThreads()) as containers:
            await started(containers, "warm", folder)
            print(f"subprocess, true: {figures([floor() for _ in range(ROUNDS)])}")
            times = [await started(containers, f"one-{number}", folder) for number in range(ROUNDS)]
            print(f"container, to its program running: {figures([begun for begun, _ in times])}")
            print(f"container, to nothing left:        {figures([over for _, over in times])}")
            await many(containers, folder)
        os.close(opened)


def floor() -> float:
    began = time.perf_counter()
    subprocess.run(["true"], check=True)
    return time.perf_counter() - began


def wanted(pod: str, folder: Path, *words: str) -> WantedContainer:
    root = RootRequest((VolumePlace("/data"),), (str(folder),))
    return WantedContainer(pod, "main", 0, ContainerRequest(Command(words), root), (("volume",),))


async def started(containers: LinuxContainerRuntime, pod: str, folder: Path) -> tuple[float, float]:
    began = time.perf_counter()
    container = await containers.start(wanted(pod, folder, "true"))
    begun = time.perf_counter() - began
    await container.ended()
    return begun, time.perf_counter() - began


async def many(containers: LinuxContainerRuntime, folder: Path) -> None:
    began = time.perf_counter()
    all_wanted = [wanted(f"many-{number}", folder, "sleep", "1000") for number in range(AT_ONCE)]
    running = await asyncio.gather(*(containers.start(one) for one in all_wanted))
    print(f"{AT_ONCE} at once: all run after {(time.perf_counter() - began) * 1000:.0f} ms")
    notes = [int(note.name.split(".")[0]) for note in (folder / "processes").iterdir()]
    print(f"memory of {AT_ONCE} first processes and the launcher: {sum(map(pss, notes)) / 1024:.1f} MiB (PSS)")
    began = time.perf_counter()
    for container in running:
        container.kill()
    await asyncio.gather(*(container.ended() for container in running))
    print(f"{AT_ONCE} at once: nothing left after {(time.perf_counter() - began) * 1000:.0f} ms")


def pss(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def figures(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p99 = ordered[int(len(ordered) * 0.99)]
    return f"p50 {statistics.median(ordered) * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms"


if __name__ == "__main__":
    asyncio.run(main())
