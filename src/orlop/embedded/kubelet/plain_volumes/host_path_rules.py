"""Whether a path of this machine is what a pod expects there, or is made first: hostPath's types. Pure."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from orlop.host.payload_files import FileKind

_EXPECTED: Final = {
    "Directory": FileKind.FOLDER,
    "DirectoryOrCreate": FileKind.FOLDER,
    "File": FileKind.FILE,
    "FileOrCreate": FileKind.FILE,
    "Socket": FileKind.SOCKET,
    "CharDevice": FileKind.CHARACTER_DEVICE,
    "BlockDevice": FileKind.BLOCK_DEVICE,
}


class Step(Enum):
    NOTHING = auto()
    MAKE_FOLDER = auto()
    MAKE_FILE = auto()


class NotAsExpected(ValueError):
    """In kubelet's words."""


def next_step(path: str, expected: str, found: FileKind | None) -> Step:
    """`expected` is the type, empty where anything will do; of that nothing, a folder is made, as runtimes do it."""
    if not path.startswith("/") or "\0" in path:
        raise NotAsExpected(f"invalid HostPath `{path}`: must be an absolute path")
    if ".." in path.split("/"):
        raise NotAsExpected(f"invalid HostPath `{path}`: must not contain '..'")
    if not expected:
        return Step.MAKE_FOLDER if found is None else Step.NOTHING
    if expected not in _EXPECTED:
        raise NotAsExpected(f"{expected} is an invalid volume type")
    if found is None and expected.endswith("OrCreate"):
        return Step.MAKE_FOLDER if expected.startswith("Directory") else Step.MAKE_FILE
    if found is not _EXPECTED[expected]:
        raise NotAsExpected(f"hostPath type check failed: {path} is not {_EXPECTED[expected].value}")
    return Step.NOTHING
