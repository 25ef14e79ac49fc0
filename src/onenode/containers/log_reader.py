"""Reading a container's log while it may be written and rotated: what is there, and later what has come since.

Plain functions that block no longer than a disk does. Files are found below a descriptor, and held open: a rotation in
between loses nothing of the file that is being read. Of two rotations between two looks, what lay between is lost.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import (
    DescriptorUse,
    Mounts,
    make_folder,
    names_in,
    open_below,
    opened_below,
    remove_empty_folder,
)

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
ONE_READ: Final = 1 << 20


class LogReader:
    """Gives the log's bytes in their order, each once."""

    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name
        self._older = self._opened_if_there(f"{name}.1")
        try:
            self._file = os.open(name, _READ, dir_fd=folder)
        except OSError as error:
            self._close_older()
            raise HostError.because(error, f"The log {name} cannot be read") from error

    def more(self) -> bytes:
        """The next piece; empty when there is none now."""
        if self._older is not None:
            if piece := os.read(self._older, ONE_READ):
                return piece
            self._close_older()
        if piece := os.read(self._file, ONE_READ):
            return piece
        return self._after_rotation()

    def _after_rotation(self) -> bytes:
        """The writer leaves a file for good before it names another: what is in the old one now is all of it."""
        new = self._opened_if_there(self._name)
        if new is None:
            return b""
        if os.path.sameopenfile(new, self._file):
            os.close(new)
            return b""
        rest = os.read(self._file, ONE_READ)
        if rest:
            os.close(new)
            return rest
        os.close(self._file)
        self._file = new
        return os.read(self._file, ONE_READ)

    def _opened_if_there(self, name: str) -> int | None:
        with suppress(FileNotFoundError):
            return os.open(name, _READ, dir_fd=self._folder)
        return None

    def _close_older(self) -> None:
        if self._older is not None:
            os.close(self._older)
            self._older = None

    def close(self) -> None:
        self._close_older()
        os.close(self._file)


@contextmanager
def opened_log(root: int, names: Sequence[str], log: str) -> Iterator[LogReader]:
    """`names` lead from the root to the folder of the log."""
    folder = open_below(root, names, DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED)
    try:
        reader = LogReader(folder, log)
        try:
            yield reader
        finally:
            reader.close()
    finally:
        os.close(folder)


def is_missing(error: HostError) -> bool:
    return error.errno == errno.ENOENT


LOG_FOLDER_MODE: Final = 0o750


@contextmanager
def made_log_folder(logs: int, pod: str, container: str) -> Iterator[int]:
    make_folder(logs, pod, LOG_FOLDER_MODE)
    with opened_below(logs, (pod,), DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as of_pod:
        make_folder(of_pod, container, LOG_FOLDER_MODE)
        with opened_below(of_pod, (container,), DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as folder:
            yield folder


def remove_log_folders(logs: int, pod: str) -> None:
    """Those that are not there need not be removed."""
    try:
        with opened_below(logs, (pod,), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as of_pod:
            for container in names_in(of_pod):
                _remove_logs(of_pod, container)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    remove_empty_folder(logs, pod)


def remove_older_logs(folder: int, attempt: int) -> None:
    """What a container said before its last attempt but one: a crash loop must not fill a disk."""
    with opened_below(folder, (), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as listed:
        for name in names_in(listed):
            number = name.partition(".")[0]
            if number.isdecimal() and int(number) < attempt - 1:
                os.unlink(name, dir_fd=folder)


def _remove_logs(of_pod: int, container: str) -> None:
    with opened_below(of_pod, (container,), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as folder:
        for name in names_in(folder):
            os.unlink(name, dir_fd=folder)
    remove_empty_folder(of_pod, container)
