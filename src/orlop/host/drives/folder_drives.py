"""Folder drives of this machine: folders below one root, of file systems that are there already.

The root is the admin's (`--folder-root`); in a cluster only it is mounted into our container. No symbolic link is
followed below it; mounts may be crossed. A folder becomes a drive only if it is empty, in no other drive, and in no
tree of others (kubelet's directory, our own). Drives are found by listing the first levels below the root, so a node
without any other state still finds them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from orlop.foundation.quantity import Quantity
from orlop.host.drive_host import FolderDriveHost, SeenFolder
from orlop.host.drives import drive_files, drive_reserve
from orlop.host.drives.drive_files import HALF_MADE, OWN_NAMES, RECORD, LinuxDriveRoot
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, open_below, opened_below, opened_root

DEEPEST: Final = 3
"""The most levels that a drive may lie below the root: drives are found by listing the tree to this depth."""
MOST_FOLDERS: Final = 10_000
_LOST_AND_FOUND: Final = "lost+found"
_MODE: Final = 0o700


class LinuxFolderDrives:
    """The drives below `root`. A folder in one of the trees of `others` is refused: those have an owner."""

    def __init__(self, root: str, others: Sequence[str] = ()) -> None:
        self._root = root.rstrip("/") or "/"
        self._others = tuple(others)

    def make_folder_drive(self, path: str, record: bytes, capacity: int, *, dry_run: bool = False) -> None:
        names = self._names(path)
        with opened_root(self._root) as root:
            if dry_run:
                self._refuse_unfit_path(root, names, path, capacity)
                return
            made = _make_folders(root, names)
            try:
                self._make_in(root, names, path, record, capacity)
            except HostError:
                _remove_folders(root, made)
                raise

    def remove_folder_drive(self, path: str) -> None:
        drive = self.open_folder_drive(path)
        try:
            drive_files.refuse_volumes(drive.root, path)
            drive_files.remove_files(drive.root)
        finally:
            drive.close()

    def folder_drives(self) -> tuple[SeenFolder, ...]:
        try:
            with opened_root(self._root) as root:
                return tuple(self._drives_below(root))
        except HostError as error:
            if error.errno == errno.ENOENT:
                return ()
            raise

    def open_folder_drive(self, path: str) -> LinuxDriveRoot:
        names = self._names(path)
        with opened_root(self._root) as root:
            return LinuxDriveRoot(path, open_below(root, names, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED))

    def _names(self, path: str) -> list[str]:
        """Return the names from the root to the folder. EINVAL: it does not lie there."""
        beginning = self._root.rstrip("/") + "/"
        names = path.removeprefix(beginning).rstrip("/").split("/") if path.startswith(beginning) else []
        if not 0 < len(names) <= DEEPEST or any(name in {"", ".", ".."} for name in names):
            raise HostError(
                errno.EINVAL,
                f"The folder {path} cannot be a drive: it has to lie below {self._root}, at most {DEEPEST} levels deep "
                "and written without '..'. Mount or create it there, or change --folder-root of the node.",
            )
        return names

    def _make_in(self, root: int, names: list[str], path: str, record: bytes, capacity: int) -> None:
        with opened_below(root, names, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as folder:
            self._refuse_unfit(folder, path)
            _refuse_too_small(folder, path, capacity, drive_reserve.reserved(folder))
            drive_files.begin(folder, record)
            try:
                drive_files.make_shelves(folder)
                drive_reserve.make(folder, capacity)
                drive_files.complete(folder)
            except HostError:
                # Without this the folder would be half made for ever: the caller got an error, and may never repeat.
                with suppress(OSError):
                    drive_files.remove_files(folder)
                raise

    def _refuse_unfit_path(self, root: int, names: list[str], path: str, capacity: int) -> None:
        """Check a folder that need not exist yet, changing nothing."""
        depth = next(depth for depth in range(len(names), -1, -1) if _is_folder(root, names[:depth]))
        with opened_below(root, names[:depth], DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as folder:
            if depth == len(names):
                self._refuse_unfit(folder, path)
            else:
                self._refuse_owned(folder, path)
            _refuse_too_small(folder, path, capacity, 0)

    def _refuse_unfit(self, folder: int, path: str) -> None:
        names = set(confined_paths.names_in(folder)) - {_LOST_AND_FOUND}
        if RECORD in names:
            raise HostError(errno.EEXIST, f"The folder {path} is a drive already.")
        if foreign := sorted(names - OWN_NAMES):
            raise HostError(
                errno.ENOTEMPTY,
                f"The folder {path} cannot be a drive: it is not empty (it holds {foreign[0]!r}). Use an empty one.",
            )
        if drive_files.has_volumes(folder):
            raise HostError(
                errno.ENOTEMPTY,
                f"The folder {path} holds volumes of a drive whose {RECORD} is missing: restore it, or empty it.",
            )
        self._refuse_owned(folder, path, is_itself=True)

    def _refuse_owned(self, folder: int, path: str, *, is_itself: bool = False) -> None:
        """Refuse a folder inside a drive, or inside a tree of others. `is_itself`: start above it."""
        others = [status for tree in self._others if (status := _status_of(tree)) is not None]
        for depth, above in enumerate(confined_paths.folders_upwards(folder)):
            status = os.fstat(above)
            if (depth or not is_itself) and drive_files.is_drive(above):
                raise HostError(errno.EBUSY, f"The folder {path} cannot be a drive: it lies inside another drive.")
            if any(os.path.samestat(status, other) for other in others):
                shown = confined_paths.shown(above)
                raise HostError(errno.EBUSY, f"The folder {path} cannot be a drive: {shown} has another owner.")

    def _drives_below(self, root: int) -> Iterator[SeenFolder]:
        waiting: list[tuple[str, ...]] = [()]
        for _ in range(MOST_FOLDERS):
            if not waiting:
                return
            names = waiting.pop()
            path = "/".join((self._root.rstrip("/"), *names))
            try:
                with opened_below(root, names, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as folder:
                    if names and drive_files.is_drive(folder):
                        yield _seen(folder, path)
                    elif len(names) < DEEPEST:
                        waiting.extend((*names, name) for name in _folders_in(folder))
            except HostError as error:
                # A disk that fails below the root must not hide the drives beside it.
                if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                    yield SeenFolder(path, None, str(error))


def _seen(folder: int, path: str) -> SeenFolder:
    try:
        return SeenFolder(path, drive_files.read_record(folder))
    except HostError as error:
        if error.errno == errno.ENOENT:
            return SeenFolder(path, None, f"it is half made: repeat the command that made it, or remove {HALF_MADE}")
        return SeenFolder(path, None, str(error))


def _folders_in(folder: int) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise HostError.because(error, f"The folder {confined_paths.shown(folder)} cannot be listed") from error


def _is_folder(root: int, names: Sequence[str]) -> bool:
    try:
        with opened_below(root, names, DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED):
            return True
    except HostError as error:
        if error.errno == errno.ENOENT:
            return False
        raise


def _make_folders(root: int, names: Sequence[str]) -> list[Sequence[str]]:
    """Create the missing folders of a path; return the names of each folder created."""
    made: list[Sequence[str]] = []
    for depth in range(len(names)):
        with opened_below(root, names[:depth], DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as parent:
            if confined_paths.make_folder(parent, names[depth], _MODE):
                made.append(names[: depth + 1])
                os.fsync(parent)
    return made


def _remove_folders(root: int, made: list[Sequence[str]]) -> None:
    for names in reversed(made):
        with (
            suppress(HostError),
            opened_below(root, names[:-1], DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED) as parent,
        ):
            confined_paths.remove_empty_folder(parent, names[-1])


def _refuse_too_small(folder: int, path: str, capacity: int, reserved: int) -> None:
    """Raise ENOSPC if the file system lacks the space; an interrupted attempt has `reserved` a part already."""
    free = drive_files.space_of(folder).free + reserved
    if free < capacity:
        raise HostError(
            errno.ENOSPC,
            f"The folder {path} cannot be a drive of {Quantity.of(capacity)}: its file system has {_mebibytes(free)} "
            "free. Choose a smaller capacity, or another file system.",
        )


def _mebibytes(size: int) -> Quantity:
    return Quantity.of(size >> 20 << 20)


def _status_of(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def as_folder_drive_host(host: LinuxFolderDrives) -> FolderDriveHost:
    """Prove to the type checker that the seam is implemented."""
    return host
