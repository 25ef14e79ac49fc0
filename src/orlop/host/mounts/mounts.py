"""Bind a folder to a target with options, and unmount targets, by descriptors and with single system calls.

The options have words as in mount(8). Every option belongs to one mount, not to the file system: other mounts of the
same file system do not change. A bind has the restrictions of its source and those set here; no option can lift a
restriction of the source.

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
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, opened_below, path_by_descriptor, shown
from orlop.host.mounts import mount_table

MOST_STACKED: Final = 1000
"""Mounts on one target: with more, another process is mounting as fast as we unmount."""
NOT_A_MOUNT: Final = errno.EINVAL
_FAILED: Final = frozenset({errno.EIO, errno.ESHUTDOWN, errno.ENODEV, errno.ENXIO, errno.ESTALE})
"""Errors of a file system that cannot be used any more. Its mount must still be found, to be unmounted."""


# ---- the options of a mount: pure ------------------------------------------------------------------------------------


ATIME_MASK = 0x70


class AccessTimes(Enum):
    """When reading a file changes its access time; the value is the kernel's MOUNT_ATTR bits."""

    RELATIVE = 0x00
    NEVER = 0x10
    ALWAYS = 0x20


@dataclass(frozen=True, slots=True)
class MountOptions:
    read_only: bool = False
    no_suid: bool = True
    no_devices: bool = True
    no_exec: bool = False
    no_symlinks: bool = False
    """Symbolic links inside are not followed."""
    access_times: AccessTimes | None = None
    """None: as on the source."""
    no_folder_access_times: bool = False

    def to_set(self) -> int:
        """Return the kernel's MOUNT_ATTR bits to set."""
        bits = sum(bit for name, bit in BITS.items() if getattr(self, name))
        return bits | (self.access_times.value if self.access_times else 0)

    def to_clear(self) -> int:
        """Return the kernel's MOUNT_ATTR bits to clear."""
        # The kernel refuses a new choice of access times unless the old one is cleared in the same call.
        return ATIME_MASK if self.access_times else 0

    def fulfil(self, requested: MountOptions) -> bool:
        """Return whether a mount with these options satisfies a request; its source may have added restrictions."""
        restricted = all(getattr(self, name) for name in BITS if getattr(requested, name))
        times = requested.access_times in {None, self.access_times}
        return restricted and times and self.read_only == requested.read_only

    @classmethod
    def from_statvfs(cls, flags: int) -> MountOptions:
        """Return the options that statvfs(3) reports for a mount: its own and those of its file system together."""
        choices = {name: bool(flags & bit) for name, bit in STATVFS_BITS.items()}
        return cls(**choices, access_times=_access_times(flags))

    def words(self) -> tuple[str, ...]:
        """Return the options as words, which `parse_mount_options` parses to the same options."""
        chosen = (word for word, change in WORDS.items() if word != "rw" and _holds(self, change))
        return ("rw", *chosen) if not self.read_only else tuple(chosen)


BITS = {
    "read_only": 0x01,
    "no_suid": 0x02,
    "no_devices": 0x04,
    "no_exec": 0x08,
    "no_folder_access_times": 0x80,
    "no_symlinks": 0x200000,
}

# statvfs numbers some options differently from mount_setattr.
STATVFS_BITS = {
    "read_only": 0x01,
    "no_suid": 0x02,
    "no_devices": 0x04,
    "no_exec": 0x08,
    "no_folder_access_times": 0x800,
    "no_symlinks": 0x2000,
}
STATVFS_NO_ATIME, STATVFS_RELATIVE_ATIME = 0x400, 0x1000

OptionChange = tuple[str, bool | AccessTimes]
WORDS: dict[str, OptionChange] = {
    "ro": ("read_only", True),
    "rw": ("read_only", False),
    "nosuid": ("no_suid", True),
    "nodev": ("no_devices", True),
    "noexec": ("no_exec", True),
    "nosymfollow": ("no_symlinks", True),
    "noatime": ("access_times", AccessTimes.NEVER),
    "relatime": ("access_times", AccessTimes.RELATIVE),
    "strictatime": ("access_times", AccessTimes.ALWAYS),
    "nodiratime": ("no_folder_access_times", True),
}


class UnknownMountOption(ValueError):
    """A word is not a mount option; the sentence lists the options."""


def parse_mount_options(words: Iterable[str], start: MountOptions | None = None) -> MountOptions:
    """Parse words of mount(8), applied to `start`. Later words win, but `ro` wins over every `rw`."""
    options = start or MountOptions()
    read_only = options.read_only
    for word in words:
        if word not in WORDS:
            raise UnknownMountOption(f"The mount option {word!r} is unknown. There are: {', '.join(WORDS)}.")
        change: dict[str, Any] = dict([WORDS[word]])
        options = replace(options, **change)
        # A caller that asked for `ro` relies on it, so a later `rw` must not lift it.
        read_only = read_only or options.read_only
    return replace(options, read_only=read_only)


def _access_times(statvfs_flags: int) -> AccessTimes:
    if statvfs_flags & STATVFS_NO_ATIME:
        return AccessTimes.NEVER
    return AccessTimes.RELATIVE if statvfs_flags & STATVFS_RELATIVE_ATIME else AccessTimes.ALWAYS


def _holds(options: MountOptions, change: OptionChange) -> bool:
    name, value = change
    return bool(getattr(options, name) == value)


# ---- mounting --------------------------------------------------------------------------------------------------------


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
