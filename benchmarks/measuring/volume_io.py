"""Direct I/O in a volume beside that on the bare file system of its drive.

Short batches take turns, and the tenth of them that was fastest counts: other work on the machine meets all of them.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

MIB: Final = 1 << 20
FILE_BYTES: Final = 128 * MIB
BLOCK: Final = 4096
AT_ONCE: Final = 16
Piece: TypeAlias = memoryview
Act: TypeAlias = Callable[[int, Piece, int], object]
"""Reads or writes a piece of an open file at a position."""


def compare_io(places: dict[str, Path], batches: int) -> None:
    """Print how often a second each place reads and writes, and its ratio to the first place."""
    with ExitStack() as stack:
        buffer = stack.enter_context(mmap.mmap(-1, MIB))
        files = {name: stack.enter_context(_filled(folder, buffer)) for name, folder in places.items()}
        print(f"direct I/O, one call after the other, and its ratio to {next(iter(files))}")
        for name, act in (("write", _write), ("read", _read)):
            for size, order in ((MIB, "in order"), (BLOCK, "at random")):
                _show(f"{name} {size >> 10} KiB {order}", _rates(files, act, buffer, size, batches))


def _show(what: str, rates: dict[str, float]) -> None:
    bare = next(iter(rates.values()))
    for name, rate in rates.items():
        print(f"  {what:<24} {name:<12} {rate:9.0f} a second   {rate / bare:.2f}")


def _rates(files: dict[str, int], act: Act, buffer: mmap.mmap, size: int, batches: int) -> dict[str, float]:
    numbers = random.Random(1)  # noqa: S311 - no secret
    seconds: dict[str, list[float]] = {name: [] for name in files}
    with memoryview(buffer) as whole, whole[:size] as piece:
        for batch in range(batches):
            first = batch * AT_ONCE * size % FILE_BYTES
            in_order = range(first, first + AT_ONCE * size, size)
            places = in_order if size == MIB else [numbers.randrange(FILE_BYTES // size) * size for _ in in_order]
            for name, file in numbers.sample(sorted(files.items()), len(files)):
                began = time.perf_counter()
                for place in places:
                    act(file, piece, place)
                seconds[name].append(time.perf_counter() - began)
    return {name: AT_ONCE / sorted(each)[len(each) // 10] for name, each in seconds.items()}


def _write(file: int, piece: Piece, place: int) -> None:
    os.pwrite(file, piece, place)


def _read(file: int, piece: Piece, place: int) -> None:
    os.preadv(file, [piece], place)


@contextmanager
def _filled(folder: Path, buffer: mmap.mmap) -> Iterator[int]:
    """Open a new file whose blocks are all written; it goes with its descriptor."""
    file = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    try:
        for place in range(0, FILE_BYTES, MIB):
            os.pwrite(file, buffer, place)
        os.fsync(file)
        yield file
    finally:
        os.close(file)
