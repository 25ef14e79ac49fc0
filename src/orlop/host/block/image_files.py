"""Image files in folders: made complete on disk, opened where they are, and mounted through a loop device.

    <shelf>/<folder>/image  the image; its folder belongs to root alone, so that no tenant can change its bytes

A tenant may have a file of the same name in a folder of its own. So an image is opened as a handle (O_PATH) first, no
link is followed, and only a plain file counts.

A mount is detached when it is made: nobody sees it until it is attached to a target. If that never happens, the kernel
ends the mount when its descriptor is closed, and then detaches the loop device. The file system is always writable, and
`options` make the mount read-only: so its journal is replayed after a crash, and a reader does not prevent a pod from
mounting the same image.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from orlop.host.block import image_devices
from orlop.host.block.image_formats import SMALLEST, ImageFormatter
from orlop.host.block.loop_devices import CONTROL, opened_device
from orlop.host.folders.folder_records import IMAGE, opened_folder
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.kernel.confined_paths import open_place, reopen
from orlop.host.kernel.programs import find_program
from orlop.host.mounts.mounts import FileIdentity, MountOptions, identity_of

MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_DAMAGED: Final = frozenset({errno.EUCLEAN, errno.EINVAL, errno.EBADMSG})
"""Which of them a damaged file system returns depends on its kind and on what is damaged: EINVAL for a superblock."""
_NEW_IMAGE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ImageShape:
    """What an image is to be."""

    bytes: int
    file_system: str
    """Empty for an image that pods use as a raw device: nothing is written into it."""
    keeps_space: bool
    """All of its space is allocated, and stays so."""
    mode: int = 0o777
    """Of the root of its file system."""


def ending_of(name: str) -> str:
    """Return how the path of an image ends, in every mount namespace. `name` is its folder's."""
    return f"/{name}/{IMAGE}"


def why_no_images() -> str | None:
    """Return a sentence if no image with a file system can be made and mounted here; None if it can."""
    if not os.access(CONTROL, os.R_OK | os.W_OK):
        return f"Images need loop devices, and {CONTROL} cannot be opened. In a container, mount the host's /dev."
    missing = [f"mkfs.{kind}" for kind in SMALLEST if find_program(f"mkfs.{kind}") is None]
    if missing:
        return f"Images need {' and '.join(missing)}. Install xfsprogs and e2fsprogs (1.47)."
    return None


def write_image(folder: int, name: str, shape: ImageShape, formatter: ImageFormatter) -> None:
    """Create an image, complete on disk; its name is durable with the folder. EEXIST: the name is taken."""
    image = os.open(name, _NEW_IMAGE, 0o600, dir_fd=folder)
    try:
        allocate(image, 0, shape.bytes, keeps_space=shape.keeps_space)
        if shape.file_system:
            formatter.format(image, shape.file_system, shape.bytes, shape.mode)
        os.fsync(image)
    finally:
        os.close(image)


def allocate(image: int, size: int, new_size: int, *, keeps_space: bool) -> None:
    """Make an image of this size larger."""
    if not keeps_space:
        os.ftruncate(image, new_size)
        return
    try:
        # Allocate only the new part: XFS requires free space for the whole range, even where it is allocated already.
        os.posix_fallocate(image, size, new_size - size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        # No file of this file system can be so large; for the caller that is a disk without enough space.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error


@contextmanager
def image_place(shelf: int, name: str) -> Iterator[int | None]:
    """Yield a handle (O_PATH) of the image, which may be a tenant's file of that name; None if there is none."""
    place: int | None = None
    with ExitStack() as opened:
        try:
            with opened_folder(shelf, name) as folder:
                place = open_place(folder, IMAGE)
            opened.callback(os.close, place)
        except HostError as error:
            if error.errno not in MISSING:
                raise
        except OSError as error:
            if error.errno not in {*MISSING, errno.EXDEV}:
                raise HostError.because(error, f"The image of {name} cannot be opened") from error
        yield place if place is not None and stat.S_ISREG(os.fstat(place).st_mode) else None


@contextmanager
def opened_image(shelf: int, name: str) -> Iterator[int]:
    """Open the image for reading and writing. ENOENT: there is none."""
    with image_place(shelf, name) as place:
        if place is None:
            raise HostError(errno.ENOENT, f"The volume {name} has no image on its drive.")
        try:
            image = reopen(place, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise HostError.because(error, f"The image of {name} cannot be opened") from error
    try:
        yield image
    finally:
        os.close(image)


def image_identity(shelf: int, name: str) -> FileIdentity | None:
    """Return the identity of the image in a folder; None if there is none."""
    with image_place(shelf, name) as place:
        return identity_of(place) if place is not None else None


@contextmanager
def detached_mount(
    shelf: int, name: str, file_system: str, options: MountOptions, *, keeps_space: bool
) -> Iterator[int]:
    """Mount the file system of an image detached; yield its root. EUCLEAN: the file system is damaged."""
    # Copies of an image have its UUID, and XFS refuses to mount a second file system with a UUID that is mounted.
    alone: dict[str, str | None] = {"nouuid": None} if file_system == "xfs" else {}
    with opened_image(shelf, name) as image, _device_to_mount(image, name, keeps_space=keeps_space) as device:
        try:
            tree = system_calls.new_file_system(file_system, {"source": device, **alone}, options.to_set())
        except OSError as error:
            raise _not_mounted(error, name, file_system) from error
    try:
        yield tree
    finally:
        os.close(tree)


def attach_mount(tree: int, place: int, name: str) -> None:
    """Attach what `detached_mount` yields to a target."""
    try:
        system_calls.attach_tree(tree, place)
    except OSError as error:
        raise HostError.because(error, f"The file system of {name} cannot be attached") from error


@contextmanager
def _device_to_mount(image: int, name: str, *, keeps_space: bool) -> Iterator[str]:
    """Yield the writable device of the image. Two of them would damage its file system."""
    with _held(_writable_device(image, name)) as existing:
        # The kernel detaches a device with its last mount, unless a process holds it open. So search again while
        # holding it.
        if existing is not None and existing == _writable_device(image, name):
            yield existing  # still mounted elsewhere: another mount of it shows the same file system
            return
    with image_devices.attached_until_mounted(image, read_only=False, keeps_space=keeps_space) as device:
        yield device


def _writable_device(image: int, name: str) -> str | None:
    devices = image_devices.devices_of(image, ending_of(name))
    return next((each.path for each in devices if not each.is_read_only), None)


@contextmanager
def _held(device: str | None) -> Iterator[str | None]:
    """Keep a loop device open."""
    if device is None:
        yield None
        return
    holder = opened_device(device, os.O_RDONLY)
    try:
        yield device
    finally:
        os.close(holder)


def _not_mounted(error: OSError, name: str, kind: str) -> HostError:
    sentence = f"The file system of {name} cannot be mounted"
    if error.errno in _DAMAGED:
        return HostError(
            errno.EUCLEAN,
            f"{sentence}: it is damaged, or not {kind}. The kernel's log (dmesg) has the reason. Repair its image, "
            "or restore the data from a backup.",
        )
    return HostError.because(error, sentence)
