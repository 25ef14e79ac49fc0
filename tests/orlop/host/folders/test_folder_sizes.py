"""A size noted on a folder, and what it is true of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orlop.host.folders.folder_records import SIZE, FolderSizes
from orlop.host.linux_node_host import LinuxWorkdir
from orlop.host.node_host import FolderPlace, FolderState
from support.host.file_systems import MOUNTS

pytestmark = MOUNTS
BEFORE, AFTER = FolderPlace(FolderState.RETAINED, "before"), FolderPlace(FolderState.RETAINED, "after")


def test_a_size_goes_with_its_folder_and_is_true_of_one_state_alone(disk: Path):
    workdir = LinuxWorkdir(str(disk))
    sizes = FolderSizes(workdir.opened)
    workdir.create(BEFORE, b"record", 0o777)
    assert sizes.noted(BEFORE, "burial 1") is None
    sizes.note(BEFORE, 2**63, "burial 1")
    workdir.move(BEFORE, AFTER)

    assert sizes.noted(AFTER, "burial 1") == 2**63
    assert sizes.noted(AFTER, "burial 2") is None
    assert workdir.read_record(AFTER) == b"record"
    workdir.close()


@pytest.mark.parametrize("note", [b"", b"12", b"x y", b"-5 burial 1", b"1" * 30 + b" burial 1", b"\xff burial 1"])
def test_a_note_that_is_none_is_forgotten(tmp_path: Path, note: bytes):
    workdir = LinuxWorkdir(str(tmp_path))
    sizes = FolderSizes(workdir.opened)
    workdir.create(BEFORE, b"record", 0o777)
    os.setxattr(tmp_path / "retained" / "before", SIZE, note)

    assert sizes.noted(BEFORE, "burial 1") is None
    assert sizes.noted(AFTER, "burial 1") is None
    sizes.note(AFTER, 5, "burial 1")
    workdir.close()
