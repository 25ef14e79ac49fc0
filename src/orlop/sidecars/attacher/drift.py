"""Find VolumeAttachments that disagree with the driver's list of published volumes (drift).

For drivers that list their volumes with the nodes these are published on. A volume that the list does not contain is
published nowhere.

Order: read all pages → compare them with the current objects → return those that differ. The list may be older than an
object that is being reconciled meanwhile, so a difference counts only after `FIRST_CHECKS` checks in a row. If another
VolumeAttachment has the volume on the same node, the list does not prove drift of one that we have released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.structured_log import Log
from orlop.kube import objects
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import attacher_of, is_attached, recorded_node_id
from orlop.sidecars.attacher.driver_request_rules import CAN_LIST_PUBLISHED
from orlop.sidecars.attacher.handler import AttacherCaches, AttacherSettings
from orlop.sidecars.attacher.volume_source_rules import BadObject, bare_source_of, volume_name_of

MOST_PAGES: Final = 100_000
"""The limit of pages, for a driver that returns another page for ever."""
FIRST_CHECKS: Final = 2
MOST_CHECKS: Final = 8
PublishedNodes: TypeAlias = Mapping[str, frozenset[str]]
"""The ids of the nodes that a volume is published on, by its handle. Volumes published nowhere are left out."""


@dataclass(frozen=True, slots=True)
class VolumeOnNode:
    handle: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Drift:
    """A VolumeAttachment that disagrees with the driver."""

    uid: str
    published: bool
    """Whether the driver lists the volume as published; the object has the opposite."""
    checks: int = 1
    """The number of checks in a row that found the drift, since it was last acted upon."""
    due_after: int = FIRST_CHECKS

    @property
    def is_due(self) -> bool:
        return self.checks == self.due_after


def next_drift(before: Drift | None, uid: str, *, published: bool) -> Drift:
    """Return the drift after another check that found it; `before` is the drift of the previous check, if any.

    After the first time, a volume that is published although no object needs it is acted upon at every check. For a
    volume that is missing in the list, the number of checks doubles each time: otherwise, with a driver whose list is
    always wrong, all volumes would be attached again every minute.
    """
    if before is None or (before.uid, before.published) != (uid, published):
        return Drift(uid, published)
    if before.is_due:
        return Drift(uid, published, due_after=1 if published else min(2 * before.due_after, MOST_CHECKS))
    return replace(before, checks=before.checks + 1)


class DriftDetection:
    def __init__(self, caches: AttacherCaches, settings: AttacherSettings, *, csi: CsiClient, log: Log) -> None:
        self._attachments = caches.attachments
        self._volumes = caches.volumes
        self._settings = settings
        self._csi = csi
        self._log = log
        self._drifts: dict[ObjectName, Drift] = {}

    async def drifted(self) -> Mapping[ObjectName, bool]:
        """Return the VolumeAttachments to act upon, and whether the driver lists them as published."""
        try:
            if await self._csi.controller_capabilities() >= CAN_LIST_PUBLISHED:
                return self._compare(await self._published_nodes())
        except CsiError as error:
            self._log.warning("published volumes cannot be listed", error=error)
        return {}

    async def _published_nodes(self) -> PublishedNodes:
        nodes_by_handle: dict[str, frozenset[str]] = {}
        token, followed = "", {""}
        for _ in range(MOST_PAGES):
            page = await self._csi.call(
                rpc.LIST_VOLUMES,
                csi_pb2.ListVolumesRequest(max_entries=self._settings.page, starting_token=token),
                within=self._settings.timeout,
            )
            for entry in page.entries:
                if nodes := frozenset(entry.status.published_node_ids):
                    handle = entry.volume.volume_id
                    nodes_by_handle[handle] = nodes_by_handle.get(handle, frozenset()) | nodes
            token = page.next_token
            if not token:
                return nodes_by_handle
            if token in followed:
                raise CsiError("the driver's list of volumes does not end: it returned one token twice")
            followed.add(token)
        raise CsiError(f"the driver returned {MOST_PAGES} pages of volumes, and no last one")

    def _compare(self, listed: PublishedNodes) -> Mapping[ObjectName, bool]:
        before, self._drifts = self._drifts, {}
        places = [(each, place) for each in self._attachments.cache if (place := self._place_of(each)) is not None]
        protected_places = {place for attachment, place in places if self._has_finalizer(attachment)}
        due: dict[ObjectName, bool] = {}
        for attachment, place in places:
            published = place.node_id in listed.get(place.handle, frozenset())
            is_of_another = published and place in protected_places and not self._has_finalizer(attachment)
            if is_of_another or published == is_attached(attachment):
                continue
            name = objects.name_of(attachment)
            drift = self._drifts[name] = next_drift(before.get(name), objects.uid(attachment), published=published)
            if drift.is_due:
                self._log.info("driver and attachment disagree", attachment=str(name), published=published)
                due[name] = published
        return due

    def _has_finalizer(self, attachment: CachedObject) -> bool:
        return objects.has_finalizer(attachment, self._settings.finalizer)

    def _place_of(self, attachment: CachedObject) -> VolumeOnNode | None:
        """Return the volume and node of an attachment; None if it cannot be compared with the driver's list."""
        node_id = recorded_node_id(attachment)
        if attacher_of(attachment) != self._settings.driver or node_id is None:
            return None
        volume_name = volume_name_of(attachment)
        volume: Mapping[str, Any] | None = self._volumes.get(ObjectName(None, volume_name)) if volume_name else None
        try:
            return VolumeOnNode(bare_source_of(attachment, volume, self._settings.driver).handle, node_id)
        except BadObject:
            return None
