"""The first process of a container: it makes the root, starts the command, writes its output to the log, waits for it.

It is process 1 of the container's process namespace: when it ends, for whatever reason, the kernel ends every process
in it, daemons and all. It dies with the launcher, and the launcher with whoever asked for it.

Order: the root → the command, which tells whether its program could be run → `started` → output to the log until the
command has ended → everything else in the container is killed, the rest of the output written → `exit`.

It keeps all capabilities, which is what keeps the container's own root user from looking into it (ptrace, /proc/1/fd):
the command loses those that could change this machine, and never has more than it was given here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import stat
from collections.abc import Sequence
from typing import Final, NoReturn

from orlop.host import system_calls
from orlop.host.container_log import ONE_READ, ContainerLog
from orlop.host.container_request import Command, ContainerRequest
from orlop.host.container_root import ContainerRoot
from orlop.host.errors import HostError

KEPT_CAPABILITIES: Final = frozenset((0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31))
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot,
audit_write, setfcap: what container runtimes give, without mknod."""
LAST_CAPABILITY: Final = 63
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NOT_STARTED: Final = 128
LONGEST_SENTENCE: Final = 1000


class Report:
    """What the one who asked for a container is told of it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def started(self) -> None:
        self._tell({"started": True})

    def refused(self, error: OSError) -> None:
        self._tell({"refused": str(error.strerror or error), "errno": error.errno or errno.EIO})

    def ended(self, code: int) -> None:
        self._tell({"exit": code})

    def _tell(self, what: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: then nobody needs to know
            self._channel.send(json.dumps(what).encode())


def run_container(request: ContainerRequest, log_folder: int, volumes: Sequence[int], report: Report) -> NoReturn:
    """In a process of its own; never returns."""
    try:
        root = ContainerRoot(request.root, volumes)
        root.enter()
        socket.sethostname(request.root.host_name)
        log = ContainerLog(log_folder, request.log_name, request.log_limits)
        life = _Life(request.command, log)
    except OSError as error:
        report.refused(error)
        os._exit(NOT_STARTED)
    report.started()
    code = life.watched_to_the_end()
    report.ended(code)
    os._exit(0)


class _Life:
    """The command and its output."""

    def __init__(self, command: Command, log: ContainerLog) -> None:
        self._log = log
        self._child = 0
        self._streams: dict[int, str] = {}
        self._wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._start(command)

    def _forward(self, number: int, _frame: object) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _start(self, command: Command) -> None:
        out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
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
        self._log.end(self._streams.pop(descriptor))
        os.close(descriptor)
        return False

    def _end_all_others(self) -> None:
        """First the processes, so that the output has an end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        for descriptor in list(self._streams):
            os.set_blocking(descriptor, True)
            while self._copy(descriptor):
                pass


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


# ---- the command -----------------------------------------------------------------------------------------------------


def start_command(command: Command, streams: tuple[int, int, int]) -> int:
    """The process id; raises what kept the program from running. The caller is in the container already."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _become(command, streams, writing)
    os.close(writing)
    try:
        trouble = os.read(reading, 1 << 16)
    finally:
        os.close(reading)
    if trouble:
        os.waitpid(child, 0)
        told = json.loads(trouble)
        raise HostError(told["errno"], told["sentence"])
    return child


def _become(command: Command, streams: tuple[int, int, int], trouble: int) -> NoReturn:
    try:
        os.setsid()
        _forget_signals()
        _take_streams(streams, command)
        _enter_working_folder(command)
        _lose_rights(command)
        _run_program(command)
    except OSError as error:
        _tell_trouble(trouble, error.errno or errno.EIO, str(error.strerror or error))
    except ValueError as error:  # a null byte, or half of a character
        _tell_trouble(trouble, errno.EINVAL, f"The command or its environment cannot be given to a program: {error}.")
    finally:
        os._exit(NOT_STARTED)


def _tell_trouble(channel: int, number: int, sentence: str) -> None:
    os.write(channel, json.dumps({"errno": number, "sentence": sentence[:LONGEST_SENTENCE]}).encode())


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (*FORWARDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _take_streams(streams: tuple[int, int, int], command: Command) -> None:
    """Pipes are given to the user, who may want to open /dev/stdout."""
    for descriptor in streams:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, command.account.user, command.account.group)
    copies = [os.dup(descriptor) for descriptor in streams]
    for number, descriptor in enumerate(copies):
        os.dup2(descriptor, number, inheritable=True)


def _enter_working_folder(command: Command) -> None:
    folder = command.working_folder or "/"
    try:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        raise HostError.because(error, f"The working directory {folder} cannot be entered") from error


def _lose_rights(command: Command) -> None:
    for number in range(LAST_CAPABILITY + 1):
        if number not in KEPT_CAPABILITIES:
            with contextlib.suppress(OSError):  # the kernel has fewer
                system_calls.prctl(system_calls.DROP_FROM_BOUNDING_SET, number)
    account = command.account
    os.setgroups(account.more_groups)
    os.setresgid(account.group, account.group, account.group)
    os.setresuid(account.user, account.user, account.user)
    if command.no_new_privileges:
        system_calls.prctl(system_calls.NO_NEW_PRIVILEGES, 1)
    # After the change of user, which would undo it: a command inside must not outlive who asked for it.
    system_calls.prctl(system_calls.DIE_WITH_PARENT, signal.SIGKILL)
    os.umask(0o022)


def _run_program(command: Command) -> None:
    environment = dict(command.environment)
    program = command.arguments[0]
    try:
        os.execvpe(program, command.arguments, {"PATH": DEFAULT_PATH, **environment})  # noqa: S606
    except FileNotFoundError as error:
        where = "" if "/" in program else " in $PATH"
        raise HostError(errno.ENOENT, f'exec: "{program}": executable file not found{where}') from error
    except OSError as error:
        raise HostError(error.errno or errno.EIO, f'exec: "{program}": {error.strerror}') from error
