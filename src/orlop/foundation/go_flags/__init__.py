"""Parse a daemon's command line exactly as Go's `flag` package does, into a frozen dataclass of settings.

Sidecars are started with the command lines of their upstream counterparts, so every spelling that Go accepts is valid
here, and none that Go refuses. One declaration per flag defines parsing, `--help` and the reference in the docs.

This package must not print, exit, read the environment or touch the disk: its caller does.
"""

from orlop.foundation.go_flags.flag_values import (
    ListOf,
    MapOf,
    at_least,
    between,
    boolean,
    floating,
    integer,
    one_of,
    text,
)
from orlop.foundation.go_flags.help import help_text, markdown_table
from orlop.foundation.go_flags.parsing import HelpRequested, UsageError, parse_flags
from orlop.foundation.go_flags.table import Flag, FlagTable, describe, flag, group

__all__ = [
    "Flag",
    "FlagTable",
    "HelpRequested",
    "ListOf",
    "MapOf",
    "UsageError",
    "at_least",
    "between",
    "boolean",
    "describe",
    "flag",
    "floating",
    "group",
    "help_text",
    "integer",
    "markdown_table",
    "one_of",
    "parse_flags",
    "text",
]
