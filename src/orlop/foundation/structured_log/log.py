"""The `Log`, and the lines it writes.

Must not read the clock (the time is passed in), must not open files, and must never raise into the code that logs: a
line that cannot be written is lost.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from orlop.foundation.structured_log.log_values import BARE_WORD, LongText, Values, json_escape, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_VALUE_LIMIT = 4096

LineStyle: TypeAlias = Literal["text", "json"]


class Level(IntEnum):
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


def level_named(name: str) -> Level:
    """Return the level with this name, in any case; the ValueError lists the names."""
    try:
        return Level[name.upper()]
    except KeyError:
        raise ValueError(f"allowed are {', '.join(LEVEL_NAMES.values())}") from None


# Looking up members of an enum is slow, and every event needs one.
DEBUG, INFO, WARNING, ERROR = Level
LEVEL_NAMES: Final = {level: level.name.lower() for level in Level}
COLOURS: Final = {DEBUG: "\x1b[2m", INFO: "\x1b[32m", WARNING: "\x1b[33m", ERROR: "\x1b[31m"}
MINUTE: Final = timedelta(minutes=1)
COLOUR_END: Final = "\x1b[0m"


# ---- the log ---------------------------------------------------------------------------------------------------------


class Destination(Protocol):
    """Where events go. It must not raise, and must not change or keep the fields."""

    def __call__(self, level: Level, message: str, fields: Mapping[str, object], /) -> None: ...


class Log:
    """A log for events with fields. `bind` returns a log that adds its fields to every event.

    An event below `level` costs nearly nothing; use `enabled` where the fields are expensive to compute.
    """

    __slots__ = ("_bound", "_destination", "_level")

    def __init__(self, destination: Destination, level: Level = INFO) -> None:
        self._destination = destination
        self._level = level
        self._bound: Mapping[str, object] = {}

    def enabled(self, level: Level) -> bool:
        return level >= self._level

    def bind(self, **fields: object) -> Log:
        log = Log(self._destination, self._level)
        log._bound = {**self._bound, **fields}
        return log

    def debug(self, message: str, /, **fields: object) -> None:
        if self._level <= DEBUG:
            self._destination(DEBUG, message, {**self._bound, **fields})

    def info(self, message: str, /, **fields: object) -> None:
        if self._level <= INFO:
            self._destination(INFO, message, {**self._bound, **fields} if self._bound else fields)

    def warning(self, message: str, /, **fields: object) -> None:
        if self._level <= WARNING:
            self._destination(WARNING, message, {**self._bound, **fields})

    def error(self, message: str, /, **fields: object) -> None:
        self._destination(ERROR, message, {**self._bound, **fields})

    def exception(self, message: str, error: BaseException, /, **fields: object) -> None:
        """Log an error with the exception's text in `error` and its traceback in `traceback`."""
        details = {"error": error, "traceback": LongText("".join(traceback.format_exception(error)))}
        self._destination(ERROR, message, {**self._bound, **fields, **details})


def line_log(
    sink: Callable[[str], object] | TextStream,
    *,
    now: Callable[[], datetime],
    style: LineStyle = "text",
    level: Level = INFO,
    value_limit: int = DEFAULT_VALUE_LIMIT,
    colours: bool | None = None,
) -> Log:
    """Return a log that writes lines to a stream or passes them to a function; each line ends with a newline.

    Colours are used in the text style if the stream is a terminal, unless `colours` sets it.
    """
    return Log(lines_for(sink, now=now, style=style, value_limit=value_limit, colours=colours), level)


def lines_for(
    sink: Callable[[str], object] | TextStream,
    *,
    now: Callable[[], datetime],
    style: LineStyle = "text",
    value_limit: int = DEFAULT_VALUE_LIMIT,
    colours: bool | None = None,
) -> Lines:
    """Return a destination that writes each event immediately."""
    write = sink if callable(sink) else _stream_writer(sink)
    if colours is None:
        colours = not callable(sink) and sink.isatty()
    lines = _JsonLines if style == "json" else _ColouredLines if colours else _TextLines
    return lines(write, now, value_limit)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An event as it was logged, for tests."""

    level: Level
    message: str
    fields: Mapping[str, object]


def collecting_log(entries: list[LogEntry], level: Level = DEBUG) -> Log:
    """Return a log that adds every event to a list."""
    return Log(lambda level, message, fields: entries.append(LogEntry(level, message, fields)), level)


def silent_log() -> Log:
    return Log(lambda _level, _message, _fields: None, ERROR)


# ---- writing ---------------------------------------------------------------------------------------------------------


class TextStream(Protocol):
    """The part of a text stream that is used."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...
    def isatty(self) -> bool: ...


NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def _stream_writer(stream: TextStream) -> Callable[[str], None]:
    def write(line: str) -> None:
        try:
            stream.write(line)
        except UnicodeEncodeError:  # The stream is not UTF-8; non-ASCII characters occur only inside quotes.
            stream.write(NOT_ASCII.sub(json_escape, line))
        # A buffered line is not visible while the process hangs, and is lost when it is killed.
        stream.flush()

    return write


class Lines:
    """Render events as lines; subclasses define the format."""

    __slots__ = ("_minute", "_minute_text", "_next_minute", "_values", "_write", "now")

    def __init__(self, write: Callable[[str], object], now: Callable[[], datetime], value_limit: int) -> None:
        self._write = write
        self.now = now
        self._values = Values(value_limit)
        self._minute = self._next_minute = datetime.min.replace(tzinfo=UTC)
        self._minute_text = ""

    def __call__(self, level: Level, message: str, fields: Mapping[str, object], /) -> None:
        self.write(self.line(level, message, fields, self.now()))

    def write(self, lines: str) -> None:
        try:
            self._write(lines)
        except (OSError, ValueError):  # A broken pipe, a full disk, a closed stream: the work goes on without its log.
            return

    def line(self, level: Level, message: str, fields: Mapping[str, object], now: datetime) -> str:
        raise NotImplementedError

    def _time(self, now: datetime) -> str:
        """Format the time. All but the seconds is cached for a minute."""
        now = now.astimezone(UTC)
        if not self._minute <= now < self._next_minute:
            self._minute = now.replace(second=0, microsecond=0)
            self._next_minute = self._minute + MINUTE
            self._minute_text = self._minute.isoformat()[:17]
        return f"{self._minute_text}{now.second:02}.{now.microsecond:06}Z"


class _TextLines(Lines):
    __slots__ = ()

    def line(self, level: Level, message: str, fields: Mapping[str, object], now: datetime) -> str:
        parts = [self._time(now), " ", self.level_name(level), " ", self._values.as_message(message)]
        for key, value in fields.items():
            parts.append(_text_key(key))
            parts.append(self._values.as_text(value))
        parts.append("\n")
        return "".join(parts)

    def level_name(self, level: Level) -> str:
        return LEVEL_NAMES[level]


class _ColouredLines(_TextLines):
    __slots__ = ()

    def level_name(self, level: Level) -> str:
        return f"{COLOURS[level]}{LEVEL_NAMES[level]}{COLOUR_END}"


class _JsonLines(Lines):
    __slots__ = ()

    def line(self, level: Level, message: str, fields: Mapping[str, object], now: datetime) -> str:
        as_json = self._values.as_json
        parts = [f'{{"ts":"{self._time(now)}","level":"{LEVEL_NAMES[level]}","msg":{as_json(message)}']
        for key, value in fields.items():
            parts.append(_json_key(key))
            parts.append(as_json(value))
        parts.append("}\n")
        return "".join(parts)


# Keys are names in source code, so there are few; the limit keeps a careless caller from filling the memory.
@lru_cache(maxsize=1024)
def _text_key(key: str) -> str:
    return f" {key}=" if BARE_WORD.fullmatch(key) else f" {quoted(key)}="


@lru_cache(maxsize=1024)
def _json_key(key: str) -> str:
    return f",{quoted(key + '_' if key in {'ts', 'level', 'msg'} else key)}:"


HOLD_SECONDS: Final = 0.02
MOST_HELD: Final = 200
UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})
"""A value of another type may change before it is written, so it is rendered when it is logged."""

LogEvent = tuple[Level, str, Mapping[str, object], datetime]


class HeldLines:
    """A destination for a `Log` that holds lines below warning for a moment and writes them together.

    Writing lines one by one costs a process several times as much, and a busy daemon logs hundreds per second. A
    warning or an error is written at once, after all lines before it. A process that is killed loses the lines of its
    last moment. Call `write` before the process ends. It starts no timers by itself: `later` schedules the callback.
    """

    def __init__(self, lines: Lines, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._lines = lines
        self._later = later
        self._thread = threading.get_ident()
        self._held: list[str | LogEvent] = []

    def __call__(self, level: Level, message: str, fields: Mapping[str, object], /) -> None:
        held = self._held
        event = level, message, fields, self._lines.now()
        held.append(event if UNCHANGING.issuperset(map(type, fields.values())) else self._lines.line(*event))
        if level >= WARNING or len(held) >= MOST_HELD or threading.get_ident() != self._thread:
            self.write()
        elif len(held) == 1:
            self._later(HOLD_SECONDS, self.write)

    def write(self) -> None:
        """Write all held lines now."""
        held, self._held = self._held, []
        if held:
            lines = [event if isinstance(event, str) else self._lines.line(*event) for event in held]
            self._lines.write("".join(lines))
