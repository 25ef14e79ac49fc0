"""Lines of output in the form that container runtimes write and kubelets read: time, stream, P or F, text. Pure.

`F` ends a line; `P` is a part of one that is longer than a log line may be, or whose rest has not come when its writer
ended. A piece of output gets one time, that of its reading.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """Lines for the log, and the beginning of a line whose end has not come."""

    lines: bytes
    rest: bytes


def log_lines(output: bytes, stream: str, moment: str, longest: int) -> Written:
    """`output` begins with what was the rest of the output before it."""
    whole, _, rest = output.rpartition(b"\n")
    lines = _full_lines(output[: len(whole) + 1], stream, moment, longest) if len(rest) < len(output) else b""
    parts, rest = _without_whole_parts(rest, stream, moment, longest)
    return Written(lines + parts, rest)


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
