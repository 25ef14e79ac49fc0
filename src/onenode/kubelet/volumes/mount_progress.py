"""How far the volumes of one pod are, for the pod's worker and its events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.desired_volumes_rules import PodDesire
from onenode.kubelet.volumes.steps import event_texts
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_values import Actual, Desired, DesiredMount, MountState, VolumeMode


@dataclass(frozen=True, slots=True)
class MountedVolume:
    """`path` is where the volume is on this machine, `names` the same below kubelet's directory."""

    names: Names
    path: str
    read_only: bool
    is_device: bool = False
    """A raw block volume: there is a device's file, and no folder."""


@dataclass(frozen=True, slots=True)
class MountProgress:
    """By the names the pod has for them. `is_read`: the claims were read since the pod last changed."""

    wanted: tuple[str, ...] = ()
    mounted: Mapping[str, MountedVolume] = field(default_factory=dict)
    unattached: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    is_read: bool = False

    @property
    def is_ready(self) -> bool:
        return self.is_read and not self.errors and not self.unmounted

    @property
    def is_settled(self) -> bool:
        """Whether waiting any longer is of no use: all is there, or something cannot be had."""
        return self.is_ready or (self.is_read and bool(self.errors))

    @property
    def unmounted(self) -> tuple[str, ...]:
        return tuple(name for name in self.wanted if name not in self.mounted)

    def text(self, cause: str) -> str:
        return event_texts.not_ready(self.unmounted, self.unattached, self.errors, cause)


@dataclass(frozen=True, slots=True)
class VolumeInPod:
    """A volume that is mounted for a pod, as its driver knows it; `names` are the pod's own for it."""

    pod_uid: str
    names: tuple[str, ...]
    driver: str
    handle: str
    path: str


def volumes_in_pods(desired: Desired, actual: Actual, path_of: Callable[[Names], str]) -> tuple[VolumeInPod, ...]:
    mounts = (mount for pods in desired.values() for mount in pods.values() if mount.volume in actual)
    return tuple(
        VolumeInPod(mount.pod.uid, mount.outer_names, mount.spec.driver, mount.spec.handle, path_of(_place(mount)))
        for mount in mounts
        if _is_mounted(mount, actual)
    )


def _place(mount: DesiredMount) -> Names:
    if mount.spec.mode is VolumeMode.BLOCK:
        return volume_paths.block_device(mount.spec.name, mount.pod.uid)
    return volume_paths.mount_target(mount.pod.uid, mount.spec.name)


def volumes_of(desire: PodDesire, actual: Actual, path_of: Callable[[Names], str], *, is_read: bool) -> MountProgress:
    mounted: dict[str, MountedVolume] = {}
    unattached: list[str] = []
    for mount in desire.mounts:
        if mount.volume not in actual:
            unattached += mount.outer_names
        elif _is_mounted(mount, actual):
            mounted |= dict.fromkeys(mount.outer_names, _mounted(mount, path_of))
    return MountProgress(desire.wanted, mounted, tuple(unattached), desire.errors, is_read)


def _mounted(mount: DesiredMount, path_of: Callable[[Names], str]) -> MountedVolume:
    names = _place(mount)
    return MountedVolume(names, path_of(names), mount.read_only, mount.spec.mode is VolumeMode.BLOCK)


def _is_mounted(mount: DesiredMount, actual: Actual) -> bool:
    found = actual[mount.volume].mounts.get(mount.pod.uid)
    return found is not None and found.state is MountState.MOUNTED
