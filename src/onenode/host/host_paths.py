"""Paths of this machine that pods ask for by their text.

A user who may name them has full access to this machine anyway, so links on the way are followed. After a path was
opened, only its descriptor is used: the path may lead elsewhere by then.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from onenode.host.payload_files import FileKind, HostPath
from orlop.host.host_errors import HostError

FOLDER_MODE: Final = 0o755
FILE_MODE: Final = 0o644
MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS: Final = {
    stat.S_IFDIR: FileKind.FOLDER,
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFCHR: FileKind.CHARACTER_DEVICE,
    stat.S_IFBLK: FileKind.BLOCK_DEVICE,
}


def kind_at(wanted: HostPath) -> FileKind | None:
    """None: nothing is there."""
    try:
        found = os.stat(wanted.path)
    except OSError as error:
        if error.errno in MISSING:
            return None
        raise HostError.because(error, f"The path {wanted.path} of this machine cannot be looked at") from error
    return _KINDS.get(stat.S_IFMT(found.st_mode), FileKind.OTHER)


def make_folder_at(wanted: HostPath) -> None:
    """With its parents; one that is there is left as it is."""
    try:
        os.makedirs(wanted.path, FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise HostError.because(error, f"The folder {wanted.path} of this machine cannot be made") from error


def make_file_at(wanted: HostPath) -> None:
    """Empty; its folder must be there."""
    try:
        os.close(os.open(wanted.path, NEW_FILE, FILE_MODE))
    except OSError as error:
        raise HostError.because(error, f"The file {wanted.path} of this machine cannot be made") from error


@contextmanager
def opened_host_path(wanted: HostPath) -> Iterator[int]:
    """A handle of what is there; whatever it is, it is not touched."""
    if not wanted.path.startswith("/"):
        raise HostError(errno.EINVAL, f"The path {wanted.path!r} of this machine is not absolute: give it from /.")
    try:
        opened = os.open(wanted.path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
        raise HostError.because(reason, f"The path {wanted.path!r} of this machine cannot be opened") from error
    try:
        yield opened
    finally:
        os.close(opened)
