"""This machine, as a kubelet with a folder of its own has it: the folder's parts opened, its containers.

Order: kubelet's folders are opened → what an earlier life left running is ended → containers
can be started. Leaving ends every container.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from orlop.embedded.kubelet.kubelet_folders import PLUGINS, PLUGINS_REGISTRY
from orlop.embedded.kubelet.kubelet_side import KubeletMachine
from orlop.embedded.kubelet.node_side import Surroundings
from orlop.embedded.kubelet.plugin_registration import Connect
from orlop.embedded.kubelet.pods.machine_containers import machine_containers
from orlop.embedded.kubelet.registration_folder import watched_folder
from orlop.foundation.clock import Clock
from orlop.host.confined_paths import opened_root
from orlop.host.linux_plain_volume_host import LinuxPlainVolumeHost
from orlop.host.linux_volume_host import LinuxVolumeHost
from orlop.host.machine_facts import MachineFacts, read_machine

T = TypeVar("T")
THREADS: Final = 16
"""For work on volumes: one of them may hang, and others' must go on."""
LONGEST_END_SECONDS: Final = 5.0


@asynccontextmanager
async def linux_machine(folder: Path, connect: Connect, clock: Clock) -> AsyncIterator[KubeletMachine]:
    """`folder` is kubelet's, a shared mount, with its parts made."""
    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(THREADS, thread_name_prefix="volumes")

    async def in_thread(work: Callable[[], T]) -> T:
        return await loop.run_in_executor(pool, work)

    async def machine() -> MachineFacts:
        return await in_thread(lambda: read_machine(root))

    with ExitStack() as opened:
        root = opened.enter_context(opened_root(str(folder)))
        volumes = opened.enter_context(LinuxVolumeHost(str(folder)))
        plain = opened.enter_context(LinuxPlainVolumeHost(str(folder)))
        registry = opened.enter_context(watched_folder(folder / PLUGINS_REGISTRY))
        surroundings = Surroundings(machine, registry, str(folder / PLUGINS), connect)
        try:
            async with machine_containers(root) as containers:
                yield KubeletMachine(surroundings, volumes, plain, containers, in_thread)
        finally:
            if not await _is_ended(pool, clock):
                opened.pop_all()  # what hangs may still use it: a number that is closed would be another folder's soon


async def _is_ended(pool: ThreadPoolExecutor, clock: Clock) -> bool:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        pool.shutdown(wait=True, cancel_futures=True)
        with suppress(RuntimeError):  # nobody waited for it, and the loop is closed
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=end, name="end of volumes", daemon=True).start()
    with suppress(TimeoutError):
        async with clock.timeout(LONGEST_END_SECONDS):
            await ended.wait()
    return ended.is_set()
