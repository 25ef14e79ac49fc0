"""Read the mount tables of this machine: our own, and those of all mount namespaces that can be seen.

A table belongs to a process and shows the mounts reachable from its root directory. One process is read per namespace
and root directory, because a chrooted process shows only a part. Namespaces are found through /proc, so in a container
only with the host's process ids (hostPID). Two kinds are not covered: namespaces of single threads that left their
process's namespace, and namespaces without any process, which a bind mount of their file keeps alive.

Tables are read again, in full, before every step that cannot be undone. They are never cached: the root of a mount is
renamed along with its folder, and an open table would keep the namespace of a dead container alive.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.mounts.mount_table_rules import (
    FolderInFileSystem,
    MountedFolders,
    MountLine,
    folder_of_path,
    line_of_mount,
    parse_mount_lines,
)

PROC: Final = "/proc"
WHOLE: Final = "/"
"""The root of a process that sees all mounts of its namespace."""
_PLAIN: Final = re.compile(rb"[A-Za-z0-9._-]+")
"""Names that the kernel writes without escapes."""
_GONE: Final = {errno.ENOENT, errno.ESRCH, errno.EINVAL}  # ended, or a zombie: neither has a table
_FORBIDDEN: Final = {errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True)
class SeenNamespaces:
    """The mount tables of all visible namespaces, and the processes whose tables we may not read."""

    own: bytes
    others: tuple[bytes, ...]
    forbidden: tuple[int, ...]

    def mention(self, name: str) -> bool:
        """Return False if no table contains this name: a quick first check. True does not mean that it is mounted."""
        needle = name.encode("utf-8", "surrogateescape")
        return not _PLAIN.fullmatch(needle) or any(needle in table for table in self.tables)

    @property
    def tables(self) -> tuple[bytes, ...]:
        return (self.own, *self.others)

    def mounted_folders(self) -> MountedFolders:
        return MountedFolders.from_tables(self.tables)

    def folder_of(self, descriptor: int) -> FolderInFileSystem:
        """Return the file system and path of an open folder, as mount tables name it."""
        mount, path = _line_of(descriptor, self.own), _path_of(descriptor)
        try:
            is_deleted = os.fstat(descriptor).st_nlink == 0
        except OSError as error:
            raise HostError.because(error, f"The status of the folder {path} cannot be read") from error
        if is_deleted or path.startswith("(unreachable)"):
            raise HostError(errno.ENOENT, f"The folder {path} was deleted, or is not reachable from our root.")
        return folder_of_path(mount, path)


def read_all_namespaces(proc: str = PROC) -> SeenNamespaces:
    """Read one table for each namespace, and for each root directory in it until one process sees the whole namespace.

    If a process ends meanwhile, another process of its namespace is read.
    """
    own, own_place = _own_table(proc), (_namespace(proc, "self"), _root(proc, "self"))
    tables = {own_place: own}
    whole = {namespace for namespace, root in tables if root == WHOLE}
    forbidden: list[int] = []
    for process in _processes(proc):
        try:
            namespace = _namespace(proc, process)
            if namespace in whole:
                continue  # a process with another root there sees a part of the same table
            place = (namespace, _root(proc, process))
            if place not in tables:
                tables[place] = _table(proc, process)
            if place[1] == WHOLE:
                whole.add(namespace)
        except OSError as error:
            if error.errno in _FORBIDDEN:
                forbidden.append(int(process))
            elif error.errno not in _GONE:
                raise HostError.because(error, f"The mounts of process {process} cannot be read") from error
    return SeenNamespaces(own, tuple(table for table in tables.values() if table is not own), tuple(forbidden))


def mount_of(descriptor: int) -> MountLine:
    """Return the line of our own table for the mount that an open file or folder is on."""
    return _line_of(descriptor, _own_table(PROC))


def all_mounts() -> tuple[MountLine, ...]:
    """Return our own table; a mount comes before the mounts inside it."""
    return parse_mount_lines(_own_table(PROC))


def other_mounts_of(descriptor: int) -> tuple[str, ...]:
    """Return the other mount points, in our own table, of the same folder of the same file system."""
    table = _own_table(PROC)
    own = _line_of(descriptor, table)
    lines = parse_mount_lines(table)
    return tuple(line.mount_point for line in lines if line.root == own.root and line.mount_id != own.mount_id)


def _line_of(descriptor: int, own_table: bytes) -> MountLine:
    try:
        mount_id = system_calls.statx(descriptor, "").mount_id
    except OSError as error:
        raise HostError.because(error, f"The mount of {_path_of(descriptor)} cannot be read") from error
    line = line_of_mount(own_table, mount_id)
    if line is None:
        raise HostError(
            errno.ENOENT, f"The mount {mount_id} of {_path_of(descriptor)} is not in our mount table: it was unmounted."
        )
    return line


def _processes(proc: str) -> list[str]:
    """List the process ids, the lowest first: those are usually the oldest, and likely to stay until they are read."""
    try:
        return sorted((name for name in os.listdir(proc) if name.isdecimal()), key=int)
    except OSError as error:
        raise HostError.because(error, f"The processes below {proc} cannot be listed") from error


# Both functions read a link of /proc, which accesses no file system that may hang.


def _namespace(proc: str, process: str) -> str:
    return os.readlink(f"{proc}/{process}/ns/mnt")


def _root(proc: str, process: str) -> str:
    return os.readlink(f"{proc}/{process}/root")


def _own_table(proc: str) -> bytes:
    try:
        return _table(proc, "self")
    except OSError as error:
        raise HostError.because(error, f"Our own mount table cannot be read below {proc}. Mount it") from error


def _table(proc: str, process: str) -> bytes:
    with open(f"{proc}/{process}/mountinfo", "rb", buffering=0) as file:
        return file.readall()


def _path_of(descriptor: int) -> str:
    return os.readlink(f"{PROC}/self/fd/{descriptor}")
