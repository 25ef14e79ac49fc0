"""Read the mount tables of this machine: our own, and those of all mount namespaces that can be seen.

A table belongs to a process and shows the mounts reachable from its root directory. One process is read per namespace
and root directory, because a chrooted process shows only a part. Namespaces are found through /proc, so in a container
only with the host's process ids (hostPID). Two kinds are not covered: namespaces of single threads that left their
process's namespace, and namespaces without any process, which a bind mount of their file keeps alive.

A folder is identified by its file system's device and its path from the root of that file system: both are the same in
every mount namespace, whatever the mount points are. A folder is mounted if the folder itself, or something below it (a
subPath), is the root of a mount. A mount of a folder above it does not count.

Tables are read again, in full, before every step that cannot be undone. They are never cached: the root of a mount is
renamed along with its folder, and an open table would keep the namespace of a dead container alive.
"""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls

PROC: Final = "/proc"
WHOLE: Final = "/"
"""The root of a process that sees all mounts of its namespace."""
_PLAIN: Final = re.compile(rb"[A-Za-z0-9._-]+")
"""Names that the kernel writes without escapes."""
_GONE: Final = {errno.ENOENT, errno.ESRCH, errno.EINVAL}  # ended, or a zombie: neither has a table
_FORBIDDEN: Final = {errno.EACCES, errno.EPERM}
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
_DELETED: Final = "//deleted"


# ---- the lines of a table: pure --------------------------------------------------------------------------------------


class BadMountLine(ValueError):
    """A line of mountinfo does not have the format of proc(5)."""


@dataclass(frozen=True, slots=True)
class FolderInFileSystem:
    """Which folder of which file system."""

    device: str
    """`major:minor`, as mountinfo has it."""
    path: str
    """From the root of the file system; `/` is the root itself."""

    def below(self, *names: str) -> FolderInFileSystem:
        return FolderInFileSystem(self.device, "/".join((self.path.rstrip("/"), *names)))


@dataclass(frozen=True, slots=True)
class MountLine:
    """One mount, in the namespace and below the root of the process whose table it is."""

    mount_id: int
    parent_id: int
    root: FolderInFileSystem
    mount_point: str
    options: frozenset[str]
    peer_group: int | None
    """The number in `shared:N`; None if mounts below it do not propagate."""
    file_system: str
    source: str
    file_system_options: frozenset[str]

    @property
    def is_shared(self) -> bool:
        return self.peer_group is not None


def parse_mount_lines(table: bytes) -> tuple[MountLine, ...]:
    return tuple(_parse_line(line) for line in _lines(table))


def line_of_mount(table: bytes, mount_id: int) -> MountLine | None:
    """Return the line of one mount; None if it is missing. Only that line is parsed: a table may have thousands."""
    beginning = b"%d " % mount_id
    return next((_parse_line(line) for line in _lines(table) if line.startswith(beginning)), None)


def folder_of_path(mount: MountLine, path: str) -> FolderInFileSystem:
    """Return the file system and the path in it of `path`. `mount` is the mount it is on, in the same namespace."""
    point = mount.mount_point.rstrip("/")
    if path != point and not path.startswith(f"{point}/") and path != mount.mount_point:
        raise BadMountLine(f"The path {path!r} does not lie on the mount at {mount.mount_point!r}.")
    names = [name for name in path[len(point) :].split("/") if name]
    return mount.root.below(*names) if names else mount.root


class MountedFolders:
    """The roots of all mounts, indexed to answer quickly which folders are mounted."""

    def __init__(self, paths_by_device: Mapping[str, Iterable[str]]) -> None:
        # A root that was deleted is not the folder that has the same path now.
        self._paths = {
            device: {path for path in paths if not path.endswith(_DELETED)} for device, paths in paths_by_device.items()
        }

    @classmethod
    def from_tables(cls, tables: Iterable[bytes]) -> MountedFolders:
        """Parse only the device and the root of each line, because parsing the other fields costs most of the time."""
        raw: defaultdict[bytes, set[bytes]] = defaultdict(set)
        for table in tables:
            for line in _lines(table):
                _, _, device, root, _ = line.split(b" ", 4)
                raw[device].add(root)
        return cls({_text(device): map(_unescaped, roots) for device, roots in raw.items()})

    @cached_property
    def _sorted(self) -> dict[str, list[str]]:
        return {device: sorted(paths) for device, paths in self._paths.items()}

    def is_root(self, folder: FolderInFileSystem) -> bool:
        """Return whether the folder itself is the root of a mount, not only something below it."""
        return folder.path in self._paths.get(folder.device, ())

    def holds(self, folder: FolderInFileSystem) -> bool:
        """Return whether the folder, or something below it, is mounted."""
        if self.is_root(folder):
            return True
        paths = self._sorted.get(folder.device, [])
        beginning = folder.path.rstrip("/") + "/"
        place = bisect_left(paths, beginning)
        return place < len(paths) and paths[place].startswith(beginning)

    def names_below(self, folder: FolderInFileSystem, depth: int) -> frozenset[tuple[str, ...]]:
        """Return the first `depth` names below the folder of each mounted root that lies at least that deep in it."""
        beginning = folder.path.rstrip("/") + "/"
        paths = self._paths.get(folder.device, ())
        inside = (path for path in paths if path.startswith(beginning) and path != beginning)
        names = (tuple(path[len(beginning) :].split("/", depth)[:depth]) for path in inside)
        return frozenset(each for each in names if len(each) == depth)


