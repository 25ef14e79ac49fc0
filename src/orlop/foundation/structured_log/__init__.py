"""Structured logging: events with fields, one line each; and `Secret` and `hide`, which keep secrets out of it.

A `Log` is passed to constructors; nothing here is global. Lines are text (`time level "message" key=value`) or JSON.
Newlines, control and direction-changing characters and terminal escape codes in a value are escaped, so that a value
cannot forge a line and every line can be parsed.
"""

from orlop.foundation.structured_log.log import (
    Destination,
    HeldLines,
    Level,
    LineStyle,
    Log,
    LogEntry,
    TextStream,
    collecting_log,
    level_named,
    line_log,
    lines_for,
    silent_log,
)
from orlop.foundation.structured_log.secrets import HIDDEN, Secret, hide

__all__ = [
    "HIDDEN",
    "Destination",
    "HeldLines",
    "Level",
    "LineStyle",
    "Log",
    "LogEntry",
    "Secret",
    "TextStream",
    "collecting_log",
    "hide",
    "level_named",
    "line_log",
    "lines_for",
    "silent_log",
]
