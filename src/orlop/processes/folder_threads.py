"""The threads that work on a node's folders.

Those that kubelet waits for work together, those that only look are apart: a disk that hangs keeps whoever waits for
it, and nobody else. Order at the end: no new work → what is under way ends, or is left behind → the host is closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from orlop.driver.ephemeral.disk_looks import DiskLooks
from orlop.driver.ephemeral.folders import Threads
from orlop.foundation.shared_steps import Together, WorkThreads
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.processes.daemon import Surroundings

T = TypeVar("T")
USUAL_WORKERS: Final = 1
"""Python runs one at a time; more would only take turns."""
MOST_WORKERS: Final = 16
STUCK_SECONDS: Final = 1.0
"""When a worker has not come forward for so long, another is started beside it."""
KEEPERS: Final = 16
"""For our own upkeep."""
READERS: Final = 8
"""For what people and kubelet want to know; a disk that hangs keeps these, and none of the others."""
LONGEST_END_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class FolderThreads:
    together: Together
    """For what kubelet asks to be done."""
    threads: Threads
    readers: Threads
    looks: Threads
    """Readers that are answered in time."""


@asynccontextmanager
async def folder_threads(host: LinuxNodeHost, given: Surroundings) -> AsyncIterator[FolderThreads]:
    """One that hangs on a dead disk is left behind with all that it may use.

    A descriptor that is closed and made anew would be another folder.
    """
    loop = asyncio.get_running_loop()
    workers = WorkThreads("publishing", usual=USUAL_WORKERS, most=MOST_WORKERS)
    keepers = ThreadPoolExecutor(KEEPERS, thread_name_prefix="folders")
    readers = ThreadPoolExecutor(READERS, thread_name_prefix="readers")
    watch = loop.create_task(workers.watch(given.clock.sleep, STUCK_SECONDS), name="workers that hang")
    try:
        reading = in_threads(readers)
        yield FolderThreads(workers, in_threads(keepers), reading, DiskLooks(reading, given.clock))
    finally:
        watch.cancel()
        ended = loop.create_future()

        def end() -> None:
            workers.close()
            for pool in (keepers, readers):
                pool.shutdown(wait=True, cancel_futures=True)
            with suppress(RuntimeError):  # nobody waited for it, and the loop is closed
                loop.call_soon_threadsafe(ended.set_result, None)

        threading.Thread(target=end, name="end of folders", daemon=True).start()
        try:
            async with given.clock.timeout(LONGEST_END_SECONDS):
                await asyncio.shield(ended)
            host.close()
        except TimeoutError:
            given.log.warning("the disk does not answer: what waits for it is left behind")


def in_threads(pool: Executor) -> Threads:
    loop = asyncio.get_running_loop()

    async def threads(work: Callable[[], T], /) -> T:
        return await loop.run_in_executor(pool, work)

    return threads
