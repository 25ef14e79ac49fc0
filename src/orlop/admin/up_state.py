"""The folder that holds all of one `orlop up`: where what is in it, and who uses it right now.

Who uses it holds the kernel's lock on `lock`, which ends with the process however that dies; what is written in the
file says who it is, and counts only while the lock is held. The file stays: one that is removed could be locked by one
process while another locks a new one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orlop.host.process_records import ProcessIdentity, identity_of_process, read_identity

DEFAULT_STATE: Final = Path("/var/lib/orlop/up")
MARK: Final = "orlop up"
LONGEST_NOTE: Final = 1000
LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class UpState:
    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def api(self) -> Path:
        return self.folder / "api"

    @property
    def kubelet(self) -> Path:
        return self.folder / "kubelet"

    @property
    def scratch(self) -> Path:
        """The driver's working directory."""
        return self.folder / "scratch"

    @property
    def node_socket(self) -> Path:
        return self.folder / "node.sock"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def node_name(self) -> Path:
        """Pods belong to a node by its name: a machine that is called otherwise today is still the same node."""
        return self.kubelet / "node-name"

    def strangers(self) -> list[str]:
        """What is in the folder and none of ours."""
        own = {path.name for path in (self.kubeconfig, self.api, self.kubelet, self.scratch, self.node_socket)}
        own |= {self.lock.name, f"{self.node_socket.name}.lock"}
        return sorted(set(os.listdir(self.folder)) - own)  # noqa: PTH208 - names alone


@dataclass(frozen=True, slots=True)
class Holder:
    """`since` is a time as text; empty where the holder has not said it yet. `driver`: where another than ours is."""

    process: ProcessIdentity | None
    since: str
    driver: str = ""

    def __str__(self) -> str:
        number = "a process" if self.process is None else f"process {self.process.number}"
        return f"{number} since {self.since}" if self.since else number


class InUse(Exception):
    """Somebody else holds the folder."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(str(holder))
        self.holder = holder


@contextmanager
def held(state: UpState, since: str, driver: str = "") -> Iterator[None]:
    """`driver` is the endpoint of one in the place of ours. Raises `InUse`, or OSError where the file cannot be had."""
    descriptor = os.open(state.lock, LOCK_FLAGS, 0o600)
    try:
        # Whoever erases the folder removes the file that it has locked: who waited for that one has locked nothing.
        if not _lock(descriptor) or not _is_there(state.lock, descriptor):
            raise InUse(_note(descriptor))
        _write(descriptor, f"{MARK}\n{identity_of_process(os.getpid())}\n{since}\n{driver}\n")
        yield
    finally:
        os.close(descriptor)


def holder_of(state: UpState) -> Holder | None:
    """None: nobody, or it is no such folder."""
    try:
        descriptor = os.open(state.lock, LOCK_FLAGS & ~os.O_CREAT)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return None
        raise
    try:
        return None if _lock(descriptor) else _note(descriptor)
    finally:
        os.close(descriptor)


def is_up_state(state: UpState) -> bool:
    """Whether an `orlop up` has ever used it: nothing else is ever erased."""
    with suppress(OSError):
        return state.lock.read_text(errors="replace").startswith(f"{MARK}\n")
    return False


def state_of(kubeconfig: Path) -> UpState | None:
    """Of the `orlop up` that has written this file, if one has."""
    state = UpState(kubeconfig.absolute().parent)
    return state if kubeconfig.name == state.kubeconfig.name and is_up_state(state) else None


def is_stopped(state: UpState) -> bool:
    """An `orlop up` has used it, and none does now. Who may not look is told so by what is asked next."""
    try:
        return is_up_state(state) and holder_of(state) is None
    except OSError:
        return False


def start_command(state: UpState) -> str:
    """As it can be typed."""
    return "orlop up" if state.folder == DEFAULT_STATE else f"orlop up --state {shlex.quote(str(state.folder))}"


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _write(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _note(descriptor: int) -> Holder:
    lines = os.pread(descriptor, LONGEST_NOTE, 0).decode(errors="replace").splitlines()
    _mark, process, since, driver, *_ = [*lines, "", "", "", ""]
    return Holder(read_identity(process), since, driver)
