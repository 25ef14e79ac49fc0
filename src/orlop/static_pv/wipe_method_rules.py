"""Decide how a block device is wiped, and which bytes are next. Pure.

The scripts of local-static-provisioner are recognised by their place, /scripts, or by their bare name, and done by our
own code: so progress is known, a killed wipe resumes, and the device is held exclusively meanwhile. Any other command
is run. Without a command a device is zeroed. That product resets its first blocks instead, which leaves the old data to
the next user; `quick_reset.sh` in the configuration still does that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

SCRIPTS: Final = "/scripts/"
CHUNK_BYTES: Final = 64 << 20
ALIGNMENT: Final = 4096
QUICK_HEAD_BYTES: Final = 72 << 20
"""Includes the second superblock of btrfs, at 64 MiB."""
QUICK_TAIL_BYTES: Final = 4 << 20
SHRED_PASSES: Final = 3
MOST_PASSES: Final = 100


class UnusableCommand(ValueError):
    """The command of the configuration cannot be carried out. The text is a sentence for people."""


class Fill(Enum):
    """What a part of the device is overwritten with."""

    ZEROS = "zeros"
    RANDOM = "random data"
    DISCARD = "nothing: the part is reported to the device as unused"


class WipeExtent(Enum):
    """The part of the device that a pass covers."""

    WHOLE = "the whole device"
    ENDS = "its first and last blocks"


@dataclass(frozen=True, slots=True)
class WipePass:
    fill: Fill
    extent: WipeExtent = WipeExtent.WHOLE


@dataclass(frozen=True, slots=True)
class OverwriteDevice:
    """Done by our own code, pass after pass."""

    name: str
    passes: tuple[WipePass, ...]


@dataclass(frozen=True, slots=True)
class RunCommand:
    """The admin's own command."""

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"command {self.words[0]}"


WipeMethod: TypeAlias = OverwriteDevice | RunCommand
ZERO: Final = OverwriteDevice("zero", (WipePass(Fill.ZEROS),))


@dataclass(frozen=True, slots=True)
class WipePiece:
    """The next bytes to overwrite. `done` is the sum over all passes once they are."""

    fill: Fill
    start: int
    count: int
    done: int


def wipe_method(command: Sequence[str]) -> WipeMethod:
    """Return the method that a class's blockCleanerCommand stands for. Raises `UnusableCommand`."""
    if not command:
        return ZERO
    name, arguments = command[0].removeprefix(SCRIPTS), tuple(command[1:])
    match name:
        case "dd_zero.sh":
            passes = _passes(name, arguments, 1)
            return OverwriteDevice(f"zero, {passes} passes", (WipePass(Fill.ZEROS),) * passes)
        case "shred.sh":
            passes = _passes(name, arguments, SHRED_PASSES)
            random = (WipePass(Fill.RANDOM),) * passes
            return OverwriteDevice(f"shred, {passes} random passes", (*random, WipePass(Fill.ZEROS)))
        case "blkdiscard.sh":
            return OverwriteDevice("discard", (WipePass(Fill.DISCARD),))
        case "quick_reset.sh":
            return OverwriteDevice("quick reset", (WipePass(Fill.ZEROS, WipeExtent.ENDS),))
    return RunCommand(tuple(command))


def bytes_to_write(method: OverwriteDevice, size: int) -> int:
    """Return the sum over all passes."""
    return sum(count for each in method.passes for _, count in _extents(each, size))


def next_piece(method: OverwriteDevice, size: int, done: int, chunk: int = CHUNK_BYTES) -> WipePiece | None:
    """Return the next bytes after `done` of all passes, at most a chunk; None at the end."""
    before = 0
    for each in method.passes:
        for start, count in _extents(each, size):
            if done < before + count:
                # An offset between two blocks is none that we recorded: repeat its block.
                offset = max(0, done - before) // ALIGNMENT * ALIGNMENT
                piece = min(chunk, count - offset)
                return WipePiece(each.fill, start + offset, piece, before + offset + piece)
            before += count
    return None


def _extents(each: WipePass, size: int) -> tuple[tuple[int, int], ...]:
    if each.extent is WipeExtent.WHOLE or size <= QUICK_HEAD_BYTES + QUICK_TAIL_BYTES:
        return ((0, size),)
    tail = (size - QUICK_TAIL_BYTES) // ALIGNMENT * ALIGNMENT
    return ((0, QUICK_HEAD_BYTES), (tail, size - tail))


def _passes(name: str, arguments: tuple[str, ...], default: int) -> int:
    if not arguments:
        return default
    text = arguments[0]
    if len(arguments) > 1 or not text.isascii() or not text.isdecimal() or not 1 <= int(text[:4]) <= MOST_PASSES:
        raise UnusableCommand(
            f"blockCleanerCommand: {name} takes the number of passes, 1 to {MOST_PASSES}, and not {' '.join(arguments)}"
        )
    return int(text)
