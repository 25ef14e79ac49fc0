"""Run other programs: a child that ends with this process, one whose output is needed, or one to become (exec).

A short step of our own interpreter sets PR_SET_PDEATHSIG before a child's program runs, so there is no moment in which
a child could outlive this process. A child has its own session: a Ctrl-C in the terminal goes only to this process.
Its stdout and stderr share one pipe, which any event loop can wait for.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import orlop
from orlop.host.host_errors import HostError

_BETWEEN: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from orlop.host.kernel.programs import run_until_parent_ends; "
    "run_until_parent_ends(int(sys.argv[2]), sys.argv[3:])"
)
_LONGEST_READ: Final = 1 << 16
CHECK_MILLISECONDS: Final = 200
LONGEST_OUTPUT: Final = 2048


class Child:
    """A child process. `handle` is readable when it has ended, `output` when it has written. The caller closes it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the program, with our own environment or this one. The first word is a path.

        The kernel ends a child with the thread that started it: call it from the main thread, or from one that waits
        for the child.
        """
        package_folder = str(Path(orlop.__file__).parent.parent)
        between = [sys.executable, "-I", "-S", "-c", _BETWEEN, package_folder, str(os.getpid()), *words]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, and words of our own
                between,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(environment) if environment is not None else None,
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
        """Return None while the child runs; a negative number is the signal that ended it."""
        return self._process.poll()

    def read_output(self) -> bytes | None:
        """Return the output since the last call, b"" if there is none; None at the end of the output."""
        try:
            return os.read(self.output, _LONGEST_READ) or None
        except BlockingIOError:
            return b""

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def kill_session(self) -> None:
        """Kill the child, and what it has started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the child if it still runs, wait for it, and close the descriptors."""
        self._process.kill()
        self._process.wait()
        os.close(self.handle)
        if self._process.stdout is not None:
            self._process.stdout.close()


def run_until_parent_ends(parent: int, words: Sequence[str]) -> NoReturn:
    """Replace this process by the program, which gets SIGKILL when the parent ends: it must survive that anyway."""
    from orlop.host.kernel import system_calls  # noqa: PLC0415 - only the child needs it, not the process that starts it

    system_calls.prctl(system_calls.DIE_WITH_PARENT, signal.SIGKILL)
    # The parent may have ended before prctl took effect: then no signal will come.
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(words[0], list(words))  # noqa: S606 - no shell is wanted


def ask_program(
    words: Sequence[str],
    environment: Mapping[str, str],
    stdin: bytes,
    within: float,
    *,
    descriptors: Sequence[int] = (),
) -> tuple[int, bytes, bytes]:
    """Run a program; return its exit code, stdout and stderr. It is killed after `within` seconds.

    It inherits `descriptors` under their numbers. Raises the kernel's own OSError if it cannot be run: the caller knows
    the purpose, and writes the sentence.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - named by the kubeconfig, a flag or our own code; no shell is wanted
            list(words),
            env=dict(environment),
            input=stdin,
            capture_output=True,
            timeout=within,
            check=False,
            pass_fds=tuple(descriptors),
        )
    except subprocess.TimeoutExpired:
        raise HostError(errno.ETIMEDOUT, f"{words[0]} took longer than {within:g} seconds") from None
    return ended.returncode, ended.stdout, ended.stderr


def run_until_stopped(words: Sequence[str], environment: Mapping[str, str], stop: threading.Event) -> None:
    """Run an admin's command in the calling thread until it ends or is stopped.

    When it is stopped, everything in its session is killed, so that no part of a script goes on; when this process
    dies, the kernel kills the command itself. EIO: it failed. ECANCELED: it was stopped. ENOENT: there is none.
    """
    program = find_program(words[0])
    if program is None:
        raise HostError(errno.ENOENT, f"The command {words[0]} cannot be found: add it to the image of the worker.")
    child = Child([program, *words[1:]], environment)
    try:
        output = _output_until_ended(child, stop)
        # The command has not been waited for yet, so its number is still its own.
        child.kill_session()
    finally:
        child.close()
    if stop.is_set():
        raise HostError(errno.ECANCELED, f"The command {words[0]} was stopped.")
    if (code := child.exit_code()) != 0:
        last = output.decode("utf-8", "replace").strip().rpartition("\n")[2] or "it printed nothing"
        raise HostError(errno.EIO, f"The command {words[0]} failed with exit code {code}: {last}")


def _output_until_ended(child: Child, stop: threading.Event) -> bytes:
    """Return the end of the output, when the command has ended or is to be stopped."""
    waiting, output = select.poll(), b""
    waiting.register(child.handle, select.POLLIN)
    waiting.register(child.output, select.POLLIN)
    while not stop.is_set():
        ready = {descriptor for descriptor, _ in waiting.poll(CHECK_MILLISECONDS)}
        if child.output in ready:
            if (piece := child.read_output()) is None:  # closed: only the end of the command is left to wait for
                waiting.unregister(child.output)
            else:
                output = (output + piece)[-LONGEST_OUTPUT:]
        elif child.handle in ready:
            break
    return output


def find_program(name: str, beside: Path | None = None) -> str | None:
    """Return the path of a program in the folder `beside`, else on the PATH; None if it is in neither."""
    # Not shutil.which: shutil imports every compression of the standard library, 0.4 MB in each node's process.
    folders = [*([str(beside)] if beside is not None else []), *os.get_exec_path()]
    paths = [name] if os.path.dirname(name) else [os.path.join(folder, name) for folder in folders]
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def become(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the program (exec), which keeps the terminal and sets the exit code."""
    try:
        os.execve(program, [program, *arguments], dict(environment))  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise HostError.because(error, f"{program} cannot be run") from error
