"""Read and write Volume objects for the CSI calls, and put each into the catalog as soon as it is read or written.

Each write tests the version that it was decided on. After a lost response the repeated call finds what the first one
wrote: the object by its name, or the field that is set already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from orlop.csi.error_codes import Aborted, FailedPrecondition
from orlop.driver.persistent.drive_catalog import DriveCatalog
from orlop.driver.persistent.reservation_rules import PlacedVolume, read_volume
from orlop.kube.api_errors import AlreadyExists, Conflict, NotFound, PatchRefused
from orlop.kube.client import DeleteOptions, KubeClient, Selection
from orlop.kube.objects import ObjectName, name
from orlop.kube.patches import JsonPatch
from orlop.records.volume import ERASE_FINALIZER, VOLUME

ApiObject = Mapping[str, Any]
MOST_ATTEMPTS: Final = 5
"""A node writes a status once for each change, so that one more attempt nearly always succeeds."""


class VolumeRegister:
    def __init__(self, kube: KubeClient, catalog: DriveCatalog, may_act: Callable[[], None]) -> None:
        self._kube = kube.guarded(may_act)
        self._catalog = catalog

    async def read(self, volume_id: str) -> PlacedVolume | None:
        """Read a Volume from the API server; None if there is none."""
        try:
            return self._known(await self._kube.get(VOLUME, ObjectName(None, volume_id)))
        except NotFound:
            self._catalog.forget_volume(volume_id)
            return None

    async def list_of(self, node: str) -> Sequence[PlacedVolume]:
        """List the Volumes of a node from the API server."""
        objects = await self._kube.list(VOLUME, Selection(fields=f"spec.nodeName={node}"))
        return [self._known(obj) for obj in objects.items]

    async def create(self, body: ApiObject) -> PlacedVolume:
        """Create a Volume and return it, or the one of this name that exists already."""
        try:
            return self._known(await self._kube.create(VOLUME, body))
        except AlreadyExists:
            volume = await self.read(name(body))
            if volume is None:
                raise Aborted(f"the volume {name(body)} was being deleted until now: try again") from None
            return volume

    async def mark_to_erase(self, volume: PlacedVolume) -> None:
        """Let the node erase the data, unless the volume is in use. Raises `FailedPrecondition`."""
        current: PlacedVolume | None = volume
        for _ in range(MOST_ATTEMPTS):
            if current is None or current.spec.erase:
                return
            if current.is_in_use:
                raise FailedPrecondition(why_in_use(current))
            # Decided on this status: a node that stages the volume meanwhile makes the patch fail.
            patch = _guarded(current).add("spec", "erase", value=True)
            current = await self._patched(current, patch)
        raise Aborted(f"the volume {volume.name} changes all the time: try again")

    async def grow(self, volume: PlacedVolume, size: int) -> PlacedVolume:
        """Make the volume at least this large."""
        current: PlacedVolume | None = volume
        for _ in range(MOST_ATTEMPTS):
            if current is None or current.spec.erase:
                raise Aborted(f"the volume {volume.name} is being deleted")
            if current.spec.bytes >= size:
                return current
            current = await self._patched(current, _guarded(current).replace("spec", "bytes", value=size))
        raise Aborted(f"the volume {volume.name} changes all the time: try again")

    async def delete(self, volume: PlacedVolume) -> None:
        """Delete the object; it stays until its finalizer is removed. Raises `Conflict` for another of the name."""
        try:
            deleted = await self._kube.delete(VOLUME, ObjectName(None, volume.name), DeleteOptions(uid=volume.uid))
        except NotFound:
            self._catalog.forget_volume(volume.name)
            return
        if deleted.get("kind") == VOLUME.kind and deleted["metadata"].get("deletionTimestamp"):
            self._known(deleted)

    async def remove_finalizer(self, volume: PlacedVolume) -> None:
        """Remove our finalizer. Raises `PatchRefused` if the Volume has changed."""
        others = [each for each in volume.finalizers if each != ERASE_FINALIZER]
        patch = _guarded(volume).replace("metadata", "finalizers", value=others)
        with suppress(NotFound):
            await self._kube.patch(VOLUME, ObjectName(None, volume.name), patch)

    async def _patched(self, volume: PlacedVolume, patch: JsonPatch) -> PlacedVolume | None:
        try:
            return self._known(await self._kube.patch(VOLUME, ObjectName(None, volume.name), patch))
        except (PatchRefused, Conflict, NotFound):
            return await self.read(volume.name)

    def _known(self, obj: ApiObject) -> PlacedVolume:
        self._catalog.put_volume(obj)
        return read_volume(obj)


def why_in_use(volume: PlacedVolume) -> str:
    status, spec = volume.status, volume.spec
    pods = [f"{each.pod_namespace}/{each.pod_name}" for each in status.published if each.pod_name]
    users = f", used by {', '.join(sorted(set(pods)))}" if pods else ""
    return f"the volume {volume.name} is staged on the node {spec.node_name}{users}"


def _guarded(volume: PlacedVolume) -> JsonPatch:
    patch = JsonPatch().test("metadata", "uid", value=volume.uid)
    return patch.test("metadata", "resourceVersion", value=volume.version)
