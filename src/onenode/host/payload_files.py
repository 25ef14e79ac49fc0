"""What a volume of Kubernetes' own kinds is made of: files with their modes, a folder's access, a path of the machine.

Values alone: rules make them, a host writes them. What a file holds is never shown, since it may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """`owner` is a user's number; None: root."""

    content: bytes = field(repr=False)
    mode: int
    owner: int | None = None


Payload: TypeAlias = Mapping[Names, PayloadFile]
"""By the names that lead from the volume's top to the file."""


@dataclass(frozen=True, slots=True)
class FolderPermissions:
    """Of a volume's top. `group`: whom it is given to; None: it stays root's."""

    mode: int
    group: int | None = None


@dataclass(frozen=True, slots=True)
class HostPath:
    """A path of this machine, as text; links on the way are the machine's own, and are followed."""

    path: str


Origin: TypeAlias = Names | HostPath
"""Where a volume is: below kubelet's directory, or a path of this machine."""


class FileKind(Enum):
    """What is at a path, its links followed."""

    FOLDER = "a directory"
    FILE = "a file"
    SOCKET = "a socket file"
    CHARACTER_DEVICE = "a character device"
    BLOCK_DEVICE = "a block device"
    OTHER = "something else"
