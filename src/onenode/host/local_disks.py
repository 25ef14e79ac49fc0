"""Disks of this machine that become local volumes: formatted once, as kubelet does it, and mounted.

The disk comes as an open handle, so that no path is resolved twice. A disk is formatted only if nothing is known of its
content and nobody uses it; what it holds otherwise is mounted as it is, or refused.

Order: look at the content → if there is none, claim the disk for a moment, then mkfs → a mount that nobody sees yet →
attach it at its target. A kill leaves a disk without content, one with a file system, or the mount.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Sequence
from typing import Final

from onenode.host.volume_mounts import FOLDER_MODE, refuse_no_device, resolved_path
from orlop.host.block.disk_signatures import read_content
from orlop.host.block.image_formats import run_maker
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths, system_calls
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, opened_below, path_of
from orlop.host.mounts.mounts import WORDS, MountOptions, parse_mount_options

DEFAULT: Final = "ext4"
MAKERS: Final = {
    "ext3": ("mkfs.ext3", "-q", "-F", "-m0"),
    "ext4": ("mkfs.ext4", "-q", "-F", "-m0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
"""As kubelet calls them; others without an option."""
_KIND: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,30}")
_WITHOUT_MEANING: Final = frozenset({"", "defaults"})
_LONGEST_MKFS_SECONDS: Final = 1800.0


def mount_disk(disk: int, parent: int, name: str, fs_type: str, words: Sequence[str]) -> None:
    """Mount the disk of a handle at a new folder, which is made; format the disk if it is blank."""
    refuse_no_device(disk)
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
        system_calls.set_mount_attributes(tree, 0, 0, system_calls.PROPAGATION_PRIVATE)
        with opened_below(parent, (name,), DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as target:
            system_calls.attach_tree(tree, target)
    except HostError:
        raise
    except OSError as error:
        raise HostError.because(error, f"{resolved_path(disk)} cannot be mounted") from error
    finally:
        os.close(tree)


def _content(disk: int) -> str:
    """Return what the disk holds, in words; empty if nothing is known of it."""
    opened = _opened(disk, os.O_RDONLY)
    try:
        content = read_content(opened, os.lseek(opened, 0, os.SEEK_END))
    finally:
        os.close(opened)
    if content.why_unread:
        raise HostError(errno.EIO, f"{resolved_path(disk)} cannot be formatted or mounted: {content.why_unread}.")
    if not content.signatures:
        return ""
    known = content.file_system
    return known.name if known is not None else "unknown data, probably partitions"


def _format(disk: int, fs_type: str) -> None:
    # Claimed for a moment: that shows whether somebody uses it. mkfs claims it for itself. The lock keeps udev away.
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
    """Return a detached mount."""
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
    # The name may mean another device by now. Some file systems, such as btrfs, have a number of their own.
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
