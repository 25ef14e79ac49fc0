"""The node host of one process on a fake machine, until the process ends or is killed."""

from __future__ import annotations

import errno
from dataclasses import replace

from orlop.host.mounts.mounts import AccessTimes, MountOptions
from orlop.host.node_host import FolderPlace, Names, NodeHost
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.fake_host.kubelet_dir import FakeKubeletDir, shown
from orlop.testing.fake_host.machine import FakeMachine, FakeMount
from orlop.testing.fake_host.workdir import FakeWorkdir
from orlop.testing.kill_points import KillPoints


class FakeNodeHost:
    def __init__(self, machine: FakeMachine, points: KillPoints | None = None) -> None:
        self._acts = Acts(machine, points or KillPoints())
        self._machine = machine
        self.workdir = FakeWorkdir(self._acts)
        self.kubelet_dir = FakeKubeletDir(self._acts)

    def bind(self, place: FolderPlace, target: Names, options: MountOptions) -> None:
        machine = self._machine
        with self._acts.change("bind", f"bind {place} at {shown(target)}"):
            folder = machine.folders.get(place)
            if folder is None or target not in machine.kubelet_folders:
                refuse(errno.ENOENT, f"The folder {place} cannot be bound at {shown(target)}")
            mount = FakeMount(folder, folder.identity, _as_found(options))
            machine.mounts.setdefault(target, []).append(mount)

    def mount_image(self, place: FolderPlace, file_system: str, target: Names, options: MountOptions) -> None:
        machine = self._machine
        with self._acts.change("mount_image", f"mount the image of {place} at {shown(target)}"):
            folder = machine.folders.get(place)
            if folder is None or folder.image is None or target not in machine.kubelet_folders:
                refuse(errno.ENOENT, f"The image of {place} cannot be mounted at {shown(target)}")
            if folder.is_damaged or folder.image.file_system != file_system:
                refuse(errno.EUCLEAN, f"The file system of {place} cannot be mounted")
            mount = FakeMount(folder, folder.image_root, _as_found(options))
            machine.mounts.setdefault(target, []).append(mount)


def as_node_host(host: FakeNodeHost) -> NodeHost:
    """Prove to the type checker that the fake implements the protocol."""
    return host


def _as_found(options: MountOptions) -> MountOptions:
    """Return the options as the mount table shows them: with the default rule for access times."""
    return replace(options, access_times=options.access_times or AccessTimes.RELATIVE)
