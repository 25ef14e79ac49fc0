"""From a command line to the settings it asks for.

Must not print, exit, read the environment or touch the disk: the caller does, with what it is handed.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from orlop.foundation.go_flags.flag_values import FALSE_SPELLINGS, TRUE_SPELLINGS, ListOf, MapOf
from orlop.foundation.go_flags.help import help_text
from orlop.foundation.go_flags.table import FLAG, GROUP, Flag, FlagTable, describe, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Settings = TypeVar("Settings")

NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


class UsageError(ValueError):
    """The command line is not valid; `problems` has one sentence for each problem."""

    def __init__(self, problems: Sequence[str], program: str) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([*problems, f"Run `{program} --help` to see every flag."]))


class HelpRequested(Exception):
    """The user asked for help: the caller prints `text` and exits with 0."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


def parse_flags(
    settings: type[Settings],
    argv: Sequence[str],
    *,
    program: str,
    summary: str = "",
    environment: Mapping[str, str] = NO_ENVIRONMENT,
    warn: Callable[[str], None] = lambda _sentence: None,
) -> Settings:
    """Parse a command line, without the program's name, into settings.

    Raise UsageError with all problems at once, or HelpRequested. `warn` is called for each deprecated flag in use. A
    settings class may have a method `cross_check(self) -> Iterable[str]` that yields a sentence for each combination of
    flags that is not allowed; it is called if every single flag is valid.
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
    """The text of a flag, and its source: `--node-id` or an environment variable."""

    origin: str
    text: str


class _ArgumentReader:
    """Read a command line as Go does, but continue after a problem, so that the user sees all at once."""

    def __init__(self, table: FlagTable) -> None:
        self.table = table
        self.written: dict[str, list[_Written]] = {}
        self.problems: list[str] = []
        self.help_asked = False
        self._bare_boolean: str | None = None  # Just read without `=`: a word after it was meant as its value.

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
        # The next word was most likely its value: a second complaint about that would hide the problem.
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
    """Return the value of one flag: from the command line, else the environment, else the default."""
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
    """Check every text of a repeated flag, as Go does. Lists and maps grow; for other flags the last text counts."""
    values = []
    for occurrence in written:
        try:
            values.append(row.value_of(occurrence.text))
        except ValueError as error:
            problems.append(f"{occurrence.origin} cannot be {occurrence.text!r}: {error}.")
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
            arguments[declared.name] = values[named(declared).name]
    return settings(**arguments)


def _cross_objections(built: Any) -> Iterator[str]:
    for declared in dataclasses.fields(built):
        if GROUP in declared.metadata:
            yield from _cross_objections(getattr(built, declared.name))
    ask: Callable[[], Iterable[str]] | None = getattr(built, "cross_check", None)
    if ask is not None:
        yield from ask()
