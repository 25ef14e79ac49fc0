"""Writes what a container prints to its log, and keeps that log within its bound, whatever is printed.

Two files at most: the newest, and the one before it, named with `.1`. A full disk loses lines and nothing else: the
container goes on. Runs in the container's own first process, so that one that prints without end delays no other.

The log's folder is a descriptor; nothing else of this machine can be reached from here.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

from orlop.host.container_request import LogLimits
from orlop.host.log_line_rules import last_part, log_lines, moment_text

ONE_READ: Final = 64 << 10
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_LOG_MODE: Final = 0o640


class ContainerLog:
    """The newest file of one container's log."""

    def __init__(self, folder: int, name: str, limits: LogLimits) -> None:
        self._folder = folder
        self._name = name
        self._limits = limits
        self._file = os.open(name, _APPEND, _LOG_MODE, dir_fd=folder)
        self._size = os.fstat(self._file).st_size
        self._rests: dict[str, bytes] = {}

    def write(self, stream: str, output: bytes) -> None:
        written = log_lines(self._rests.get(stream, b"") + output, stream, _now(), self._limits.line_bytes)
        self._rests[stream] = written.rest
        self._append(written.lines)

    def end(self, stream: str) -> None:
        self._append(last_part(self._rests.pop(stream, b""), stream, _now()))

    def close(self) -> None:
        os.close(self._file)

    def _append(self, lines: bytes) -> None:
        if not lines:
            return
        with contextlib.suppress(OSError):  # a full disk: what the container does matters more than what it says
            if self._size and self._size + len(lines) > self._limits.file_bytes:
                self._rotate()
            self._size += os.write(self._file, lines)

    def _rotate(self) -> None:
        os.rename(self._name, f"{self._name}.1", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        full, self._file = self._file, os.open(self._name, _APPEND, _LOG_MODE, dir_fd=self._folder)
        os.close(full)
        self._size = 0


def _now() -> str:
    nanoseconds = time.time_ns()
    return moment_text(nanoseconds, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 1_000_000_000)))
