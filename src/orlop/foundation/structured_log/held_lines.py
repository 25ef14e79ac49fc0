"""Lines of usual events, held for a moment and written together.

A line that is rendered and written between other work costs a process several times more than one among its kind, and
a busy daemon has hundreds of them in a second. What somebody may be waiting for is not held: a warning or an error is
written at once, after all that came before it. A process that is killed loses the usual lines of its last moment.

Must not wait, and must not start timers by itself: it is handed what calls back later.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from orlop.foundation.structured_log.log import WARNING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from orlop.foundation.structured_log.log import Level, Lines

HOLD_SECONDS: Final = 0.02
MOST_HELD: Final = 200
UNCHANGING: Final = frozenset({str, int, float, bool, type(None)})
"""Any other value may be another one a moment later, and is rendered when it is logged."""

Event = tuple["Level", str, "Mapping[str, object]", "datetime"]


class HeldLines:
    """A destination for a `Log`. Whoever ends the process calls `write` before."""

    def __init__(self, lines: Lines, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._lines = lines
        self._later = later
        self._thread = threading.get_ident()
        self._held: list[str | Event] = []

    def __call__(self, level: Level, message: str, fields: Mapping[str, object], /) -> None:
        held = self._held
        event = level, message, fields, self._lines.now()
        held.append(event if UNCHANGING.issuperset(map(type, fields.values())) else self._lines.line(*event))
        if level >= WARNING or len(held) >= MOST_HELD or threading.get_ident() != self._thread:
            self.write()
        elif len(held) == 1:
            self._later(HOLD_SECONDS, self.write)

    def write(self) -> None:
        """Everything that is held, now."""
        held, self._held = self._held, []
        if held:
            lines = [event if isinstance(event, str) else self._lines.line(*event) for event in held]
            self._lines.write("".join(lines))
