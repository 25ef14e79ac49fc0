"""Restore a folder into a directory of the user: as a new folder, which gets its final name when it is complete.

Order of effects: erase what an earlier attempt left → create the folder, 0700, under an unfinished name → fill it →
make it durable → rename it to its final name, replacing nothing → make that durable. A process that is killed in
between leaves the unfinished folder, and the next attempt starts again.

The directory is a descriptor that the user's command passed; nothing outside it is written, and nothing in it is
changed but the unfinished folder. Two restores of the same name into the same directory must not run at the same time.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from typing import Final

from orlop.host.erase.erase_folder import erase_folder
from orlop.host.folders.folder_copy import CopyProgress, FolderCopy, copy_folder
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import open_child_folder, refuse_unfit_name
from orlop.host.kernel.system_calls import RENAME_NO_REPLACE, renameat2, syncfs

UNFINISHED: Final = ".orlop-unfinished-"
_ONLY_OURS: Final = 0o700


def unfinished_name(name: str) -> str:
    return UNFINISHED + name


class FolderRestore:
    """The steps of a restore, in their order. The caller closes `source` and `directory`."""

    def __init__(self, source: int, directory: int, name: str) -> None:
        refuse_unfit_name(unfinished_name(name))
        self._source = source
        self._directory = directory
        self._name = name
        self._passing_name = unfinished_name(name)

    def refuse_what_cannot_be(self) -> None:
        """Check before any effect. EEXIST: the name is taken. ENOTDIR: `directory` is not one."""
        if not stat.S_ISDIR(os.fstat(self._directory).st_mode):
            raise HostError(errno.ENOTDIR, "The place to restore into is no folder. Name a folder.")
        try:
            os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError.because(error, f"Cannot check whether {self._name} exists already") from error
        raise HostError(
            errno.EEXIST, f"There is a {self._name} in that folder already. Move it away, or name another folder."
        )

    def erase_what_was_left(self, stop: threading.Event) -> None:
        erasure = erase_folder(self._directory, self._passing_name, stop)
        if erasure.left:
            raise HostError(
                errno.ENOTEMPTY, f"The unfinished {self._passing_name} of an earlier restore stays: {erasure.left[0]}."
            )

    def make(self) -> None:
        try:
            os.mkdir(self._passing_name, _ONLY_OURS, dir_fd=self._directory)
        except FileNotFoundError as error:  # the directory was removed; ENOENT would mean the retained folder is gone
            raise HostError(errno.EACCES, f"The folder {self._passing_name} cannot be made there.") from error
        except OSError as error:
            raise HostError.because(error, f"The folder {self._passing_name} cannot be made") from error

    def fill(self, stop: threading.Event, progress: Callable[[CopyProgress], None]) -> FolderCopy:
        try:
            target = open_child_folder(self._directory, self._passing_name)
        except OSError as error:
            raise HostError.because(error, f"The folder {self._passing_name} cannot be opened") from error
        try:
            copied = copy_folder(self._source, target, stop, progress)
            if not copied.stopped:
                _made_durable(syncfs, target, self._passing_name)
            return copied
        finally:
            os.close(target)

    def give_name(self) -> None:
        try:
            renameat2(self._directory, self._passing_name, self._directory, self._name, RENAME_NO_REPLACE)
        except OSError as error:
            raise HostError.because(error, f"{self._passing_name} cannot be renamed to {self._name}") from error
        _made_durable(os.fsync, self._directory, self._name)


def restore_folder(
    restore: FolderRestore, stop: threading.Event, progress: Callable[[CopyProgress], None]
) -> FolderCopy:
    """Restore a folder. If it was stopped, the copy keeps its unfinished name."""
    restore.refuse_what_cannot_be()
    restore.erase_what_was_left(stop)
    if stop.is_set():
        return FolderCopy(0, 0, (), 0, stopped=True)
    restore.make()
    copied = restore.fill(stop, progress)
    if not copied.stopped:
        restore.give_name()
    return copied


def _made_durable(synchronise: Callable[[int], None], descriptor: int, name: str) -> None:
    try:
        synchronise(descriptor)
    except OSError as error:
        raise HostError.because(error, f"{name} may not survive power loss") from error
