"""A part of a volume, mounted for one container, against tenants who put links in the way."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from onenode.host.linux_volume_host import LinuxVolumeHost
from orlop.host.host_errors import HostError
from support.host.kernel_rooms import mount_points_of, mount_room, run, swapped_again_and_again

VOLUME = ("pods", "u1", "volumes", "kubernetes.io~csi", "v", "mount")
TARGET = ("pods", "u1", "volume-subpaths", "v", "main", "0")


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Path]:
    with mount_room(tmp_path / "room") as room:
        room.joinpath(*VOLUME).mkdir(parents=True)
        yield room


@pytest.fixture
def host(kubelet: Path) -> Iterator[LinuxVolumeHost]:
    with LinuxVolumeHost(str(kubelet)) as opened:
        yield opened


def volume_of(kubelet: Path) -> Path:
    return kubelet.joinpath(*VOLUME)


def target_of(kubelet: Path) -> Path:
    return kubelet.joinpath(*TARGET)


def test_a_folder_is_mounted_and_goes_again(kubelet: Path, host: LinuxVolumeHost):
    (volume_of(kubelet) / "a/b").mkdir(parents=True)
    (volume_of(kubelet) / "a/b/file").write_text("x")
    host.mount_subpath(VOLUME, ("a", "b"), TARGET)
    host.mount_subpath(VOLUME, ("a", "b"), TARGET)

    assert (target_of(kubelet) / "file").read_text() == "x"
    assert mount_points_of("self").count(str(target_of(kubelet))) == 1
    host.unmount_subpath(TARGET)
    host.unmount_subpath(TARGET)
    assert not target_of(kubelet).exists()
    assert (volume_of(kubelet) / "a/b/file").read_text() == "x"


def test_a_file_is_mounted_on_a_file(kubelet: Path, host: LinuxVolumeHost):
    (volume_of(kubelet) / "config").write_text("x")
    host.mount_subpath(VOLUME, ("config",), TARGET)

    assert target_of(kubelet).read_text() == "x"
    host.unmount_subpath(TARGET)
    assert not target_of(kubelet).exists()


def test_missing_folders_are_made_with_the_mode_of_the_volumes_top(kubelet: Path, host: LinuxVolumeHost):
    volume_of(kubelet).chmod(0o2775)
    host.mount_subpath(VOLUME, ("a", "b"), TARGET)

    assert {path.stat().st_mode & 0o7777 for path in (volume_of(kubelet) / "a", target_of(kubelet))} == {0o2775}


def test_another_part_takes_the_place_of_the_one_before(kubelet: Path, host: LinuxVolumeHost):
    host.mount_subpath(VOLUME, ("a",), TARGET)
    host.mount_subpath(VOLUME, ("b",), TARGET)
    (volume_of(kubelet) / "b/file").write_text("x")

    assert (target_of(kubelet) / "file").read_text() == "x"
    assert mount_points_of("self").count(str(target_of(kubelet))) == 1


def test_a_link_that_stays_inside_is_followed_by_the_kernel(kubelet: Path, host: LinuxVolumeHost):
    (volume_of(kubelet) / "releases/1").mkdir(parents=True)
    (volume_of(kubelet) / "current").symlink_to("releases/1")
    (volume_of(kubelet) / "releases/1/file").write_text("x")
    host.mount_subpath(VOLUME, ("current",), TARGET)

    assert (target_of(kubelet) / "file").read_text() == "x"


@pytest.mark.parametrize("link", ["/etc", "../../../../../../..", "/proc/self/root", "loop"])
@pytest.mark.parametrize("parts", [("loop",), ("loop", "passwd"), ("loop", "new")])
def test_a_link_that_leaves_the_volume_is_refused_and_nothing_is_made(
    kubelet: Path, host: LinuxVolumeHost, link: str, parts: tuple[str, ...]
):
    (volume_of(kubelet) / "loop").symlink_to(link)

    with pytest.raises(HostError) as refused:
        host.mount_subpath(VOLUME, parts, TARGET)

    assert refused.value.errno in {errno.EXDEV, errno.ELOOP}
    assert not target_of(kubelet).exists()
    assert not Path("/etc/new").exists()


@pytest.mark.parametrize("part", ["..", ".", "", "a/b", "a\0b"])
def test_what_is_no_name_is_refused(kubelet: Path, host: LinuxVolumeHost, part: str):
    with pytest.raises(HostError) as refused:
        host.mount_subpath(VOLUME, ("a", part), TARGET)
    assert refused.value.errno == errno.EINVAL


def test_a_read_only_volume_stays_so(kubelet: Path, host: LinuxVolumeHost):
    (volume_of(kubelet) / "a").mkdir()
    run("mount", "--bind", volume_of(kubelet), volume_of(kubelet))
    run("mount", "-o", "remount,bind,ro", volume_of(kubelet))
    host.mount_subpath(VOLUME, ("a",), TARGET)

    with pytest.raises(OSError, match="Read-only"):
        (target_of(kubelet) / "file").write_text("x")


def test_a_tenant_who_swaps_a_folder_for_a_link_gains_nothing(kubelet: Path, host: LinuxVolumeHost, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("theirs")
    folder, link = volume_of(kubelet) / "a", volume_of(kubelet) / "b"
    folder.mkdir()
    link.symlink_to(outside)
    with swapped_again_and_again(folder, link):
        for _ in range(300):
            try:
                host.mount_subpath(VOLUME, ("a", "deep"), TARGET)
            except HostError:
                continue
            assert not (target_of(kubelet) / "secret").exists()
            host.unmount_subpath(TARGET)

    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
