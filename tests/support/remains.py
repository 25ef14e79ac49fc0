"""What is left of volumes and pods on a machine: mounts, folders and files, loop devices, processes.

One look for all four, of a fake machine or of this one; what was there before does not count.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support.up_process import Up
from support.volume_worlds import World


@dataclass(frozen=True)
class Remains:
    mounts: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """And files."""
    loop_devices: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()


NOTHING = Remains()


def remains_of_fake(world: World, processes: Iterable[str]) -> Remains:
    """Below kubelet's folder, and what the driver has in its own books; a fake machine has no loop devices."""
    mounted = {"/".join(at) for at, stack in world.machine.mounts.items() if stack}
    rest = [name for name in world.left() if name not in mounted]
    return Remains(tuple(sorted(mounted)), tuple(rest), (), tuple(sorted(processes)))


def loop_devices() -> frozenset[str]:
    listed = subprocess.run(["losetup", "--list", "--noheadings", "--output=NAME"], check=True, capture_output=True)
    return frozenset(listed.stdout.decode().split())


def remains_of_up(up: Up, loops_before: frozenset[str], expected: Iterable[int] = ()) -> Remains:
    """`expected` are processes that should be there; the driver's own store is its own, and is no remains."""
    kubelet = up.state / "kubelet"
    mounts = [path for path in up.mounts() if path != str(up.state)]
    below = [*_below(kubelet / "pods"), *_below(kubelet / "processes")]
    staged = [path for driver in _below(kubelet / "plugins/kubernetes.io/csi") for path in _below(driver)]
    processes = [words for number, words in up.processes().items() if number not in set(expected)]
    return Remains(
        tuple(sorted(mounts)),
        tuple(str(path.relative_to(kubelet)) for path in sorted([*below, *staged])),
        tuple(sorted(loop_devices() - loops_before)),
        tuple(sorted(processes)),
    )


def _below(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
