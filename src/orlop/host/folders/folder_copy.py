"""Copy a retained folder to a directory of its user, who must be safe from what the tenant left in it.

Kept are contents (shared by reflink where possible, else with their holes), owners, permissions, times, `user.`
attributes, access lists, symbolic links as they are, and hard links within the folder. Not kept: setuid and setgid,
every `security.` and `trusted.` attribute (capabilities among them). Devices, fifos and sockets are left out and
reported. Nothing outside the source is read: no link is followed, no mount entered.

Order of effects: the target becomes 0700; then each folder is created 0700, filled, and gets its owner and permissions
last, so nobody else can read it before it is complete. A copy that is stopped leaves what it has created, but no
incomplete file. It cannot be resumed: start again with an empty folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orlop.host.folders.file_contents import FileCopier
from orlop.host.folders.folder_entries import entries_in_batches
from orlop.host.folders.read_only_walk import Descent, Enter, FolderWalk, Leave, Meet, Problem, Problems, kind_of
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import CONFINED, PLACE_FLAGS, path_of, reopen
from orlop.host.kernel.system_calls import openat2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWNER_ONLY: Final = 0o700
FILE_OF_OURS: Final = 0o600
WITHOUT_SETID: Final = 0o1777
NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
KEPT_ATTRIBUTES: Final = ("user.", "system.posix_acl_")
MOST_LINKED_FILES: Final = 100_000
LONGEST_PATH: Final = 4_000  # bytes; the kernel takes 4,095
TARGET_IS_TO_BLAME: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@dataclass(frozen=True, slots=True)
class CopyProgress:
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """The result of a copy; `problems` are the first hundred of `problem_count`."""

    entries: int
    bytes: int
    problems: tuple[Problem, ...]
    problem_count: int
    stopped: bool


def copy_folder(
    source: int, target: int, stop: threading.Event, progress: Callable[[CopyProgress], None] = lambda _progress: None
) -> FolderCopy:
    """Copy everything in one folder into another, which must be empty and becomes 0700.

    Raises HostError if the target cannot hold it, or if a folder of the source is moved meanwhile.
    """
    if any(entries.folders or entries.others for entries in entries_in_batches(target)):
        raise HostError(errno.ENOTEMPTY, "The folder to restore into is not empty. Name an empty or a new one.")
    os.fchmod(target, OWNER_ONLY)
    with Descent(target) as place:
        copying = _Copying(source, place, stop, progress)
        stopped = copying.run()
    problems = copying.problems
    return FolderCopy(copying.entries, copying.bytes, tuple(problems.first), problems.count, stopped)


class _Stopped(Exception):
    """The copy was stopped, between two steps or two pieces of a file."""


class _Copying:
    def __init__(
        self, source: int, place: Descent, stop: threading.Event, progress: Callable[[CopyProgress], None]
    ) -> None:
        self.problems = Problems()
        self.entries = 0
        self.bytes = 0
        self._walk = FolderWalk(source, self.problems)
        self._place = place
        self._top = place.descriptor
        self._stop = stop
        self._progress = progress
        self._copier = FileCopier(self._advance)
        self._linked: dict[tuple[int, int], str] = {}

    def run(self) -> bool:
        """Copy everything; return whether the copy was stopped."""
        with contextlib.closing(self._walk.steps()) as steps:
            try:
                for step in steps:
                    self._take(step)
            except _Stopped:
                return True
        return False

    def _take(self, step: Enter | Leave | Meet) -> None:
        self._advance(0)
        match step:
            case Enter():
                self._make_folder(step)
            case Leave():
                self._finish_folder(step)
            case Meet():
                self._copy_entry(step)

    def _advance(self, count: int) -> None:
        self.bytes += count
        self._progress(CopyProgress(self.entries, self.bytes))
        if self._stop.is_set():
            raise _Stopped

    # ---- folders -----------------------------------------------------------------------------------------------------

    def _make_folder(self, step: Enter) -> None:
        try:
            os.mkdir(step.name, OWNER_ONLY, dir_fd=self._place.descriptor)
            self._place.down(step.name)
        except OSError as error:
            raise HostError.because(error, f"The folder {self._walk.path()!r} cannot be made") from error

    def _finish_folder(self, step: Leave) -> None:
        self._keep_attributes(self._walk.path(), step.descriptor, self._place.descriptor, step.status)
        self._place.up()
        self.entries += 1

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _copy_entry(self, step: Meet) -> None:
        path = self._walk.path_to(step.name)
        kind = stat.S_IFMT(step.status.st_mode)
        if kind == stat.S_IFLNK:
            self._copy_link(step, path)
        elif kind == stat.S_IFREG:
            self._copy_file(step, path)
        else:
            self.problems.add(path, f"It is {kind_of(kind)}, which is not copied.")

    def _copy_link(self, step: Meet, path: str) -> None:
        folder = self._place.descriptor
        with _blaming_the_target(path):
            os.symlink(os.readlink(b"", dir_fd=step.place), step.name, dir_fd=folder)
        self._keep_owner(
            path, step.status, lambda uid, gid: os.chown(step.name, uid, gid, dir_fd=folder, follow_symlinks=False)
        )
        os.utime(step.name, ns=_times(step.status), dir_fd=folder, follow_symlinks=False)
        self.entries += 1

    def _copy_file(self, step: Meet, path: str) -> None:
        if step.status.st_nlink > 1 and self._link_again(step, path):
            return
        try:
            source = reopen(step.place)
        except OSError as error:
            self.problems.add_error(path, "It cannot be opened, so it is not copied", error)
            return
        try:
            with _blaming_the_target(path):
                target = os.open(step.name, NEW_FILE_FLAGS, FILE_OF_OURS, dir_fd=self._place.descriptor)
            self._fill(step, path, source, target)
        finally:
            os.close(source)

    def _fill(self, step: Meet, path: str, source: int, target: int) -> None:
        try:
            self._copier.copy(source, target, step.status.st_size)
            self._keep_attributes(path, source, target, step.status)
        except BaseException as error:
            os.unlink(step.name, dir_fd=self._place.descriptor)
            if not isinstance(error, OSError) or isinstance(error, HostError):
                raise
            if error.errno in TARGET_IS_TO_BLAME:
                raise HostError.because(error, f"{path!r} cannot be copied") from error
            why = "It is too large for this place" if error.errno == errno.EFBIG else "It cannot be read"
            self.problems.add_error(path, f"{why}, so it is not copied", error)
        else:
            self.entries += 1
        finally:
            os.close(target)

    def _link_again(self, step: Meet, path: str) -> bool:
        """Create a hard link if the file was copied under another name already; return whether it was."""
        identity = (step.status.st_dev, step.status.st_ino)
        earlier = self._linked.get(identity)
        if earlier is None:
            self._remember(identity, path)
            return False
        try:
            first = openat2(self._top, earlier, PLACE_FLAGS, CONFINED)
        except OSError:
            return False  # it could not be copied, or somebody has moved it
        try:
            with _blaming_the_target(path):
                os.link(path_of(first), step.name, dst_dir_fd=self._place.descriptor, follow_symlinks=True)
        except HostError as error:
            if error.errno != errno.EMLINK:
                raise
            self._linked[identity] = path  # the copy made now takes the next names
            return False
        finally:
            os.close(first)
        self.entries += 1
        return True

    def _remember(self, identity: tuple[int, int], path: str) -> None:
        if len(self._linked) < MOST_LINKED_FILES and len(os.fsencode(path)) <= LONGEST_PATH:
            self._linked[identity] = path
        else:
            self.problems.add(path, "It has several names, too many or too deep to follow: each becomes a file.")

    # ---- attributes --------------------------------------------------------------------------------------------------

    def _keep_attributes(self, path: str, source: int, target: int, status: os.stat_result) -> None:
        self._keep_owner(path, status, lambda uid, gid: os.fchown(target, uid, gid))
        os.fchmod(target, status.st_mode & WITHOUT_SETID)
        try:
            for name in os.listxattr(source):
                if name.startswith(KEPT_ATTRIBUTES):
                    os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            self.problems.add_error(path, "Some of its attributes are not kept", error)
        os.utime(target, ns=_times(status))

    def _keep_owner(self, path: str, status: os.stat_result, chown: Callable[[int, int], None]) -> None:
        try:
            chown(status.st_uid, status.st_gid)
        except OSError as error:
            self.problems.add_error(path, "Its owner is not kept", error)


@contextlib.contextmanager
def _blaming_the_target(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError.because(error, f"{path!r} cannot be copied") from error


def _times(status: os.stat_result) -> tuple[int, int]:
    return status.st_atime_ns, status.st_mtime_ns
