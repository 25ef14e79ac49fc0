"""Image files on real loop devices: attached once, found again, formatted, grown, detached; nothing is left behind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from orlop.host.block import image_devices
from orlop.host.block.image_formats import MIB, SMALLEST, ImageFormatter, grow_file_system, make_file_system
from orlop.host.block.loop_devices import loop_names, path_behind
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import names_in
from orlop.host.kernel.system_calls import new_file_system
from orlop.host.mounts.mounts import identity_of
from support.host.file_systems import MOUNTS, FileSystems
from support.waiting import eventually_there

pytestmark = MOUNTS
ENDING = f"/{uuid4()}/image"
"""Of these tests alone: looking for an image opens every loop device whose path ends so."""


@pytest.fixture(params=["ext4", "xfs"])
def image(request: pytest.FixtureRequest, file_systems: FileSystems) -> Iterator[int]:
    """An empty image of 16 MiB, all of it allocated, on a drive of each kind."""
    path = Path(f"{file_systems.new_folder(request.param)}{ENDING}")
    path.parent.mkdir()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.posix_fallocate(descriptor, 0, 16 * MIB)
    try:
        yield descriptor
    finally:
        eventually_there(lambda: detach_unless_open(descriptor))
        path.unlink()
        os.close(descriptor)


def resized(image: int, size: int) -> int:
    os.ftruncate(image, 0)
    os.posix_fallocate(image, 0, size)
    return image


def detach_unless_open(image: int) -> bool:
    """Programs that list all loop devices, such as losetup, have each one open for a moment, which keeps it there."""
    try:
        image_devices.detach(image, ENDING)
    except HostError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def written_to_device(device: str, data: bytes) -> None:
    with Path(device).open("wb", buffering=0) as file:
        file.write(data)
        os.fsync(file)


def test_an_image_becomes_a_device_of_its_size_with_whole_blocks_for_sectors(image: int):
    device = image_devices.attach_image(image, read_only=False, keeps_space=True)

    queue = Path("/sys/block") / Path(device).name
    assert int((queue / "size").read_text()) * 512 == 16 * MIB
    assert (queue / "queue/logical_block_size").read_text().strip() == "4096"
    assert (queue / "loop/dio").read_text().strip() == "1"
    written_to_device(device, b"written to the device".ljust(4096, b"\0"))
    assert os.pread(image, 21, 0) == b"written to the device"


def test_its_device_is_found_again_by_the_identity_of_the_image(image: int):
    device = image_devices.attach_image(image, read_only=False, keeps_space=True)

    assert image_devices.devices_of(image, ENDING) == (image_devices.ImageDevice(device, False),)
    assert image_devices.image_behind(Path(device).stat().st_rdev) == identity_of(image)
    assert image_devices.devices_of(image, "/another") == ()


def test_only_devices_that_have_a_file_behind_them_are_listed(image: int):
    device = image_devices.attach_image(image, read_only=False, keeps_space=True)
    assert Path(device).name in loop_names()

    listed = {name: path_behind(name) for name in loop_names()}
    free = [path.name for path in Path("/sys/block").glob("loop*") if not (path / "loop").exists()]

    assert (listed[Path(device).name] or "").endswith(ENDING)
    # Tests beside this one attach and detach others meanwhile.
    assert not [name for name in free if name in listed and path_behind(name) is None and name in loop_names()]


def test_a_read_only_device_of_it_stands_beside_the_writable_one_and_refuses_writes(image: int):
    writable = image_devices.attach_image(image, read_only=False, keeps_space=True)
    readable = image_devices.attach_image(image, read_only=True, keeps_space=True)

    written_to_device(writable, b"shared".ljust(4096, b"\0"))
    with pytest.raises(OSError, match=r"not permitted|Read-only|denied"):
        written_to_device(readable, bytes(4096))
    with Path(readable).open("rb") as file:
        assert file.read(6) == b"shared"
    assert image_devices.detach(image, ENDING, read_only=True) == 1
    assert [each.path for each in image_devices.devices_of(image, ENDING)] == [writable]


def test_a_device_for_a_mount_goes_when_it_is_not_mounted_after_all(image: int):
    with image_devices.attached_until_mounted(image, read_only=False, keeps_space=True) as device:
        assert [each.path for each in image_devices.devices_of(image, ENDING)] == [device]

    eventually_there(lambda: not image_devices.devices_of(image, ENDING))


def test_a_device_that_is_open_is_not_detached(image: int):
    device = image_devices.attach_image(image, read_only=False, keeps_space=True)

    with Path(device).open("rb"):
        with pytest.raises(HostError, match="fuser") as caught:
            image_devices.detach(image, ENDING)
        assert caught.value.errno == errno.EBUSY


def test_detaching_what_is_not_attached_does_nothing(image: int):
    assert image_devices.detach(image, ENDING) == 0


def test_a_device_adopts_the_new_size_of_its_image_while_it_is_open(image: int):
    device = image_devices.attach_image(image, read_only=False, keeps_space=True)
    with Path(device).open("rb") as open_device:
        os.posix_fallocate(image, 0, 24 * MIB)
        image_devices.adopt_size(device)

        assert open_device.seek(0, os.SEEK_END) == 24 * MIB


def test_a_discard_does_not_return_the_space_of_an_image_that_keeps_it(image: int):
    device = image_devices.attach_image(image, read_only=False, keeps_space=True)

    assert (Path("/sys/block") / Path(device).name / "queue/discard_max_bytes").read_text().strip() == "0"


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_the_second_file_system_of_a_size_is_written_without_mkfs_and_works_like_the_first(
    image: int, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    size = SMALLEST[kind]
    formatter = ImageFormatter()
    formatter.format(resized(image, size), kind, size)
    monkeypatch.setenv("PATH", str(tmp_path))  # no mkfs there

    formatter.format(resized(image, size), kind, size)

    with mounted_detached(image, kind) as root:
        assert stat.S_IMODE(os.fstat(root).st_mode) == 0o777
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=root))
        assert "file" in names_in(root)
    assert os.fstat(image).st_blocks * 512 >= size


def test_what_would_fill_the_memory_is_not_kept(image: int):
    formatter = ImageFormatter(most_kept_bytes=4096)

    formatter.format(image, "ext4", 16 * MIB)
    formatter.format(resized(image, 16 * MIB), "ext4", 16 * MIB)

    with mounted_detached(image, "ext4") as root:
        assert names_in(root) == ["lost+found"]


@pytest.mark.parametrize(("kind", "size"), [("xfs", 299 * MIB), ("ext4", 8 * MIB), ("btrfs", 1 << 30)])
def test_a_file_system_that_does_not_fit_is_refused_in_a_sentence(image: int, kind: str, size: int):
    with pytest.raises(HostError, match=kind) as caught:
        ImageFormatter().format(image, kind, size)

    assert caught.value.errno == errno.EINVAL


def test_a_failing_mkfs_is_reported_with_its_last_words(image: int):
    with pytest.raises(HostError, match=r"mkfs\.xfs failed"):
        make_file_system(resized(image, 20 * MIB), "xfs")


def test_a_machine_without_mkfs_is_named(image: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(HostError, match="not installed"):
        make_file_system(image, "ext4")


def test_a_mounted_xfs_grows_with_its_image(image: int):
    size = SMALLEST["xfs"]
    ImageFormatter().format(resized(image, size), "xfs", size)
    with mounted_detached(image, "xfs") as root:
        before = os.statvfs(root).f_blocks
        os.posix_fallocate(image, size, 32 * MIB)
        (device,) = image_devices.devices_of(image, ENDING)
        image_devices.adopt_size(device.path)

        grow_file_system(root, "xfs", size + 32 * MIB)
        grow_file_system(root, "xfs", size + 32 * MIB)

        assert os.statvfs(root).f_blocks - before >= 30 * MIB // 4096


class mounted_detached:  # noqa: N801 - used as a function
    """The file system of an image, mounted where nobody sees it."""

    def __init__(self, image: int, kind: str) -> None:
        self._image, self._kind = image, kind

    def __enter__(self) -> int:
        options: dict[str, str | None] = {"nouuid": None} if self._kind == "xfs" else {}
        with image_devices.attached_until_mounted(self._image, read_only=False, keeps_space=True) as device:
            self._mount = new_file_system(self._kind, {"source": device, **options}, 0)
        self._root = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._mount)
        return self._root

    def __exit__(self, *_: object) -> None:
        os.close(self._root)
        os.close(self._mount)
