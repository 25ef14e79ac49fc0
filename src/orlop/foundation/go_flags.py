"""The command line of a daemon, read exactly as Go's `flag` package reads it, into one frozen dataclass of settings.

Sidecars are started with the command lines of their upstream counterparts, so every spelling Go takes is taken here,
and none that Go refuses. One declaration per flag gives the parsing, `--help` and the reference table of the docs.

This module must not print, exit, read the environment or touch the disk: the caller does, with what it is handed.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import textwrap
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Required, TypedDict, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")
Settings = TypeVar("Settings")

HELP_WIDTH = 100
LARGEST_INT64 = 2**63 - 1
SMALLEST_INT64 = -(2**63)
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})

# Fields of a settings class carry their declaration in the dataclass metadata, under these keys.
FLAG = "flag"
GROUP = "flag group"


class UsageError(ValueError):
    """The command line cannot be used; `problems` holds one sentence for each thing that is wrong with it."""

    def __init__(self, problems: Sequence[str], program: str) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([*problems, f"Run `{program} --help` to see every flag."]))


class HelpRequested(Exception):  # noqa: N818 - it is a request, not an error
    """The user asked for help: the caller prints `text` and exits with 0."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


# ---- values: what may stand behind the equals sign -------------------------------------------------------------------

TRUE_SPELLINGS = frozenset({"1", "t", "T", "true", "TRUE", "True"})
FALSE_SPELLINGS = frozenset({"0", "f", "F", "false", "FALSE", "False"})
# Python's int() and float() also take blanks and the digits of other scripts, which Go refuses.
INTEGER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:0[xX](?P<hex>(?:_?[0-9a-fA-F])+)|0[bB](?P<binary>(?:_?[01])+)|0[oO]?(?P<octal>(?:_?[0-7])+)"
    r"|(?P<decimal>0|[1-9](?:_?[0-9])*))"
)
BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
DIGITS = r"[0-9](?:_?[0-9])*"
DECIMAL_FLOAT = re.compile(rf"[+-]?(?:{DIGITS}(?:\.(?:{DIGITS})?)?|\.{DIGITS})(?:[eE][+-]?{DIGITS})?")
HEX_DIGITS = r"[0-9a-fA-F](?:_?[0-9a-fA-F])*"
HEX_FLOAT = re.compile(rf"[+-]?0[xX]_?(?:{HEX_DIGITS}(?:\.(?:{HEX_DIGITS})?)?|\.{HEX_DIGITS})[pP][+-]?{DIGITS}")
NAMED_FLOAT = re.compile(r"[+-]?inf(?:inity)?|nan", re.IGNORECASE)


def text(value: str) -> str:
    return value


def boolean(value: str) -> bool:
    """The spellings of Go's ParseBool. A flag with this parser needs no value, and takes one only after `=`."""
    if value in TRUE_SPELLINGS:
        return True
    if value in FALSE_SPELLINGS:
        return False
    raise ValueError("allowed are true, t, 1, false, f and 0")


def integer(value: str) -> int:
    """The spellings of Go's ParseInt with base 0, in 64 bits: a leading 0 means octal."""
    match = INTEGER.fullmatch(value)
    if match is None:
        raise ValueError("allowed are whole numbers such as 10, -3, 1_000, 0x1f, 0o17 and 0b101")
    base, digits = next((BASES[name], match[name]) for name in BASES if match[name] is not None)
    number = int(match["sign"] + digits.replace("_", ""), base)
    if not SMALLEST_INT64 <= number <= LARGEST_INT64:
        raise ValueError("allowed are whole numbers that fit into 64 bits")
    return number


def floating(value: str) -> float:
    """The spellings of Go's ParseFloat in 64 bits, hexadecimal ones included."""
    if NAMED_FLOAT.fullmatch(value):
        return float(value)
    if DECIMAL_FLOAT.fullmatch(value):
        return _finite(float(value))
    if HEX_FLOAT.fullmatch(value):
        return _finite(_from_hexadecimal(value.replace("_", "")))
    raise ValueError("allowed are numbers such as 5, 0.5, -1e3 and inf")


def _from_hexadecimal(value: str) -> float:
    try:
        return float.fromhex(value)
    except OverflowError:
        return math.inf


def _finite(number: float) -> float:
    if math.isinf(number):
        raise ValueError("allowed are numbers that fit into 64 bits")
    return number


