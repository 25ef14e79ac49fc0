"""Writes what a container prints to its log, and keeps that log within its bound, whatever is printed.

Two files at most: the newest, and the one before it, named with `.1`. A full disk loses lines and nothing else: the
container goes on. Runs in the container's own first process, so that one that prints without end delays no other.

The log's folder is a descriptor; nothing else of this machine can be reached from here.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Final

from onenode.containers.container_request import LogLimits

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


@dataclass(frozen=True, slots=True)
class LogLines:
    """Lines for the log, and the beginning of a line whose end has not come."""

    lines: bytes
    rest: bytes


def log_lines(output: bytes, stream: str, moment: str, longest: int) -> LogLines:
    """`output` begins with what was the rest of the output before it."""
    whole, _, rest = output.rpartition(b"\n")
    lines = _full_lines(output[: len(whole) + 1], stream, moment, longest) if len(rest) < len(output) else b""
    parts, rest = _without_whole_parts(rest, stream, moment, longest)
    return LogLines(lines + parts, rest)


def last_part(rest: bytes, stream: str, moment: str) -> bytes:
    """What is left when a stream has ended."""
    return _prefix(stream, moment, "F") + rest + b"\n" if rest else b""


def moment_text(nanoseconds: int, seconds_text: str) -> str:
    """`seconds_text` is the moment to the second, such as 2026-01-02T03:04:05."""
    return f"{seconds_text}.{nanoseconds % 1_000_000_000:09d}Z"


def _full_lines(text: bytes, stream: str, moment: str, longest: int) -> bytes:
    """`text` ends with a line break. Most output has no overlong line, and is done at once."""
    full = _prefix(stream, moment, "F")
    if len(text) <= longest or max(map(len, text.split(b"\n"))) <= longest:
        return full + text[:-1].replace(b"\n", b"\n" + full) + b"\n"
    return b"".join(_one_line(line, stream, moment, longest) for line in text[:-1].split(b"\n"))


def _one_line(line: bytes, stream: str, moment: str, longest: int) -> bytes:
    parts, rest = _without_whole_parts(line, stream, moment, longest)
    return parts + _prefix(stream, moment, "F") + rest + b"\n"


def _without_whole_parts(text: bytes, stream: str, moment: str, longest: int) -> tuple[bytes, bytes]:
    """A text of exactly the longest length is whole only if its line ends there, so it is kept back."""
    if len(text) <= longest:
        return b"", text
    part = _prefix(stream, moment, "P")
    cut = (len(text) - 1) // longest * longest
    parts = b"".join(part + text[start : start + longest] + b"\n" for start in range(0, cut, longest))
    return parts, text[cut:]


def _prefix(stream: str, moment: str, tag: str) -> bytes:
    return f"{moment} {stream} {tag} ".encode()
