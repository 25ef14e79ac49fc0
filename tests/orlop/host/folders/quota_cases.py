"""What project quotas do on a kernel that has them. Run inside one by support/host/quota_kernel, not collected."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orlop.host.erase.erase_folder import erase_folder
from orlop.host.folders import project_quota
from orlop.host.folders.project_quota import (
    ProjectLimits,
    assign_project,
    projects,
    set_limits,
    usage_of,
    why_not_enforced,
)
from orlop.host.folders.project_strays import strays
from orlop.host.folders.read_only_walk import Problems
from orlop.host.host_errors import HostError
from support.host.descriptors import folder_descriptor
from support.host.quota_kernel import FILE_SYSTEMS
from support.waiting import eventually

MIB = 2**20
NUMBERS = itertools.count(1_000)


@pytest.fixture(params=["xfs", "ext4"])
def drive(request: pytest.FixtureRequest) -> Path:
    return Path(os.environ[FILE_SYSTEMS]) / request.param


@pytest.fixture
def project() -> int:
    return next(NUMBERS)


@pytest.fixture
def volume(drive: Path, project: int) -> Iterator[int]:
    """An empty folder of the project, with a limit of 8 MiB and 20 inodes."""
    path = drive / f"volume-{project}"
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    assign_project(descriptor, project)
    set_limits(descriptor, project, ProjectLimits(8 * MIB, 20))
    yield descriptor
    os.close(descriptor)


FILL = """
import os, sys
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
written = 0
try:
    file = os.open("filled", os.O_CREAT | os.O_WRONLY, dir_fd=int(sys.argv[1]))
    while written < int(sys.argv[2]):
        written += os.write(file, bytes(65536))
    os.fsync(file)
except OSError as error:
    print(error.errno)
else:
    print(0)
"""
MAKE_FILES = """
import os, sys
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
for made in range(100):
    try:
        os.close(os.open(f"file-{made}", os.O_CREAT | os.O_WRONLY, dir_fd=int(sys.argv[1])))
    except OSError as error:
        print(made, error.errno)
        break
"""
LEAVE = """
import fcntl, os, struct, sys
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
file = os.open("escaped", os.O_CREAT | os.O_RDWR, dir_fd=int(sys.argv[1]))
flags, *middle, project, copied = struct.unpack("=IIIII8x", fcntl.ioctl(file, 0x801C581F, bytes(28)))
fcntl.ioctl(file, 0x401C5820, struct.pack("=IIIII8x", flags, *middle, 0, copied))
for _ in range(256):
    os.write(file, bytes(65536))
