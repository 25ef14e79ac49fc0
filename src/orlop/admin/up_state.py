"""The folder that holds all of one `orlop up`: where what is in it, and who uses it right now.

Who uses it holds the kernel's lock on `lock`, which ends with the process however that dies; what is written in the
file says who it is, and counts only while the lock is held. The file stays: one that is removed could be locked by one
process while another locks a new one.

Each `orlop up` that runs also has a file in /run/orlop/running_ups, named after its process and holding the path of
its folder: so commands find it without --state. What decides whether it still runs is the lock of that folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orlop.host.kernel.process_records import ProcessIdentity, identity_of_process, read_identity

DEFAULT_STATE: Final = Path("/var/lib/orlop/up")
MARK: Final = "orlop up"
LONGEST_NOTE: Final = 1000
RUNNING: Final = Path("/run/orlop/running_ups")
"""For root alone. No driver's folder in /run/orlop can have this name: theirs have no underscore."""
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
        """Return the names in the folder that are not ours: in one that no `orlop up` has used yet, all of them.

        There `api` may be a folder of somebody's sources. An empty lock file is ours: the process that created
        it was killed before it wrote the first line.
        """
        names = set(os.listdir(self.folder))  # noqa: PTH208 - names alone
        if is_up_state(self):
            return sorted(names - self.own_names())
        is_lock_empty = self.lock.is_file() and not self.lock.stat().st_size
        return sorted(names - ({self.lock.name} if is_lock_empty else set()))

    def own_names(self) -> frozenset[str]:
        own = (self.kubeconfig, self.api, self.kubelet, self.scratch, self.node_socket, self.lock)
        return frozenset({*(path.name for path in own), f"{self.node_socket.name}.lock"})


@dataclass(frozen=True, slots=True)
class Holder:
    """`since` is a time as text, empty until it is written. `driver` is the endpoint of another driver than ours."""

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


class SeveralRun(Exception):
    """No folder was named, and there is more than one to choose from."""

    def __init__(self, states: Sequence[UpState]) -> None:
        folders = ", ".join(str(state.folder) for state in states)
        super().__init__(f"There are several `orlop up` on this machine, in {folders}: choose one with --state DIR.")


@contextmanager
def held(state: UpState, since: str, driver: str = "") -> Iterator[None]:
    """`driver` is the endpoint of one in the place of ours. Raises `InUse`, or OSError where the file cannot be had."""
    descriptor = os.open(state.lock, LOCK_FLAGS, 0o600)
    try:
        # A process that erases the folder removes the file it has locked. Then the file we locked is no longer there.
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


# ---- those that run --------------------------------------------------------------------------------------------------


@contextmanager
def recorded(state: UpState, registry: Path | None = None) -> Iterator[None]:
    """Record that this process runs an `orlop up`. Enter it while the folder is held. Raises OSError."""
    folder = registry or RUNNING
    folder.mkdir(0o700, parents=True, exist_ok=True)
    _remove_stale(folder)
    entry = folder / str(identity_of_process(os.getpid()))
    entry.write_bytes(os.fsencode(state.folder))
    try:
        yield
    finally:
        entry.unlink(missing_ok=True)


def running_ups(registry: Path | None = None) -> list[UpState]:
    """Return those that run on this machine, ordered by their folders; none where we may not see them."""
    found = (_runs(entry) for entry in _entries(registry or RUNNING))
    return sorted((state for state in found if state is not None), key=lambda state: state.folder)


def unnamed_state(registry: Path | None = None) -> UpState:
    """Return the folder for a command that names none: of the only one that runs, else the default. SeveralRun."""
    running = running_ups(registry)
    if len(running) > 1:
        raise SeveralRun(running)
    return running[0] if running else UpState(DEFAULT_STATE)


def _entries(registry: Path) -> list[Path]:
    try:
        return sorted(registry.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _runs(entry: Path) -> UpState | None:
    """The folder that it names, if the process that it is named after holds it."""
    with suppress(OSError):
        state = UpState(Path(os.fsdecode(entry.read_bytes())))
        holder = holder_of(state)
        if holder is not None and str(holder.process) == entry.name:
            return state
    return None


def _remove_stale(registry: Path) -> None:
    """Also one whose folder we cannot see stays while its process is there: it may be in another mount namespace."""
    for entry in _entries(registry):
        process = read_identity(entry.name)
        if process is not None and identity_of_process(process.number) != process and _runs(entry) is None:
            entry.unlink(missing_ok=True)


# ---- of files and folders that may be those of an `orlop up` ---------------------------------------------------------


def state_of(kubeconfig: Path) -> UpState | None:
    """Of the `orlop up` that has written this file, if one has."""
    state = UpState(kubeconfig.absolute().parent)
    return state if kubeconfig.name == state.kubeconfig.name and is_up_state(state) else None


def is_stopped(state: UpState) -> bool:
    """Return whether an `orlop up` has used it, and none does now. False also where we may not read that."""
    try:
        return is_up_state(state) and holder_of(state) is None
    except OSError:
        return False


def start_command(state: UpState) -> str:
    """Return the command that starts it again as it was started last, as it can be typed."""
    words = ["orlop", "up"]
    if state.folder != DEFAULT_STATE:
        words += ["--state", str(state.folder)]
    if driver := last_driver(state):
        words += ["--driver", driver]
    return shlex.join(words)


def last_driver(state: UpState) -> str:
    """Return the endpoint of the driver that the last `orlop up` in the folder had in the place of ours; else ""."""
    with suppress(OSError):
        descriptor = os.open(state.lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return _note(descriptor).driver if is_up_state(state) else ""
        finally:
            os.close(descriptor)
    return ""


def why_unused(state: UpState, registry: Path | None = None) -> str | None:
    """Return what to do if no `orlop up` has ever used the folder; None if one has, or if we may not read that."""
    try:
        if stat.S_ISREG(state.lock.lstat().st_mode):
            return None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        return None
    return (
        f"No `orlop up` has used {state.folder}: start one there with `{start_command(state)}`, or name the folder of "
        f"another with --state DIR.{those_running(registry)}"
    )


def those_running(registry: Path | None = None) -> str:
    """Return a sentence, after a space, with the folders of those that run; empty if none does."""
    folders = ", ".join(str(state.folder) for state in running_ups(registry))
    return f" Running now: {folders}." if folders else ""


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
