"""A small process that makes containers: it forks quickly because it is small, and it has one thread only.

It takes requests from a socket that its parent holds: when that end closes, whatever happened to the parent, the
launcher ends, and with it every container. It does one thing at a time and waits for none of them: the first process of
a container reports on the channel that came with the request.

Nothing of Kubernetes is known here, and nothing is imported that a container does not need: its first process is a
copy of this one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from onenode.containers.container_command import start_command
from onenode.containers.container_init import Report, run_container, shell_code
from onenode.containers.container_request import MOST_DESCRIPTORS, decoded_command, decoded_request
from onenode.containers.passed_descriptors import received
from onenode.containers.terminals import opened_terminal
from orlop.host.kernel import system_calls

START, RUN_INSIDE = b"start", b"run inside"
_LONGEST_MESSAGE: Final = 64
_INSIDE: Final = (
    system_calls.NEW_MOUNTS | system_calls.NEW_HOST_NAME | system_calls.NEW_IPC | system_calls.NEW_PROCESSES
)


def main() -> None:
    """The socket is the descriptor named by the last argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, who ends us when it wants to
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _reap)
    requests = socket.socket(fileno=int(sys.argv[-1]))
    requests.set_inheritable(False)  # a process that has it can start any container
    _close_all_but(requests.fileno())
    sys.meta_path.clear()  # nothing is imported from now on: what lies there could be a tenant's, seen from inside
    os.umask(0)  # files and devices in a container's root have the modes they are made with
    gc.freeze()  # what is there now is never looked at again, so that copies of this process share its pages
    own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    while True:
        kind, descriptors = received(requests, _LONGEST_MESSAGE, MOST_DESCRIPTORS)
        if not kind:
            return
        _answer(kind, descriptors, _Outside(requests, own_processes))
        for descriptor in descriptors:
            os.close(descriptor)


def _close_all_but(requests: int) -> None:
    """The program was run by its descriptor, which is still there."""
    system_calls.close_range(3, requests - 1)
    system_calls.close_range(requests + 1, system_calls.LAST_DESCRIPTOR)


@dataclass(frozen=True, slots=True)
class _Outside:
    """What belongs to the launcher alone."""

    requests: socket.socket
    own_processes: int

    def left(self) -> None:
        self.requests.close()
        os.close(self.own_processes)


def _answer(kind: bytes, descriptors: list[int], outside: _Outside) -> None:
    channel = socket.socket(fileno=os.dup(descriptors[0]))
    try:
        if kind == START:
            _fork_container(descriptors, channel, outside)
        else:
            _fork_told(channel, outside, lambda: _run_inside(descriptors, channel))
    except OSError as error:
        Report(channel).refused(error)
    finally:
        channel.close()


def _fork_container(descriptors: list[int], channel: socket.socket, outside: _Outside) -> None:
    """The next fork is the first process of a new process namespace; ours stays what it is."""
    system_calls.unshare(system_calls.NEW_PROCESSES)
    try:
        _fork_told(channel, outside, lambda: _be_container(descriptors, channel))
    finally:
        system_calls.setns(outside.own_processes, system_calls.NEW_PROCESSES)


def _fork_told(channel: socket.socket, outside: _Outside, child_main: Callable[[], NoReturn]) -> None:
    """Fork a process, and send a descriptor of it: a process id could be another's by then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    released, release = os.pipe2(os.O_CLOEXEC)
    try:
        launcher = os.getpid()
        child = os.fork()
        if child == 0:
            os.close(release)
            _alone(launcher, outside, released, child_main)
        handle = os.pidfd_open(child)
        try:
            socket.send_fds(channel, [json.dumps({"pid": child}).encode()], [handle])
        finally:
            os.close(handle)
    finally:
        os.close(released)
        os.close(release)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))


def _alone(launcher: int, outside: _Outside, released: int, child_main: Callable[[], NoReturn]) -> NoReturn:
    """A child never returns into the launcher's loop, whatever happens to it."""
    try:
        system_calls.prctl(system_calls.DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() not in {0, launcher}:  # 0: the parent is outside of this process namespace
            os._exit(1)
        outside.left()
        # The descriptor of this process has to be the first message: on a busy machine the child can be faster than
        # the launcher, and a container that has started without one could neither be signalled nor entered.
        os.read(released, 1)
        os.close(released)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        child_main()
    finally:
        os._exit(1)


def _be_container(descriptors: Sequence[int], channel: socket.socket) -> NoReturn:
    _, words, log_folder, *volumes = descriptors
    run_container(decoded_request(_content(words)), log_folder, volumes, Report(channel))


def _run_inside(descriptors: Sequence[int], channel: socket.socket) -> NoReturn:
    """Enters a running container and starts one more command there; this process only waits for it.

    Without streams the command gets a terminal, whose outer end goes to who asked: only there it stays open.
    """
    _, words, container, *streams = descriptors
    report = Report(channel)
    try:
        command = decoded_command(_content(words))
        system_calls.setns(container, _INSIDE)
        terminal, inner = opened_terminal(command.account) if not streams else (None, -1)
        stdin, stdout, stderr = streams or [inner] * 3
        child = start_command(command, (stdin, stdout, stderr))
    except OSError as error:
        report.refused(error, "The command cannot be run in the container")
        os._exit(1)
    for descriptor in {stdin, stdout, stderr}:
        os.close(descriptor)
    report.started(terminal)
    if terminal is not None:
        os.close(terminal)
    report.ended(shell_code(os.waitpid(child, 0)[1]))
    os._exit(0)


def _content(words: int) -> bytes:
    return os.pread(words, os.fstat(words).st_size, 0)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
