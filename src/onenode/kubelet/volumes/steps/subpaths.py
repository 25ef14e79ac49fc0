"""A part of a volume for one container: mounted before the container starts, unmounted before its volume is.

Order: what is at the target from before is replaced → the part is mounted. Back, for all containers of a pod's volume:
unmount and remove each target, then the folders, and only then may the driver be asked to unpublish; a target that
cannot be unmounted keeps the volume. Names and parts come from a pod's spec: what leads elsewhere is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from onenode.host.payload_files import HostPath
from onenode.host.volume_host import VolumeHost
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_seams import KubeletDisk
from onenode.kubelet.volumes.volume_values import PodUid
from orlop.host.host_errors import HostError


class SubPathRefused(Exception):
    """The sentence says why; kubelet shows it in its log alone."""


@dataclass(frozen=True, slots=True)
class SubPathMount:
    """One of a container's volumeMounts that has a subPath; `index` is its place among them."""

    volume: str
    """As the pod calls it; folders are called by the PV, where there is one."""
    container: str
    index: int
    sub_path: str


def parts_of(sub_path: str) -> tuple[str, ...]:
    parts = tuple(part for part in sub_path.split("/") if part not in {"", "."})
    if sub_path.startswith("/") or ".." in parts or "\0" in sub_path:
        raise SubPathRefused(f"The subPath {sub_path!r} is absolute or holds '..': give a path inside the volume.")
    return parts


class SubPaths:
    def __init__(self, disk: KubeletDisk) -> None:
        self._host = disk.host
        self._in_thread = disk.in_thread

    async def mount(self, pod_uid: PodUid, mount: SubPathMount, volume: Names | HostPath | None = None) -> Names:
        """Mount a subPath for a container; return its target. `volume` is the place of one that is not a driver's."""
        parts = parts_of(mount.sub_path)
        target = (*volume_paths.pod_subpaths(pod_uid, mount.volume), mount.container, str(mount.index))
        if not volume_paths.is_fit_name(mount.container):
            raise SubPathRefused(f"The container's name {mount.container!r} cannot be the name of a folder.")
        origin = volume_paths.mount_target(pod_uid, mount.volume) if volume is None else volume
        try:
            await self._in_thread(partial(self._host.mount_subpath, origin, parts, target))
        except HostError as error:
            raise SubPathRefused(str(error)) from None
        return target

    async def clean(self, pod_uid: PodUid, volume: str) -> None:
        """Unmount and remove the subPaths of all containers. A HostError names what is still there."""
        await self._in_thread(partial(clean_subpaths, self._host, pod_uid, volume))


def clean_subpaths(host: VolumeHost, pod_uid: PodUid, volume: str) -> None:
    """Unmount and remove the subPaths of a volume. This blocks."""
    folder = volume_paths.pod_subpaths(pod_uid, volume)
    for container in sorted(host.names_in(folder) or ()):
        for index in sorted(host.names_in((*folder, container)) or ()):
            host.unmount_subpath((*folder, container, index))
        host.remove_folder((*folder, container))
    if host.names_in(folder) is not None:
        host.remove_folder(folder)
    _remove_if_empty(host, folder[:-1])


def _remove_if_empty(host: VolumeHost, folder: Names) -> None:
    if host.names_in(folder) == frozenset():
        host.remove_folder(folder)
