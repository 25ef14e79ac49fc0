"""What ten thousand retained folders cost: while nothing happens, and when the time of all of them is over at once.

Real folders on this kernel, in a folder of its own (`--folder`, else a temporary one); the reaper as in a process, with
`--pruneinterval 5s`. Idle is told as a share of a core, the end of all as time for each folder and as looks at the
mounts. Needs root: records are `trusted.` attributes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import TypeVar

from orlop.driver.ephemeral.afterlife.reaper import Reaper, ReaperSettings
from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.driver.ephemeral.folder_index import read_index
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.host.erase.erase_folder import erase_folder
from orlop.host.kernel import confined_paths
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import Burial, FolderOptions, FolderRecord, Owner, encode_record

T = TypeVar("T")
HOURS = 12 * 3600.0
PRUNE_SECONDS = 5.0


def plant(host: LinuxNodeHost, count: int, lifespan: float) -> None:
    buried = time.time()
    for number in range(count):
        burial = Burial(f"csi-{number}", buried, lifespan)
        owner = Owner(namespace=f"team-{number % 20}")
        record = FolderRecord(burial.volume_id, owner, FolderOptions(lifespan), created_at=buried)
        host.workdir.create(FolderPlace(FolderState.RETAINED, burial.folder_name), encode_record(record), 0o777)


class Bench:
    def __init__(self, host: LinuxNodeHost, pool: ThreadPoolExecutor) -> None:
        self._host = host
        self._pool = pool
        self.looks = 0
        look = host.workdir.mounted_folders

        def counted() -> frozenset[FolderPlace]:
            self.looks += 1
            return look()

        host.workdir.mounted_folders = counted  # type: ignore[method-assign] # counts the looks of the real one

    async def threads(self, work: Callable[[], T], /) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def reaper(self) -> tuple[Reaper, Folders]:
        clock, log, stop = SystemClock(), silent_log(), threading.Event()
        book = read_index(self._host.workdir, Moment(clock.now().timestamp(), clock.elapsed()))
        folders = Folders(self._host, book, threads=self.threads, clock=clock, log=log)
        metrics = Metrics("bench", of_process=False)
        runtime = Runtime(clock=clock, random=Random(), log=log, metrics=metrics)  # noqa: S311 - it spreads retries
        trash = self._host.workdir.shelf(FolderState.TRASH)

        def purge(name: str) -> None:
            erase_folder(trash, name, stop, threads=1)

        settings = ReaperSettings(PRUNE_SECONDS, Fraction(0))
        return Reaper(folders, self._host, purge, settings, runtime, threads=self.threads), folders

    async def idle(self, seconds: float) -> float:
        """The share of a core."""
        task = asyncio.get_running_loop().create_task(self.reaper()[0].run())
        await asyncio.sleep(1.0)
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        task.cancel()
        await asyncio.wait([task])
        return share

    async def end_of_all(self, patience: float) -> tuple[int, float, float]:
        """How many were erased, and the seconds of the clock and of a core that each took."""
        before, self.looks = self._left(), 0
        reaper, _ = self.reaper()
        began, cpu = time.monotonic(), time.process_time()
        task = asyncio.get_running_loop().create_task(reaper.run())
        while self._left() and time.monotonic() - began < patience:  # noqa: ASYNC110 - nobody tells of the last
            await asyncio.sleep(0.2)
        count = max(1, before - self._left())
        taken = (time.monotonic() - began) / count, (time.process_time() - cpu) / count
        task.cancel()
        await asyncio.wait([task])
        return count, *taken

    def _left(self) -> int:
        shelves = (FolderState.RETAINED, FolderState.TRASH)
        return sum(len(confined_paths.names_in(self._host.workdir.shelf(state))) for state in shelves)


async def measure(folder: Path, count: int, idle_seconds: float) -> None:
    for name in ("idle", "burst", "kubelet"):
        (folder / name).mkdir()
    with ThreadPoolExecutor(16) as pool:
        with LinuxNodeHost(str(folder / "idle"), str(folder / "kubelet")) as host:
            plant(host, count, HOURS)
            share = await Bench(host, pool).idle(idle_seconds)
            print(f"{count} retained, idle: {100 * share:.3f} % of a core")
        with LinuxNodeHost(str(folder / "burst"), str(folder / "kubelet")) as host:
            plant(host, count, 0.001)
            bench = Bench(host, pool)
            erased, wall, cpu = await bench.end_of_all(patience=120.0)
            print(
                f"{erased} of {count} erased: {1000 * wall:.2f} ms each, {1000 * cpu:.2f} ms of a core each, "
                f"{bench.looks} looks at the mounts"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folders", type=int, default=10_000)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder, ignore_cleanup_errors=True) as folder:
        asyncio.run(measure(Path(folder), given.folders, given.idle_seconds))


if __name__ == "__main__":
    main()
