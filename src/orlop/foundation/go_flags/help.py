"""Format a table of flags for `--help`, and for the reference in the docs."""

from __future__ import annotations

import textwrap
from itertools import chain, groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orlop.foundation.go_flags.table import Flag, FlagTable

HELP_WIDTH = 100


def help_text(table: FlagTable, *, program: str, summary: str = "") -> str:
    heading = [*([summary, ""] if summary else []), f"Usage: {program} [flags]", ""]
    return "\n".join([*heading, *chain.from_iterable(map(_help_lines, _groups(table))), ""])


def _groups(table: FlagTable) -> Iterator[list[Flag]]:
    """Yield the flags in their order; deprecated ones of the same meaning, such as those of klog, together."""
    for _, group in groupby(table.shown, lambda row: (row.help, row.deprecated) if row.deprecated else row.names):
        yield list(group)


def _help_lines(group: list[Flag]) -> Iterator[str]:
    if len(group) == 1:
        yield f"  {_written(group[0])}"
        yield from _wrapped(_full_sentence(group[0]), 8)
    else:
        yield from _wrapped(", ".join(map(_written, group)), 2)
        yield from _wrapped(f"{group[0].help} Deprecated: {group[0].deprecated}", 8)


def _written(row: Flag) -> str:
    value = "" if row.is_boolean else f"={row.metavar}"
    return ", ".join(f"--{name}{value}" for name in row.names)


def _wrapped(sentence: str, indent: int) -> list[str]:
    # No line breaks at hyphens, so that a flag named in a sentence can be found and copied.
    margin = " " * indent
    return textwrap.wrap(sentence, HELP_WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


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
