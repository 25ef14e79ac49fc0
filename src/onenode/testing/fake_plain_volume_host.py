"""Volumes of Kubernetes' own kinds on a fake machine: keeps the contract of `PlainVolumeHost` in `volume_host`."""

from __future__ import annotations

import errno
import posixpath
import threading
from collections.abc import Sequence

from onenode.host.payload_files import FileKind, FolderPermissions, HostPath, Names, Payload
from onenode.host.volume_host import PlainVolumeHost
from onenode.testing.fake_kubelet_machine import FakeKubeletMachine
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.kill_points import KillPoints


class FakePlainVolumeHost:
    """Each change is an effect that a kill may hit."""

    def __init__(self, machine: FakeKubeletMachine, points: KillPoints | None = None) -> None:
        self._machine = machine
        self._acts = Acts(machine, points or KillPoints())

    def make_on_disk(self, volume: Names, access: FolderPermissions) -> None:
        self._make_folders(volume[:-1])
        self._refuse_file(volume)
        if volume not in self._machine.kubelet_folders:
            with self._acts.change("make_on_disk", f"make volume {_shown(volume)}"):
                self._machine.kubelet_folders.add(volume)
                self._machine.access_of[volume] = access

    def make_in_memory(self, volume: Names, access: FolderPermissions, most_bytes: int) -> None:
        self._make_folders(volume)
        if not self._machine.mounts.get(volume):
            with self._acts.change("make_in_memory", f"mount memory at {_shown(volume)}"):
                self._machine.mount_something_else(volume)
                self._machine.access_of[volume] = access
                self._machine.memory_sizes[volume] = most_bytes

    def write_payload(self, volume: Names, payload: Payload, stamp: str, group: int | None) -> bool:
        _ = stamp, group
        for names in payload:
            if not names or names[0].startswith("..") or any(_is_unfit(name) for name in names):
                refuse(errno.EINVAL, f"{_shown(names)} is no path")
        with self._acts.look("payload_of"):
            self._refuse_missing(volume)
            if self._machine.payloads.get(volume) == payload:
                return False
        with self._acts.change("write_payload", f"write the files of {_shown(volume)}"):
            self._machine.payloads[volume] = dict(payload)
        return True

    def payload_of(self, volume: Names) -> dict[Names, bytes]:
        with self._acts.look("payload_of"):
            self._refuse_missing(volume)
            return {names: file.content for names, file in self._machine.payloads.get(volume, {}).items()}

    def make_nested_folders(self, volume: Names, folders: Sequence[Names]) -> None:
        self._refuse_missing(volume)
        for names in folders:
            if any(_is_unfit(name) for name in names):
                refuse(errno.EINVAL, f"{_shown(names)} is no path")
            self._make_folders((*volume, *names))

    def volumes_in(self, folder: Names) -> frozenset[str]:
        with self._acts.look("volumes_in"):
            everything = self._machine.kubelet_folders | self._machine.kubelet_files
            return frozenset(names[-1] for names in everything if names and names[:-1] == folder)

    def remove(self, volume: Names, stop: threading.Event) -> None:
        machine = self._machine
        if machine.mounts.get(volume):
            with self._acts.change("remove", f"unmount {_shown(volume)}"):
                if volume in machine.busy:
                    refuse(errno.EBUSY, f"{_shown(volume)} cannot be unmounted")
                machine.mounts.pop(volume)
                self._empty(volume)
        if volume in machine.kubelet_folders:
            with self._acts.change("remove", f"erase {_shown(volume)}"):
                if stop.is_set():
                    refuse(errno.ECANCELED, f"{_shown(volume)} is not erased")
                self._empty(volume)
                machine.kubelet_folders.discard(volume)

    def kind_at(self, path: HostPath) -> FileKind | None:
        with self._acts.look("kind_at"):
            return self._machine.host_files.get(posixpath.normpath(path.path))

    def make_host_folder(self, path: HostPath) -> None:
        with self._acts.change("make_host_folder", f"make {path.path}"):
            self._machine.host_files.setdefault(posixpath.normpath(path.path), FileKind.FOLDER)

    def make_host_file(self, path: HostPath) -> None:
        with self._acts.change("make_host_file", f"make {path.path}"):
            place = posixpath.normpath(path.path)
            if self._machine.host_files.get(posixpath.dirname(place)) is not FileKind.FOLDER:
                refuse(errno.ENOENT, f"{path.path} cannot be made")
            self._machine.host_files.setdefault(place, FileKind.FILE)

    def _make_folders(self, folder: Names) -> None:
        for depth in range(1, len(folder) + 1):
            part = folder[:depth]
            self._refuse_file(part)
            if part not in self._machine.kubelet_folders:
                with self._acts.change("make_folders", f"make folder {_shown(part)}"):
                    self._machine.kubelet_folders.add(part)

    def _empty(self, volume: Names) -> None:
        machine = self._machine
        below = {names for names in machine.kubelet_folders if names[: len(volume)] == volume and names != volume}
        machine.kubelet_folders -= below
        machine.kubelet_files -= {names for names in machine.kubelet_files if names[: len(volume)] == volume}
        machine.payloads.pop(volume, None)
        machine.access_of.pop(volume, None)
        machine.memory_sizes.pop(volume, None)

    def _refuse_file(self, names: Names) -> None:
        if names in self._machine.kubelet_files:
            refuse(errno.ENOTDIR, f"{_shown(names)} is no folder")

    def _refuse_missing(self, volume: Names) -> None:
        if volume not in self._machine.kubelet_folders:
            refuse(errno.ENOENT, f"{_shown(volume)} cannot be opened")


def as_plain_volume_host(host: FakePlainVolumeHost) -> PlainVolumeHost:
    """The type checker's proof that the seam is kept."""
    return host


def _is_unfit(name: str) -> bool:
    return not name or name in {".", ".."} or "/" in name or "\0" in name


def _shown(names: Names) -> str:
    return "/".join(names)