@dataclass(frozen=True, slots=True)
class ListOf(Generic[T]):
    """Values separated by commas; a repeated flag adds to the list."""

    item: Callable[[str], T]

    def __call__(self, value: str) -> tuple[T, ...]:
        return tuple(self.item(part) for part in value.split(",")) if value else ()

    def merge(self, earlier: tuple[T, ...], later: tuple[T, ...]) -> tuple[T, ...]:
        return earlier + later


@dataclass(frozen=True, slots=True)
class MapOf(Generic[T]):
    """`key=value` pairs separated by commas, as in --feature-gates; a repeated flag adds to the map."""

    item: Callable[[str], T]

    def __call__(self, value: str) -> Mapping[str, T]:
        return dict(self._pair(part.strip()) for part in value.split(",") if part.strip())

    def _pair(self, part: str) -> tuple[str, T]:
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"allowed are pairs key=value separated by commas, and {part!r} is none")
        try:
            return key.strip(), self.item(value.strip())
        except ValueError as error:
            raise ValueError(f"for {key.strip()} {error}") from error

    def merge(self, earlier: Mapping[str, T], later: Mapping[str, T]) -> Mapping[str, T]:
        return {**earlier, **later}


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser that takes exactly these texts."""

    def parse(value: str) -> str:
        if value in choices:
            return value
        raise ValueError(f"allowed are {', '.join(choices)}")

    return parse


def at_least(smallest: float) -> Callable[[float], str | None]:
    """A check for numbers."""
    return lambda number: None if number >= smallest else f"allowed is {smallest} or more"


def between(smallest: float, largest: float) -> Callable[[float], str | None]:
    """A check for numbers; both ends are allowed."""
    return lambda number: None if smallest <= number <= largest else f"allowed is {smallest} to {largest}"


# ---- declarations: the table of a process is a frozen dataclass of these ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One row of a process's table. `default` is the text a user would write; None means: not set."""

    parse: Callable[[str], Any]
    help: str
    name: str = ""  # empty: derived from the field's name
    default: str | None = None
    required: bool = False
    metavar: str = "VALUE"
    aliases: tuple[str, ...] = ()
    deprecated: str | None = None
    check: Callable[[Any], str | None] | None = None
    env: str | None = None  # an environment variable that stands in; an empty one counts as unset

    @property
    def is_boolean(self) -> bool:
        return self.parse is boolean

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def default_value(self) -> Any:
        return None if self.default is None else self.value_of(self.default)

    def value_of(self, written: str) -> Any:
        """Raises a ValueError that says what is allowed."""
        if self.required and not written:
            raise ValueError("it is required, so it must not be empty")
        value = self.parse(written)
        objection = self.check(value) if self.check else None
        if objection:
            raise ValueError(objection)
        return value


class FlagOptions(TypedDict, total=False):
    """What every kind of flag may say of itself; the meaning is that of the fields of `Flag`."""

    help: Required[str]
    name: str
    metavar: str
    aliases: tuple[str, ...]
    deprecated: str
    check: Callable[[Any], str | None]
    env: str


@overload
def flag(parse: Callable[[str], T], *, default: str, **options: Unpack[FlagOptions]) -> T: ...
@overload
def flag(parse: Callable[[str], T], *, required: Literal[True], **options: Unpack[FlagOptions]) -> T: ...
@overload
def flag(parse: Callable[[str], T], **options: Unpack[FlagOptions]) -> T | None: ...
def flag(
    parse: Callable[[str], Any],
    *,
    default: str | None = None,
    required: bool = False,
    **options: Unpack[FlagOptions],
) -> Any:
    """Declares a field of a settings class. With neither a default nor `required` its value is None when not given."""
    declared = Flag(parse=parse, default=default, required=required, **options)
    if required:
        return field(metadata={FLAG: declared})
    return field(default_factory=declared.default_value, metadata={FLAG: declared})


def group(settings: type[T]) -> T:
    """Declares a field that holds another settings class: its flags join the table, its value is built with them."""
    return field(default_factory=settings, metadata={GROUP: settings})


@dataclass(frozen=True, slots=True)
class FlagTable:
    """Every flag of a process, in the order of declaration."""

    rows: tuple[Flag, ...]

    def find(self, spelled: str) -> Flag | None:
        return next((row for row in self.rows if spelled in row.names), None)

    def nearest(self, spelled: str) -> str | None:
        """The name a user who wrote this may have meant."""
        names = [name for row in self.rows for name in row.names]
        by_lower_case = {name.lower(): name for name in names}
        close = difflib.get_close_matches(spelled.lower(), by_lower_case, n=1)
        return by_lower_case[close[0]] if close else None


