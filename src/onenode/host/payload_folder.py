"""Writes a volume's files so that a reader sees all old ones or all new ones: Kubernetes' layout of such volumes.

    ..2026_01_31_10_00_00.0/key     the files, in a folder of their own for each version
    ..data -> ..2026_01_31_10_00_00.0
    key -> ..data/key

Order: what is the same already is left → a new folder is filled → `..data` is moved to it, in one step → links of new
names are made, those of old ones removed → all other versions go. Killed anywhere, the next write finds what is there:
either version is whole, and what is neither is erased. Nothing outside the volume is opened, and no link is followed.

The volume's top is ours: tenants have it mounted for reading alone.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Final

from onenode.host.payload_files import Names, Payload, PayloadFile
from orlop.host.erase.erase_folder import erase_folder
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths
from orlop.host.kernel.confined_paths import (
    READ_FLAGS,
    DescriptorUse,
    Mounts,
    names_in,
    opened_below,
    refuse_unfit_name,
    reopen,
)

DATA: Final = "..data"
NEW_DATA: Final = "..data_tmp"
OURS: Final = ".."
"""What our own names begin with; no name of a payload does."""
FOLDER_MODE: Final = 0o755
FILE_BITS_OF_A_GROUP: Final = 0o440
FOLDER_BITS_OF_A_GROUP: Final = 0o550 | stat.S_ISGID
KEEP: Final = -1
NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_VERSIONS_AT_ONCE: Final = 1000


def write_payload(volume: int, payload: Payload, stamp: str, group: int | None) -> bool:
    """Whether anything had to be written. `volume` is a descriptor of the top, opened for its content."""
    for names in payload:
        _refuse_unfit(names)
    try:
        return _write(volume, payload, stamp, group)
    except HostError:
        raise
    except OSError as error:
        raise HostError.because(error, "The files of the volume cannot be written") from error


def _write(volume: int, payload: Payload, stamp: str, group: int | None) -> bool:
    current = _current(volume)
    is_same = current is not None and _found_in(volume, current) == _contents(payload)
    if not is_same:
        current = _new_version(volume, payload, stamp, group)
        _point_to(volume, current, group)
    _settle_links(volume, {names[0] for names in payload}, group)
    _erase(volume, [name for name in names_in(volume) if name.startswith(OURS) and name not in {DATA, current}])
    return not is_same


def make_nested_folders(volume: int, folders: Iterable[Names]) -> None:
    """Where other volumes are mounted inside this one: who mounts it for reading could not make them."""
    for names in folders:
        for depth in range(1, len(names) + 1):
            with opened_below(volume, names[: depth - 1], DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as parent:
                confined_paths.make_folder(parent, names[depth - 1], FOLDER_MODE)


def payload_in(volume: int) -> dict[Names, bytes]:
    """Return the files by name, as a pod with the volume reads them."""
    current = _current(volume)
    found = _found_in(volume, current) if current is not None else {}
    return {} if found is None else found


# ---- what is there ---------------------------------------------------------------------------------------------------


def _current(volume: int) -> str | None:
    """The folder of the present version, if there is one."""
    try:
        name = os.readlink(DATA, dir_fd=volume)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.EINVAL}:
            return None
        raise
    is_ours = name.startswith(OURS) and "/" not in name and name not in {OURS, DATA, NEW_DATA}
    return name if is_ours and confined_paths.is_folder(volume, name) else None


def _contents(payload: Payload) -> dict[Names, bytes]:
    return {names: file.content for names, file in payload.items()}


def _found_in(volume: int, version: str) -> dict[Names, bytes] | None:
    """None if there is anything that we do not write."""
    found: dict[Names, bytes] = {}
    waiting: list[Names] = [(version,)]
    while waiting:
        folder = waiting.pop()
        with opened_below(volume, folder, DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as opened:
            for name in names_in(opened):
                if confined_paths.is_folder(opened, name):
                    waiting.append((*folder, name))
                elif (content := _content(opened, name)) is not None:
                    found[(*folder[1:], name)] = content
                else:
                    return None
    return found


def _content(folder: int, name: str) -> bytes | None:
    with opened_below(folder, (name,), DescriptorUse.HANDLE, Mounts.REFUSED) as place:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return None
        with closing(os.fdopen(reopen(place, READ_FLAGS), "rb")) as opened:
            return opened.read()


# ---- a new version ---------------------------------------------------------------------------------------------------


def _new_version(volume: int, payload: Payload, stamp: str, group: int | None) -> str:
    name = _made_version(volume, stamp)
    try:
        with opened_below(volume, (name,), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as folder:
            for names, file in payload.items():
                _put(folder, names, file, group)
            _open_folder_to(folder, group)
    except OSError:
        _erase(volume, [name])
        raise
    return name


def _made_version(volume: int, stamp: str) -> str:
    for number in range(MOST_VERSIONS_AT_ONCE):
        name = f"{OURS}{stamp}.{number}"
        refuse_unfit_name(name)
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=volume)
            return name
    raise HostError(errno.EEXIST, f"The volume holds too many versions of {stamp}: remove them.")


def _put(version: int, names: Names, file: PayloadFile, group: int | None) -> None:
    for depth in range(1, len(names)):
        with opened_below(version, names[: depth - 1], DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as parent:
            confined_paths.make_folder(parent, names[depth - 1], 0o700)
        with opened_below(version, names[:depth], DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as made:
            _open_folder_to(made, group)
    with (
        opened_below(version, names[:-1], DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as folder,
        closing(os.fdopen(os.open(names[-1], NEW_FILE, 0o600, dir_fd=folder), "wb")) as opened,
    ):
        opened.write(file.content)
        opened.flush()
        _give(opened.fileno(), file, group)


def _give(descriptor: int, file: PayloadFile, group: int | None) -> None:
    """The owner first: the kernel takes bits off a file that is given away."""
    if file.owner is not None or group is not None:
        os.fchown(descriptor, KEEP if file.owner is None else file.owner, KEEP if group is None else group)
    os.fchmod(descriptor, file.mode if group is None else file.mode | FILE_BITS_OF_A_GROUP)


def _open_folder_to(folder: int, group: int | None) -> None:
    if group is not None:
        os.fchown(folder, KEEP, group)
    os.fchmod(folder, FOLDER_MODE if group is None else FOLDER_MODE | FOLDER_BITS_OF_A_GROUP)


# ---- the links -------------------------------------------------------------------------------------------------------


def _point_to(volume: int, version: str, group: int | None) -> None:
    with suppress(FileNotFoundError):
        os.unlink(NEW_DATA, dir_fd=volume)
    _link(volume, NEW_DATA, version, group)
    os.rename(NEW_DATA, DATA, src_dir_fd=volume, dst_dir_fd=volume)


def _settle_links(volume: int, wanted: set[str], group: int | None) -> None:
    there = {name for name in names_in(volume) if not name.startswith(OURS)}
    for name in sorted(wanted):
        if name not in there:
            _link(volume, name, f"{DATA}/{name}", group)
        elif not _is_our_link(volume, name):
            raise HostError(
                errno.EEXIST, f"{name!r} in the volume is not ours: another volume is mounted in its place."
            )
    for name in sorted(there - wanted):
        if _is_our_link(volume, name):
            os.unlink(name, dir_fd=volume)


def _is_our_link(volume: int, name: str) -> bool:
    try:
        return os.readlink(name, dir_fd=volume) == f"{DATA}/{name}"
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT}:
            return False
        raise


def _link(volume: int, name: str, target: str, group: int | None) -> None:
    os.symlink(target, name, dir_fd=volume)
    if group is not None:
        os.chown(name, KEEP, group, dir_fd=volume, follow_symlinks=False)


def _erase(volume: int, names: Iterable[str]) -> None:
    for name in names:
        erasure = erase_folder(volume, name, threading.Event(), threads=1)
        if erasure.left:
            raise HostError(errno.EIO, f"An old version of the volume stays: {erasure.left[0]}")


def _refuse_unfit(names: Names) -> None:
    if not names or names[0].startswith(OURS):
        raise HostError(errno.EINVAL, f"{'/'.join(names)!r} cannot be a file of a volume: give it another path.")
    for name in names:
        refuse_unfit_name(name)
