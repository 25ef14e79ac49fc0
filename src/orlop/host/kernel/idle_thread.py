"""Threads of idle I/O priority, for work that can wait: the kernel serves their reads and writes last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from orlop.host.kernel.system_calls import IO_CLASS_IDLE, set_io_priority


def become_idle() -> None:
    """Set idle I/O priority for the calling thread, until it ends."""
    # If a kernel or a sandbox refuses, the work is still correct; it only disturbs others more.
    with contextlib.suppress(OSError):
        set_io_priority(IO_CLASS_IDLE)


@contextlib.contextmanager
def idle_thread(name: str) -> Iterator[ThreadPoolExecutor]:
    """Provide one thread of idle I/O priority. Leaving the context does not wait for it: stop its work first."""
    pool = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=become_idle)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
