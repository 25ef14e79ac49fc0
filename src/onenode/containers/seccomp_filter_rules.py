"""Which system calls the commands of containers are refused, as a program for the kernel's filter (pure).

Refused is what leads to rights that nobody gave: a user namespace, in which anybody is root and may mount; keyrings,
which no namespace divides; programs for the kernel, its modules and its performance counters; and mounting, which
capabilities forbid already. Everything else is allowed, also what a newer kernel brings.

A filter sees numbers alone. `clone3` has its flags in memory and is said not to exist: libraries use `clone` then. The
calls of a machine's 32-bit mode are judged by their own numbers; x32, which nobody uses, does not exist.

The filter must not be the only wall: it stands before those of namespaces and capabilities.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

NEW_USER_NAMESPACE: Final = 0x1000_0000
_X32_BIT: Final = 0x4000_0000

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # where in the kernel's record; arguments are little-endian
_ALLOW: Final = 0x7FFF_0000
_REFUSE: Final = 0x0005_0000
_INSTRUCTION: Final = struct.Struct("=HBBI")  # code, how far to jump if so, if not, operand

_FLAGGED: Final = ("clone", "unshare")
"""Refused where their first argument asks for a user namespace."""
_SAME_EVERYWHERE: Final = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "open_tree_attr": 467,
}
_ABSENT: Final = {"clone3": 435}
_NAMES: Final = (
    *("clone", "unshare", "setns", "add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd"),
    *("kexec_load", "init_module", "finit_module", "delete_module", "mount", "umount2", "pivot_root"),
    *("open_by_handle_at", "kexec_file_load"),
)
_NONE: Final = -1
"""The number of what one way to call does not have."""


@dataclass(frozen=True, slots=True)
class _Abi:
    """One way to call the kernel: how the filter sees it, and its numbers."""

    architecture: int
    numbers: Mapping[str, int]
    has_x32: bool = False


def _mode(architecture: int, *numbers: int, has_x32: bool = False) -> _Abi:
    return _Abi(architecture, dict(zip(_NAMES, numbers, strict=True)), has_x32)


_X86_64: Final = _mode(
    0xC000_003E,
    *(56, 272, 308, 248, 249, 250, 321, 298, 323),
    *(246, 175, 313, 176, 165, 166, 155),
    *(304, 320),
    has_x32=True,
)
_I386: Final = _mode(
    0x4000_0003,
    *(120, 310, 346, 286, 287, 288, 357, 336, 374),
    *(283, 128, 350, 129, 21, 52, 217),
    *(342, _NONE),
)
_AARCH64: Final = _mode(
    0xC000_00B7,
    *(220, 97, 268, 217, 218, 219, 280, 241, 282),
    *(104, 105, 273, 106, 40, 39, 41),
    *(265, 294),
)
_ARM: Final = _mode(
    0x4000_0028,
    *(120, 337, 375, 309, 310, 311, 386, 364, 388),
    *(347, 128, 379, 129, 21, 52, 218),
    *(371, 401),
)
_MODES: Final = {"x86_64": (_X86_64, _I386), "aarch64": (_AARCH64, _ARM)}


def filter_program(machine: str) -> bytes | None:
    """For what `uname` calls the machine; None where its numbers are not known here."""
    modes = _MODES.get(machine)
    return None if modes is None else b"".join(_program(modes))


def _program(modes: tuple[_Abi, ...]) -> Iterator[bytes]:
    """A way to call that has no section of its own comes to the end, where all is refused."""
    for mode in modes:
        section = list(_section(mode))
        yield _load(_ARCHITECTURE)
        yield _INSTRUCTION.pack(_JUMP_IF_EQUAL, 0, len(section), mode.architecture)
        yield from section
    yield _answer(errno.EPERM)


def _section(mode: _Abi) -> Iterator[bytes]:
    yield _load(_NUMBER)
    if mode.has_x32:
        yield from _if(_JUMP_IF_AT_LEAST, _X32_BIT, _answer(errno.ENOSYS))
    for number in _ABSENT.values():
        yield from _if(_JUMP_IF_EQUAL, number, _answer(errno.ENOSYS))
    for number in sorted(_always_refused(mode).values()):
        yield from _if(_JUMP_IF_EQUAL, number, _answer(errno.EPERM))
    for name in _FLAGGED:
        yield from _if_flagged(mode.numbers[name])
    yield _INSTRUCTION.pack(_RETURN, 0, 0, _ALLOW)


def _always_refused(mode: _Abi) -> dict[str, int]:
    numbers = {**mode.numbers, **_SAME_EVERYWHERE}
    return {name: number for name, number in numbers.items() if name not in _FLAGGED and number != _NONE}


def _if(condition: int, value: int, then: bytes) -> Iterator[bytes]:
    yield _INSTRUCTION.pack(condition, 0, 1, value)
    yield then


def _if_flagged(number: int) -> Iterator[bytes]:
    """Decides for good where it is this call; otherwise the number is still loaded afterwards."""
    yield _INSTRUCTION.pack(_JUMP_IF_EQUAL, 0, 4, number)
    yield _load(_FIRST_ARGUMENT)
    yield _INSTRUCTION.pack(_JUMP_IF_ANY_BIT, 0, 1, NEW_USER_NAMESPACE)
    yield _answer(errno.EPERM)
    yield _INSTRUCTION.pack(_RETURN, 0, 0, _ALLOW)


def _load(where: int) -> bytes:
    return _INSTRUCTION.pack(_LOAD, 0, 0, where)


def _answer(reason: int) -> bytes:
    return _INSTRUCTION.pack(_RETURN, 0, 0, _REFUSE | reason)