def describe(settings: type[Any]) -> FlagTable:
    """The table of a settings class; a TypeError when two flags share a name or a default breaks its own rule."""
    table = FlagTable(tuple(_rows(settings)))
    seen: set[str] = set()
    for name in chain.from_iterable(row.names for row in table.rows):
        if name in seen:
            raise TypeError(f"{settings.__name__} declares the flag --{name} twice.")
        seen.add(name)
    for row in table.rows:
        _refuse_unusable_default(settings, row)
    return table


def _rows(settings: type[Any]) -> Iterator[Flag]:
    for declared in dataclasses.fields(settings):
        if GROUP in declared.metadata:
            yield from _rows(declared.metadata[GROUP])
        elif FLAG in declared.metadata:
            yield _named(declared)


def _named(declared: dataclasses.Field[Any]) -> Flag:
    row: Flag = declared.metadata[FLAG]
    return row if row.name else dataclasses.replace(row, name=declared.name.replace("_", "-"))


def _refuse_unusable_default(settings: type[Any], row: Flag) -> None:
    try:
        row.default_value()
    except ValueError as error:
        raise TypeError(f"{settings.__name__} gives --{row.name} the default {row.default!r}: {error}.") from error


# ---- parsing ---------------------------------------------------------------------------------------------------------


def parse_flags(  # noqa: PLR0913 - each is a different thing of the outside world
    settings: type[Settings],
    argv: Sequence[str],
    *,
    program: str,
    summary: str = "",
    environment: Mapping[str, str] = NO_ENVIRONMENT,
    warn: Callable[[str], None] = lambda _sentence: None,
) -> Settings:
    """The settings this command line (without the program's name) asks for.

    Raises UsageError with every problem at once, or HelpRequested. `warn` is told of each deprecated flag in use.
    A settings class may have a method `cross_check(self) -> Iterable[str]` that yields a sentence for each
    combination of flags that cannot be; it is asked when every single flag is good.
    """
    table = describe(settings)
    reader = _ArgumentReader(table)
    reader.read(argv)
    if reader.help_asked:
        raise HelpRequested(help_text(table, program=program, summary=summary))
    problems = reader.problems
    values = {row.name: _settle(row, reader.written.get(row.name, []), environment, problems) for row in table.rows}
    if problems:
        raise UsageError(problems, program)
    built = _build(settings, values)
    if objections := list(_cross_objections(built)):
        raise UsageError(objections, program)
    for row in table.rows:
        if row.deprecated and row.name in reader.written:
            warn(f"The flag --{row.name} is deprecated: {row.deprecated}")
    return built


@dataclass(frozen=True, slots=True)
class _Written:
    """A text somebody gave for a flag, and where: `--node-id` or an environment variable."""

    origin: str
    text: str


class _ArgumentReader:
    """Walks a command line as Go does, but goes on after a problem, so that the user sees all of them at once."""

    def __init__(self, table: FlagTable) -> None:
        self.table = table
        self.written: dict[str, list[_Written]] = {}
        self.problems: list[str] = []
        self.help_asked = False
        self._bare_boolean: str | None = None  # just read without `=`: a word behind it was meant as its value

    def read(self, argv: Sequence[str]) -> None:
        arguments = deque(argv)
        while arguments:
            argument = arguments.popleft()
            if argument == "--":
                self.problems.extend(f"The argument {left!r} is not expected: only flags are." for left in arguments)
                return
            if argument.startswith("-") and argument != "-":
                self._read_flag(argument, arguments)
            else:
                self._refuse_word(argument)

    def _read_flag(self, argument: str, following: deque[str]) -> None:
        spelled, equals, value = argument.removeprefix("-").removeprefix("-").partition("=")
        self._bare_boolean = None
        row = self.table.find(spelled)
        if not spelled or spelled.startswith("-"):
            self.problems.append(f"The argument {argument!r} is not a flag: a flag is --name or --name=value.")
        elif row is None:
            self._unknown(spelled, equals, following)
        elif equals:
            self._keep(row, spelled, value)
        elif row.is_boolean:
            self._keep(row, spelled, "true")
            self._bare_boolean = spelled
        elif following:
            self._keep(row, spelled, following.popleft())
        else:
            self.problems.append(f"The flag --{spelled} needs a value: --{spelled}={row.metavar}.")

    def _keep(self, row: Flag, spelled: str, value: str) -> None:
        self.written.setdefault(row.name, []).append(_Written(f"--{spelled}", value))

    def _unknown(self, spelled: str, equals: str, following: deque[str]) -> None:
        if spelled in {"h", "help"}:
            self.help_asked = True
            return
        nearest = self.table.nearest(spelled)
        self.problems.append(f"There is no flag --{spelled}" + (f"; did you mean --{nearest}?" if nearest else "."))
        # The word behind it was most likely its value: complaining about that too would hide what is wrong.
        if not equals and following and not following[0].startswith("-"):
            following.popleft()

    def _refuse_word(self, word: str) -> None:
        if self._bare_boolean and word in TRUE_SPELLINGS | FALSE_SPELLINGS:
            hint = f"a value of --{self._bare_boolean} is written --{self._bare_boolean}={word}"
        else:
            hint = "only flags are"
        self.problems.append(f"The argument {word!r} is not expected: {hint}.")
        self._bare_boolean = None


