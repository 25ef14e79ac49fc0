"""Parse /proc/<pid>/mountinfo, and decide which folders are mounted. Pure.

A folder is identified by its file system's device and its path from the root of that file system: both are the same in
every mount namespace, whatever the mount points are. A folder is mounted if the folder itself, or something below it (a
subPath), is the root of a mount. A mount of a folder above it does not count.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

_ESCAPE = re.compile(rb"\\([0-7]{3})")
_DELETED = "//deleted"


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
