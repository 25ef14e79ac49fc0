"""Directory volumes on a kernel that has quotas: run inside one by support/host/quota_kernel, and nowhere else."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orlop.host.drives import drive_files
from orlop.host.folders.project_quota import project_of
from orlop.records.drive_record import MIB
from support.drives.linux_node import LinuxNode
from support.drives.node_drives import ID, drive_record
from support.drives.volume_node import STAGING, TARGET
from support.host.kernel_rooms import descriptor
from support.host.quota_kernel import FILE_SYSTEMS
from support.waiting import eventually

ROOMS = itertools.count()
pytestmark = pytest.mark.virtual_time
SIZE = 16 * MIB
OTHER_STAGING = (*STAGING[:-1], "other")


@pytest.fixture(params=["xfs", "ext4"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(kind: str) -> Iterator[LinuxNode]:
    disk = Path(os.environ[FILE_SYSTEMS]) / kind
    room = disk / f"volumes-{next(ROOMS)}"
    (room / "drive").mkdir(parents=True)
    subprocess.run(["mount", "--make-shared", disk], check=True, capture_output=True)  # as kubelet's folder is
    with descriptor(room / "drive") as root:
        drive_files.make_shelves(root)
    node = LinuxNode(room / "kubelet", room / "drive", drive_record(capacity=256 * MIB))
    yield node
    node.take_apart()


def options(kind: str, **facts: Any) -> dict[str, Any]:
    return {"backing": "directory", "facts": {"bytes": SIZE, "file_system": kind, **facts}}


async def test_a_directory_has_its_size_where_the_pod_sees_it_and_ends_there(node: LinuxNode, kind: str):
    await node.stage(**options(kind))
    await node.publish()
    size = os.statvfs(node.path(TARGET))
    assert size.f_blocks * size.f_frsize == SIZE
    assert [each.total for each in await node.stats()] == [SIZE, 4096 if kind == "xfs" else 1024]

    assert written_by_a_tenant(node.path(TARGET) / "data", 32) < SIZE + MIB


def written_by_a_tenant(path: Path, mebibytes: int) -> int:
    """How much of it there is afterwards. On ext4 root is not limited."""
    words = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mebibytes}"]
    done = subprocess.run(words, user=65534, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "No space left" in done.stderr or "quota exceeded" in done.stderr
    return path.stat().st_size


async def test_what_is_written_counts_from_the_first_byte_and_after_a_restart(node: LinuxNode, kind: str):
    await node.stage(**options(kind))
    record = node.index.get(ID)
    assert record is not None
    with descriptor(node.path(STAGING)) as folder:
        tag = project_of(folder)
    assert (tag.project, tag.is_inherited) == (record.project, True)
    (node.path(STAGING) / "data").write_bytes(bytes(MIB))
    os.sync()
    drive = node.table.open_drives()[0]
    assert drive.volumes.quota_usage(record.project).bytes >= MIB

    after = node.restarted()
    await after.stage(**options(kind))
    after.path(OTHER_STAGING).mkdir()
    await after.stage(volume_id="pvc-2", path=OTHER_STAGING, **options(kind))
    other = after.index.get("pvc-2")
    assert other is not None
    assert other.project != record.project
    after.kubelet_dir.unmount(OTHER_STAGING)
    after.close()


async def test_a_directory_grows_while_a_pod_writes(node: LinuxNode, kind: str):
    await node.stage(**options(kind))
    await node.publish()
    assert await node.expand(2 * SIZE, path=TARGET) == 2 * SIZE
    (node.path(TARGET) / "data").write_bytes(bytes(SIZE + MIB))
    size = os.statvfs(node.path(TARGET))
    assert size.f_blocks * size.f_frsize == 2 * SIZE


async def test_a_number_is_used_again_only_when_nothing_counts_under_it(node: LinuxNode, kind: str):
    await node.stage(**options(kind))
    (node.path(STAGING) / "data").write_bytes(bytes(MIB))
    record = node.index.get(ID)
    assert record is not None
    await node.unstage()
    drive = node.table.open_drives()[0]
    name = drive.volumes.discard(ID)
    node.index.discard(ID)
    numbers = node.volumes._numbers_of(drive)
    assert numbers.release_unused() == 0

    drive.volumes.erase(name)
    await eventually(numbers.release_unused)
    assert drive.volumes.quota_usage(record.project).limits.bytes is None
