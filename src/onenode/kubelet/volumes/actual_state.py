"""What this node knows of its volumes: the state that operations change, one volume at a time.

In memory alone: after a restart it is read off the disk (`reconstruction`). Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from onenode.kubelet.volumes.volume_values import (
    Actual,
    ActualMount,
    ActualVolume,
    Device,
    MountState,
    PodUid,
    UniqueName,
    VolumeSpec,
)
from orlop.foundation.quantity import Quantity


class ActualState:
    """`changed` is called after every change."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._volumes: dict[UniqueName, ActualVolume] = {}
        self._reconstructed: set[UniqueName] = set()
        self._changed = changed

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def volumes(self) -> Actual:
        return self._volumes

    def device(self, name: UniqueName) -> Device:
        volume = self._volumes.get(name)
        return volume.device if volume is not None else Device.NOT_MOUNTED

    def is_reconstructed(self, name: UniqueName) -> bool:
        """Whether its staging was found on disk, and not done anew since."""
        return name in self._reconstructed

    def mount(self, name: UniqueName, pod_uid: PodUid) -> ActualMount | None:
        volume = self._volumes.get(name)
        return volume.mounts.get(pod_uid) if volume is not None else None

    def mounts_of(self, pod_uid: PodUid) -> Iterator[tuple[UniqueName, ActualMount]]:
        for name, volume in self._volumes.items():
            if (mount := volume.mounts.get(pod_uid)) is not None:
                yield name, mount

    def has_failed_to_expand(self, name: UniqueName) -> bool:
        volume = self._volumes.get(name)
        return volume is not None and volume.has_failed_to_expand

    def has_trace_of(self, pod_uid: PodUid) -> bool:
        return any(True for _ in self.mounts_of(pod_uid))

    def is_used_by_others(self, name: UniqueName, pod_uid: PodUid) -> bool:
        volume = self._volumes.get(name)
        return volume is not None and any(other != pod_uid for other in volume.mounts)

    # ---- changing ------------------------------------------------------------------------------------------------

    def add(self, name: UniqueName, spec: VolumeSpec, *, attachable: bool) -> None:
        if name not in self._volumes:
            self._put(ActualVolume(name, spec, attachable=attachable))

    def note_first_size(self, name: UniqueName, size: Quantity) -> None:
        """Where none is known yet."""
        volume = self._volumes.get(name)
        if volume is not None and not (volume.size and volume.size.nanos):
            self._put(replace(volume, size=size))

    def set_size(self, name: UniqueName, size: Quantity) -> None:
        self._put(replace(self._volumes[name], size=size, has_failed_to_expand=False))

    def stop_expanding(self, name: UniqueName) -> None:
        self._put(replace(self._volumes[name], may_expand=False))

    def note_failed_expansion(self, name: UniqueName) -> None:
        self._put(replace(self._volumes[name], has_failed_to_expand=True))

    def set_device(self, name: UniqueName, device: Device) -> None:
        if device is not Device.UNCERTAIN:
            self._reconstructed.discard(name)
        self._put(replace(self._volumes[name], device=device))

    def set_mount(self, name: UniqueName, pod_uid: PodUid, spec: VolumeSpec, state: MountState) -> None:
        self._put_mount(name, ActualMount(pod_uid, spec, state))

    def mark_uncertain(self, name: UniqueName, pod_uid: PodUid) -> None:
        """After an unmount that failed: it may have been half done."""
        if (mount := self.mount(name, pod_uid)) is not None:
            self._put_mount(name, replace(mount, state=MountState.UNCERTAIN))

    def require_remount(self, name: UniqueName, pod_uid: PodUid) -> None:
        mount = self.mount(name, pod_uid)
        if mount is not None and not mount.remount_required:
            self._put_mount(name, replace(mount, remount_required=True))

    def drop_mount(self, name: UniqueName, pod_uid: PodUid) -> None:
        volume = self._volumes.get(name)
        if volume is not None and pod_uid in volume.mounts:
            mounts = {uid: mount for uid, mount in volume.mounts.items() if uid != pod_uid}
            self._put(replace(volume, mounts=mounts))

    def forget(self, name: UniqueName) -> None:
        self._reconstructed.discard(name)
        if self._volumes.pop(name, None) is not None:
            self._changed()

    def add_reconstructed(self, name: UniqueName, spec: VolumeSpec, pod_uid: PodUid | None) -> None:
        """Nothing is certain of what was found on disk; no pod: it was found staged."""
        device = Device.NOT_MOUNTED if spec.is_inline else Device.UNCERTAIN
        self._reconstructed.add(name)
        volume = self._volumes.get(name) or ActualVolume(name, spec, device)
        self._put(volume)
        if pod_uid is not None:
            self._put(replace(volume, spec=spec))
            self._put_mount(name, ActualMount(pod_uid, spec, MountState.UNCERTAIN, reconstructed=True))

    def set_attachable(self, name: UniqueName, *, attachable: bool) -> None:
        self._put(replace(self._volumes[name], attachable=attachable))

    def _put_mount(self, name: UniqueName, mount: ActualMount) -> None:
        volume = self._volumes[name]
        self._put(replace(volume, mounts={**volume.mounts, mount.pod_uid: mount}))

    def _put(self, volume: ActualVolume) -> None:
        self._volumes[volume.name] = volume
        self._changed()
