"""The state folder of an `orlop up`: the paths in it, and which process uses it.

The process that uses the folder holds a file lock (flock) on `lock`, which the kernel releases however the process
ends. The content of the file identifies the process, and is valid only while the lock is held. The file stays when the
process ends: otherwise one process could hold the lock of a removed file while another one locks a new file.

Each running `orlop up` also has an entry in /run/orlop/running_ups: a file named after its process that contains the
path of its folder. So commands find the folder without --state. The lock of the folder decides whether it still runs.
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
"""Accessible to root only. No driver's folder in /run/orlop can have this name: driver names have no underscore."""
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
    def drives(self) -> Path:
        """Where disks that are drives are mounted."""
        return self.folder / "drives"

    @property
    def folders(self) -> Path:
        """The folder below which folders are drives."""
        return self.folder / "folders"

    @property
    def static(self) -> Path:
        """The folder of the configuration of static volumes."""
        return self.folder / "static"

    @property
    def credentials(self) -> Path:
        """The folder with the kubeconfigs and tokens of the child processes."""
        return self.folder / "credentials"

    @property
    def node_kubeconfig(self) -> Path:
        return self.credentials / "orlop-node.kubeconfig"

    @property
    def controller_kubeconfig(self) -> Path:
        return self.credentials / "orlop-controller.kubeconfig"

    @property
    def node_socket(self) -> Path:
        return self.folder / "node.sock"

    @property
    def controller_socket(self) -> Path:
        return self.folder / "controller.sock"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def node_name(self) -> Path:
        """The file with the node's name. Pods refer to it, so the name stays the same if the host name changes."""
        return self.kubelet / "node-name"

    def strangers(self) -> list[str]:
        """Return the names in the folder that no `orlop up` created: in a folder that none has used yet, all names.

        In such a folder even `api` may be the user's own. An empty lock file is ours: the process that created it was
        killed before it wrote the first line.
        """
        names = set(os.listdir(self.folder))  # noqa: PTH208 - names alone
        if is_up_state(self):
            return sorted(names - self.own_names())
        is_lock_empty = self.lock.is_file() and not self.lock.stat().st_size
        return sorted(names - ({self.lock.name} if is_lock_empty else set()))

    def own_names(self) -> frozenset[str]:
        sockets = (self.node_socket, self.controller_socket)
        parts = (self.api, self.kubelet, self.scratch, self.drives, self.folders, self.static, self.credentials)
        own = (self.kubeconfig, *parts, self.lock, *sockets)
        return frozenset({*(path.name for path in own), *(f"{path.name}.lock" for path in sockets)})


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that uses a state folder.

    `since` is a time as text, empty until it is written. `driver` is the endpoint of a driver other than ours, or "".
    """

    process: ProcessIdentity | None
    since: str
    driver: str = ""

    def __str__(self) -> str:
        number = "a process" if self.process is None else f"process {self.process.number}"
        return f"{number} since {self.since}" if self.since else number


class InUse(Exception):
    """Another process uses the folder."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(str(holder))
        self.holder = holder


class SeveralRun(Exception):
    """The user named no folder, and more than one `orlop up` runs."""

    def __init__(self, states: Sequence[UpState]) -> None:
        folders = ", ".join(str(state.folder) for state in states)
        super().__init__(f"There are several `orlop up` on this machine, in {folders}: choose one with --state DIR.")


@contextmanager
def held(state: UpState, since: str, driver: str = "") -> Iterator[None]:
    """Hold the folder's lock for this process. Raises `InUse`, or OSError if the lock file cannot be opened.

    `driver` is the endpoint of the driver that is used instead of ours.
    """
    descriptor = os.open(state.lock, LOCK_FLAGS, 0o600)
    try:
        # `orlop down --erase` removes the lock file while it holds the lock. A process that opened the file before
        # then locks a file that is not in the folder any more, so check that after locking.
        if not _lock(descriptor) or not _is_there(state.lock, descriptor):
            raise InUse(_note(descriptor))
        _write(descriptor, f"{MARK}\n{identity_of_process(os.getpid())}\n{since}\n{driver}\n")
        yield
    finally:
        os.close(descriptor)


def holder_of(state: UpState) -> Holder | None:
    """Return the process that uses the folder; None if none does, or it is not a state folder."""
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
    """Return whether an `orlop up` has ever used the folder. No other folder is ever erased."""
    with suppress(OSError):
        return state.lock.read_text(errors="replace").startswith(f"{MARK}\n")
    return False


# ---- running ones ----------------------------------------------------------------------------------------------------


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
    """Return the `orlop up` that run on this machine, ordered by folder; none without permission to list them."""
    states = (_runs(entry) for entry in _entries(registry or RUNNING))
    return sorted((state for state in states if state is not None), key=lambda state: state.folder)


def unnamed_state(registry: Path | None = None) -> UpState:
    """Return the folder for a command without --state: of the only one that runs, else the default.

    Raises SeveralRun if several run.
    """
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
    """Return the folder in an entry if the process that the entry is named after holds its lock; else None."""
    with suppress(OSError):
        state = UpState(Path(os.fsdecode(entry.read_bytes())))
        holder = holder_of(state)
        if holder is not None and str(holder.process) == entry.name:
            return state
    return None


def _remove_stale(registry: Path) -> None:
    """Remove entries of ended processes."""
    # An entry stays while its process runs, even if its folder is not visible: it may be in another mount namespace.
    for entry in _entries(registry):
        process = read_identity(entry.name)
        if process is not None and identity_of_process(process.number) != process and _runs(entry) is None:
            entry.unlink(missing_ok=True)


# ---- files and folders that may belong to an `orlop up` --------------------------------------------------------------


def state_of(kubeconfig: Path) -> UpState | None:
    """Return the state of the `orlop up` that wrote this kubeconfig; None if none did."""
    state = UpState(kubeconfig.absolute().parent)
    return state if kubeconfig.name == state.kubeconfig.name and is_up_state(state) else None


def is_stopped(state: UpState) -> bool:
    """Return whether an `orlop up` has used the folder, and none does now. False also without permission to read."""
    try:
        return is_up_state(state) and holder_of(state) is None
    except OSError:
        return False


def start_command(state: UpState) -> str:
    """Return the shell command that starts the `orlop up` again, with the options of its last start."""
    words = ["orlop", "up"]
    if state.folder != DEFAULT_STATE:
        words += ["--state", str(state.folder)]
    if driver := last_driver(state):
        words += ["--driver", driver]
    return shlex.join(words)


def last_driver(state: UpState) -> str:
    """Return the endpoint of the driver that the last `orlop up` in the folder used instead of ours; else ""."""
    with suppress(OSError):
        descriptor = os.open(state.lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return _note(descriptor).driver if is_up_state(state) else ""
        finally:
            os.close(descriptor)
    return ""


def why_unused(state: UpState, registry: Path | None = None) -> str | None:
    """Return what to do if no `orlop up` has ever used the folder; None if one has, or without permission to read."""
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
    """Return a sentence, after a space, with the folders of running `orlop up`; empty if none runs."""
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
