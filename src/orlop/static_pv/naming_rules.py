"""Names, patterns, paths and sizes of static volumes, exactly as local-static-provisioner has them. Pure.

A PersistentVolume is recognized by its name alone, which is a hash of entry, node and class. Both sides compute it, so
that one product can take over the volumes of the other.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from orlop.foundation.quantity import Quantity

FNV_OFFSET: Final = 0x811C9DC5
FNV_PRIME: Final = 0x01000193
READABLE_UNITS: Final = (1 << 30, 1 << 20)
FEWEST_UNITS: Final = 10
LONGEST_ENTRY: Final = 255
CLASS_ITEM: Final = re.compile(r"\\?(.)", re.DOTALL)


class InvalidPattern(ValueError):
    def __init__(self, pattern: str, why: str) -> None:
        super().__init__(
            f"{pattern!r} is not a pattern of names: {why}; allowed are *, ?, [a-z], [^a-z] and \\ before one"
        )


def volume_name(entry: str, node: str, storage_class: str) -> str:
    """Return the name of the PersistentVolume: 32 bits of FNV-1a over the three texts, with nothing between them."""
    digest = FNV_OFFSET
    for byte in f"{entry}{node}{storage_class}".encode():
        digest = ((digest ^ byte) * FNV_PRIME) & 0xFFFFFFFF
    return f"local-pv-{digest:x}"


def rounded_capacity(size: int) -> int:
    """Round down to whole GiB where that leaves at least ten, else to whole MiB in the same way, else not at all."""
    for unit in READABLE_UNITS:
        if size // unit >= FEWEST_UNITS:
            return size // unit * unit
    return size


def capacity_text(size: int) -> str:
    """Return a rounded capacity as the quantity of a PersistentVolume."""
    return str(Quantity.of(size))


def entry_fault(entry: str) -> str:
    """Return why a file name cannot be that of a volume; empty if it can.

    The name goes into objects, and the master appends it to a folder: it must stay one component of a path.
    """
    if entry in {"", ".", ".."} or "/" in entry:
        return "it is not the name of a file in the folder"
    try:
        encoded = entry.encode()
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if len(encoded) > LONGEST_ENTRY:
        return f"it is longer than {LONGEST_ENTRY} bytes"
    if not entry.isprintable():
        return "it contains a character that cannot be printed"
    return ""


def entry_path(folder: str, entry: str) -> str:
    """Return the path of an entry. An entry that would leave the folder raises `ValueError`."""
    if fault := entry_fault(entry):
        raise ValueError(f"{entry!r} cannot be an entry of {folder}: {fault}")
    return f"{folder.rstrip('/')}/{entry}"


def matches(patterns: str, entry: str) -> bool:
    """Whether one of the patterns, which are separated by commas, matches the name."""
    return any(_expression(each).fullmatch(entry) is not None for each in patterns.split(",") if each)


def check_patterns(patterns: str) -> None:
    """Raise `InvalidPattern` if one of the patterns cannot be read."""
    for each in patterns.split(","):
        _expression(each)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    """Translate a pattern of Go's filepath.Match: unlike a shell's, it negates with ^, and knows no `[!a]`."""
    parts, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            parts.append("[^/]*")
        elif character == "?":
            parts.append("[^/]")
        elif character == "[":
            text, at = _character_class(pattern, at)
            parts.append(text)
        else:
            if character == "\\":
                if at == len(pattern):
                    raise InvalidPattern(pattern, "it ends with a \\")
                character, at = pattern[at], at + 1
            parts.append(re.escape(character))
    return re.compile("".join(parts), re.DOTALL)


def _character_class(pattern: str, at: int) -> tuple[str, int]:
    """Return the expression of the class that begins after `[`, and where it ends."""
    negated = pattern.startswith("^", at)
    at += negated
    ranges: list[str] = []
    while not (ranges and pattern.startswith("]", at)):
        first, at = _class_character(pattern, at)
        last = first
        if pattern.startswith("-", at):
            last, at = _class_character(pattern, at + 1)
        # Go takes a range that runs backwards, and it matches nothing.
        ranges.append(f"{re.escape(first)}-{re.escape(last)}" if first <= last else "")
    inside = "".join(ranges)
    if not inside:
        return ("[^/]" if negated else "(?!)"), at + 1
    return f"(?!/)[{'^' if negated else ''}{inside}]", at + 1


def _class_character(pattern: str, at: int) -> tuple[str, int]:
    found = CLASS_ITEM.match(pattern, at)
    if found is None or found[0] in {"]", "-"}:
        raise InvalidPattern(pattern, "a [ without its ], or with nothing between them")
    return found[1], found.end()
