"""Read a folder that a tenant filled, without being led out of it: list it, open a file, resolve a path in it.

Paths come from people: they are split and walked name by name below the folder's descriptor. `..` is refused,
symbolic links are shown and never followed, mounts are not entered, and of all there is only plain files are opened: a
fifo would wait and a device may act. Nothing is changed, and memory does not grow with what is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orlop.host.folders.read_only_walk import kind_of, names_after
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import FOLDER_FLAGS, open_place, reopen

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES: Final = 256 * 1024
MOST_NAMES_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One entry. `kind` is the result of `kind_of`; `link` is the target of a symbolic link, which is not followed."""

    name: str
    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    modified_ns: int
    link: str | None = None


@contextlib.contextmanager
def place_below(folder: int, path: str) -> Iterator[int]:
    """Open what the path leads to as a handle (O_PATH); the empty path is the folder itself."""
    place = os.dup(folder)
    try:
        for name in _names(path):
            place, above = _step(place, name, path), place
            os.close(above)
        yield place
    finally:
        os.close(place)


def list_folder(folder: int, path: str = "") -> Iterator[FolderEntry]:
    """Yield the entries in the order of their names; for a path that is not a folder, that entry alone."""
    with place_below(folder, path) as place:
        status = os.fstat(place)
        if not stat.S_ISDIR(status.st_mode):
            yield _listed(_names(path)[-1], status, place)
            return
        with _opened(place, FOLDER_FLAGS & ~os.O_NOFOLLOW, path) as descriptor:
            yield from _entries(descriptor)


def read_file(folder: int, path: str, start: int = 0) -> Iterator[bytes]:
    """Yield the contents of a plain file in pieces. Raises HostError, at the first piece, if it is not a plain file."""
    with place_below(folder, path) as place, opened_file(place, path) as file:
        at = start
        while piece := os.pread(file, PIECE_BYTES, at):
            yield piece
            at += len(piece)


@contextlib.contextmanager
def opened_file(place: int, path: str) -> Iterator[int]:
    kind = stat.S_IFMT(os.fstat(place).st_mode)
    if kind != stat.S_IFREG:
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise HostError(number, f"{path!r} is {kind_of(kind)}: only files can be read.")
    with _opened(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, path) as file:
        yield file


@contextlib.contextmanager
def _opened(place: int, flags: int, path: str) -> Iterator[int]:
    try:
        descriptor = reopen(place, flags | os.O_CLOEXEC)
    except OSError as error:
        raise HostError.because(error, f"{path or '.'!r} cannot be opened") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in {"", "."}]
    if ".." in names or "\0" in path:
        raise HostError(errno.EINVAL, f"The path {path!r} does not stay in the folder. Use one without '..'.")
    return names


def _step(place: int, name: str, path: str) -> int:
    try:
        return open_place(place, name)
    except OSError as error:
        raise HostError(error.errno or errno.EIO, f"{path!r} cannot be read: {_why_not(name, error)}") from error


def _why_not(name: str, error: OSError) -> str:
    match error.errno:
        case errno.ENOENT:
            return f"there is no {name!r}."
        case errno.ENOTDIR | errno.ELOOP:
            return f"what should contain {name!r} is no folder. Symbolic links are not followed."
        case errno.EXDEV:
            return f"something is mounted on {name!r}, which is not entered."
    return f"{error.strerror or error}."


def _entries(folder: int) -> Iterator[FolderEntry]:
    last = b""
    while names := names_after(folder, last, MOST_NAMES_AT_ONCE):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield _read_entry(folder, os.fsdecode(name))
        last = names[-1]


def _read_entry(folder: int, name: str) -> FolderEntry:
    try:
        place = open_place(folder, name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return FolderEntry(name, "a mount, which is not entered", 0, 0, 0, 0, 0)
    try:
        return _listed(name, os.fstat(place), place)
    finally:
        os.close(place)


def _listed(name: str, status: os.stat_result, place: int) -> FolderEntry:
    kind = stat.S_IFMT(status.st_mode)
    link = os.fsdecode(os.readlink(b"", dir_fd=place)) if kind == stat.S_IFLNK else None
    mode = stat.S_IMODE(status.st_mode)
    owner = (status.st_uid, status.st_gid)
    return FolderEntry(name, kind_of(kind), mode, *owner, status.st_size, status.st_mtime_ns, link)
