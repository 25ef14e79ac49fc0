"""The real machine behind static volumes: keeps the contract of `StaticHost`.

Before a disk is changed, in this order: open it → lock it, so that nothing else probes or wipes it → for a device, open
it exclusively → check that it is the disk that is meant → check that nothing uses it. All of that holds until the wipe
ends, so there is no moment in which another disk could take its place. An admin's command is the exception: programs
such as wipefs and mkfs claim the device themselves, so it is released just before and checked again afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Final

from orlop.foundation.clock import Clock
from orlop.host.block import block_wipe
from orlop.host.block.block_devices import BlockDevices, opened_device
from orlop.host.block.device_rules import BlockDevice, DeviceLimits
from orlop.host.erase.empty_folder import empty_folder
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, opened_below, opened_root
from orlop.host.kernel.io_pressure import IoPressure
from orlop.host.kernel.programs import run_until_stopped
from orlop.host.mounts.mount_table import PROC, read_all_namespaces
from orlop.host.static_disks.configuration_files import read_configuration_files
from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind, why_another
from orlop.host.static_disks.disk_uses import all_uses, folder_uses
from orlop.host.static_disks.entry_survey import EntrySurvey

DEVICE_VARIABLE: Final = "LOCAL_PV_BLKDEVICE"


class LinuxWipedDevice:
    def __init__(self, descriptor: int, size: int, recognized_by: str, random: Random) -> None:
        self._descriptor = descriptor
        self._random = random
        self.bytes = size
        self.recognized_by = recognized_by

    def zero(self, start: int, count: int) -> None:
        block_wipe.zero_out(self._descriptor, start, count)

    def overwrite_randomly(self, start: int, count: int) -> None:
        block_wipe.overwrite_randomly(self._descriptor, start, count, self._random)

    def discard(self, start: int, count: int) -> None:
        block_wipe.discard(self._descriptor, start, count)

    def flush(self) -> None:
        block_wipe.flush(self._descriptor)


class LinuxStaticHost:
    """`environment` is that of the admin's commands."""

    def __init__(self, clock: Clock, random: Random, environment: Mapping[str, str]) -> None:
        self._clock = clock
        self._random = random
        self._environment = environment
        self._devices = BlockDevices(DeviceLimits(allow_loop_devices=True))
        self._survey = EntrySurvey(self._devices)

    def configuration_files(self, folder: str) -> dict[str, str]:
        return read_configuration_files(folder)

    def survey(self, folder: str, is_wanted: Callable[[str], bool]) -> tuple[DiskEntry, ...]:
        return self._survey.read(folder, is_wanted)

    def entry(self, folder: str, name: str) -> DiskEntry:
        return self._survey.read_one(folder, name)

    @contextmanager
    def held_device(self, folder: str, name: str, identity: str) -> Iterator[LinuxWipedDevice]:
        entry, device = self._device_of(folder, name, identity)
        with self._held(device) as descriptor:
            yield LinuxWipedDevice(descriptor, device.bytes, entry.recognized_by, self._random)
            block_wipe.reread_partitions(descriptor)

    def empty_folder(self, folder: str, name: str, identity: str, stop: threading.Event) -> None:
        with (
            opened_root(folder) as root,
            opened_below(root, (name,), DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as opened,
        ):
            _lock(opened, f"{folder}/{name}")
            entry = self._survey.read_one(folder, name)
            _refuse_another(entry, identity, f"{folder}/{name}")
            seen = read_all_namespaces()
            located = seen.folder_of(opened)
            # The place was opened first: if something was mounted there since, it is not what the entry shows.
            if f"{located.device}{located.path}" != entry.place:
                raise HostError(errno.ENODEV, f"What is mounted at {folder}/{name} has just changed.")
            if uses := folder_uses(located, seen, own_is_host=_own_is_host()):
                raise HostError(errno.EBUSY, f"{folder}/{name} is in use: {'; '.join(uses)}.")
            with IoPressure(self._clock) as pressure:
                empty_folder(opened, stop, pause_seconds=pressure.pause_seconds)

    def run_cleaner(self, folder: str, name: str, identity: str, words: Sequence[str], stop: threading.Event) -> None:
        _entry, device = self._device_of(folder, name, identity)
        with self._held(device):
            pass  # nothing uses it at this moment
        run_until_stopped(words, {**self._environment, DEVICE_VARIABLE: device.path}, stop)
        with self._held(device) as descriptor:
            block_wipe.flush(descriptor)

    def _device_of(self, folder: str, name: str, identity: str) -> tuple[DiskEntry, BlockDevice]:
        entry = self.entry(folder, name)
        if entry.kind is not EntryKind.DEVICE:
            raise HostError(errno.ENODEV, f"{folder}/{name} is {entry.why or entry.kind.value}, and no block device.")
        _refuse_another(entry, identity, f"{folder}/{name}")
        device = self._devices.described([entry.device]).get(entry.device)
        if device is None:
            raise HostError(errno.ENODEV, f"The block device of {folder}/{name} is gone.")
        return entry, device

    @contextmanager
    def _held(self, device: BlockDevice) -> Iterator[int]:
        with opened_device(device, os.O_RDONLY) as locked:
            _lock(locked, device.path)
            parts = list(self._devices.described(device.partitions).values())
            number = os.fstat(locked).st_rdev
            # Before the exclusive open, whose error names no user.
            if uses := all_uses([device, *parts], number, read_all_namespaces().tables):
                raise HostError(errno.EBUSY, f"{device.path} is in use: {'; '.join(uses)}.")
            with _exclusively(device) as descriptor:
                yield descriptor


@contextmanager
def _exclusively(device: BlockDevice) -> Iterator[int]:
    with ExitStack() as opened:
        try:
            descriptor = opened.enter_context(opened_device(device, os.O_RDWR | os.O_EXCL))
        except HostError as error:
            if error.errno != errno.EBUSY:
                raise
            sentence = f"{device.path} is in use, perhaps in another mount namespace that cannot be seen."
            raise HostError(errno.EBUSY, sentence) from error
        yield descriptor


def _lock(descriptor: int, path: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise HostError(
            errno.EBUSY, f"{path} is locked by another program, which may be probing or wiping it."
        ) from error


def _refuse_another(entry: DiskEntry, identity: str, path: str) -> None:
    if why := why_another(entry, identity):
        raise HostError(errno.ENODEV, f"{path} {why}. Put the old one back, or release the volume as it is.")


def _own_is_host() -> bool:
    """Return whether our mount namespace is that of the first process, which is the host's with hostPID."""
    try:
        return os.readlink(f"{PROC}/1/ns/mnt") == os.readlink(f"{PROC}/self/ns/mnt")
    except OSError:
        return True


# ---- the configuration ----------------------------------------------------------------------------------------------
