"""Logging as events with fields, one line each, and the two guards against secrets in it: `Secret` and `hide`.

A `Log` is handed to constructors; nothing here is global. Lines are text (`time level "message" key=value`) or JSON;
whatever a value holds (newlines, control or direction-changing characters, a terminal's escape codes) is escaped, so
that a value cannot forge a line and every line can be parsed back.
"""

from orlop.foundation.structured_log.held_lines import HeldLines
from orlop.foundation.structured_log.log import (
    Destination,
    Entry,
    Level,
    LineStyle,
    Log,
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
    "Entry",
    "HeldLines",
    "Level",
    "LineStyle",
    "Log",
    "Secret",
    "TextStream",
    "collecting_log",
    "hide",
    "level_named",
    "line_log",
    "lines_for",
    "silent_log",
]
