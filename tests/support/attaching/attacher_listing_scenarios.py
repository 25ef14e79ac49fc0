"""Scenarios of an attacher that compares the objects with what the driver lists, for the explorer.

As in `attacher_scenarios`; beside that the driver forgets what it published, and has again what it gave back, without
being asked. What must hold then: nothing is taken from a node that wants it and goes by the same id; whatever the
driver did, in the end it has published what the objects say.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from orlop.csi.proto import csi_pb2
from orlop.kube import objects, patches
from orlop.kube.api_errors import Conflict, PatchRefused
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import NODE_ID_ANNOTATION, id_in_csi_node
from orlop.sidecars.attacher.handler import AttacherSettings
from orlop.testing.driver_model.storage import VolumeUse
from orlop.testing.explorer import Act, Stage
from support.attaching.attacher_scenarios import HANDLE, NODE, PV, SETTINGS, VA, Drama, drama_of
from support.attaching.attacher_worlds import DRIVER, OURS, PUBLISH, UNPUBLISH
from support.worlds import Object

BRIEF = replace(SETTINGS, timeout=60.0, retry_most=10.0, drift_check=10.0)
THEIRS = "somebody.example.com/else"


@dataclass
class ListingDrama(Drama):
    """Whoever waits waits briefly: looks at the list and attempts are to fit into the time after which all is at rest.

    Only for an answer of the driver the attacher waits longer than that may take.
    """

    settings: AttacherSettings = BRIEF
    slow: float = 0.0
    """Seconds from what the driver does until it answers that it published."""
    kept_by_others: bool = False
    uses: dict[str, VolumeUse] = field(default_factory=dict)
    """By the node's id: how the driver has published it last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.driver_forgets = Act("the driver forgets it", self._forget)
        self.driver_has_it_again = Act("the driver has it again", self._have_again)
        self.others_let_it_go = Act("others let it go", self._let_go)
        self.node_is_another = Act("the node is back", lambda: self.make_node("id-2"))

    async def find_attached(self) -> None:
        """As an attacher before ours has left it: how it attaches is in other scenarios."""
        wanted = self.what_is_wanted()
        wanted["metadata"]["annotations"] = {NODE_ID_ANNOTATION: "id-1"}
        wanted["metadata"]["finalizers"] = [*objects.finalizers(wanted), OURS]
        await self.client.create(VOLUME_ATTACHMENT, wanted)
        attached = MergePatch({"status": {"attached": True}})
        await self.client.patch(VOLUME_ATTACHMENT, ObjectName(None, VA), attached, subresource="status")
        protected = patches.add_finalizer(self.stored(PERSISTENT_VOLUME, PV) or {}, OURS)
        assert protected is not None
        await self.client.patch(PERSISTENT_VOLUME, ObjectName(None, PV), protected)
        self.uses["id-1"] = self._attached()["id-1"] = VolumeUse(csi_pb2.VolumeCapability())
        self.granted.add("id-1")

    # ---- what others do ------------------------------------------------------------------------------------------

    def what_is_wanted(self) -> Object:
        wanted = super().what_is_wanted()
        if self.kept_by_others:
            wanted["metadata"]["finalizers"] = [THEIRS]
        return wanted

    async def has_done(self, method: str, request: Any) -> None:
        await super().has_done(method, request)
        if method == PUBLISH:
            self.uses.update(self._attached())
            await self.stage.clock.sleep(self.slow)

    async def _forget(self) -> None:
        self._attached().clear()

    async def _have_again(self) -> None:
        self._attached().update(self.uses)

    def _attached(self) -> dict[str, VolumeUse]:
        found = self.model.storage.volumes.get(HANDLE)
        assert found is not None
        return found.attached

    async def _let_go(self) -> None:
        self.stage.later(0.0, self._let_go_when_taken_back)

    async def _let_go_when_taken_back(self) -> None:
        """Not before: once the object is gone, nobody knows that it is to be taken back."""
        while (found := self.stored(VOLUME_ATTACHMENT, VA)) is not None:
            patch = patches.remove_finalizer(found, THEIRS)
            if patch is None:
                return
            if not self.published():
                with suppress(Conflict, PatchRefused):  # somebody else wrote meanwhile
                    await self.client.patch(VOLUME_ATTACHMENT, ObjectName(None, VA), patch)
            await self.stage.clock.sleep(0.5)

    # ---- what must hold ------------------------------------------------------------------------------------------

    def all_is_protected(self, method: str, request: Any) -> None:
        super().all_is_protected(method, request)
        if method == UNPUBLISH:
            self.nobody_wants_it_there(request.node_id)

    def nobody_wants_it_there(self, node_id: str) -> None:
        found = self.stored(VOLUME_ATTACHMENT, VA)
        is_wanted = found is not None and not objects.is_being_deleted(found)
        is_there = id_in_csi_node(self.stored(CSI_NODE, NODE), DRIVER) == node_id
        assert not (is_wanted and is_there), f"taken from {node_id}, which wants it"

    def it_is_detached(self) -> None:
        found = self.stored(VOLUME_ATTACHMENT, VA)
        assert objects.finalizers(found or {}) == (THEIRS,), "others keep it, and we do not"
        assert self.published() == set(), f"the driver has it published at {self.published()}"


# ---- the scenarios ---------------------------------------------------------------------------------------------------


async def slow_driver_forgets(stage: Stage) -> None:
    """It answers so late that it lists twice meanwhile what no object tells yet; then it forgets what it answered."""
    async with drama_of(ListingDrama, stage) as play:
        play.slow = 2.5 * play.settings.drift_check
        play.begin()
        forgets, ends = play.once_attached(play.driver_forgets), play.once_attached(play.is_wanted_no_more)
        await stage.acts(play.is_wanted, forgets, ends, play.volume_is_deleted)
        play.nothing_is_left()


async def driver_has_what_was_let_go(stage: Stage) -> None:
    """The object is still there when the driver has the volume again: others keep it."""
    async with drama_of(ListingDrama, stage) as play:
        play.kept_by_others = True
        await play.find_attached()
        play.begin()
        ends = play.once_attached(play.is_wanted_no_more)
        again = replace(play.driver_has_it_again, expects=play.it_is_detached)
        over = replace(play.others_let_it_go, expects=play.it_is_detached)
        await stage.acts(ends, again, over, play.volume_is_deleted)
        play.nothing_is_left()


async def forgotten_on_a_node_under_another_id(stage: Stage) -> None:
    """Its node went and came back under another id, and the driver does not have it published at the old one either."""
    async with drama_of(ListingDrama, stage) as play:
        await play.find_attached()
        play.begin()
        gone, forgets = play.once_attached(play.node_is_gone), play.driver_forgets
        ends = replace(play.is_wanted_no_more, expects=lambda: play.it_is_attached("id-2"))
        await stage.acts(gone, play.node_is_another, forgets, ends, play.volume_is_deleted)
        play.nothing_is_left()


LISTING_SCENARIOS = (slow_driver_forgets, driver_has_what_was_let_go, forgotten_on_a_node_under_another_id)
