"""Trees as tenants leave them: random ones for properties, and what is seen of one."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

NAMES = (
    st.binary(min_size=1, max_size=12)
    .filter(lambda name: b"/" not in name and b"\0" not in name)
    .filter(lambda name: name not in {b".", b".."})
)


@dataclass(frozen=True)
class File:
    content: bytes
    mode: int


@dataclass(frozen=True)
class Link:
    target: bytes


@dataclass(frozen=True)
class Special:
    kind: int  # stat.S_IFIFO, S_IFSOCK or S_IFCHR


@dataclass(frozen=True)
class Folder:
    entries: dict[bytes, Entry]
    mode: int


Entry = File | Link | Special | Folder

MODES = st.integers(0, 0o7777)
FILES = st.builds(File, st.binary(max_size=40), MODES)
LINKS = st.builds(Link, st.sampled_from([b"..", b".", b"/", b"../beside", b"nowhere", b"/etc/passwd", b"loop"]))
SPECIALS = st.builds(Special, st.sampled_from([stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR]))
ENTRIES = st.recursive(
    FILES | LINKS | SPECIALS,
    lambda inner: st.builds(Folder, st.dictionaries(NAMES, inner, max_size=5), MODES),
    max_leaves=25,
)
TREES = st.builds(Folder, st.dictionaries(NAMES, ENTRIES, max_size=6), MODES)


def plant(tree: Entry, place: bytes) -> None:
    match tree:
        case File(content, mode):
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(descriptor, content)
            os.close(descriptor)
            os.chmod(place, mode)  # noqa: PTH101 - names are bytes
        case Link(target):
            os.symlink(target, place)  # noqa: PTH211 - names are bytes
        case Special(kind):
            os.mknod(place, kind | 0o600, os.makedev(1, 3))
        case Folder(entries, mode):
            os.mkdir(place)  # noqa: PTH102 - names are bytes
            for name, entry in entries.items():
                plant(entry, os.path.join(place, name))  # noqa: PTH118 - names are bytes
            os.chmod(place, mode)  # noqa: PTH101 - names are bytes


def seen(place: bytes | Path) -> Entry:
    """What is there, in the words it was planted with."""
    at = os.fsencode(place)
    found = os.lstat(at)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        return Folder({name: seen(os.path.join(at, name)) for name in os.listdir(at)}, mode)  # noqa: PTH118, PTH208
    if stat.S_ISLNK(found.st_mode):
        return Link(os.readlink(at))  # noqa: PTH115 - as above
    if stat.S_ISREG(found.st_mode):
        return File(Path(os.fsdecode(at)).read_bytes(), mode)
    return Special(stat.S_IFMT(found.st_mode))
