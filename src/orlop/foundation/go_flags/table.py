"""The table of a process: a frozen dataclass whose fields declare flags.

Nothing here reads a command line.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, TypeVar, Unpack, overload

from orlop.foundation.go_flags.flag_values import boolean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

# Fields of a settings class carry their declaration in the dataclass metadata, under these keys.
FLAG = "flag"
GROUP = "flag group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag. `default` is the text a user would write; None means not set."""

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
    hidden: bool = False  # left out of `--help` and of the reference: for tests

    @property
    def is_boolean(self) -> bool:
        return self.parse is boolean

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def default_value(self) -> Any:
        return None if self.default is None else self.value_of(self.default)

    def value_of(self, written: str) -> Any:
        """Parse and check a text; the ValueError names what is allowed."""
        if self.required and not written:
            raise ValueError("it is required, so it must not be empty")
        value = self.parse(written)
        objection = self.check(value) if self.check else None
        if objection:
            raise ValueError(objection)
        return value


class FlagOptions(TypedDict, total=False):
    """The options of a flag; see the fields of `Flag`."""

    help: Required[str]
    name: str
    metavar: str
    aliases: tuple[str, ...]
    deprecated: str
    check: Callable[[Any], str | None]
    env: str
    hidden: bool


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
    """Declare a field of a settings class. Without a default and `required` its value is None when not set."""
    declared = Flag(parse=parse, default=default, required=required, **options)
    if required:
        return field(metadata={FLAG: declared})
    return field(default_factory=declared.default_value, metadata={FLAG: declared})


def group(settings: type[T]) -> T:
    """Declare a field that holds another settings class, whose flags join the table."""
    return field(default_factory=settings, metadata={GROUP: settings})


@dataclass(frozen=True, slots=True)
class FlagTable:
    """All flags of a process, in the order of declaration."""

    rows: tuple[Flag, ...]

    def find(self, spelled: str) -> Flag | None:
        return next((row for row in self.rows if spelled in row.names), None)

    @property
    def shown(self) -> tuple[Flag, ...]:
        return tuple(row for row in self.rows if not row.hidden)

    def nearest(self, spelled: str) -> str | None:
        """Return the name that a user who wrote this may have meant."""
        names = [name for row in self.shown for name in row.names]
        by_lower_case = {name.lower(): name for name in names}
        close = difflib.get_close_matches(spelled.lower(), by_lower_case, n=1)
        return by_lower_case[close[0]] if close else None


def describe(settings: type[Any]) -> FlagTable:
    """Return the table of a settings class; raise TypeError if two flags share a name or a default is not valid."""
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
            yield named(declared)


def named(declared: dataclasses.Field[Any]) -> Flag:
    row: Flag = declared.metadata[FLAG]
    return row if row.name else dataclasses.replace(row, name=declared.name.replace("_", "-"))


def _refuse_unusable_default(settings: type[Any], row: Flag) -> None:
    try:
        row.default_value()
    except ValueError as error:
        raise TypeError(f"{settings.__name__} gives --{row.name} the default {row.default!r}: {error}.") from error
