"""A lock that shows when a second thread waits for it."""

from __future__ import annotations

import threading


class ShownLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_waited_for = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
