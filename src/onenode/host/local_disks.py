"""Format and mount disks of this machine that are local volumes, as kubelet does it.

The caller passes an open handle of the disk, so that no path is resolved twice. A disk is formatted only if no
signature is found on it and no program uses it. A disk with any other content is mounted as it is, or refused.

Order: read the content → if there is none, check that the disk is free, then mkfs → make a detached mount → attach it
at the target. After a kill the disk is blank, or has a file system, or is mounted: the next call goes on from there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Sequence
from typing import Final

from onenode.host.volume_mounts import FOLDER_MODE, attach_within, require_block_device, resolved_path
from orlop.host.block.disk_signatures import read_content
from orlop.host.block.image_formats import run_maker
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths, system_calls
from orlop.host.kernel.confined_paths import path_of
from orlop.host.mounts.mounts import WORDS, MountOptions, parse_mount_options

DEFAULT: Final = "ext4"
MAKERS: Final = {
    "ext3": ("mkfs.ext3", "-q", "-F", "-m0"),
    "ext4": ("mkfs.ext4", "-q", "-F", "-m0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
"""The mkfs programs with kubelet's options; those of other file systems are called without options."""
_KIND: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,30}")
_WITHOUT_MEANING: Final = frozenset({"", "defaults"})
_LONGEST_MKFS_SECONDS: Final = 1800.0


def mount_disk(disk: int, parent: int, name: str, fs_type: str, words: Sequence[str]) -> None:
    """Mount the disk of a handle at a new folder, which is created. Format the disk if it is blank."""
    require_block_device(disk)
    if fs_type and not _KIND.fullmatch(fs_type):
        raise HostError(errno.EINVAL, f"{fs_type[:40]!r} is no type of file system.")
    options = [word for word in words if word not in _WITHOUT_MEANING]
    content = _content(disk)
    if not content:
        if "ro" in options:
            raise HostError(errno.EROFS, f"cannot mount unformatted disk {resolved_path(disk)} as read-only")
        _format(disk, fs_type or DEFAULT)
    tree = _mounted(disk, fs_type, content, options)
    try:
        confined_paths.make_folder(parent, name, FOLDER_MODE)
        attach_within(tree, parent, name, f"{resolved_path(disk)} cannot be mounted")
    finally:
        os.close(tree)


def _content(disk: int) -> str:
    """Return what is on the disk, in words; empty if no signature is found."""
    opened = _opened(disk, os.O_RDONLY)
    try:
        content = read_content(opened, os.lseek(opened, 0, os.SEEK_END))
    finally:
        os.close(opened)
    # A disk that cannot be read completely is not blank: formatting it could destroy data.
    if content.why_unread:
        raise HostError(errno.EIO, f"{resolved_path(disk)} cannot be formatted or mounted: {content.why_unread}.")
    if not content.signatures:
        return ""
    file_system = content.file_system
    return file_system.name if file_system is not None else "unknown data, probably partitions"


def _format(disk: int, fs_type: str) -> None:
    # O_EXCL fails while a mount or another program has claimed the disk. Close it again at once: mkfs claims the disk
    # itself. The lock keeps udev from probing a file system that is only half written.
    opened = _opened(disk, os.O_RDWR | os.O_EXCL)
    os.close(opened)
    opened = _opened(disk, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        words = MAKERS.get(fs_type, (f"mkfs.{fs_type}",))
        run_maker((*words, path_of(opened)), opened, within=_LONGEST_MKFS_SECONDS)
    except HostError:
        raise
    except OSError as error:
        raise HostError.because(error, f"{resolved_path(disk)} is being probed or wiped by another program") from error
    finally:
        os.close(opened)


def _mounted(disk: int, fs_type: str, content: str, words: Sequence[str]) -> int:
    """Return a detached mount of the disk."""
    path, kind = resolved_path(disk), fs_type or content or DEFAULT
    attributes = parse_mount_options(
        [word for word in words if word in WORDS], MountOptions(no_suid=False, no_devices=False)
    )
    own: dict[str, str | None] = {"source": path, **({"ro": None} if attributes.read_only else {})}
    for word in words:
        if word not in WORDS:
            key, has_value, value = word.partition("=")
            own[key] = value if has_value else None
    try:
        tree = system_calls.new_file_system(kind, own, attributes.to_set())
    except OSError as error:
        if content not in {"", kind}:
            sentence = f'failed to mount the volume as "{kind}", it already contains {content}. Mount error'
            raise HostError.because(error, sentence) from error
        advice = "The kernel's log (dmesg) has the reason"
        raise HostError.because(error, f"{path} cannot be mounted as {kind}. {advice}") from error
    # The kernel resolved the path again, and it may lead to another device by now: compare the device numbers. Some
    # file systems, such as btrfs, have a number of their own, with the major number 0.
    number = os.fstat(tree).st_dev
    if os.major(number) and number != os.fstat(disk).st_rdev:
        os.close(tree)
        raise HostError(errno.ENODEV, f"{path} is another device now.")
    return tree


def _opened(disk: int, flags: int) -> int:
    try:
        return os.open(path_of(disk), flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise HostError.because(error, f"{resolved_path(disk)} cannot be opened") from error
