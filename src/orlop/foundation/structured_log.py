"""Logging as events with fields, one line each, and the two guards of I8: `Secret` and `hide`.

A `Log` is handed to constructors; nothing here is global. Lines are text (`time level "message" key=value`) or JSON;
whatever a value holds (newlines, control or direction-changing characters, a terminal's escape codes) is escaped, so
that a value cannot forge a line and every line can be parsed back.

This module must not read the clock (the time is handed in), must not open files, and must never raise into the code
that logs: a line that cannot be written is lost.
"""

from __future__ import annotations

import base64
import hmac
import json
import math
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final, Generic, Literal, NoReturn, Protocol, TypeAlias, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

DEFAULT_VALUE_LIMIT = 4096
TRACEBACK_LIMITS = 8  # a traceback may be as long as so many values
LONGEST_CONTAINER = 100
DEEPEST_CONTAINER = 4
LARGEST_PRINTED_INT = 10**40
HIDDEN = "***"

LineStyle: TypeAlias = Literal["text", "json"]


class Level(IntEnum):
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


def level_named(name: str) -> Level:
    """The level of this name, in any case; a ValueError says which there are."""
    try:
        return Level[name.upper()]
    except KeyError:
        raise ValueError(f"allowed are {', '.join(LEVEL_NAMES.values())}") from None


# Members of an enum are slow to look up, and every event asks for one.
DEBUG, INFO, WARNING, ERROR = Level
LEVEL_NAMES: Final = {level: level.name.lower() for level in Level}
COLOURS: Final = {DEBUG: "\x1b[2m", INFO: "\x1b[32m", WARNING: "\x1b[33m", ERROR: "\x1b[31m"}
COLOUR_END: Final = "\x1b[0m"


# ---- the log ---------------------------------------------------------------------------------------------------------


class Destination(Protocol):
    """Where events go. It must not raise, and must not change or keep the fields."""

    def __call__(self, level: Level, message: str, fields: Mapping[str, object], /) -> None: ...


class Log:
    """What code logs with. `bind` gives a log that adds its fields to every event.

    An event below `level` costs nearly nothing; `enabled` is for those whose fields are expensive to gather.
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
            self._destination(INFO, message, {**self._bound, **fields})

    def warning(self, message: str, /, **fields: object) -> None:
        if self._level <= WARNING:
            self._destination(WARNING, message, {**self._bound, **fields})

    def error(self, message: str, /, **fields: object) -> None:
        self._destination(ERROR, message, {**self._bound, **fields})

    def exception(self, message: str, error: BaseException, /, **fields: object) -> None:
        """An error with the exception's text in `error` and its traceback in `traceback`."""
        told = {"error": error, "traceback": _LongText("".join(traceback.format_exception(error)))}
        self._destination(ERROR, message, {**self._bound, **fields, **told})


def line_log(  # noqa: PLR0913 - how lines look
    sink: Callable[[str], object] | TextStream,
    *,
    now: Callable[[], datetime],
    style: LineStyle = "text",
    level: Level = INFO,
    value_limit: int = DEFAULT_VALUE_LIMIT,
    colours: bool | None = None,
) -> Log:
    """A log that writes lines to a stream or hands them to a function; each line ends with a newline.

    Colours are used in the text style when the stream is a terminal, unless `colours` says otherwise.
    """
    write = sink if callable(sink) else _stream_writer(sink)
    if colours is None:
        colours = not callable(sink) and sink.isatty()
    lines = _JsonLines if style == "json" else _ColouredLines if colours else _TextLines
    return Log(lines(write, now, value_limit), level)


@dataclass(frozen=True, slots=True)
class Entry:
    """An event as it was logged, for tests."""

    level: Level
    message: str
    fields: Mapping[str, object]


def collecting_log(entries: list[Entry], level: Level = DEBUG) -> Log:
    """A log that adds every event to a list."""
    return Log(lambda level, message, fields: entries.append(Entry(level, message, fields)), level)


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
        except UnicodeEncodeError:  # the stream is not UTF-8; other characters than ASCII stand only inside quotes
            stream.write(NOT_ASCII.sub(_json_escape, line))
        # A line that stays in a buffer is not seen by who looks why the process hangs, and is lost when it is killed.
        stream.flush()

    return write


