"""Start user-mode-linux with the FPU access it had before processors with large vector registers. A script.

user-mode-linux 6.1 reads the FPU state of its processes with PTRACE_GETREGSET into a buffer of 832 bytes and writes the
same bytes back. Since Linux 5.12 the host accepts only a complete state, which with AVX-512 or AMX is larger: the write
fails with EFAULT and the kernel panics ("ptrace set fp regs failed, errno = 14"). Where the first PTRACE_GETREGSET
fails, user-mode-linux uses PTRACE_GETFPREGS instead, which has a fixed size: the x87 and SSE registers. So a seccomp
filter fails this one request, and everything inside must do without AVX (see `SSE_ONLY` in quota_kernel).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
X86_64, PTRACE, PTRACE_GETREGSET, NT_X86_XSTATE = 0xC000_003E, 101, 0x4204, 0x202
ARCHITECTURE, NUMBER, REQUEST, NOTE_TYPE = 4, 0, 16, 32  # offsets in the kernel's seccomp_data
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF_0000, 0x0005_0000
INSTRUCTION = struct.Struct("=HBBI")  # code, jump if equal, jump if not, operand


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def filter_program() -> list[bytes]:
    """Fail PTRACE_GETREGSET of NT_X86_XSTATE with EIO; allow everything else, since traced processes inherit it."""
    conditions = ((ARCHITECTURE, X86_64), (NUMBER, PTRACE), (REQUEST, PTRACE_GETREGSET), (NOTE_TYPE, NT_X86_XSTATE))
    program = []
    for place, (offset, value) in enumerate(conditions):
        instructions_to_allow = 2 * (len(conditions) - place - 1) + 1
        program += [(LOAD, 0, 0, offset), (JUMP_IF_EQUAL, 0, instructions_to_allow, value)]
    program += [(RETURN, 0, 0, FAIL | errno.EIO), (RETURN, 0, 0, ALLOW)]
    return [INSTRUCTION.pack(*instruction) for instruction in program]


def install_filter() -> None:
    instructions = filter_program()
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = Program(len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "this kernel refuses a seccomp filter")


if __name__ == "__main__":
    install_filter()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the test's own words
