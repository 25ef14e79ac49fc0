"""Bind a folder to a target and unmount targets, by descriptors and with single system calls.

A bind: clone the source's mount (without what is mounted below it), set its options and make it private, all while
nobody can see it; then attach it. So it has its options from the first instant, mounts made later on the source do not
appear in it, and the target's peers (the host, when we run in a container) get it in the same moment. A kill in between
leaves nothing: a clone that was not attached goes with its descriptor.

This module must not follow a symbolic link in the last name, must not detach lazily (a mount in use must not be
reported as gone) and must not start programs.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, opened_below, path_by_descriptor, shown
from orlop.host.mounts import mount_table
from orlop.host.mounts.mount_option_rules import MountOptions

MOST_STACKED: Final = 1000
"""Mounts on one target: with more, another process is mounting as fast as we unmount."""
NOT_A_MOUNT: Final = errno.EINVAL
_FAILED: Final = frozenset({errno.EIO, errno.ESHUTDOWN, errno.ENODEV, errno.ENXIO, errno.ESTALE})
"""Errors of a file system that cannot be used any more. Its mount must still be found, to be unmounted."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file or folder it is, whatever its names: two mounts of one folder have the same."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class MountedAt:
    """What is mounted at a target: the topmost mount, where there are several."""

    root: FileIdentity
    options: MountOptions
    is_removed: bool = False
    """The folder was removed since: it is empty for ever, and has no name but the mount."""
    is_failed: bool = False
    """Its file system failed, as when its disk is gone: `root` is `UNKNOWN`, and the options mean nothing."""


UNKNOWN: Final = FileIdentity(0, 0)
"""Of a file that cannot be asked for its identity; no file has it."""


def bind(source: int, target: int, options: MountOptions) -> None:
    """Bind the folder of one descriptor to that of the other."""
    try:
        tree = system_calls.clone_tree(source)
    except OSError as error:
        raise HostError.because(error, "The folder cannot be bound: its mount cannot be cloned") from error
    try:
        # Options first: once attached, the mount is visible, and a pod must never see it without them.
        _set_options(tree, options)
        _attach(tree, target)
    finally:
        os.close(tree)


def mounted_at(parent: int, name: str) -> MountedAt | None:
    """Return the topmost mount at a name; None if nothing is mounted there, or there is no such name."""
    if not is_mount_point(parent, name):
        return None
    try:
        with opened_below(parent, (name,), DescriptorUse.HANDLE, Mounts.CROSSED) as root:
            return _mounted(root)
    except HostError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def _mounted(root: int) -> MountedAt:
    try:
        options, is_removed = MountOptions.from_statvfs(os.statvfs(root).f_flag), os.fstat(root).st_nlink == 0
        return MountedAt(identity_of(root), options, is_removed)
    except OSError as error:
        if error.errno not in _FAILED:
            raise HostError.because(error, f"What is mounted at {shown(root)} cannot be read") from error
        return MountedAt(UNKNOWN, MountOptions(), is_failed=True)


def is_mount_point(parent: int, name: str) -> bool:
    """Return whether something is mounted at a name; also correct for a bind within one file system."""
    try:
        return system_calls.statx(parent, name).is_mount_root
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in _FAILED and _mount_number(parent, name) != _mount_number(parent):
            return True
        raise HostError.because(error, f"Cannot check whether something is mounted at {name}") from error


def _mount_number(parent: int, name: str = "") -> int:
    """Return which mount a name is on."""
    with opened_below(parent, (name,) if name else (), DescriptorUse.HANDLE, Mounts.CROSSED) as place:
        return mount_table.mount_number(place)


def unmount(parent: int, name: str) -> int:
    """Unmount everything there, the topmost first; return how many mounts that were.

    HostError: something is still mounted; call again.
    """
    for count in range(MOST_STACKED):
        if not is_mount_point(parent, name):
            return count
        _unmount_topmost(parent, name)
    raise HostError(
        errno.EBUSY,
        f"{shown(parent)}/{name} cannot be unmounted: another process keeps mounting there. Find it and stop it.",
    )


def identity_of(descriptor: int) -> FileIdentity:
    status = os.fstat(descriptor)
    return FileIdentity(status.st_dev, status.st_ino)


def _set_options(tree: int, options: MountOptions) -> None:
    try:
        system_calls.set_mount_attributes(tree, options.to_set(), options.to_clear(), system_calls.PROPAGATION_PRIVATE)
    except OSError as error:
        words = ",".join(options.words())
        raise HostError.because(error, f"The folder cannot be bound with the options {words}") from error


def _attach(tree: int, target: int) -> None:
    try:
        system_calls.attach_tree(tree, target)
    except OSError as error:
        raise HostError.because(error, "The folder cannot be bound: it cannot be attached to its target") from error


def _unmount_topmost(parent: int, name: str) -> None:
    try:
        system_calls.umount2(path_by_descriptor(parent, name), system_calls.UNMOUNT_NO_FOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        # EINVAL: another process unmounted it first. But it is also the error for a mount that this namespace may not
        # remove, which is then still there.
        if error.errno == NOT_A_MOUNT and not is_mount_point(parent, name):
            return
        raise _not_unmounted(parent, name, error) from error


def _not_unmounted(parent: int, name: str, error: OSError) -> HostError:
    path = f"{shown(parent)}/{name}"
    if error.errno != errno.EBUSY:
        return HostError.because(error, f"{path} cannot be unmounted")
    # Kubelet repeats the call for as long as it takes and logs no reason: this sentence is all that an admin gets.
    advice = f"a process stands in it or has a file of it open; 'fuser --verbose --mount {path}' shows which"
    return HostError(errno.EBUSY, f"{path} cannot be unmounted: {advice}.")
