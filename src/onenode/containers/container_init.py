"""The first process of a container: it makes the root, starts the command, writes its output to the log, waits for it.

It is process 1 of the container's process namespace: when it ends, for whatever reason, the kernel ends every process
in it, daemons and all. It dies with the launcher, and the launcher with the process that started it.

Order: the root → the command, which reports whether its program could be run → `started` → output to the log until the
command has ended → everything else in the container is killed, the rest of the output written → `exit`.

Once volumes are there, it opens nothing by name: what a name leads to is for the tenant to say.

It keeps all capabilities, which is what keeps the container's own root user from looking into it (ptrace, /proc/1/fd):
the command loses those that could change this machine, and never has more than it was given here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
from collections.abc import Sequence
from typing import NoReturn

from onenode.containers.container_command import FORWARDED, NOT_STARTED, start_command
from onenode.containers.container_log import ONE_READ, ContainerLog
from onenode.containers.container_request import Command, ContainerRequest
from onenode.containers.container_root import ContainerRoot
from orlop.host.host_errors import HostError


class Report:
    """Reports to the process that asked for the container."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def started(self, terminal: int | None = None) -> None:
        """`terminal` is the outer end of the command's, if it has one."""
        self._send({"started": True}, [] if terminal is None else [terminal])

    def refused(self, error: OSError, what: str = "The container cannot be made") -> None:
        """`what` begins the sentence where the error is none itself."""
        failure = error if isinstance(error, HostError) else HostError.because(error, what)
        self._send({"refused": str(failure), "errno": failure.errno})

    def ended(self, code: int) -> None:
        self._send({"exit": code})

    def _send(self, what: dict[str, object], descriptors: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: then nobody needs to know
            socket.send_fds(self._channel, [json.dumps(what).encode()], descriptors)


def run_container(request: ContainerRequest, log_folder: int, volumes: Sequence[int], report: Report) -> NoReturn:
    """In a process of its own; never returns."""
    try:
        log = ContainerLog(log_folder, request.log_name, request.log_limits)
        root = ContainerRoot(request.root, volumes)
        for descriptor in volumes:
            os.close(descriptor)
        nothing = root.enter()
        socket.sethostname(request.root.host_name)
        life = _Life(request.command, log, nothing)
    except OSError as error:
        report.refused(error)
        os._exit(NOT_STARTED)
    report.started()
    code = life.watched_to_the_end()
    report.ended(code)
    os._exit(0)


class _Life:
    """The command and its output."""

    def __init__(self, command: Command, log: ContainerLog, nothing: int) -> None:
        self._log = log
        self._child = 0
        self._streams: dict[int, str] = {}
        self._wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._start(command, nothing)

    def _forward(self, number: int, _frame: object) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _start(self, command: Command, nothing: int) -> None:
        out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        self._child = start_command(command, (nothing, out[1], err[1]))
        for descriptor in (nothing, out[1], err[1]):
            os.close(descriptor)
        for (reading, _), name in ((out, "stdout"), (err, "stderr")):
            os.set_blocking(reading, False)
            self._streams[reading] = name

    def watched_to_the_end(self) -> int:
        """The exit code of the command, as shells count it."""
        poll = select.poll()
        for descriptor in (self._wake, *self._streams):
            poll.register(descriptor, select.POLLIN)
        code = self._reaped()
        while code is None:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    _drain(self._wake)
                elif not self._copy(descriptor):
                    poll.unregister(descriptor)
            code = self._reaped()
        self._end_all_others()
        return code

    def _reaped(self) -> int | None:
        """The command's exit code if it has ended; whatever else ended is only taken notice of."""
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    return None
                if process == self._child:
                    self._child = 0
                    return shell_code(status)
        return None

    def _copy(self, descriptor: int) -> bool:
        """Whether more may come."""
        try:
            output = os.read(descriptor, ONE_READ)
        except BlockingIOError:
            return True
        if output:
            self._log.write(self._streams[descriptor], output)
            return True
        self._close(descriptor)
        return False

    def _close(self, descriptor: int) -> None:
        self._log.end(self._streams.pop(descriptor))
        os.close(descriptor)

    def _end_all_others(self) -> None:
        """First the processes, so that the output has an end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        for descriptor in list(self._streams):
            self._take_the_rest(descriptor)

    def _take_the_rest(self, descriptor: int) -> None:
        """What a pipe can hold and no more: whom the container gave the other end to may write for ever, or wait."""
        rest = fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
        with contextlib.suppress(BlockingIOError):
            while rest > 0 and (output := os.read(descriptor, min(rest, ONE_READ))):
                self._log.write(self._streams[descriptor], output)
                rest -= len(output)
        self._close(descriptor)


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