def _settle(row: Flag, written: list[_Written], environment: Mapping[str, str], problems: list[str]) -> Any:
    """The value of one flag: from the command line, else the environment, else the default."""
    if not written and row.env and environment.get(row.env):
        written = [_Written(f"--{row.name} from the environment variable {row.env}", environment[row.env])]
    if written:
        return _combine(row, written, problems)
    if row.required:
        instead = f" or the environment variable {row.env}" if row.env else ""
        problems.append(f"The flag --{row.name}{instead} is required: {row.help}")
        return None
    return row.default_value()


def _combine(row: Flag, written: list[_Written], problems: list[str]) -> Any:
    """Every text is checked, as Go sets each in turn; lists and maps grow, of other flags the last text counts."""
    values = []
    for one in written:
        try:
            values.append(row.value_of(one.text))
        except ValueError as error:
            problems.append(f"{one.origin} cannot be {one.text!r}: {error}.")
    combined = None
    for value in values:
        merges = isinstance(row.parse, ListOf | MapOf) and combined is not None
        combined = row.parse.merge(combined, value) if merges else value  # type: ignore[attr-defined]
    return combined


def _build(settings: type[Settings], values: Mapping[str, Any]) -> Settings:
    arguments: dict[str, Any] = {}
    for declared in dataclasses.fields(settings):  # type: ignore[arg-type]
        if GROUP in declared.metadata:
            arguments[declared.name] = _build(declared.metadata[GROUP], values)
        elif FLAG in declared.metadata:
            arguments[declared.name] = values[_named(declared).name]
    return settings(**arguments)


def _cross_objections(built: Any) -> Iterator[str]:
    for declared in dataclasses.fields(built):
        if GROUP in declared.metadata:
            yield from _cross_objections(getattr(built, declared.name))
    ask: Callable[[], Iterable[str]] | None = getattr(built, "cross_check", None)
    if ask is not None:
        yield from ask()


# ---- what people read ------------------------------------------------------------------------------------------------


def help_text(table: FlagTable, *, program: str, summary: str = "") -> str:
    heading = [*([summary, ""] if summary else []), f"Usage: {program} [flags]", ""]
    return "\n".join([*heading, *chain.from_iterable(_help_lines(row) for row in table.rows), ""])


def _help_lines(row: Flag) -> Iterator[str]:
    value = "" if row.is_boolean else f"={row.metavar}"
    yield "  " + ", ".join(f"--{name}{value}" for name in row.names)
    yield from textwrap.wrap(_full_sentence(row), HELP_WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)


def _full_sentence(row: Flag) -> str:
    parts = [row.help]
    if row.required:
        parts.append("(required)")
    if row.default:
        parts.append(f"(default {row.default})")
    if row.env:
        parts.append(f"(or the environment variable {row.env})")
    if row.deprecated:
        parts.append(f"Deprecated: {row.deprecated}")
    return " ".join(parts)


def markdown_table(table: FlagTable) -> str:
    lines = ["| Flag | Default | Meaning |", "|---|---|---|"]
    lines += [f"| {_names_cell(row)} | {_default_cell(row)} | {_meaning_cell(row)} |" for row in table.rows]
    return "\n".join([*lines, ""])


def _names_cell(row: Flag) -> str:
    return ", ".join(f"`--{name}`" for name in row.names)


def _default_cell(row: Flag) -> str:
    if row.required:
        return "required"
    return f"`{_cell(row.default)}`" if row.default else ""


def _meaning_cell(row: Flag) -> str:
    environment = f" Environment: `{row.env}`." if row.env else ""
    deprecated = f" **Deprecated:** {row.deprecated}" if row.deprecated else ""
    return _cell(f"{row.help}{environment}{deprecated}")


def _cell(content: str) -> str:
    return " ".join(content.split()).replace("|", "\\|")
