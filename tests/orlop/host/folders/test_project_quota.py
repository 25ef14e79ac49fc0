from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest

from orlop.host.folders import project_quota, project_strays
from orlop.host.folders.project_quota import ProjectLimits, ProjectTag, assign_project, project_of
from orlop.host.folders.project_strays import count_strays, strays
from orlop.host.folders.read_only_walk import Problems
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from support.host.descriptors import folder_descriptor
from support.host.kernel_rooms import run
from support.host.quota_kernel import Console, cases_in

CASES = cases_in(Path(__file__).with_name("quota_cases.py"), ("xfs", "ext4"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.timeout(600)
def test_on_a_kernel_that_has_quotas(quota_kernel: Console, case: str):
    assert quota_kernel.outcome_of(case) == "PASSED", quota_kernel.text


# ---- on this machine's kernel, whether it has quotas or not ----------------------------------------------------------


def test_a_project_is_given_to_an_empty_folder_and_inherited(xfs: Path):
    with folder_descriptor(xfs) as folder:
        assign_project(folder, 77)
        assign_project(folder, 77)
        (xfs / "sub").mkdir()
        with folder_descriptor(xfs / "sub") as sub:
            tags = [project_of(folder), project_of(sub)]

    assert tags == [ProjectTag(77, is_inherited=True)] * 2


def test_files_that_left_their_project_are_found_wherever_they_are(xfs: Path):
    (xfs / "other").mkdir()
    with folder_descriptor(xfs / "other") as other:
        assign_project(other, 99)
        (xfs / "other" / "file").write_text("x" * 10_000)
    (xfs / "volume").mkdir()
    with folder_descriptor(xfs / "volume") as volume:
        assign_project(volume, 77)
        (xfs / "volume" / "good").write_text("x")
        (xfs / "volume" / "link").symlink_to("good")
        os.mkfifo(xfs / "volume" / "fifo")
        (xfs / "volume" / "left").mkdir()
        with folder_descriptor(xfs / "volume" / "left") as left:
            assign_project(left, 99)
            (xfs / "volume" / "left" / "file").write_text("x" * 10_000)
        problems = Problems()

        found = {(stray.path, stray.project) for stray in strays(volume, 77, problems)}

    assert found == {("left", 99), ("left/file", 99)}
    assert problems.count == 0


@pytest.fixture(params=["quick", "by opening"])
def way_of_looking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 6.17 cannot tell a number by a name."""
    if request.param == "by opening":
        monkeypatch.setattr(project_strays, "_kernel_reports_by_name", lambda _folder: False)


@pytest.mark.usefixtures("way_of_looking")
def test_strays_are_counted_however_deep_they_lie_and_whatever_they_are_called(xfs: Path):
    with folder_descriptor(xfs) as volume:
        assign_project(volume, 77)
        (xfs / "link").symlink_to("/")
        os.mkfifo(xfs / "fifo")
        deep = xfs
        for level in range(60):
            (deep / f"beside-{level}").write_text("x")
            deep /= "d"
            deep.mkdir()
        good = count_strays(volume, 77, lambda: False)
        name = os.fsdecode(b"odd\xffname")
        (deep / name).write_bytes(bytes(10_000))
        give_away(deep / name, 0)
        (xfs / "left").mkdir()
        give_away(xfs / "left", 99)
        (xfs / "left" / "file").write_text("x")
        found = count_strays(volume, 77, lambda: False)
        specials = special_files_that_left(volume)
        with_specials = count_strays(volume, 77, lambda: False)

    assert good is None
    assert found is not None
    assert with_specials is not None
    assert (found.count, found.bytes >= 10_000) == (3, True)
    assert with_specials.count == 3 + specials
    assert found.first in {"left", "left/file", "/".join(["d"] * 60 + [name])}


@pytest.mark.usefixtures("way_of_looking")
def test_a_folder_that_was_given_another_number_itself_is_a_stray(xfs: Path):
    with folder_descriptor(xfs) as volume:
        assign_project(volume, 77)
        give_away(xfs, 0)
        found = count_strays(volume, 77, lambda: False)

    assert found is not None
    assert (found.count, found.first) == (1, ".")


@pytest.mark.usefixtures("way_of_looking")
def test_what_is_mounted_in_a_folder_is_no_stray_of_it(xfs: Path):
    (xfs / "elsewhere").mkdir()
    (xfs / "elsewhere" / "file").write_text("x")
    (xfs / "volume").mkdir()
    with folder_descriptor(xfs / "volume") as volume:
        assign_project(volume, 77)
        (xfs / "volume" / "folder").mkdir()
        (xfs / "volume" / "file").touch()
        run("mount", "--bind", xfs / "elsewhere", xfs / "volume" / "folder")
        run("mount", "--bind", xfs / "elsewhere" / "file", xfs / "volume" / "file")
        try:
            found = count_strays(volume, 77, lambda: False)
        finally:
            run("umount", xfs / "volume" / "folder")
            run("umount", xfs / "volume" / "file")

    assert found is None


@pytest.mark.usefixtures("way_of_looking")
def test_counting_that_is_stopped_tells_what_it_has_found(xfs: Path):
    with folder_descriptor(xfs) as volume:
        assign_project(volume, 77)
        (xfs / "file").touch()
        with pytest.raises(HostError) as caught:
            count_strays(volume, 77, lambda: True)
        give_away(xfs / "file", 0)
        found = count_strays(volume, 77, lambda: True)

    assert caught.value.errno == errno.ECANCELED
    assert found is not None
    assert found.count == 1


def special_files_that_left(folder: int) -> int:
    """A link and a fifo, where this kernel lets them."""
    try:
        for name in ("link", "fifo"):
            system_calls.set_file_attributes(folder, name, system_calls.FileAttributes(0, 0, 0, 55, 0))
    except OSError:
        return 0
    return 2


def give_away(path: Path, project: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    flags, *sizes, _project, copied = struct.unpack("=IIIII8x", fcntl.ioctl(descriptor, 0x801C581F, bytes(28)))
    fcntl.ioctl(descriptor, 0x401C5820, struct.pack("=IIIII8x", flags, *sizes, project, copied))
    os.close(descriptor)


@pytest.mark.parametrize("project", [0, -1, 2**32 - 1, 2**32])
def test_a_number_that_cannot_be_a_project_is_refused(tmp_path: Path, project: int):
    with folder_descriptor(tmp_path) as folder, pytest.raises(HostError, match="cannot be a project"):
        assign_project(folder, project)


def test_a_folder_that_is_not_empty_gets_no_project(tmp_path: Path):
    (tmp_path / "file").touch()

    with folder_descriptor(tmp_path) as folder, pytest.raises(HostError, match="not empty") as caught:
        assign_project(folder, 7)
    assert caught.value.errno == errno.ENOTEMPTY


def test_a_file_system_that_knows_no_quota_says_so_in_a_sentence(tmpfs: Path):
    with folder_descriptor(tmpfs) as folder:
        reason = project_quota.why_not_enforced(folder)
        with pytest.raises(HostError, match="The limits of the project 7 cannot be set"):
            project_quota.set_limits(folder, 7, ProjectLimits(1, 1))
        with pytest.raises(HostError, match="The usage of the project 7 cannot be read"):
            project_quota.usage_of(folder, 7)

    assert reason is not None
    assert "no project quota" in reason


def test_where_the_kernel_has_no_quota_at_all_nobody_is_told_to_mount_with_it():
    with folder_descriptor(Path("/proc")) as folder:
        reason = project_quota.why_not_enforced(folder)

    assert reason is not None
    assert reason.startswith("The kernel has no project quota for this file system (Function not implemented).")
    assert "prjquota" not in reason


def test_where_the_file_system_could_have_quota_the_mount_option_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))

    monkeypatch.setattr(project_quota, "quotactl_fd", refuse)
    with folder_descriptor(tmp_path) as folder:
        reason = project_quota.why_not_enforced(folder)

    assert reason is not None
    assert "Mount it with prjquota" in reason


@pytest.mark.parametrize("limits", [(0, None), (None, 0), (-1, 5)])
def test_a_limit_is_above_zero(limits: tuple[int | None, int | None]):
    with pytest.raises(ValueError, match="above zero"):
        ProjectLimits(*limits)
