"""How a device is wiped: the configuration's command, recognised or run, and the pieces of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.static_pv.wipe_method_rules import (
    ALIGNMENT,
    CHUNK_BYTES,
    Fill,
    OverwriteDevice,
    RunCommand,
    UnusableCommand,
    bytes_to_write,
    next_piece,
    wipe_method,
)

MIB, GIB = 1 << 20, 1 << 30


def overwriting(*command: str) -> OverwriteDevice:
    method = wipe_method(command)
    assert isinstance(method, OverwriteDevice)
    return method


def fills(*command: str) -> list[Fill]:
    return [each.fill for each in overwriting(*command).passes]


def test_without_a_command_a_device_is_zeroed():
    assert fills() == [Fill.ZEROS]


@pytest.mark.parametrize("folder", ["", "/scripts/"])
def test_the_scripts_of_the_other_product_are_done_by_our_own_code(folder: str):
    assert fills(f"{folder}dd_zero.sh") == [Fill.ZEROS]
    assert fills(f"{folder}dd_zero.sh", "2") == [Fill.ZEROS] * 2
    assert fills(f"{folder}shred.sh") == [Fill.RANDOM] * 3 + [Fill.ZEROS]
    assert fills(f"{folder}shred.sh", "1") == [Fill.RANDOM, Fill.ZEROS]
    assert fills(f"{folder}blkdiscard.sh") == [Fill.DISCARD]
    assert fills(f"{folder}quick_reset.sh") == [Fill.ZEROS]


@pytest.mark.parametrize("command", [["/opt/shred.sh"], ["dd", "of=x"], ["/scripts/fsclean.sh"], ["blkdiscard", "-v"]])
def test_any_other_command_is_run(command: list[str]):
    assert wipe_method(command) == RunCommand(tuple(command))


@pytest.mark.parametrize("passes", ["0", "-1", "x", "1.5", "101", "9" * 5000, "²"])
def test_a_number_of_passes_that_is_none_is_refused(passes: str):
    with pytest.raises(UnusableCommand, match="number of passes"):
        wipe_method(["shred.sh", passes])


def test_a_quick_reset_clears_the_ends_alone_unless_the_device_is_small():
    quick = overwriting("quick_reset.sh")

    assert bytes_to_write(quick, 100 * GIB) == 76 * MIB
    assert bytes_to_write(quick, 50 * MIB) == 50 * MIB


METHODS = some.sampled_from(
    [wipe_method(each) for each in ([], ["shred.sh", "2"], ["quick_reset.sh"], ["blkdiscard.sh"], ["dd_zero.sh", "3"])]
)
SIZES = some.one_of(some.integers(1, 4000), some.integers(1, 3 * GIB // 512)).map(lambda sectors: sectors * 512)


def pieces(method: OverwriteDevice, size: int, done: int, chunk: int) -> list[tuple[Fill, int, int]]:
    found = []
    while (piece := next_piece(method, size, done, chunk)) is not None:
        assert piece.done > done
        assert 0 < piece.count <= chunk
        found.append((piece.fill, piece.start, piece.start + piece.count))
        done = piece.done
    assert done == bytes_to_write(method, size)
    return found


@given(METHODS, SIZES, some.sampled_from([CHUNK_BYTES, 8 * MIB + ALIGNMENT]))
def test_the_pieces_of_a_wipe_are_the_whole_device_in_every_pass(method: OverwriteDevice, size: int, chunk: int):
    found = pieces(method, size, 0, chunk)

    assert all(start % ALIGNMENT == 0 and end <= size for _, start, end in found)
    assert sum(end - start for _, start, end in found) == bytes_to_write(method, size)
    is_quick = method.name == "quick reset"
    for fill, _, end in found:
        # The next piece of the same pass begins where this one ends; only a quick reset leaves out the middle.
        assert end == size or any(other == end for each, other, _ in found if each is fill) or is_quick


@given(METHODS, SIZES, some.data())
def test_a_wipe_that_resumes_anywhere_leaves_out_nothing(method: OverwriteDevice, size: int, data: some.DataObject):
    done = data.draw(some.integers(0, bytes_to_write(method, size)))
    last_fill = method.passes[-1].fill

    after = pieces(method, size, done, CHUNK_BYTES)

    covered = sum(end - start for _, start, end in after)
    assert covered >= bytes_to_write(method, size) - done
    assert covered - (bytes_to_write(method, size) - done) < ALIGNMENT
    if after:
        assert after[-1][0] is last_fill
