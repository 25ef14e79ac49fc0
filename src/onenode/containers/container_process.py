"""Containers, for the process that starts them: the launcher, one running container, a command inside of one.

Plain functions. None waits longer than the launcher takes to fork; the messages of a container arrive on its channel,
which any event loop can wait for (`fileno`) and which is read without blocking (`news`).

The launcher ends when its socket closes, so that no container outlives the process that holds a `ContainerLauncher`.
A container is signalled by a descriptor of its first process: never another process that came to have its number.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orlop
from onenode.containers.container_launcher import RUN_INSIDE, START
from onenode.containers.container_request import MOST_VOLUMES, Command, ContainerRequest, encoded_command
from onenode.containers.container_root import NO_SUID, READ_ONLY
from onenode.containers.passed_descriptors import received
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls

LOST_CODE: Final = 137
"""Of a container whose first process was killed: 128 and SIGKILL."""
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from onenode.containers.container_launcher import main; sys.exit(main())"
)
_LONGEST_NEWS: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Born:
    """The process is there; nothing of the container runs yet."""

    process: int


@dataclass(frozen=True, slots=True)
class Started:
    """The command's program runs."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """It never ran; why, as a sentence."""

    errno: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Exited:
    code: int


News = Born | Started | StartFailed | Exited


class ContainerProcess:
    """One container, or one command inside of one. The caller that started it closes it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._handle = -1
        self._terminal: int | None = None
        self._over = False

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._channel.fileno()

    def news(self) -> list[News]:
        """Return the messages since the last call, without blocking. The last of all is `Exited` or `StartFailed`."""
        found: list[News] = []
        while not self._over and (one := self._next()) is not None:
            found.append(one)
            self._over = isinstance(one, Exited | StartFailed)
        return found

    def _next(self) -> News | None:
        try:
            words, descriptors = received(self._channel, _LONGEST_NEWS, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return Exited(LOST_CODE)
        news = _read(words)
        if descriptors and isinstance(news, Born):
            self._handle = descriptors[0]
        elif descriptors:
            self._terminal = descriptors[0]
        return news

    @property
    def handle(self) -> int:
        """Of its first process; what `run_inside` and signals take. -1 before it is born."""
        return self._handle

    def take_terminal(self) -> int | None:
        """The outer end of a started command's terminal, if it has one; from now on the caller's to close."""
        terminal, self._terminal = self._terminal, None
        return terminal

    def send_signal(self, number: int) -> None:
        """To the command; one that has ended needs none."""
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """The container with all its processes."""
        self.send_signal(signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether every process of it has ended."""
        if self._handle < 0:
            return self._over
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self._channel.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if (terminal := self.take_terminal()) is not None:
            os.close(terminal)


class ContainerLauncher:
    """Starts the launcher's process; closing it ends all containers."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _started(theirs)
        self._requests = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def start(self, request: ContainerRequest, log_folder: int, volumes: Sequence[int]) -> ContainerProcess:
        """`volumes` are descriptors (O_PATH will do), in the order of the request's places."""
        if len(volumes) > MOST_VOLUMES:
            raise HostError(
                errno.E2BIG, f"The container has {len(volumes)} volumes: at most {MOST_VOLUMES} are possible."
            )
        return self._ask(START, request.encoded(), (log_folder, *volumes))

    def run_inside(self, container: ContainerProcess, command: Command, streams: Sequence[int]) -> ContainerProcess:
        """`streams` are standard input, output and error of the command; without any it gets a terminal."""
        if container.handle < 0 or container.is_gone():
            raise HostError(errno.ESRCH, "The container is not running: no command can be run in it.")
        return self._ask(RUN_INSIDE, encoded_command(command), (container.handle, *streams))

    def _ask(self, kind: bytes, words: bytes, descriptors: Sequence[int]) -> ContainerProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paper = _paper(words)
        try:
            socket.send_fds(self._requests, [kind], [theirs.fileno(), paper, *descriptors])
        except OSError as error:
            ours.close()
            raise HostError.because(error, "The launcher of containers does not answer; start it again") from error
        finally:
            theirs.close()
            os.close(paper)
        return ContainerProcess(ours)

    def close(self) -> None:
        """End every container; the handle of each reports when it is gone."""
        self._requests.close()
        self._process.wait()


def _started(requests: socket.socket) -> subprocess.Popen[bytes]:
    """Few imports and hardly any environment: whatever it was given, a container's first process would hold too.

    It is run from a mount of its program that nobody can write: /proc/self/exe leads there until a container's command
    runs, and the command is the tenant's to choose. The time zone is given, or it would be read in the container.
    """
    package_folder = str(Path(orlop.__file__).parent.parent)
    words = [sys.executable, "-I", "-S", "-c", _PROGRAM, package_folder, str(requests.fileno())]
    with _unwritable(sys.executable) as program:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and fixed words
            words,
            executable=f"/proc/self/fd/{program}",
            env={"TZ": "UTC0"},
            stdin=subprocess.DEVNULL,
            pass_fds=[requests.fileno(), program],
            cwd="/",
            start_new_session=True,
        )


@contextmanager
def _unwritable(program: str) -> Iterator[int]:
    """A mount of the file alone that is nowhere attached, and gone with the last process that runs from it."""
    try:
        with ExitStack() as held:
            file = os.open(program, os.O_PATH | os.O_CLOEXEC)
            held.callback(os.close, file)
            tree = system_calls.clone_tree(file)
            held.callback(os.close, tree)
            system_calls.set_mount_attributes(tree, READ_ONLY | NO_SUID, 0, system_calls.PROPAGATION_PRIVATE)
            yield tree
    except OSError as error:
        raise HostError.because(error, "The launcher of containers cannot be started") from error


def _paper(words: bytes) -> int:
    """A request of any length, as a descriptor: a message could not hold a large environment."""
    paper = os.memfd_create("request", os.MFD_CLOEXEC)
    view = memoryview(words)
    while view:
        view = view[os.write(paper, view) :]
    return paper


def _read(words: bytes) -> News:
    if not words:
        return Exited(LOST_CODE)
    message = json.loads(words)
    if "pid" in message:
        return Born(message["pid"])
    if "refused" in message:
        return StartFailed(message["errno"], message["refused"])
    return Exited(message["exit"]) if "exit" in message else Started()
