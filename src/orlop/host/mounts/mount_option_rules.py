"""The options of our bind mounts, and their words as in mount(8). Pure.

Every option belongs to one mount, not to the file system: other mounts of the same file system do not change. A bind
mount has the restrictions of its source and those set here; no option can lift a restriction of the source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

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
