"""The folder of `orlop up --static-dir DIR` and its configuration.

Each disk that is mounted or linked in the folder, and each folder in it, becomes a PersistentVolume, and is erased when
a claim releases it. So at the first start no folder in it may have files: they may be somebody's data. What is put
there later is meant to be offered.

Order: check the folder → write the configuration, which also records that the folder was checked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from orlop.admin.up_state import UpState
from orlop.foundation.quantity import Quantity
from orlop.processes.daemon import CannotGoOn

STATIC_CLASS: Final = "local-disks"
FOLDER_SIZE: Final = Quantity.parse("1Gi")
"""The capacity of a folder that nothing is mounted on; nothing measures or limits what it holds."""
CONFIGURATION: Final = "storageClassMap"
LOST_AND_FOUND: Final = "lost+found"


def prepare_static_dir(folder: Path, state: UpState) -> None:
    """Create the folder if it is missing, and write the configuration. Raises `CannotGoOn` with the reason."""
    path = Path(os.path.realpath(folder))
    if path == state.folder or path in state.folder.parents or state.folder in path.parents:
        raise CannotGoOn(f"--static-dir {folder} and the state folder {state.folder} cannot be one in the other.")
    file, text = state.static / CONFIGURATION, _configuration(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        is_known = file.exists() and file.read_text() == text
        if not is_known and (used := _first_with_files(path)):
            raise CannotGoOn(
                f"{path}/{used} holds files: as a volume it would be offered to pods, and erased when it is released. "
                "Name an empty folder with --static-dir; what you mount, link or make in it later is offered."
            )
        state.static.mkdir(0o700, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise CannotGoOn(f"--static-dir {folder} cannot be used: {error.strerror or error}.") from None


def _configuration(path: Path) -> str:
    directories = {"*": str(FOLDER_SIZE)}
    return f"{json.dumps({STATIC_CLASS: {'hostDir': str(path), 'directories': directories}}, sort_keys=True)}\n"


def _first_with_files(path: Path) -> str:
    """Return the name of the first folder in `path` that has files; empty if there is none."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and entry.name != LOST_AND_FOUND and {*os.listdir(entry)} - {LOST_AND_FOUND}:  # noqa: PTH208
            return entry.name
    return ""
