"""Format a table of flags for `--help`, and for the reference in the docs."""

from __future__ import annotations

import textwrap
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orlop.foundation.go_flags.table import Flag, FlagTable

HELP_WIDTH = 100


def help_text(table: FlagTable, *, program: str, summary: str = "") -> str:
    heading = [*([summary, ""] if summary else []), f"Usage: {program} [flags]", ""]
    return "\n".join([*heading, *chain.from_iterable(_help_lines(row) for row in table.shown), ""])


def _help_lines(row: Flag) -> Iterator[str]:
    value = "" if row.is_boolean else f"={row.metavar}"
    yield "  " + ", ".join(f"--{name}{value}" for name in row.names)
    # No line breaks at hyphens, so that a flag named in a sentence can be found and copied.
    yield from textwrap.wrap(
        _full_sentence(row),
        HELP_WIDTH,
        initial_indent=" " * 8,
        subsequent_indent=" " * 8,
        break_on_hyphens=False,
    )


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
    lines += [f"| {_names_cell(row)} | {_default_cell(row)} | {_meaning_cell(row)} |" for row in table.shown]
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
