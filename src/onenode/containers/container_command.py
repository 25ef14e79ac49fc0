"""One command of a container becomes a process: the container's own, or one more that is run inside.

Order in the new process: its three streams, and the terminal if they are one → every other descriptor is closed → the
working folder → the rights that could change this machine are lost, and the ways to others (`seccomp_filter_rules`) →
the program. What the tenant named, folder or program, is looked at only when nothing of this machine is open any more:
the folder confined to the container's root, the program without our rights.

The caller is in the container already, and keeps all capabilities.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import signal
import stat
from typing import Final, NoReturn

from onenode.containers.container_places import made_place, open_in
from onenode.containers.container_request import Command
from onenode.containers.seccomp_filter_rules import filter_program
from onenode.containers.terminals import take_terminal
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls

KEPT_CAPABILITIES: Final = frozenset((0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31))
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot,
audit_write, setfcap: what container runtimes give, without mknod."""
LAST_CAPABILITY: Final = 63
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
FIRST_OTHER: Final = 3
NOT_STARTED: Final = 128
LONGEST_SENTENCE: Final = 1000
_FILTER: Final = filter_program(os.uname().machine)


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
        failure = json.loads(trouble)
        raise HostError(failure["errno"], failure["sentence"])
    return child


def _become(command: Command, streams: tuple[int, int, int], trouble: int) -> NoReturn:
    try:
        system_calls.prctl(system_calls.SET_DUMPABLE, 0)  # until the program runs, nobody inside looks into this copy
        os.setsid()
        _forget_signals()
        _take_streams(streams, command)
        take_terminal()
        _close_all_but(trouble)
        entered = _could_enter(command.working_folder)
        _lose_rights(command)
        if not entered:
            _enter(command.working_folder)
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


def _close_all_but(trouble: int) -> None:
    """Whatever the tenant names is looked at afterwards: by /proc/self/fd, a folder of this machine was a way out."""
    system_calls.close_range(FIRST_OTHER, trouble - 1)
    system_calls.close_range(trouble + 1, system_calls.LAST_DESCRIPTOR)


def _could_enter(folder: str) -> bool:
    """Tried as root first, as container runtimes do; a server may let the user in, and not root."""
    try:
        _enter(folder)
    except HostError as error:
        if error.errno not in {errno.EACCES, errno.EPERM}:
            raise
        return False
    return True


def _enter(folder: str) -> None:
    """Made where it is missing. What is opened on the way is closed before the program is looked for."""
    try:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _change_into(root, folder or "/")
        finally:
            os.close(root)
    except OSError as error:
        raise HostError.because(error, f"The working directory {folder or '/'} cannot be entered") from error


def _change_into(root: int, folder: str) -> None:
    place = _found_or_made(root, folder)
    try:
        os.fchdir(place)
    finally:
        os.close(place)
    if not os.getcwd().startswith("/"):
        raise OSError(errno.ENOENT, "it is not in the container")


def _found_or_made(root: int, folder: str) -> int:
    try:
        return open_in(root, folder)
    except FileNotFoundError:
        return made_place(root, posixpath.normpath(f"/{folder}"), is_folder=True)


def _lose_rights(command: Command) -> None:
    """At once, and not only when the program begins: its name is the tenant's too."""
    if _FILTER is not None:
        system_calls.filter_calls(_FILTER)
    for number in range(LAST_CAPABILITY + 1):
        if number not in KEPT_CAPABILITIES:
            with contextlib.suppress(OSError):  # the kernel has fewer
                system_calls.prctl(system_calls.DROP_FROM_BOUNDING_SET, number)
    system_calls.keep_capabilities(KEPT_CAPABILITIES)
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
        os.execvpe(program, command.arguments, {"PATH": DEFAULT_PATH, **environment})  # noqa: S606 - no shell
    except FileNotFoundError as error:
        where = "" if "/" in program else " in $PATH"
        raise HostError(errno.ENOENT, f'exec: "{program}": executable file not found{where}') from error
    except OSError as error:
        raise HostError(error.errno or errno.EIO, f'exec: "{program}": {error.strerror}') from error
