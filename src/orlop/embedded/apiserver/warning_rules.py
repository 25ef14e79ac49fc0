"""What a client is warned of, as one header of a length that every client reads. Pure.

As in Kubernetes, warnings of more than 4,096 characters together are cut to 256 each, and when even these are too many,
the last ones are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

MOST_CHARACTERS: Final = 4096
MOST_OF_EACH: Final = 256


def warning_header(warnings: Sequence[str]) -> str:
    """Several in one header, each text once."""
    return ", ".join(f"299 - {_quoted_string(text)}" for text in _bounded(list(dict.fromkeys(warnings))))


def _bounded(texts: list[str]) -> list[str]:
    if sum(len(text) for text in texts) <= MOST_CHARACTERS:
        return texts
    return list(_first_of([text[:MOST_OF_EACH] for text in texts]))


def _first_of(texts: list[str]) -> Iterator[str]:
    written = 0
    for text in texts:
        written += len(text)
        if written > MOST_CHARACTERS:
            return
        yield text


def _quoted_string(text: str) -> str:
    """As HTTP has it: two characters are escaped; control characters, which may not stand in a header, are blanks."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    escaped = shown.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
