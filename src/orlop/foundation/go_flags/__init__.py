"""The command line of a daemon, read exactly as Go's `flag` package reads it, into one frozen dataclass of settings.

Sidecars are started with the command lines of their upstream counterparts, so every spelling Go takes is taken here,
and none that Go refuses. One declaration per flag gives the parsing, `--help` and the reference table of the docs.

This package must not print, exit, read the environment or touch the disk: the caller does, with what it is handed.
"""

from orlop.foundation.go_flags.help import help_text, markdown_table
from orlop.foundation.go_flags.parsing import HelpRequested, UsageError, parse_flags
from orlop.foundation.go_flags.table import Flag, FlagTable, describe, flag, group
from orlop.foundation.go_flags.values import (
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
