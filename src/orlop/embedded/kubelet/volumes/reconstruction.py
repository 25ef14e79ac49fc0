"""After a restart: what an earlier life may have mounted, read off the folders it left. Nothing of it is certain.

In a pod: each folder with a readable `vol_data.json`. On the node: each staging folder with one, also where no pod has
the volume any more; kubelet does not look there, and never unstages what died between the last pod and the unstaging.
Raw block volumes: each with a readable `data/vol_data.json`, for every pod that is named below it, or has its link.
A folder without its file is not rebuilt; `leftovers` removes it when it is empty. Only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orlop.embedded.kubelet.volumes import volume_data, volume_paths
from orlop.embedded.kubelet.volumes.volume_handles import unique_name
from orlop.embedded.kubelet.volumes.volume_paths import Names
from orlop.embedded.kubelet.volumes.volume_values import PodUid, UniqueName, VolumeMode, VolumeSpec
from orlop.host.volume_host import VolumeHost


@dataclass(frozen=True, slots=True)
class Reconstructed:
    """No pod: it was found staged."""

    volume: UniqueName
    spec: VolumeSpec
    pod_uid: PodUid | None


def reconstruct(host: VolumeHost) -> tuple[Reconstructed, ...]:
    """Blocks. Pods' first, so that a volume is called by its PV where that is known."""
    return (*_in_pods(host), *_staged(host), *_block_volumes(host))


def _in_pods(host: VolumeHost) -> Iterator[Reconstructed]:
    for pod_uid in sorted(host.names_in(volume_paths.ALL_PODS) or ()):
        folder = volume_paths.pod_csi_volumes(pod_uid)
        for name in sorted(host.names_in(folder) or ()):
            spec = volume_data.published_spec(_data(host, (*folder, name)), VolumeMode.FILESYSTEM)
            # A file that names another volume than its folder does would have us unmount that one.
            if spec is not None and volume_paths.escaped(spec.name) == name:
                yield Reconstructed(unique_name(spec, pod_uid), spec, pod_uid)


def _staged(host: VolumeHost) -> Iterator[Reconstructed]:
    for driver, folder in staging_folders(host):
        spec = volume_data.staged_spec(_data(host, folder))
        if spec is not None and volume_paths.staging_folder(driver, spec.handle) == folder and spec.driver == driver:
            yield Reconstructed(unique_name(spec, ""), spec, None)


def _block_volumes(host: VolumeHost) -> Iterator[Reconstructed]:
    """Each once for the node, and once for each pod that may have it."""
    linked = _links_of_pods(host)
    for name in block_names(host):
        spec = volume_data.published_spec(_data(host, volume_paths.block_data(name)), VolumeMode.BLOCK)
        if spec is not None and volume_paths.escaped(spec.name) == name:
            volume = unique_name(spec, "")
            yield Reconstructed(volume, spec, None)
            pods = _pods_with(host, spec.name) | {pod_uid for pod_uid, names in linked.items() if name in names}
            yield from (Reconstructed(volume, spec, pod_uid) for pod_uid in sorted(pods))


def _pods_with(host: VolumeHost, volume: str) -> frozenset[PodUid]:
    """For which a driver was asked, or which it published to."""
    asked = host.names_in(volume_paths.block_devices(volume)) or frozenset()
    return asked | (host.names_in(volume_paths.block_publish_folder(volume)) or frozenset())


def _links_of_pods(host: VolumeHost) -> dict[PodUid, frozenset[str]]:
    pods = host.names_in(volume_paths.ALL_PODS) or frozenset()
    return {pod_uid: host.names_in(volume_paths.pod_csi_devices(pod_uid)) or frozenset() for pod_uid in pods}


def block_names(host: VolumeHost) -> list[str]:
    """The folders of raw block volumes."""
    return sorted((host.names_in(volume_paths.BLOCK_ROOT) or frozenset()) - volume_paths.TAKEN_BY_BLOCK)


def staging_folders(host: VolumeHost) -> Iterator[tuple[str, Names]]:
    """Each with its driver."""
    for driver in sorted(host.names_in(volume_paths.CSI_PLUGINS) or ()):
        if driver != volume_paths.VOLUME_DEVICES:
            for name in sorted(host.names_in((*volume_paths.CSI_PLUGINS, driver)) or ()):
                yield driver, (*volume_paths.CSI_PLUGINS, driver, name)


def _data(host: VolumeHost, folder: Names) -> dict[str, str] | None:
    content = host.read_file(volume_paths.data_file(folder), volume_data.LARGEST_FILE + 1)
    found = volume_data.decoded(content)
    return None if found is None else dict(found)