class _Lines:
    """Renders events as lines; the subclasses say how a line looks."""

    __slots__ = ("_now", "_values", "_write")

    def __init__(self, write: Callable[[str], object], now: Callable[[], datetime], value_limit: int) -> None:
        self._write = write
        self._now = now
        self._values = _Values(value_limit)

    def __call__(self, level: Level, message: str, fields: Mapping[str, object], /) -> None:
        line = self.line(level, message, fields)
        try:
            self._write(line)
        except (OSError, ValueError):  # a broken pipe, a full disk, a closed stream: work goes on without its log
            return

    def line(self, level: Level, message: str, fields: Mapping[str, object]) -> str:
        raise NotImplementedError

    def _time(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


class _TextLines(_Lines):
    __slots__ = ()

    def line(self, level: Level, message: str, fields: Mapping[str, object]) -> str:
        parts = [self._time(), " ", self.level_name(level), " ", self._values.as_json(message)]
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


class _JsonLines(_Lines):
    __slots__ = ()

    def line(self, level: Level, message: str, fields: Mapping[str, object]) -> str:
        as_json = self._values.as_json
        parts = [f'{{"ts":"{self._time()}","level":"{LEVEL_NAMES[level]}","msg":{as_json(message)}']
        for key, value in fields.items():
            parts.append(_json_key(key))
            parts.append(as_json(value))
        parts.append("}\n")
        return "".join(parts)


# Keys are names in source code, so there are few of them; the bound keeps a careless caller from filling the memory.
@lru_cache(maxsize=1024)
def _text_key(key: str) -> str:
    return f" {key}=" if BARE_WORD.fullmatch(key) else f" {_quoted(key)}="


@lru_cache(maxsize=1024)
def _json_key(key: str) -> str:
    return f",{_quoted(key + '_' if key in {'ts', 'level', 'msg'} else key)}:"


# ---- values ----------------------------------------------------------------------------------------------------------

# What begins with a digit is quoted, so that a reader can tell the text "1" from the number 1.
BARE_WORD = re.compile(r"(?!(?:true|false|null)$)[A-Za-z/_][A-Za-z0-9_./:@+%-]*")


class _LongText(str):
    """A text whose length is worth more than a usual value's."""

    __slots__ = ()


class _Values:
    """Renders any value as JSON text on one line, or as a bare word where the text style allows it."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def as_text(self, value: object) -> str:
        if type(value) is str and len(value) <= self._limit and BARE_WORD.fullmatch(value):
            return value
        return self.as_json(value)

    def as_json(self, value: object, depth: int = 0) -> str:
        kind = type(value)
        if kind is str:
            return _quoted(_shortened(value, self._limit))  # type: ignore[arg-type]
        if kind is int and -LARGEST_PRINTED_INT < value < LARGEST_PRINTED_INT:  # type: ignore[operator]
            return repr(value)
        if kind is float and math.isfinite(value):  # type: ignore[arg-type]
            return repr(value)
        if value is None or kind is bool:
            return "null" if value is None else "true" if value else "false"
        try:
            return self._uncommon(value, depth)
        except Exception as error:  # noqa: BLE001 - whatever the value's own methods raise must not reach who logs
            return _quoted(f"<{kind.__name__} that cannot be shown: {type(error).__name__}>")

    def _uncommon(self, value: object, depth: int) -> str:
        if isinstance(value, _LongText):
            return _quoted(_shortened(value, self._limit * TRACEBACK_LIMITS))
        if isinstance(value, list | tuple | set | frozenset | Mapping) and depth < DEEPEST_CONTAINER:
            return self._container(value, depth + 1)
        return _quoted(_shortened(_text_of(value), self._limit))

    def _container(self, value: Iterable[object], depth: int) -> str:
        if isinstance(value, Mapping):
            pairs = islice(value.items(), LONGEST_CONTAINER)
            rendered = "{" + ",".join(f"{_quoted(_text_of(k))}:{self.as_json(v, depth)}" for k, v in pairs) + "}"
        else:
            items = [self.as_json(item, depth) for item in islice(value, LONGEST_CONTAINER)]
            rendered = "[" + ",".join(sorted(items) if isinstance(value, set | frozenset) else items) + "]"
        left_out = len(value) - LONGEST_CONTAINER  # type: ignore[arg-type]
        if left_out > 0:
            rendered = f"{rendered}…({left_out} more)"
        whole = left_out <= 0 and len(rendered) <= self._limit
        return rendered if whole else _quoted(_shortened(rendered, self._limit))


def _text_of(value: object) -> str:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, bytes | bytearray):
        return repr(value)
    if type(value) is int and abs(value) >= LARGEST_PRINTED_INT:
        return hex(value)  # Python refuses to write very large ones in decimal
    return str(value)


def _shortened(text: str, limit: int) -> str:
    """A long text without its middle: the beginning says what it is, and errors of programs stand at the end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}…({len(text) - 2 * half} characters left out)…{text[len(text) - half :]}"


