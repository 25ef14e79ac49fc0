"""Places in a container's root: found, made where they are missing, mounted upon.

A tenant names them and may have laid links in their way. Every walk is the kernel's, with the container's root as the
root: no link and no `..` leads out of it, and the links of /proc, which lead to what somebody has open, lead nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls

_PLACE: Final = os.O_PATH | os.O_CLOEXEC
_TRIES: Final = 128


def attach_at(root: int, path: str, tree: int) -> None:
    """Makes the place where it is missing: a folder for a folder, an empty file for anything else."""
    try:
        attach(tree, made_place(root, path, is_folder=stat.S_ISDIR(os.fstat(tree).st_mode)))
    except OSError as error:
        raise HostError.because(error, f"Nothing can be mounted at {path} in the container") from error


def made_place(root: int, path: str, *, is_folder: bool) -> int:
    names = [name for name in path.split("/") if name and name != "."]
    if not names or ".." in names:
        raise OSError(errno.EINVAL, "the path must lead somewhere below the root, without `..`")
    for count, name in enumerate(names, 1):
        try:
            place = open_in(root, "/".join(names[:count]))
        except FileNotFoundError:
            place = _make(root, names[: count - 1], name, is_folder=is_folder or count < len(names))
        if count == len(names):
            return place
        os.close(place)
    raise AssertionError


def _make(root: int, parents: Sequence[str], name: str, *, is_folder: bool) -> int:
    parent = open_in(root, "/".join(parents) or ".")
    try:
        if is_folder:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=parent))
        return open_in(root, "/".join((*parents, name)))
    finally:
        os.close(parent)


def open_in(root: int, path: str) -> int:
    """Links are followed, as they are for the container: with its root as the root."""
    for _ in range(_TRIES - 1):
        try:
            return _opened(root, path)
        except BlockingIOError:  # somebody on this machine renamed or mounted while a `..` was walked
            continue
    return _opened(root, path)


def _opened(root: int, path: str) -> int:
    return system_calls.openat2(root, path, _PLACE, system_calls.IN_ROOT | system_calls.NO_MAGIC_LINKS)


def attach(tree: int, target: int) -> None:
    try:
        attach_kept_open(tree, target)
    finally:
        os.close(tree)


def attach_kept_open(tree: int, target: int) -> None:
    try:
        system_calls.attach_tree(tree, target)
    finally:
        os.close(target)