"""


def as_tenant(script: str, volume: int, *arguments: str) -> str:
    os.fchmod(volume, 0o777)
    command = [sys.executable, "-S", "-c", script, str(volume), *arguments]
    return subprocess.run(command, pass_fds=[volume], capture_output=True, text=True, check=True).stdout.strip()


def test_a_file_system_mounted_for_it_enforces_quotas(drive: Path):
    with folder_descriptor(drive) as folder:
        reason = why_not_enforced(folder)

    assert reason is None


def test_a_file_system_without_quotas_says_so(drive: Path):
    with folder_descriptor(drive.parent) as folder:
        reason = why_not_enforced(folder)

    assert reason is not None
    assert "no project quota" in reason


def test_a_tenant_is_held_to_its_limit(drive: Path, volume: int, project: int):
    assert as_tenant(FILL, volume, str(4 * MIB)) == "0"
    refused = int(as_tenant(FILL, volume, str(64 * MIB)))

    assert refused == (errno.ENOSPC if drive.name == "xfs" else errno.EDQUOT)
    assert usage_of(volume, project).bytes <= 8 * MIB


def test_the_limit_is_the_size_of_the_volume(volume: int):
    size = os.statvfs(volume)

    assert size.f_blocks * size.f_frsize == 8 * MIB
    assert size.f_files == 20


def test_usage_and_limits_are_read(volume: int, project: int):
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=volume)
    os.write(file, bytes(MIB))
    os.fsync(file)
    os.close(file)

    usage = usage_of(volume, project)

    assert MIB <= usage.bytes <= 3 * MIB
    assert usage.inodes == 2
    assert usage.limits == ProjectLimits(8 * MIB, 20)


def test_the_inode_limit_holds(drive: Path, volume: int):
    made, refused = map(int, as_tenant(MAKE_FILES, volume).split())

    assert made == 19  # the folder itself is one
    assert refused == (errno.ENOSPC if drive.name == "xfs" else errno.EDQUOT)


def test_a_volume_grows_at_once(volume: int, project: int):
    set_limits(volume, project, ProjectLimits(32 * MIB, None))

    assert as_tenant(FILL, volume, str(24 * MIB)) == "0"
    assert usage_of(volume, project).limits == ProjectLimits(32 * MIB, None)


def test_a_number_that_was_never_used_has_no_usage(volume: int):
    assert usage_of(volume, 999_999) == project_quota.ProjectUsage(999_999, 0, 0, ProjectLimits(None, None))


def test_every_number_in_use_is_listed_in_order(volume: int, project: int):
    numbers = [usage.project for usage in projects(volume)]

    assert numbers[0] == 0
    assert project in numbers
    assert numbers == sorted(set(numbers))


def test_what_is_made_below_inherits_the_number(volume: int, project: int):
    os.mkdir("folder", dir_fd=volume)
    folder = os.open("folder", os.O_RDONLY, dir_fd=volume)
    file = os.open("file", os.O_CREAT | os.O_RDONLY, dir_fd=folder)
    tags = [project_quota.project_of(folder), project_quota.project_of(file).project]
    os.close(file)
    os.close(folder)

    assert tags == [project_quota.ProjectTag(project, is_inherited=True), project]


def test_a_tenant_that_leaves_its_project_is_found(volume: int, project: int):
    as_tenant(LEAVE, volume)  # 16 MiB, twice its limit

    problems = Problems()
    found = list(strays(volume, project, problems))

    assert [(stray.path, stray.project) for stray in found] == [("escaped", 0)]
    assert found[0].bytes > 8 * MIB
    assert problems.count == 0


async def test_a_full_volume_is_erased_and_its_usage_goes_to_zero(drive: Path, volume: int, project: int):
    as_tenant(FILL, volume, str(64 * MIB))
    with folder_descriptor(drive) as trash:
        erasure = erase_folder(trash, f"volume-{project}", threading.Event())

    assert erasure.is_complete, erasure.left
    with folder_descriptor(drive) as somewhere:
        os.dup2(somewhere, volume)  # as long as a folder is open it counts
        os.sync()
        await eventually(lambda: usage_of(somewhere, project).bytes == 0)


def test_a_deep_tree_of_a_tenant_with_another_number_inside_is_erased(drive: Path, volume: int, project: int):
    """A folder of another project cannot be moved into one whose number is inherited."""
    set_limits(volume, project, ProjectLimits(None, None))
    descriptor = os.dup(volume)
    for level in range(150):
        os.mkdir("d", dir_fd=descriptor)
        lower = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = lower
        if level % 7 == 3:
            attributes = struct.pack("=IIIII8x", project_quota.INHERIT, 0, 0, project + 500 + level, 0)
            fcntl.ioctl(descriptor, project_quota.SET_ATTRIBUTES, attributes)
    os.close(descriptor)
    with folder_descriptor(drive) as trash:
        erasure = erase_folder(trash, f"volume-{project}", threading.Event())

    assert erasure.is_complete, erasure.left


def test_a_folder_that_is_not_empty_gets_no_project(volume: int, project: int):
    os.mkdir("folder", dir_fd=volume)

    with pytest.raises(HostError, match="not empty"):
        assign_project(volume, project + 1)
