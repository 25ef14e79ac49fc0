"""Empty a folder that itself stays, such as the root of a mounted disk: everything in it is erased.

Files are unlinked where they are. Folders are moved into a new folder beside them, which `erase_folder` erases, with
the care it takes of a tenant's files: no link is followed, no mount is entered. If the file system is full, folders are
erased in place until there is space for the new folder. A tenant that still writes may add entries: a bounded number of
rounds is made.

Order of effects: unlink the files and move the folders, erase the new folder, repeat until the folder is empty, remove
its extended attributes, and make everything durable. After a kill anywhere in between, the next call erases what is
left, the new folder included.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from orlop.host.erase.erase_folder import REST_PREFIX, THREADS, erase_folder, never_pause
from orlop.host.erase.obstacles import OWNER_ONLY, Obstacles
from orlop.host.folders.folder_entries import entries_in_batches
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import LONGEST_NAME, open_child_folder
from orlop.host.kernel.file_flags import make_open_file_erasable
from orlop.host.kernel.system_calls import RENAME_NO_REPLACE, renameat2, syncfs

MOST_ROUNDS: Final = 8
MOST_NAMES_TRIED: Final = 10_000
STEPS_BETWEEN_PAUSES: Final = 256
ASIDE: Final = ".orlop-erase-"
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
USER_ATTRIBUTES: Final = "user."
"""The prefix of extended attributes that a tenant can set without a privilege."""


def empty_folder(
    folder: int, stop: threading.Event, *, pause_seconds: Callable[[], float] = never_pause, threads: int = THREADS
) -> None:
    """Erase everything in an open folder. EIO, ENOTEMPTY: something is left. ECANCELED: it was stopped."""
    with suppress(OSError):  # a file system without flags
        make_open_file_erasable(folder)
    for _ in range(MOST_ROUNDS):
        with _named("The folder cannot be emptied"):
            aside = _clear_away(folder, stop, pause_seconds, threads)
        if aside is None:
            with _named("The folder cannot be emptied"):
                _remove_attributes(folder)
            with _named("The erasure is not durable"):
                syncfs(folder)
            return
        if aside:
            _erase(folder, aside, stop, pause_seconds, threads)
    raise HostError(errno.ENOTEMPTY, "The folder is not empty yet: something keeps writing to it.")


def _clear_away(folder: int, stop: threading.Event, pause_seconds: Callable[[], float], threads: int) -> str | None:
    """Unlink the files and move the folders aside; return the folder they are in now, "" for none.

    None: there was nothing to do, the folder is empty.
    """
    obstacles, steps, aside, place = Obstacles(), itertools.count(1), "", -1
    was_empty = True
    try:
        for name in _names(folder):
            was_empty = False
            number = next(steps)
            if number % STEPS_BETWEEN_PAUSES == 0:
                stop.wait(pause_seconds())
            if stop.is_set():
                raise HostError(errno.ECANCELED, "The erasure was stopped.")
            if not _is_folder(folder, name):
                _unlink(folder, name, obstacles)
                continue
            try:
                if not aside:
                    aside = _new_folder(folder)
                    place = open_child_folder(folder, aside)
                _move(folder, name, place, str(number), obstacles)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                # The disk is full. Erasing a folder in place needs no space, and frees some.
                _erase(folder, _shortened(folder, name, obstacles), stop, pause_seconds, threads)
    finally:
        if place >= 0:
            os.close(place)
    return None if was_empty else aside


def _shortened(folder: int, name: str, obstacles: Obstacles) -> str:
    """Return the name of a folder, renamed if it is too long for `erase_folder`, which puts a prefix before it."""
    if len(os.fsencode(REST_PREFIX + name)) <= LONGEST_NAME:
        return name
    for number in range(MOST_NAMES_TRIED):
        with suppress(FileExistsError):
            _move(folder, name, folder, f"{ASIDE}{number}", obstacles)
            return f"{ASIDE}{number}"
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))


def _erase(folder: int, name: str, stop: threading.Event, pause_seconds: Callable[[], float], threads: int) -> None:
    erasure = erase_folder(folder, name, stop, pause_seconds=pause_seconds, threads=threads)
    if not erasure.is_complete and not erasure.left:
        raise HostError(errno.ECANCELED, "The erasure was stopped.")
    if not erasure.is_complete:
        raise HostError(errno.EIO, f"{erasure.left_count} entries are not erased, such as {erasure.left[0]}")


def _remove_attributes(folder: int) -> None:
    """Remove the extended attributes of the folder itself: a tenant has set them, and the next one could read them."""
    try:
        names = os.listxattr(folder)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return
    for name in names:
        if name.startswith(USER_ATTRIBUTES):
            os.removexattr(folder, name)


def _names(folder: int) -> Iterator[str]:
    # All of them first: entries that are moved into a new folder must not be listed again.
    batches = list(entries_in_batches(folder))
    return (os.fsdecode(name) for batch in batches for name in (*batch.others, *batch.folders))


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _unlink(folder: int, name: str, obstacles: Obstacles) -> None:
    with suppress(FileNotFoundError):
        obstacles.overcome(folder, name, lambda: os.unlink(name, dir_fd=folder))


def _move(folder: int, name: str, target: int, new_name: str, obstacles: Obstacles) -> None:
    with suppress(FileNotFoundError):
        obstacles.overcome(folder, name, lambda: renameat2(folder, name, target, new_name, RENAME_NO_REPLACE))


def _new_folder(folder: int) -> str:
    for number in range(MOST_NAMES_TRIED):
        with suppress(FileExistsError):
            os.mkdir(f"{ASIDE}{number}", OWNER_ONLY, dir_fd=folder)
            return f"{ASIDE}{number}"
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except HostError:
        raise
    except OSError as error:
        raise HostError.because(error, what) from error
