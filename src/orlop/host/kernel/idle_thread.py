"""Work that can wait: done by threads whose reads and writes come after everybody else's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from orlop.host.kernel.system_calls import IO_CLASS_IDLE, set_io_priority


def become_idle() -> None:
    """The thread that calls, for as long as it lives."""
    # A kernel or a sandbox that refuses it only makes us less polite.
    with contextlib.suppress(OSError):
        set_io_priority(IO_CLASS_IDLE)


@contextlib.contextmanager
def idle_thread(name: str) -> Iterator[ThreadPoolExecutor]:
    """One thread of idle I/O priority; leaving does not wait, so stop its work first."""
    pool = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=become_idle)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
