"""Brings together what the driver says is published and what the objects say, from time to time.

For drivers that can list their volumes with the nodes these are published on. Page by page; what differs is looked at
again, with what the driver said. A volume that the driver does not name is published nowhere.

Order: list all pages → compare with the objects as they are then → have those that differ looked at. An object that we
are working on meanwhile is compared with what was before: so `suspicion_rules` say after how many looks in a row it
counts. What is published because another object asks for it says nothing of one that we have let go of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.kube import objects
from orlop.kube.informer import Informer
from orlop.kube.object_cache import CachedObject
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import attacher_of, is_attached, recorded_node_id
from orlop.sidecars.attacher.attacher import Caches
from orlop.sidecars.attacher.driver_request_rules import LISTS
from orlop.sidecars.attacher.suspicion_rules import Suspect, suspected
from orlop.sidecars.attacher.tools import AttacherSettings, Tools
from orlop.sidecars.attacher.volume_source_rules import BadObject, bare_source_of, volume_name_of

MOST_PAGES: Final = 100_000
"""A driver that gives another page for ever is not waited for."""
Published: TypeAlias = Mapping[str, frozenset[str]]
"""By the volume's handle: the ids of the nodes it is published on. Of others nothing is kept: there may be many."""
Place: TypeAlias = tuple[str, str]
"""The volume's handle, and the id of a node."""


class PublishedVolumes:
    """`differs` is told of each VolumeAttachment for which the driver says otherwise, and what it says."""

    def __init__(
        self, caches: Caches, settings: AttacherSettings, tools: Tools, differs: Callable[[ObjectName, bool], None]
    ) -> None:
        self._attachments = caches.attachments
        self._volumes: Informer = caches.volumes
        self._settings = settings
        self._csi = tools.csi
        self._clock = tools.clock
        self._log = tools.log
        self._differs = differs
        self._suspects: dict[ObjectName, Suspect] = {}

    async def run(self, every: float, page: int = 0) -> None:
        """For ever; does nothing for a driver that cannot tell."""
        while every > 0:
            await self._clock.sleep(every)
            try:
                if await self._csi.controller_abilities() >= LISTS:
                    self._compare(await self._listed(page))
            except CsiError as error:
                self._log.warning("what the driver has published cannot be listed", error=error)

    async def _listed(self, page: int) -> Published:
        found: dict[str, frozenset[str]] = {}
        token, followed = "", {""}
        for _ in range(MOST_PAGES):
            answer = await self._csi.call(
                rpc.LIST_VOLUMES,
                csi_pb2.ListVolumesRequest(max_entries=page, starting_token=token),
                within=self._settings.timeout,
            )
            for entry in answer.entries:
                if nodes := frozenset(entry.status.published_node_ids):
                    found[entry.volume.volume_id] = found.get(entry.volume.volume_id, frozenset()) | nodes
            token = answer.next_token
            if not token:
                return found
            if token in followed:
                raise CsiError("the driver's list of volumes does not end: it gave one token twice")
            followed.add(token)
        raise CsiError(f"the driver has given {MOST_PAGES} pages of volumes, and no last one")

    def _compare(self, published: Published) -> None:
        before, self._suspects = self._suspects, {}
        places = [(one, place) for one in self._attachments.cache if (place := self._place_of(one)) is not None]
        held = {place for one, place in places if self._is_ours(one)}
        for attachment, place in places:
            said = place[1] in published.get(place[0], frozenset())
            is_anothers = said and place in held and not self._is_ours(attachment)
            if is_anothers or said == is_attached(attachment):
                continue
            name = objects.name_of(attachment)
            self._suspects[name] = suspect = suspected(before.get(name), objects.uid(attachment), said=said)
            if suspect.is_due:
                self._log.info("the driver says otherwise than the object", attachment=str(name), published=said)
                self._differs(name, said)

    def _is_ours(self, attachment: CachedObject) -> bool:
        return objects.has_finalizer(attachment, self._settings.finalizer)

    def _place_of(self, attachment: CachedObject) -> Place | None:
        """None where nothing can be said of it."""
        node_id = recorded_node_id(attachment)
        if attacher_of(attachment) != self._settings.driver or node_id is None:
            return None
        volume_name = volume_name_of(attachment)
        volume = self._volumes.get(ObjectName(None, volume_name)) if volume_name else None
        try:
            return bare_source_of(attachment, volume, self._settings.driver).handle, node_id
        except BadObject:
            return None
