"""What of a container's log is shown, and in which form; and whose log is meant. Pure.

A log is lines of time, stream, P or F, and text (`onenode/containers/container_log`). People see the text; parts are
joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

_FIELDS: Final = 4


class NoSuchLog(ValueError):
    """In kubelet's words."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """As kubectl asks: the last lines, those since a moment, at most so many bytes, each with its time."""

    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None
    timestamps: bool = False
    streams: frozenset[str] = field(default=frozenset({"stdout", "stderr"}))


@dataclass(frozen=True, slots=True)
class Position:
    """Between two pieces of a log: a line whose end has not come, whether a shown line is open, bytes still allowed."""

    begun: bytes = b""
    in_line: bool = False
    bytes_left: int | None = None

    @property
    def is_full(self) -> bool:
        return self.bytes_left is not None and self.bytes_left <= 0


def beginning(options: LogOptions) -> Position:
    return Position(bytes_left=options.limit_bytes)


def shown(piece: bytes, at: Position, options: LogOptions) -> tuple[bytes, Position]:
    """What is shown of the next piece of a log, and where one stands after it."""
    whole, _, begun = (at.begun + piece).rpartition(b"\n")
    parts, in_line, since = [], at.in_line, _since_text(options)
    for moment, stream, tag, text in _entries(whole):
        if moment < since or stream.decode("ascii", "replace") not in options.streams:
            continue
        prefix = moment + b" " if options.timestamps and not in_line else b""
        in_line = tag != b"F"
        parts.append(prefix + text + (b"" if in_line else b"\n"))
    text = b"".join(parts)
    if at.bytes_left is None:
        return text, Position(begun, in_line)
    cut = text[: max(0, at.bytes_left)]
    return cut, Position(begun, in_line, at.bytes_left - len(cut))


def tail(log: bytes, count: int) -> bytes:
    """The last so many lines of a log, whole lines as people count them; a beginning without its end is one."""
    if count <= 0:
        return b""
    lines = log.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for index in range(len(lines) - 1, -1, -1):
        if index == 0 or _ends_a_line(lines[index - 1]):
            count -= 1
        if count == 0:
            return b"\n".join((*lines[index:], b"")) if log.endswith(b"\n") else b"\n".join(lines[index:])
    return log


def _ends_a_line(line: bytes) -> bool:
    parts = line.split(b" ", 3)
    return len(parts) == _FIELDS and parts[2] == b"F"


def _entries(whole: bytes) -> Iterator[list[bytes]]:
    """What is torn, because a disk was full, is passed over."""
    for line in whole.split(b"\n"):
        parts = line.split(b" ", 3)
        if len(parts) == _FIELDS:
            yield parts


def _since_text(options: LogOptions) -> bytes:
    """Times in a log have one length, so that texts can be compared."""
    return options.since.strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode() if options.since else b""


# ---- whose log -------------------------------------------------------------------------------------------------------


def log_attempt(pod: Mapping[str, Any], container: str, *, previous: bool) -> int:
    """Which attempt's log is meant by a container's name; raises `NoSuchLog`."""
    name = pod["metadata"]["name"]
    status = _status_of(pod, container)
    if status is None:
        known = {one["name"] for kind in ("containers", "initContainers") for one in pod["spec"].get(kind) or ()}
        if container not in known:
            raise NoSuchLog(f"container {container} is not valid for pod {name}")
        raise NoSuchLog(f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating')
    return _attempt(status, container, name, previous=previous)


def _attempt(status: Mapping[str, Any], container: str, pod_name: str, *, previous: bool) -> int:
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated")
    count, waiting = int(status.get("restartCount") or 0), state.get("waiting")
    if waiting is not None:
        if last is None and not previous:
            reason = waiting.get("reason") or "ContainerCreating"
            raise NoSuchLog(f'container "{container}" in pod "{pod_name}" is waiting to start: {reason}')
        if last is not None:
            return count
    if not previous:
        return count
    if waiting is not None or count == 0:
        raise NoSuchLog(f'previous terminated container "{container}" in pod "{pod_name}" not found')
    return count - 1


def _status_of(pod: Mapping[str, Any], container: str) -> Mapping[str, Any] | None:
    status = pod.get("status") or {}
    every = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return next((one for one in every if one["name"] == container), None)
