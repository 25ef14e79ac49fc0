"""What is left of volumes and pods on a machine: mounts, folders and files, loop devices, processes.

One look for all four, of a fake machine or of this one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support.kubelet.volume_worlds import VolumeWorld
from support.processes.up_process import Up


@dataclass(frozen=True)
class Remains:
    mounts: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """And files."""
    loop_devices: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()

    @property
    def mounts_of_drivers(self) -> tuple[str, ...]:
        """Without its way to the API, which every pod has mounted."""
        return tuple(path for path in self.mounts if "/kubernetes.io~projected/" not in path)


NOTHING = Remains()


def remains_of_fake(world: VolumeWorld, processes: Iterable[str]) -> Remains:
    """Below kubelet's folder, and what the driver has in its own books."""
    mounted = {"/".join(at) for at, stack in world.machine.mounts.items() if stack}
    rest = [name for name in world.left() if name not in mounted]
    return Remains(tuple(sorted(mounted)), tuple(rest), tuple(sorted(world.machine.loops)), tuple(sorted(processes)))


def remains_of_up(up: Up, expected: Iterable[str]) -> Remains:
    """`expected` are processes that should be there; what a driver has stored is its own, and is no remains."""
    kubelet = up.state / "kubelet"
    staged = [path for driver in _below(kubelet / "plugins/kubernetes.io/csi") for path in _below(driver)]
    folders = [*_below(kubelet / "pods"), *_below(kubelet / "logs"), *staged]
    processes = [words for words in up.processes().values() if words not in set(expected)]
    return Remains(
        tuple(sorted(path for path in up.mounts() if path != str(up.state))),
        tuple(str(path.relative_to(kubelet)) for path in folders),
        tuple(loop_devices(up.folder)),
        tuple(sorted(processes)),
    )


def loop_devices(folder: Path) -> list[str]:
    """Of files below this folder."""
    words = ["losetup", "--list", "--noheadings", "--output=NAME,BACK-FILE"]
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(line for line in listed if f" {folder}/" in line)


def _below(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
