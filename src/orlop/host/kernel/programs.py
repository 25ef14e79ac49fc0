"""Other programs, started by us: a child that ends when we do, one that is asked something, one that takes our place.

A child is set to end with its parent before its program runs (by a small step of our own interpreter in between), so
that there is no moment in which it could be left behind. It has a session of its own: a Ctrl-C in our terminal is ours.
Its output comes by one pipe, which can be waited for on any event loop.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import orlop
from orlop.host.host_errors import HostError

_BETWEEN: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from orlop.host.kernel.programs import run_until_parent_ends; "
    "run_until_parent_ends(int(sys.argv[2]), sys.argv[3:])"
)
_LONGEST_READ: Final = 1 << 16


class Child:
    """`handle` is readable when it has ended, `output` when it has said something. To be closed."""

    def __init__(self, words: Sequence[str]) -> None:
        """Only from the main thread: with the thread that starts it, the child would end."""
        package_folder = str(Path(orlop.__file__).parent.parent)
        between = [sys.executable, "-I", "-S", "-c", _BETWEEN, package_folder, str(os.getpid()), *words]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, and words of our own
                between,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError.because(error, f"{words[0]} cannot be started") from error
        self.handle = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        self.output = self._process.stdout.fileno()
        os.set_blocking(self.output, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def said(self) -> bytes | None:
        """What it has said since; None: it says no more."""
        try:
            return os.read(self.output, _LONGEST_READ) or None
        except BlockingIOError:
            return b""

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Ends it, where it has not."""
        self._process.kill()
        self._process.wait()
        os.close(self.handle)
        if self._process.stdout is not None:
            self._process.stdout.close()


def run_until_parent_ends(parent: int, words: Sequence[str]) -> NoReturn:
    """Becomes the program; SIGKILL when the parent ends, as it need not be asked: it may die at any time anyway."""
    from orlop.host.kernel import system_calls  # noqa: PLC0415 - who starts a child has no need for it

    system_calls.prctl(system_calls.DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(words[0], list(words))  # noqa: S606 - no shell is wanted


def ask_program(
    words: Sequence[str], environment: Mapping[str, str], stdin: bytes, within: float
) -> tuple[int, bytes, bytes]:
    """Run a program; return its exit code, stdout and stderr. It is killed after `within` seconds.

    Raises the kernel's own OSError if it cannot be run: the caller knows what it was for.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - named by the kubeconfig or a flag; no shell is wanted
            list(words), env=dict(environment), input=stdin, capture_output=True, timeout=within, check=False
        )
    except subprocess.TimeoutExpired:
        raise HostError(errno.ETIMEDOUT, f"{words[0]} took longer than {within:g} seconds") from None
    return ended.returncode, ended.stdout, ended.stderr


def find_program(name: str, beside: Path | None = None) -> str | None:
    """In the folder of another program, which was installed with it; else on the PATH."""
    found = shutil.which(name, path=str(beside)) if beside is not None else None
    return found or shutil.which(name)


def become(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Takes our place: its exit code is ours, and a terminal is its own."""
    try:
        os.execve(program, [program, *arguments], dict(environment))  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise HostError.because(error, f"{program} cannot be run") from error
