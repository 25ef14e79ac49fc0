"""Where the repository and its tests lie, for tests that read files or start programs from there."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPOSITORY = TESTS.parent
