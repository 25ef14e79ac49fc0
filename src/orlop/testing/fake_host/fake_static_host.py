"""Folders of disks on a fake machine, as one process uses them: keeps the contract of `StaticHost`.

machine.static_folders["/mnt/disks"] = {"a": FakeStaticDisk(EntryKind.DEVICE, 100 << 30)}
host = FakeStaticHost(machine)

The content of a device is its parts that hold data, in pieces of one block; that of a folder its names.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.static_disks.disk_entries import DEVICE_SESSION, FOLDER_SESSION, DiskEntry, EntryKind, why_another
from orlop.host.static_host import StaticHost
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.fake_host.machine import FakeMachine
from orlop.testing.kill_points import KillPoints

BLOCK: Final = 4096
_numbers: Final = count(1)


@dataclass(eq=False, slots=True)
class FakeStaticDisk:
    """What is behind an entry. The same disk may be behind several."""

    kind: EntryKind
    bytes: int = 0
    identity: str = ""
    data: set[int] = field(default_factory=set)
    """The positions of blocks of a device that hold data."""
    names: set[str] = field(default_factory=set)
    """The names in a folder."""
    used_by: tuple[str, ...] = ()
    """Uses that exclude a wipe."""
    offered_though_used: bool = True
    """Kubelet uses it for a pod: it stays a volume."""
    is_held: bool = False
    why: str = ""
    file_system: str = ""
    can_discard: bool = True
    number: int = field(default_factory=lambda: next(_numbers))
    boot: str = "b1"
    """The start of the machine since which the kernel knows it."""


class FakeWipedDevice:
    def __init__(self, acts: Acts, disk: FakeStaticDisk) -> None:
        self._acts = acts
        self._disk = disk
        self._unflushed: list[range] = []

    @property
    def bytes(self) -> int:
        return self._disk.bytes

    @property
    def recognized_by(self) -> str:
        return self._disk.identity or _session(self._disk)

    def zero(self, start: int, count: int) -> None:
        self._overwrite("zero", start, count)

    def overwrite_randomly(self, start: int, count: int) -> None:
        self._overwrite("overwrite_randomly", start, count)

    def discard(self, start: int, count: int) -> None:
        if not self._disk.can_discard:
            refuse(errno.EOPNOTSUPP, "The device does not support discard")
        self._overwrite("discard", start, count)

    def flush(self) -> None:
        with self._acts.change("flush", "flush"):
            for part in self._unflushed:
                self._disk.data -= {at for at in self._disk.data if at in part}
            self._unflushed.clear()

    def _overwrite(self, function: str, start: int, count: int) -> None:
        with self._acts.change(function, f"{function} {count} at {start}"):
            if start < 0 or start + count > self._disk.bytes:
                refuse(errno.EINVAL, f"{count} bytes at {start} cannot be overwritten")
            # What was written is lost with the power until it is flushed.
            self._unflushed.append(range(start, start + count))


class FakeStaticHost:
    """`clean` is what the admin's commands do to a disk."""

    def __init__(self, machine: FakeMachine, points: KillPoints | None = None) -> None:
        self._machine = machine
        self._acts = Acts(machine, points or KillPoints())
        self.commands: list[tuple[str, ...]] = []
        self.clean: Callable[[FakeStaticDisk], None] = lambda disk: disk.data.clear()

    def configuration_files(self, folder: str) -> dict[str, str]:
        with self._acts.look("read_configuration"):
            files = self._machine.configuration_files.get(folder)
            if files is None:
                refuse(errno.ENOENT, f"The folder {folder} cannot be opened")
            return dict(files)

    def survey(self, folder: str, is_wanted: Callable[[str], bool]) -> tuple[DiskEntry, ...]:
        with self._acts.look("survey_disks"):
            disks = self._machine.static_folders.get(folder)
            if disks is None:
                refuse(errno.ENOENT, f"The folder {folder} cannot be opened")
            return tuple(_entry(name, disk) for name, disk in sorted(disks.items()) if is_wanted(name))

    def entry(self, folder: str, name: str) -> DiskEntry:
        with self._acts.look("disk_entry"):
            return _entry(name, self._disk(folder, name))

    @contextmanager
    def held_device(self, folder: str, name: str, identity: str) -> Iterator[FakeWipedDevice]:
        with self._acts.look("hold_device"):
            disk = self._fit_device(folder, name, identity)
            disk.is_held = True
        try:
            yield FakeWipedDevice(self._acts, disk)
        finally:
            disk.is_held = False

    def empty_folder(self, folder: str, name: str, identity: str, stop: threading.Event) -> None:
        with self._acts.look("empty_folder"):
            disk = self._fit(folder, name, identity)
            if disk.kind not in {EntryKind.MOUNT, EntryKind.FOLDER}:
                refuse(errno.ENOTDIR, f"{folder}/{name} is no folder")
        for each in sorted(disk.names):
            if stop.is_set():
                raise HostError(errno.ECANCELED, "The erasure was stopped.")
            with self._acts.change("erase_entry", f"erase {name}/{each}"):
                disk.names.discard(each)

    def run_cleaner(self, folder: str, name: str, identity: str, words: Sequence[str], stop: threading.Event) -> None:
        with self._acts.look("begin_cleaner"):
            disk = self._fit_device(folder, name, identity)
        if stop.is_set():
            raise HostError(errno.ECANCELED, f"The command {words[0]} was stopped.")
        with self._acts.change("run_cleaner", f"run {words[0]} on {name}"):
            self.commands.append(tuple(words))
            self.clean(disk)

    def _disk(self, folder: str, name: str) -> FakeStaticDisk:
        disk = self._machine.static_folders.get(folder, {}).get(name)
        if disk is None:
            refuse(errno.ENOENT, f"There is no entry {name!r} in {folder}")
        return disk

    def _fit(self, folder: str, name: str, identity: str) -> FakeStaticDisk:
        disk = self._disk(folder, name)
        if why := why_another(_entry(name, disk), identity):
            refuse(errno.ENODEV, f"{folder}/{name} {why}")
        if disk.used_by or disk.is_held:
            raise HostError(
                errno.EBUSY, f"{folder}/{name} is in use: {'; '.join(disk.used_by) or 'it is being wiped'}."
            )
        return disk

    def _fit_device(self, folder: str, name: str, identity: str) -> FakeStaticDisk:
        disk = self._disk(folder, name)
        if disk.kind is not EntryKind.DEVICE:
            refuse(errno.ENODEV, f"{folder}/{name} is no block device")
        return self._fit(folder, name, identity)


def _session(disk: FakeStaticDisk) -> str:
    match disk.kind:
        case EntryKind.DEVICE:
            return f"{DEVICE_SESSION}:{disk.boot}:{disk.number}"
        case EntryKind.MOUNT | EntryKind.FOLDER:
            return f"{FOLDER_SESSION}:{disk.boot}:{disk.number}"
    return ""


def _entry(name: str, disk: FakeStaticDisk) -> DiskEntry:
    is_device = disk.kind is EntryKind.DEVICE
    is_folder = disk.kind in {EntryKind.MOUNT, EntryKind.FOLDER}
    return DiskEntry(
        name=name,
        kind=disk.kind,
        bytes=disk.bytes,
        used_bytes=len(disk.names) * BLOCK,
        identity=disk.identity,
        session=_session(disk),
        place=f"8:{disk.number}" if is_device else f"9:{disk.number}/" if is_folder else "",
        device=f"sd{disk.number}" if is_device else "",
        file_system=disk.file_system,
        used_by=() if disk.offered_though_used else disk.used_by,
        why=disk.why,
    )


def as_static_host(host: FakeStaticHost) -> StaticHost:
    """Prove to the type checker that the fake implements the protocol."""
    return host
