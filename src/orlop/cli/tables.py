"""Tables for people, and short texts for sizes and spans of time. Pure.

Names that users chose are escaped before the columns are measured: an escaped text is longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from orlop.cli.output import harmless

UNKNOWN: Final = "…"
NOTHING: Final = "-"
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_FEW: Final = 10
STYLES: Final[Mapping[str, str]] = {
    "Ready": "green",
    "Published": "green",
    "Staged": "green",
    "Lost": "red",
    "Error": "red",
    "Cordoned": "yellow",
    "Removing": "yellow",
    "Repairing": "yellow",
    "Erasing": "yellow",
}
"""The colour of a state, on a terminal."""


def escaped(text: str) -> str:
    """Return a name without control characters. Different names stay different."""
    return harmless(text.replace("\\", "\\\\"))


def counted(count: int, noun: str) -> str:
    """Return `1 volume`, `2 volumes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size_text(count: int | None) -> str:
    """Return a size such as `1.2Gi`, with two significant digits or more, never more than it is.

    Rounded up, a drive would have room for a claim that it refuses.
    """
    if count is None:
        return UNKNOWN
    unit, suffixes = 1, iter(_SUFFIXES)
    suffix = next(suffixes)
    while count >= 1024 * unit:
        unit, suffix = 1024 * unit, next(suffixes)
    tenths = 10 * count // unit
    return f"{tenths // 10}.{tenths % 10}{suffix}" if suffix and tenths < 10 * _FEW else f"{count // unit}{suffix}"


def span_text(seconds: float) -> str:
    """Return a span such as `3h12m`, with its two largest units."""
    remaining, parts = int(seconds), list[str]()
    for unit, letter in _UNITS:
        count, remaining = divmod(remaining, unit)
        if count or parts:
            parts.append(f"{count}{letter}" if count else "")
    return "".join(parts[:2]) or "0s"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns below their names. Cells must be escaped."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def escaped_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(head, [[harmless(cell) or NOTHING for cell in row] for row in rows])


def states_table(head: Sequence[str], rows: Sequence[Sequence[str]], column: str) -> str:
    """Return a table of escaped cells, with colours in the column of states. click removes them for a pipe."""
    place = list(head).index(column)
    lines = escaped_table(head, rows).split("\n")
    # Colour after the columns are measured: its codes have no width on a terminal.
    begin = lines[0].index(column)
    return "\n".join(
        [lines[0], *(_coloured(line, begin, row[place]) for line, row in zip(lines[1:], rows, strict=True))]
    )


def _coloured(line: str, begin: int, state: str) -> str:
    words = state.split(",")
    colour = next((STYLES[word] for word in reversed(words) if word in STYLES), None)
    end = begin + len(state)
    return line if colour is None else f"{line[:begin]}{click.style(line[begin:end], fg=colour)}{line[end:]}"


def properties(values: Mapping[str, str]) -> str:
    """Return one line for each property, with the values in a column."""
    width = max(map(len, values)) + 2
    return "\n".join(f"{name + ':':<{width}}{harmless(value) or NOTHING}" for name, value in values.items())
