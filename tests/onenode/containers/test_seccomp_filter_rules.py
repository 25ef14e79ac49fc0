"""What the filter answers, by running its program as the kernel does."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.containers.seccomp_filter_rules import NEW_USER_NAMESPACE, filter_program

X86_64, I386, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
MACHINES = {X86_64: "x86_64", I386: "x86_64", AARCH64: "aarch64", ARM: "aarch64"}
CLONE = {X86_64: 56, I386: 120, AARCH64: 220, ARM: 120}
UNSHARE = {X86_64: 272, I386: 310, AARCH64: 97, ARM: 337}
KEYCTL = {X86_64: 250, I386: 288, AARCH64: 219, ARM: 311}
READ = {X86_64: 0, I386: 3, AARCH64: 63, ARM: 3}
CLONE3, MOVE_MOUNT, OPENAT2 = 435, 429, 437
ALLOWED = 0


def answer(architecture: int, number: int, first: int = 0, *, machine: str = "") -> int:
    """The errno; 0 where the call is allowed."""
    record = struct.pack("=IIQ6Q", number, architecture, 0, first, 0, 0, 0, 0, 0)
    program = filter_program(machine or MACHINES[architecture])
    assert program is not None
    instructions = list(struct.iter_unpack("=HBBI", program))
    place = loaded = 0
    while True:
        code, if_so, if_not, operand = instructions[place]
        place += 1
        match code:
            case 0x20:
                loaded = struct.unpack_from("=I", record, operand)[0]
            case 0x15:
                place += if_so if loaded == operand else if_not
            case 0x35:
                place += if_so if loaded >= operand else if_not
            case 0x45:
                place += if_so if loaded & operand else if_not
            case 0x06:
                return ALLOWED if operand == 0x7FFF0000 else operand & 0xFFFF


@pytest.mark.parametrize("architecture", MACHINES)
@given(flags=st.integers(0, 0xFFFFFFFF))
def test_a_user_namespace_is_refused_and_nothing_else_of_those_calls(architecture: int, flags: int):
    expected = errno.EPERM if flags & NEW_USER_NAMESPACE else ALLOWED
    assert answer(architecture, CLONE[architecture], flags) == expected
    assert answer(architecture, UNSHARE[architecture], flags) == expected


@pytest.mark.parametrize("architecture", MACHINES)
def test_each_way_to_call_is_judged_by_its_own_numbers(architecture: int):
    assert answer(architecture, KEYCTL[architecture]) == errno.EPERM
    assert answer(architecture, MOVE_MOUNT) == errno.EPERM
    assert answer(architecture, CLONE3) == errno.ENOSYS
    assert answer(architecture, READ[architecture], NEW_USER_NAMESPACE) == ALLOWED
    assert answer(architecture, OPENAT2) == ALLOWED


@given(number=st.integers(0x40000000, 0xFFFFFFFF))
def test_nothing_of_x32_exists(number: int):
    assert answer(X86_64, number) == errno.ENOSYS


@given(architecture=st.integers(0, 0xFFFFFFFF).filter(lambda one: one not in MACHINES), number=st.integers(0, 500))
def test_a_way_to_call_that_is_not_known_is_refused(architecture: int, number: int):
    assert answer(architecture, number, machine="x86_64") == errno.EPERM


def test_there_is_no_filter_for_a_machine_that_is_not_known():
    assert filter_program("riscv64") is None
