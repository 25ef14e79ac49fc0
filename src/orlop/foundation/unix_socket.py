"""Claim the path of a unix socket, so that two servers never take it from each other.

Order: check, lock, check again, remove a stale socket, bind (by the caller), remember what was bound. Order at release:
remove what was bound, unlock. The lock on `<path>.lock` is the kernel's `flock`: it ends with the process, however that
dies. The file stays: if it were removed, one process could lock the removed file and another a new one.

This module must not create folders (a missing one is a volume that was not mounted) and must never remove anything
but its own socket, or one that nobody listens on.

    OSError
      SocketUnusable    the path cannot be used; the message says why and what to do
        SocketInUse     another process uses it
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

LONGEST_PATH = 107  # bytes; the kernel's sun_path has 108 with the zero at the end
ROOT_ONLY = 0o600
BACKLOG = 1024
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
MARK_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class SocketUnusable(OSError):
    """The path cannot be used for a socket."""


class SocketInUse(SocketUnusable):
    """Another server listens there or is about to."""


class SocketClaim:
    """The right to bind a socket at `path`, held until `release` or the end of the process."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock
        self._mark: int | None = None

    def bound(self) -> None:
        """Remember the socket at the path as ours; a server that binds by itself calls this right after."""
        mark = _open_mark(self.path)
        self._drop_mark()
        self._mark = mark

    def release(self) -> None:
        """Remove the socket if it is still ours, and release the lock. Releasing twice does no harm.

        Never raises: a socket that cannot be removed is stale, and the next server replaces it.
        """
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            if self._is_still_ours():
                self.path.unlink(missing_ok=True)
        self._drop_mark()
        os.close(self._lock)
        self._lock = None

    def _is_still_ours(self) -> bool:
        # While the mark is open, the kernel cannot reuse our inode number for another socket.
        return self._mark is not None and _same_file(self._mark, self.path)

    def _drop_mark(self) -> None:
        if self._mark is not None:
            os.close(self._mark)
            self._mark = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.release()


def claim_socket(path: Path) -> SocketClaim:
    """Claim a path; raise SocketInUse or SocketUnusable if that is not possible."""
    _refuse_unfit_path(path)
    _refuse_missing_folder(path)
    _is_there_a_socket(path)  # Before the lock: a mistyped path should not leave a lock file behind.
    lock = _take_lock(path)
    try:
        _remove_stale_socket(path)
    except BaseException:
        os.close(lock)
        raise
    return SocketClaim(path, lock)


def bind_root_only(claim: SocketClaim) -> socket.socket:
    """Return a listening socket at the claimed path; only its owner can connect, from the first instant."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux creates the file with the mode of the unbound socket; unlike a umask, this affects no other thread.
        os.fchmod(listener.fileno(), ROOT_ONLY)
        listener.bind(os.fspath(claim.path))
        claim.bound()
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SocketUnusable(f"The socket {claim.path} cannot be bound: {error.strerror or error}.") from error
    return listener


# ---- checks ---------------------------------------------------------------------------------------------------------


def _refuse_unfit_path(path: Path) -> None:
    encoded = os.fsencode(path)
    if len(encoded) > LONGEST_PATH:
        raise SocketUnusable(
            f"The path of the socket {path} has {len(encoded)} bytes: "
            f"the kernel allows {LONGEST_PATH}. Choose a shorter path."
        )
    if b"\0" in encoded:
        raise SocketUnusable(f"The path of the socket {os.fspath(path)!r} holds a zero byte. Choose another path.")


def _refuse_missing_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise SocketUnusable(
            f"The folder {path.parent} of the socket {path.name} does not exist or is no folder. "
            "Create it, or mount it into the container."
        )


def _is_there_a_socket(path: Path) -> bool:
    """Return whether there is a socket; raise for anything else, even a symbolic link to a socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SocketUnusable(f"The path {path} of the socket cannot be checked: {error.strerror}.") from error
    if not stat.S_ISSOCK(mode):
        raise SocketUnusable(f"{path} exists and is no socket. Remove it, or choose another path for the socket.")
    return True


def _remove_stale_socket(path: Path) -> None:
    if not _is_there_a_socket(path):
        return
    if _answers(path):
        raise SocketInUse(f"Another server listens on the socket {path}. Stop it, or choose another path.")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SocketUnusable(f"The stale socket {path} cannot be removed: {error.strerror}.") from error


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        outcome = probe.connect_ex(os.fspath(path))
    # A server whose backlog is full (EAGAIN), or that uses datagrams (EPROTOTYPE), is alive too.
    if outcome in {0, errno.EAGAIN, errno.EPROTOTYPE}:
        return True
    if outcome in {errno.ECONNREFUSED, errno.ENOENT}:
        return False
    raise SocketUnusable(f"It is not known whether the socket {path} is in use: {os.strerror(outcome)}.")


# ---- locking ---------------------------------------------------------------------------------------------------------


def _take_lock(path: Path) -> int:
    lock_path = path.with_name(path.name + ".lock")
    lock = _open_lock(lock_path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_owner(lock)
    except BlockingIOError as error:
        owner = _read_owner(lock)
        os.close(lock)
        raise SocketInUse(
            f"The socket {path} is claimed by {owner}, which holds {lock_path}. Stop it, or choose another path."
        ) from error
    except OSError as error:
        os.close(lock)
        raise SocketUnusable(f"The lock file {lock_path} cannot be locked: {error.strerror}.") from error
    except BaseException:
        os.close(lock)
        raise
    return lock


def _open_lock(lock_path: Path) -> int:
    try:
        lock = os.open(lock_path, LOCK_FLAGS, ROOT_ONLY)
    except OSError as error:
        raise SocketUnusable(f"The lock file {lock_path} cannot be opened: {error.strerror}.") from error
    status = os.fstat(lock)
    # We write into the file. In a folder that others can write to, its name could be a hard link to another file.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
        os.close(lock)
        raise SocketUnusable(f"The lock file {lock_path} is not a plain file of ours. Remove it.")
    return lock


def _write_owner(lock: int) -> None:
    # It only makes the error of others clearer, so a full disk must not keep us from starting.
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _read_owner(lock: int) -> str:
    owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
    return f"process {owner}" if owner.isdecimal() else "another process"


def _open_mark(path: Path) -> int:
    if not _is_there_a_socket(path):
        raise SocketUnusable(f"No socket was bound at {path}.")
    try:
        return os.open(path, MARK_FLAGS)
    except OSError as error:
        raise SocketUnusable(f"The socket bound at {path} cannot be opened: {error.strerror}.") from error


def _same_file(mark: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(mark), path.lstat())
    except FileNotFoundError:
        return False