def _quoted(text: str) -> str:
    quoted = encode_basestring(text)
    if quoted.isprintable():
        return quoted
    # JSON allows characters that end a line or steer a terminal: DEL, C1, U+2028, direction marks, lone surrogates.
    return "".join(character if character.isprintable() else _json_escape(character) for character in quoted)


def _json_escape(character: str | re.Match[str]) -> str:
    return json.dumps(character if isinstance(character, str) else character[0])[1:-1]


# ---- secrets ---------------------------------------------------------------------------------------------------------

SecretValue = TypeVar("SecretValue", str, bytes)


@final
class Secret(Generic[SecretValue]):
    """Holds a secret so that no route but `reveal` gives it away.

    The value lives in a closure, not in an attribute, so that whatever walks over attributes (debuggers, error
    reporters, serialisers) finds a function.
    """

    __slots__ = ("_reveal",)
    __hash__ = None  # type: ignore[assignment] # a hash of a short secret can be tried out
    _reveal: Callable[[], SecretValue]

    def __init__(self, value: SecretValue) -> None:
        object.__setattr__(self, "_reveal", lambda: value)

    def reveal(self) -> SecretValue:
        return self._reveal()

    def __bool__(self) -> bool:
        return bool(self._reveal())

    def __eq__(self, other: object) -> bool:
        """Takes the same time wherever two secrets of one length differ."""
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = self._reveal(), other.reveal()
        return type(mine) is type(theirs) and hmac.compare_digest(_as_bytes(mine), _as_bytes(theirs))

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, _spec: str) -> str:
        return HIDDEN

    def __setattr__(self, name: str, _value: object) -> NoReturn:
        raise AttributeError(f"A secret cannot be changed, so {name} cannot be set.")

    def __copy__(self) -> Secret[SecretValue]:
        return self

    def __deepcopy__(self, _memo: object) -> Secret[SecretValue]:
        return self

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("A secret cannot be pickled: call reveal() where its value is needed.")


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` in place of every secret, also where it stands escaped.

    Found are: the plain value, and as it looks in a Python repr, in JSON, in the text of a protobuf message and in
    base64. Overlapping secrets are hidden as one.
    """
    places = sorted(place for needle in _spellings(secrets) for place in _places(text, needle))
    if not places:
        return text
    parts: list[str] = []
    shown_to = 0
    for start, end in places:
        if start > shown_to or not parts:
            parts += [text[shown_to:start], HIDDEN]
        shown_to = max(shown_to, end)
    return "".join([*parts, text[shown_to:]])


def _places(text: str, needle: str) -> Iterator[tuple[int, int]]:
    start = text.find(needle)
    while start >= 0:
        yield start, start + len(needle)
        start = text.find(needle, start + 1)


def _spellings(secrets: Iterable[str]) -> set[str]:
    return {spelling for secret in secrets if secret for spelling in _spellings_of(secret)}


def _spellings_of(secret: str) -> Iterator[str]:
    encoded = _as_bytes(secret)
    yield secret
    yield repr(secret)[1:-1]
    yield repr(secret + "'\"")[1:-4]  # as inside a longer text that holds both kinds of quotes
    yield repr(encoded)[2:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield _quoted(secret)[1:-1]
    yield _protobuf_text(encoded, printed=PRINTABLE_ASCII)
    yield _protobuf_text(encoded, printed=PRINTABLE_ASCII | OUTSIDE_ASCII)
    yield base64.b64encode(encoded).decode().rstrip("=")


PRINTABLE_ASCII: Final = frozenset(range(0x20, 0x7F))
OUTSIDE_ASCII: Final = frozenset(range(0x80, 0x100))
PROTOBUF_ESCAPES: Final = {9: b"\\t", 10: b"\\n", 13: b"\\r", 34: b'\\"', 39: b"\\'", 92: b"\\\\"}


def _protobuf_text(encoded: bytes, printed: frozenset[int]) -> str:
    """C's escapes, and octal for all that is not printed as it is: protobuf's text format of a string."""
    parts = (PROTOBUF_ESCAPES.get(byte) or (bytes([byte]) if byte in printed else b"\\%03o" % byte) for byte in encoded)
    return b"".join(parts).decode("utf-8", "surrogatepass")
