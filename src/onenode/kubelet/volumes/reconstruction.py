"""After a restart: what an earlier process may have mounted, read off the folders it left. Nothing of it is certain.

In a pod: each folder with a readable `vol_data.json`. On the node: each staging folder with one, also where no pod has
the volume any more; kubelet does not read those, and never unstages what died between the last pod and the unstaging.
Raw block volumes: each with a readable `data/vol_data.json`, for every pod that is named below it, or has its link.
A folder without its file is not rebuilt; `leftovers` removes it when it is empty. Only reads.

Which of the volumes found are attached for us is in our own Node. Nothing is unmounted before that was read, so that a
kubelet that cannot reach its API server leaves pods alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from onenode.host.volume_host import VolumeHost
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.actual_state import ActualState
from onenode.kubelet.volumes.steps import volume_data
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_values import PodUid, UniqueName, VolumeMode, VolumeSpec, unique_name
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import ApiError
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName


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


FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0


class AttachmentRecovery:
    def __init__(self, api: NodeApi, actual: ActualState, runtime: Runtime) -> None:
        self._api = api
        self._runtime = runtime
        self._actual = actual
        self.is_done = False

    async def recover(self, done: Callable[[], None]) -> None:
        """Until it succeeds."""
        delay = FIRST_DELAY
        while not await self._try():
            await self._runtime.clock.sleep(delay)
            delay = min(LONGEST_DELAY, delay * 2)
        self.is_done = True
        done()

    async def _try(self) -> bool:
        try:
            node = await self._api.kube.get(NODE, ObjectName(None, self._api.node_name))
        except ApiError as error:
            self._runtime.log.info("own Node not readable yet", error=error.message)
            return False
        attached = {volume.get("name") for volume in (node.get("status") or {}).get("volumesAttached") or ()}
        for name in [*self._actual.volumes]:
            if name in attached:
                self._actual.set_attachable(name, attachable=True)
        return True
