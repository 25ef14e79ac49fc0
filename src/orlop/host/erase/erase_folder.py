"""Erase a folder that was moved to the trash, with everything below it. The walk itself is `unlink_walk`.

Nothing outside it is ever touched: each step opens one name below a descriptor, with no symbolic link followed and no
mount crossed; a mount found inside is detached from its place, and what was mounted is left as it is. Files are
unlinked where they are, folders are removed when they are empty. Only a tree that is deeper than the descriptors we
allow ourselves is taken apart: its lower part is moved to `.rest-<name>` beside the folder, and erased after it.

Order of effects: contents first, the folder itself after them, `.rest-<name>` last. There is no other state: after a
kill anywhere in between, the next process calls `erase_folder` again with the same name (`names_in_trash` has them
all). What cannot be erased is reported with its reason and does not delay the rest. Work is done by threads of idle I/O
priority, which stop between any two steps.

This module must not move anything into the trash, and must not judge whether a folder may go.
"""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Self

from orlop.host.erase.erasure import Erasure
from orlop.host.erase.unlink_walk import UnlinkWalk
from orlop.host.folders.folder_entries import entries_in_batches
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import refuse_unfit_name
from orlop.host.kernel.idle_thread import become_idle
from orlop.host.kernel.io_pressure import IoPressure

if TYPE_CHECKING:
    from collections.abc import Callable

    from orlop.foundation.clock import Clock

THREADS: Final = 2
REST_PREFIX: Final = ".rest-"


def never_pause() -> float:
    return 0.0


def erase_folder(
    trash: int,
    name: str,
    stop: threading.Event,
    *,
    pause_seconds: Callable[[], float] = never_pause,
    threads: int = THREADS,
) -> Erasure:
    """Erase the entry `name` of the folder `trash`. Succeeds if there is none.

    `pause_seconds` is called every few hundred steps and returns how long to pause (`IoPressure.pause_seconds`). Raises
    HostError if `name` is no valid file name, or too long with `.rest-` before it, or the trash cannot be read.
    """
    rest = REST_PREFIX + name
    refuse_unfit_name(name)
    refuse_unfit_name(rest)
    with (
        UnlinkWalk(trash, rest, stop, pause_seconds) as walk,
        ThreadPoolExecutor(threads, thread_name_prefix="erase", initializer=become_idle) as pool,
    ):
        for entry in (name, rest):
            if _exists(trash, entry):
                walk.begin(entry)
                for worker in [pool.submit(walk.run) for _ in range(threads)]:
                    worker.result()
    return walk.report()


class TrashEraser:
    """Erases folders of the trash, for callers in several threads. Leaving the context stops it between two steps.

    Two threads erase a folder while it is the only one; each further folder gets one thread.
    """

    def __init__(self, trash: int, clock: Clock) -> None:
        self._trash = trash
        self._stop = threading.Event()
        self._pressure = IoPressure(clock)
        self._two_threads = threading.Lock()

    def erase(self, name: str) -> None:
        """Erase the folder of this name; succeeds if there is none. Raises HostError if a part of it is left."""
        is_alone = self._two_threads.acquire(blocking=False)
        try:
            threads = THREADS if is_alone else 1
            pause_seconds = self._pressure.pause_seconds
            erasure = erase_folder(self._trash, name, self._stop, pause_seconds=pause_seconds, threads=threads)
        finally:
            if is_alone:
                self._two_threads.release()
        if not erasure.is_complete:
            why = str(erasure.left[0]) if erasure.left else "it was stopped"
            raise HostError(_number_of(erasure), f"The folder trash/{name} is not erased yet: {why.rstrip('.')}.")

    def stop(self) -> None:
        """Let every erasure end between two steps, also those that begin from now on."""
        self._stop.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._pressure.close()


def _number_of(erasure: Erasure) -> int:
    """Return the disk error that stopped an erasure; ENOTEMPTY for any other reason that something is left."""
    reasons = {each.reason.rstrip(".") for each in erasure.left}
    disk_errors = (errno.EIO, errno.EUCLEAN, errno.ESHUTDOWN, errno.EROFS)
    return next((number for number in disk_errors if os.strerror(number) in reasons), errno.ENOTEMPTY)


def names_in_trash(trash: int) -> list[str]:
    """Return the names to erase, in order; also of a folder of which only `.rest-<name>` is left."""
    batches = [entries.folders + entries.others for entries in entries_in_batches(trash)]
    names = (os.fsdecode(name) for batch in batches for name in batch)
    return sorted({name.removeprefix(REST_PREFIX) or name for name in names})


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostError.because(error, f"Cannot check whether {name} is in the trash") from error
    return True
