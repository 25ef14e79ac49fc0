"""How far random tests go whose single example takes milliseconds: a soak of all of them ends within 40 minutes."""

from __future__ import annotations

import os

from hypothesis import settings

FEWER = settings(max_examples=min(settings.default.max_examples, 500))  # type: ignore[union-attr]
FEW = settings(max_examples=min(settings.default.max_examples, 400))  # type: ignore[union-attr]
"""For those that write files, or begin a world of their own."""
A_HANDFUL = settings(max_examples=min(settings.default.max_examples // 4, 200))  # type: ignore[union-attr]
"""For those that live through hours of several processes."""
WHOLE_LIVES = settings(max_examples=1_000 if os.environ.get("ORLOP_SOAK") else 25, print_blob=True)
"""For histories of which each finds its own faults: forty times more in a soak."""
MANY_LIVES = settings(max_examples=600 if os.environ.get("ORLOP_SOAK") else 25, print_blob=True)
"""For histories of what the explorer plays in order as well."""
