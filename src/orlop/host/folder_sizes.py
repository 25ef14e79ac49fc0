"""What a folder was measured to take, noted on the folder itself, so that a restart need not measure it again.

It stands in a `trusted.` attribute, which no tenant can change, together with what it is true of: the caller's word for
the state of the folder. It is not made durable: after power loss it may be missing, and the folder is measured again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

from orlop.host.errors import HostError
from orlop.host.node_host import FolderPlace

SIZE: Final = "trusted.orlop.size"
_NOTE: Final = re.compile(rb"([0-9]{1,19}) (.{1,64})", re.DOTALL)


class FolderSizes:
    """`open_folder` gives the folder itself, as `LinuxWorkdir.opened` does. Blocks; never fails, only forgets."""

    def __init__(self, open_folder: Callable[[FolderPlace], AbstractContextManager[int]]) -> None:
        self._open_folder = open_folder

    def noted(self, place: FolderPlace, true_of: str) -> int | None:
        try:
            with self._open_folder(place) as folder:
                note = _NOTE.fullmatch(os.getxattr(folder, SIZE))
        except OSError:
            return None
        return int(note[1]) if note is not None and note[2] == true_of.encode() else None

    def note(self, place: FolderPlace, size: int, true_of: str) -> None:
        with suppress(HostError, OSError), self._open_folder(place) as folder:
            os.setxattr(folder, SIZE, f"{size} {true_of}".encode())
