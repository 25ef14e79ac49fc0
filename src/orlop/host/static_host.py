"""The seam between static volumes and their machine: folders of disks, and what wipes the disks.

`static_disks/linux_static_host` is the real machine, `testing/fake_host` a model of it; both pass the same contract
tests. Every call blocks and raises HostError with the `errno` documented here. An entry is always found again by folder
and name, and everything that changes a disk first checks, on what it has opened, that it is the disk that is meant.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from orlop.host.static_disks.disk_entries import DiskEntry


class WipedDevice(Protocol):
    """A block device that is held exclusively, to be overwritten. Nothing can mount it or format it meanwhile."""

    @property
    def bytes(self) -> int: ...

    @property
    def recognized_by(self) -> str:
        """Return the identity of the device; if it has none, what it is recognized by until the machine restarts."""

    def zero(self, start: int, count: int) -> None:
        """Overwrite a part with zeros."""

    def overwrite_randomly(self, start: int, count: int) -> None:
        """Overwrite a part with random bytes."""

    def discard(self, start: int, count: int) -> None:
        """Report a part as unused to the device. EOPNOTSUPP: it does not support that."""

    def flush(self) -> None:
        """Make everything written survive a loss of power."""


class StaticHost(Protocol):
    def configuration_files(self, folder: str) -> dict[str, str]:
        """Return the files of a folder, by name: those of a ConfigMap volume, or plain ones. ENOENT, …: unreadable."""

    def survey(self, folder: str, is_wanted: Callable[[str], bool]) -> tuple[DiskEntry, ...]:
        """Return the entries whose names are wanted, in order. ENOENT, …: the folder cannot be read."""

    def entry(self, folder: str, name: str) -> DiskEntry:
        """Return one entry. ENOENT: there is none."""

    def held_device(self, folder: str, name: str, identity: str) -> AbstractContextManager[WipedDevice]:
        """Hold the block device of an entry exclusively in this context.

        ENOENT: there is no such entry. ENODEV: it is not the device with this identity (empty: unknown). EBUSY:
        something uses it.
        """

    def empty_folder(self, folder: str, name: str, identity: str, stop: threading.Event) -> None:
        """Erase everything in the folder of an entry, for good when the function returns.

        ENOENT, ENODEV, EBUSY: as `held_device`. EIO, ENOTEMPTY: something is left. ECANCELED: it was stopped.
        """

    def run_cleaner(self, folder: str, name: str, identity: str, words: Sequence[str], stop: threading.Event) -> None:
        """Run the admin's command on the block device of an entry. The variable LOCAL_PV_BLKDEVICE is its path.

        ENOENT, ENODEV, EBUSY: as `held_device`, also afterwards. EIO: it failed. ECANCELED: it was stopped.
        """
