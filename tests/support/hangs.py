"""End a test that hangs: report "timeout", the test, and the stacks of all threads and asyncio tasks.

pytest-timeout decides when (`timeout` in pyproject.toml); what happens then is decided here, because its own report
lacks the tasks, which is where an async test hangs, and is lost in a pytest-xdist worker, which has no terminal.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import sys
import threading
import time
import traceback
from typing import Any

import pytest


def stacks() -> str:
    """Return the stacks of all threads but this one, and of all asyncio tasks that have not ended."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():
            parts += [f"thread {names.get(thread, thread)}:\n", *traceback.format_stack(frame)]
    # Not asyncio.all_tasks: it lists those of one event loop, and a test may run several.
    for task in gc.get_objects():
        if isinstance(task, asyncio.Task) and not task.done():
            stack = io.StringIO()
            task.print_stack(file=stack)
            parts.append(stack.getvalue())
    return "".join(parts)


def report_of(test: str, seconds: float) -> str:
    return f"timeout: {test} did not end within {seconds:g} seconds\n{stacks()}"


class Watchdog:
    """One thread for all tests of this process. It ends the process: nothing else ends a thread that hangs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._test: pytest.Item | None = None
        self._seconds = self._deadline = 0.0

    def watch(self, test: pytest.Item | None, seconds: float) -> None:
        with self._changed:
            self._test, self._seconds, self._deadline = test, seconds, time.monotonic() + seconds
            self._changed.notify()

    def run(self) -> None:
        with self._changed:
            while (remaining := self._deadline - time.monotonic()) > 0 or self._test is None:
                self._changed.wait(remaining if self._test is not None else None)
            self._end_process(self._test)

    def _end_process(self, test: pytest.Item) -> None:
        try:
            # Otherwise what is written to descriptor 2 ends in a file of pytest's that nobody reads any more.
            test.config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
            os.write(2, f"\n{report_of(test.nodeid, self._seconds)}\n".encode())
        finally:
            os._exit(1)


_watchdog: Watchdog | None = None


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    global _watchdog  # noqa: PLW0603 - one for the process, started by its first test
    if _watchdog is None:
        _watchdog = Watchdog()
        threading.Thread(target=_watchdog.run, name="test watchdog", daemon=True).start()
    _watchdog.watch(item, settings.timeout)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    if _watchdog is not None:
        _watchdog.watch(None, 0.0)
    return True
