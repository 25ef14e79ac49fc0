"""What the root of a drive says of its health."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orlop.host.drives.drive_files import LinuxDriveRoot


def disks_refused_with(number: int) -> Callable[..., int]:
    opened = os.open

    def refuse(path: Any, *rest: Any, **named: Any) -> int:
        if str(path).startswith("/dev/"):
            raise OSError(number, os.strerror(number), path)
        return opened(path, *rest, **named)

    return refuse


def health_of(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> str | None:
    with closing(LinuxDriveRoot(str(folder), os.open(folder, os.O_RDONLY | os.O_DIRECTORY))) as root:
        # As every folder that is on a disk: the build machine's may be on none.
        monkeypatch.setattr(os, "readlink", lambda _path: "../../block/vdz")
        monkeypatch.setattr(os, "open", disks_refused_with(number))
        return root.why_failing()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOENT])
def test_a_drive_works_whose_disk_a_container_was_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    assert health_of(tmp_path, monkeypatch, number) is None


@pytest.mark.parametrize("number", [errno.EIO, errno.ENXIO])
def test_a_drive_fails_whose_disk_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    assert health_of(tmp_path, monkeypatch, number) == f"it cannot be used: {os.strerror(number)}"
