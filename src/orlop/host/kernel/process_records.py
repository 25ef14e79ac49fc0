"""Record our child processes in a folder, so that children of a process that was killed are found and ended.

Each process has one empty file, a note. Its name holds the process id, the start time (in the kernel's ticks since
boot) and the boot id. A process id that was reused has another start time, so no other process is ever ended.

Order: start the process → write its note → … → the process ends → remove the note. A kill in between leaves the note
of a process that has ended, or one process without a note, which ends when its parent does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orlop.host.host_errors import HostError

_START_TIME: Final = 19  # the field after the command's name, counted from its state
_PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies one process for ever, also after its process id was reused."""

    number: int
    start: int
    boot: str

    def __str__(self) -> str:
        return f"{self.number}.{self.start}.{self.boot}"


def identity_of_process(number: int) -> ProcessIdentity | None:
    """Return the identity of the process with this id; None if there is none."""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            start = int(file.read().rpartition(b")")[2].split()[_START_TIME])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessIdentity(number, start, _boot())


def note(folder: int, process: ProcessIdentity) -> None:
    try:
        os.close(os.open(str(process), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=folder))
    except OSError as error:
        raise HostError.because(error, f"Process {process.number} cannot be noted") from error


def forget(folder: int, process: ProcessIdentity) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(str(process), dir_fd=folder)


def end_all_noted(folder: int, patience_seconds: float = 10.0) -> list[ProcessIdentity]:
    """Kill all processes with a note and remove their notes; return those that were still running."""
    ended = []
    for name in os.listdir(folder):
        process = read_identity(name)
        if process is None:
            continue
        if _ended(process, patience_seconds):
            ended.append(process)
        # Only after the process has ended: without its note, nobody would find it again.
        forget(folder, process)
    return ended


def read_identity(name: str) -> ProcessIdentity | None:
    """Parse the name of a note; return None if it is not one."""
    parts = name.split(".", 2)
    if len(parts) != _PARTS or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return ProcessIdentity(int(parts[0]), int(parts[1]), parts[2])


def ask_to_end(process: ProcessIdentity, patience_seconds: float) -> bool:
    """Send SIGTERM; return whether the process ended within `patience_seconds`."""
    with _held(process) as handle:
        if handle is None:
            return True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        return _is_gone(handle, patience_seconds)


def is_running(process: ProcessIdentity) -> bool:
    return identity_of_process(process.number) == process


def _ended(process: ProcessIdentity, patience_seconds: float) -> bool:
    with _held(process) as handle:
        return handle is not None and _killed(handle, process, patience_seconds)


@contextlib.contextmanager
def _held(process: ProcessIdentity) -> Iterator[int | None]:
    """Open a handle (pidfd) of the process; None if it has ended."""
    try:
        handle = os.pidfd_open(process.number)
    except OSError:  # no such process, or the id of a thread
        yield None
        return
    try:
        # Compare the identity after opening: the id may have been reused before, but the handle cannot change now.
        yield handle if identity_of_process(process.number) == process else None
    finally:
        os.close(handle)


def _killed(handle: int, process: ProcessIdentity, patience_seconds: float) -> bool:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    if not _is_gone(handle, patience_seconds):
        raise HostError(
            errno.EBUSY,
            f"Process {process.number} was killed but does not end: it waits for a disk or a server. Check the "
            "kernel's log (dmesg).",
        )
    return True


def _is_gone(handle: int, patience_seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(patience_seconds * 1000))


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
