"""A node with retained folders on the real kernel, answering on its admin socket; kubelet's side is left out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import TypeVar

from orlop.admin.afterlife import Afterlife
from orlop.driver.ephemeral.afterlife.reaper import Reaper, ReaperSettings
from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.driver.ephemeral.folder_index import FolderIndex, read_index
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.requests.admin_socket import admin_socket
from orlop.driver.ephemeral.requests.afterlife_requests import AfterlifeRequests, AfterlifeSettings
from orlop.foundation.clock import Clock, SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.erase.erase_folder import erase_folder
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import FolderPlace, FolderState
from orlop.host.threads import LONGEST_READ_SECONDS, TimedThreads
from orlop.records.ephemeral_folder import Burial, FolderOptions, FolderRecord, Owner, encode_record

T = TypeVar("T")
HOUR = 3600.0
DAY = 24 * HOUR
ID = "csi-7d9b3da1c7e2ad5274a8651892defaffc2201d0bb15a061100ed84877ad6fdbe"
OTHER = "csi-7d9b3da1000000000000000000000000000000000000000000000000000000ff"
WHY = "as the admin set it"


@dataclass
class AfterlifeNode:
    """What stays when its process ends, and how that is started."""

    folder: Path
    max_afterlifespan: float = 2 * DAY
    allowed_user: int = 0
    patience: float = LONGEST_READ_SECONDS
    clock: Clock = field(default_factory=SystemClock)
    log: list[LogEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workdir = self.folder / "work"
        self.kubelet = self.folder / "kubelet"
        self.socket = self.folder / "run" / "admin.sock"
        self.workdir.mkdir()
        self.kubelet.mkdir()

    def bury(
        self,
        volume_id: str = ID,
        *,
        pod: str = "web-0",
        namespace: str = "shop",
        age: float = HOUR,
        lifespan: float = DAY,
    ) -> Path:
        """A pod has been here and left its folder, before the process started."""
        buried_at = self.clock.now().timestamp() - age
        record = FolderRecord(
            volume_id, Owner("u1", pod, namespace, "default", verified=True), FolderOptions(lifespan), buried_at - HOUR
        )
        burial = Burial(volume_id, round(buried_at, 3), lifespan)
        with LinuxNodeHost(str(self.workdir), str(self.kubelet)) as host:
            place = FolderPlace(FolderState.RETAINED, burial.folder_name)
            host.workdir.create(place, encode_record(record), 0o777)
        return self.workdir / "retained" / burial.folder_name

    def live(self, volume_id: str) -> Path:
        record = FolderRecord(
            volume_id,
            Owner("u2", "db-0", "shop"),
            FolderOptions(DAY),
            self.clock.now().timestamp(),
            targets=("a/mount",),
        )
        with LinuxNodeHost(str(self.workdir), str(self.kubelet)) as host:
            host.workdir.create(FolderPlace(FolderState.LIVE, volume_id), encode_record(record), 0o777)
        return self.workdir / "live" / volume_id

    def names(self, shelf: str) -> list[str]:
        return sorted(path.name for path in (self.workdir / shelf).iterdir())

    @asynccontextmanager
    async def running(self, *, reaping: bool = False) -> AsyncIterator[RunningNode]:
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(8, thread_name_prefix="folders")

        async def threads(work: Callable[[], T], /) -> T:
            return await loop.run_in_executor(pool, work)

        log = collecting_log(self.log)
        self.metrics = Metrics("test", of_process=False)
        with pool, LinuxNodeHost(str(self.workdir), str(self.kubelet)) as host:
            book = read_index(host.workdir, Moment(self.clock.now().timestamp(), self.clock.elapsed()))
            folders = Folders(host, book, threads=threads, clock=self.clock, log=log)

            def purge(name: str) -> None:
                erase_folder(host.workdir.shelf(FolderState.TRASH), name, threading.Event(), threads=1)

            runtime = Runtime(clock=self.clock, random=Random(1), log=log, metrics=self.metrics)
            reaper = Reaper(folders, host, purge, ReaperSettings(0.05, Fraction(0)), runtime, threads=threads)
            requests = AfterlifeRequests(
                folders,
                reaper,
                host.workdir,
                host.workdir,
                AfterlifeSettings(str(self.workdir), Fraction(0), WHY, self.max_afterlifespan),
                threads=threads,
                timed_threads=TimedThreads(threads, self.clock, self.patience),
                clock=self.clock,
                log=log,
            )
            async with admin_socket(
                str(self.socket), requests, clock=self.clock, log=log, allowed_user=self.allowed_user
            ):
                reaping_task = loop.create_task(reaper.run()) if reaping else None
                try:
                    yield RunningNode(book, folders, reaper, Afterlife(self.socket))
                finally:
                    if reaping_task is not None:
                        reaping_task.cancel()
                        await asyncio.wait([reaping_task])


@dataclass
class RunningNode:
    book: FolderIndex
    folders: Folders
    reaper: Reaper
    afterlife: Afterlife


async def asked(question: Callable[[], T]) -> T:
    """Clients block: they are asked in a thread, while the node answers on the loop."""
    return await asyncio.to_thread(question)
