"""Run the admin's command that cleans a disk, until it ends or is stopped.

It gets a session of its own. When it is stopped, everything in that session is killed, so that no part of a script goes
on writing to a disk; when this process dies, the kernel kills the command itself.
"""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel.programs import Child, find_program

CHECK_MILLISECONDS: Final = 200
LONGEST_OUTPUT: Final = 2048


def run_command(words: Sequence[str], environment: Mapping[str, str], stop: threading.Event) -> None:
    """Run a command in the calling thread. EIO: it failed. ECANCELED: it was stopped. ENOENT: there is none."""
    program = find_program(words[0])
    if program is None:
        raise HostError(errno.ENOENT, f"The command {words[0]} cannot be found: is it in the image of the worker?")
    child = Child([program, *words[1:]], environment)
    try:
        output = _until_ended(child, stop)
        # The command has not been waited for yet, so its number is still its own.
        child.kill_session()
    finally:
        child.close()
    if stop.is_set():
        raise HostError(errno.ECANCELED, f"The command {words[0]} was stopped.")
    if (code := child.exit_code()) != 0:
        last = output.decode("utf-8", "replace").strip().rpartition("\n")[2] or "it printed nothing"
        raise HostError(errno.EIO, f"The command {words[0]} failed with exit code {code}: {last}")


def _until_ended(child: Child, stop: threading.Event) -> bytes:
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
