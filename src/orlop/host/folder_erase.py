"""Erasing a folder that was moved to the trash, with all that is below it, whatever a tenant has left there.

Nothing outside it is ever touched: each step opens one name below a descriptor, with no symbolic link followed and no
mount crossed; a mount found inside is detached from its place, and what was mounted is left as it is. Files are
unlinked where they are, folders are removed when they are empty. Only a tree that is deeper than the descriptors we
allow ourselves is taken apart: its lower part is moved to `.rest-<name>` beside the folder, and erased after it.

Order of effects: contents first, the folder itself after them, `.rest-<name>` last. There is no other state: whoever
is killed anywhere in between calls `erase_folder` again with the same name (`names_in_trash` has them all). What cannot
be erased is reported with its reason and does not hold up the rest. Work is done by threads of idle I/O priority, which
stop between any two steps.

This module must not move anything into the trash, and must not judge whether a folder may go.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from orlop.host.confined_paths import refuse_unfit_name
from orlop.host.erase_report import Erasure
from orlop.host.erase_work import EraseWork
from orlop.host.errors import HostError
from orlop.host.folder_entries import entries_in_batches
from orlop.host.idle_thread import become_idle

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

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
    """Erases what is called `name` in the folder `trash`; one that is gone already is erased.

    `pause_seconds` is asked every few hundred steps how long to pause (`IoPressure.pause_seconds`). HostError when the
    name is none, or too long for `.rest-` before it, or the trash cannot be looked into.
    """
    rest = REST_PREFIX + name
    refuse_unfit_name(name)
    refuse_unfit_name(rest)
    with (
        EraseWork(trash, rest, stop, pause_seconds) as work,
        ThreadPoolExecutor(threads, thread_name_prefix="erase", initializer=become_idle) as pool,
    ):
        for entry in (name, rest):
            if _exists(trash, entry):
                work.begin(entry)
                for worker in [pool.submit(work.run) for _ in range(threads)]:
                    worker.result()
    return work.told()


def names_in_trash(trash: int) -> list[str]:
    """All that is to be erased there, in order: also what is left of a folder whose erasure was killed at its end."""
    batches = [entries.folders + entries.others for entries in entries_in_batches(trash)]
    names = (os.fsdecode(name) for batch in batches for name in batch)
    return sorted({name.removeprefix(REST_PREFIX) or name for name in names})


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostError.because(error, f"Whether {name} is in the trash cannot be found out") from error
    return True