def _lines(table: bytes) -> list[bytes]:
    # Not splitlines: the kernel escapes a line feed in a name, but no carriage return.
    return [line for line in table.split(b"\n") if line]


def _parse_line(line: bytes) -> MountLine:
    fixed, separator, rest = line.partition(b" - ")
    fields, last = fixed.split(b" "), rest.split(b" ")
    if not separator or len(fields) < 6 or len(last) < 3:  # noqa: PLR2004 - the fields of proc(5)
        raise BadMountLine(f"The line {line!r} of mountinfo is not as proc(5) describes it.")
    return MountLine(
        mount_id=int(fields[0]),
        parent_id=int(fields[1]),
        root=FolderInFileSystem(_text(fields[2]), _unescaped(fields[3])),
        mount_point=_unescaped(fields[4]),
        options=frozenset(_text(fields[5]).split(",")),
        peer_group=_peer_group(fields[6:]),
        file_system=_unescaped(last[0]),
        source=_unescaped(last[1]),
        file_system_options=frozenset(_unescaped(last[2]).split(",")),
    )


def _peer_group(optional_fields: list[bytes]) -> int | None:
    return next((int(field[7:]) for field in optional_fields if field.startswith(b"shared:")), None)


def _unescaped(field: bytes) -> str:
    r"""Decode a field: the kernel writes space, tab, line break and backslash as octal escapes such as `\040`."""
    return _text(_ESCAPE.sub(lambda match: bytes((int(match[1], 8),)), field) if b"\\" in field else field)


def _text(field: bytes) -> str:
    return field.decode("utf-8", "surrogateescape")


# ---- reading tables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeenNamespaces:
    """The mount tables of all visible namespaces, and the processes whose tables we may not read."""

    own: bytes
    others: tuple[bytes, ...]
    forbidden: tuple[int, ...]
    host: bytes
    """The table of process 1: with hostPID that of the host, whose paths people know. Our own if it cannot be read."""

    def mention(self, name: str) -> bool:
        """Return False if no table contains this name: a quick first check. True does not mean that it is mounted."""
        needle = name.encode("utf-8", "surrogateescape")
        return not _PLAIN.fullmatch(needle) or any(needle in table for table in self.tables)

    @property
    def tables(self) -> tuple[bytes, ...]:
        """Return all tables, that of the host first."""
        return (self.host, *(table for table in (self.own, *self.others) if table is not self.host))

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
    host = own
    with suppress(OSError):  # it may be forbidden, as above
        host = tables.get((_namespace(proc, "1"), _root(proc, "1")), own)
    others = tuple(table for table in tables.values() if table is not own)
    return SeenNamespaces(own, others, tuple(forbidden), host)


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
    mount_id = _mount_id_of(descriptor)
    line = line_of_mount(own_table, mount_id)
    if line is None:
        raise HostError(
            errno.ENOENT, f"The mount {mount_id} of {_path_of(descriptor)} is not in our mount table: it was unmounted."
        )
    return line


def _mount_id_of(descriptor: int) -> int:
    with suppress(OSError):
        return system_calls.statx(descriptor, "").mount_id
    return mount_number(descriptor)


def mount_number(descriptor: int) -> int:
    """Return the id of the mount that an open file or folder is on, also if its file system fails every call."""
    # This file is the kernel's own: it accesses no other file system.
    try:
        lines = Path(f"{PROC}/self/fdinfo/{descriptor}").read_text("ascii").splitlines()
    except OSError as error:
        raise HostError.because(error, f"The mount of {_path_of(descriptor)} cannot be read") from error
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


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
