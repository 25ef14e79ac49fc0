"""The folders that containers' logs lie in: one for each pod, in it one for each container. Ours alone.

Order of a removal: the files → a container's folder → the pod's. Whoever dies in between removes the rest next time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from orlop.host.confined_paths import Mounts, Use, make_folder, names_in, opened_below, remove_empty_folder

LOG_FOLDER_MODE: Final = 0o750


@contextmanager
def made_log_folder(logs: int, pod: str, container: str) -> Iterator[int]:
    make_folder(logs, pod, LOG_FOLDER_MODE)
    with opened_below(logs, (pod,), Use.FOLDER_HANDLE, Mounts.REFUSED) as of_pod:
        make_folder(of_pod, container, LOG_FOLDER_MODE)
        with opened_below(of_pod, (container,), Use.FOLDER_HANDLE, Mounts.REFUSED) as folder:
            yield folder


def remove_log_folders(logs: int, pod: str) -> None:
    """Those that are not there need not be removed."""
    try:
        with opened_below(logs, (pod,), Use.FOLDER_CONTENT, Mounts.REFUSED) as of_pod:
            for container in names_in(of_pod):
                _remove_logs(of_pod, container)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    remove_empty_folder(logs, pod)


def remove_older_logs(folder: int, attempt: int) -> None:
    """What a container said before its last attempt but one: a crash loop must not fill a disk."""
    with opened_below(folder, (), Use.FOLDER_CONTENT, Mounts.REFUSED) as listed:
        for name in names_in(listed):
            number = name.partition(".")[0]
            if number.isdecimal() and int(number) < attempt - 1:
                os.unlink(name, dir_fd=folder)


def _remove_logs(of_pod: int, container: str) -> None:
    with opened_below(of_pod, (container,), Use.FOLDER_CONTENT, Mounts.REFUSED) as folder:
        for name in names_in(folder):
            os.unlink(name, dir_fd=folder)
    remove_empty_folder(of_pod, container)
