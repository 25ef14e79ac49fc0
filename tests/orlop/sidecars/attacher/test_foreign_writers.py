"""Somebody else writes to the same objects, each time just before we do: nothing of his is lost, and ours is done.

He comes between our read and our write by standing on our way to the API server: see `support.api.api_wires`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT, Kind
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import NODE_ID_ANNOTATION
from orlop.testing.virtual_clock import run_virtual
from support.attaching.attacher_worlds import OURS, PUBLISH, UNPUBLISH, AttacherWorld
from support.random_tests import A_HANDFUL

ACTS = [
    *("adds a finalizer", "takes his finalizer", "puts his finalizer first"),
    *("adds an annotation", "takes his annotation", "adds a label"),
    *("tells an error of detaching", "tells an error of attaching", "takes all errors"),
]
NOTHING = "does nothing"
KINDS = {"persistentvolumes": PERSISTENT_VOLUME, "volumeattachments": VOLUME_ATTACHMENT}
Object = dict[str, Any]


class SomebodyElse:
    """Does one of his acts before each write of ours, on the object that is written; knows what should stand there."""

    def __init__(self, world: AttacherWorld, acts: Iterator[str]) -> None:
        self._world = world
        self._acts = acts
        self._number = 0
        self.finalizers: dict[str, set[str]] = {"va1": set(), "pv1": set()}
        self.notes: dict[str, set[str]] = {"va1": set(), "pv1": set()}
        self.error: str | None = None
        """Of detaching: the one field of the status that attaching leaves alone."""

    async def before(self, request: HttpRequest) -> None:
        parts = request.path.split("/")
        place = next((part for part in KINDS if part in parts), None)
        if request.method == "PATCH" and place is not None and (act := next(self._acts, None)) is not None:
            with suppress(NotFound):
                await self._do(act, KINDS[place], parts[parts.index(place) + 1])

    async def _do(self, act: str, kind: Kind, name: str) -> None:
        self._number += 1
        new = f"somebody.example.com/{self._number}"
        found = await self._world.client.get(kind, ObjectName(None, name))
        present, mine = list(objects.finalizers(found)), self.finalizers[name]
        match act:
            case "adds a finalizer" | "puts his finalizer first":
                if objects.is_being_deleted(found):
                    return  # the API server lets nobody
                mine.add(new)
                await self._metadata(kind, name, finalizers=[*present, new] if "adds" in act else [new, *present])
            case "takes his finalizer":
                if mine:
                    gone = mine.pop()
                    await self._metadata(kind, name, finalizers=[one for one in present if one != gone])
            case "adds an annotation" | "adds a label":
                self.notes[name].add(new)
                await self._metadata(kind, name, **{"annotations" if "annotation" in act else "labels": {new: "his"}})
            case "takes his annotation":
                if self.notes[name]:
                    gone = self.notes[name].pop()
                    await self._metadata(kind, name, annotations={gone: None}, labels={gone: None})
            case _:
                if kind is VOLUME_ATTACHMENT and act != NOTHING:
                    await self._tell(act, name)

    async def _tell(self, act: str, name: str) -> None:
        error = {"message": f"his, {self._number}", "time": "2026-01-02T03:04:05Z"}
        match act:
            case "tells an error of detaching":
                self.error, status = error["message"], {"detachError": error}
            case "tells an error of attaching":
                status = {"attachError": error}
            case _:
                self.error, status = None, {"attachError": None, "detachError": None}
        patch = MergePatch({"status": status})
        await self._world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, name), patch, subresource="status")

    async def _metadata(self, kind: Kind, name: str, **changes: Any) -> None:
        await self._world.client.patch(kind, ObjectName(None, name), MergePatch({"metadata": changes}))

    # ---- what must be true ---------------------------------------------------------------------------------------

    def assert_his_is_there(self, found: Object) -> None:
        name = found["metadata"]["name"]
        his = {one for one in objects.finalizers(found) if one.startswith("somebody.")}
        assert his == self.finalizers[name]
        notes = {*objects.annotations(found), *found["metadata"].get("labels", {})}
        assert {one for one in notes if one.startswith("somebody.")} == self.notes[name]


async def whole_life(world: AttacherWorld, acts: list[str]) -> None:
    somebody = SomebodyElse(world, iter(acts))
    world.wire.before = somebody.before
    await world.node()
    await world.volume()
    await world.wanted()
    async with world.attacher():
        found = await world.until_attached()
        await world.clock.sleep(400)
        found = await world.attachment()
        assert found["status"]["attached"] is True
        assert OURS in objects.finalizers(found)
        assert objects.annotations(found)[NODE_ID_ANNOTATION] == "id-1"
        somebody.assert_his_is_there(found)
        assert found["status"].get("detachError", {}).get("message") == somebody.error
        volume = await world.find(PERSISTENT_VOLUME, "pv1")
        assert volume is not None
        assert OURS in objects.finalizers(volume)
        somebody.assert_his_is_there(volume)
        await world.delete(VOLUME_ATTACHMENT, "va1")
        await world.delete(PERSISTENT_VOLUME, "pv1")
        await world.clock.sleep(400)
        left = await world.find(VOLUME_ATTACHMENT, "va1")
        assert bool(left) == bool(somebody.finalizers["va1"])
        if left is not None:
            assert OURS not in objects.finalizers(left)
            assert left["status"]["attached"] is False
            somebody.assert_his_is_there(left)
            await world.client.patch(
                VOLUME_ATTACHMENT, ObjectName(None, "va1"), MergePatch({"metadata": {"finalizers": None}})
            )
        await world.until_released("pv1")
    volume = await world.find(PERSISTENT_VOLUME, "pv1")
    assert volume is not None, "the API server's own finalizer is on it"
    somebody.assert_his_is_there(volume)
    assert world.published() == []
    assert set(world.calls()) == {PUBLISH, UNPUBLISH}


@pytest.mark.virtual_time
@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("act", ACTS)
async def test_whatever_he_does_before_any_one_of_our_writes_it_stays_and_ours_is_done(act: str, place: int):
    async with AttacherWorld() as world:
        await whole_life(world, [*[NOTHING] * place, act])
        assert world.calls() == [PUBLISH, UNPUBLISH], "the driver is called once, also where our write was refused"


@pytest.mark.virtual_time
@pytest.mark.parametrize("act", ACTS)
async def test_whatever_he_does_before_each_of_our_writes_it_stays_and_ours_is_done(act: str):
    async with AttacherWorld() as world:
        await whole_life(world, [act] * 30)


@A_HANDFUL
@given(st.lists(st.sampled_from(ACTS), min_size=3, max_size=25))
def test_whatever_he_does_one_after_the_other_it_stays_and_ours_is_done(acts: list[str]):
    async def main(_clock: object) -> None:
        async with AttacherWorld() as world:
            await whole_life(world, acts)

    run_virtual(main)


@pytest.mark.virtual_time
async def test_a_status_that_somebody_made_where_there_was_none_is_not_written_over():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"error": {"code": "INTERNAL", "message": "no"}}]})
        await world.node()
        await world.volume()
        source = {"persistentVolumeName": "pv1"}
        spec = {"attacher": "mock.example.com", "nodeName": "n1", "source": source}
        await world.put(VOLUME_ATTACHMENT, {"metadata": {"name": "va1"}, "spec": spec})
        somebody = SomebodyElse(world, iter([NOTHING, NOTHING, "tells an error of detaching"]))
        world.wire.before = somebody.before
        async with world.attacher():
            found = await world.until_attached()
        assert found["status"]["detachError"]["message"] == "his, 3"


@pytest.mark.virtual_time
async def test_a_node_that_is_called_otherwise_and_as_before_again_while_he_writes_is_attached_to_in_earnest():
    async with AttacherWorld() as world:
        somebody = SomebodyElse(world, iter([NOTHING, NOTHING, "tells an error of detaching"]))
        names = iter(["id-2", "id-1"])

        async def before(request: HttpRequest) -> None:
            await somebody.before(request)
            if request.method == "PATCH" and world.calls() and (name := next(names, None)) is not None:
                await world.delete(CSI_NODE, "n1")
                await world.node(node_id=name)
                await world.clock.sleep(1)

        world.wire.before = before
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():
            found = await world.until_attached()
        assert objects.annotations(found)[NODE_ID_ANNOTATION] == "id-1"
        assert world.published() == ["id-1"]


@pytest.mark.virtual_time
async def test_the_driver_is_called_once_to_detach_though_the_write_after_that_is_refused():
    async with AttacherWorld() as world:
        await whole_life(world, [NOTHING, NOTHING, "adds a finalizer", "takes his finalizer"])
        assert world.calls() == [PUBLISH, UNPUBLISH]


class Replacer:
    """Replaces va1 by another of its name, for the volume pv2, just before our first write after the driver's call."""

    def __init__(self, world: AttacherWorld, after: str, *, being_deleted: bool) -> None:
        self._world = world
        self._after = after
        self._being_deleted = being_deleted
        self.has_replaced = False

    async def before(self, request: HttpRequest) -> None:
        if self.has_replaced or request.method != "PATCH" or not self._world.calls(self._after):
            return
        self.has_replaced = True
        client, name = self._world.client, ObjectName(None, "va1")
        unprotected = MergePatch({"metadata": {"finalizers": None}})
        await self._world.delete(VOLUME_ATTACHMENT, "va1")
        await client.patch(VOLUME_ATTACHMENT, name, unprotected)
        await self._world.wanted("va1", "pv2")
        if self._being_deleted:
            prepared = {"finalizers": [OURS], "annotations": {NODE_ID_ANNOTATION: "id-1"}}
            await client.patch(VOLUME_ATTACHMENT, name, MergePatch({"metadata": prepared}))
            await self._world.delete(VOLUME_ATTACHMENT, "va1")


@pytest.mark.virtual_time
async def test_another_object_of_the_same_name_is_attached_though_the_first_was_attached_just_before():
    async with AttacherWorld() as world:
        replacer = Replacer(world, PUBLISH, being_deleted=False)
        await world.node()
        await world.volume()
        await world.volume("pv2", "h2")
        await world.wanted()
        world.wire.before = replacer.before
        async with world.attacher():
            await world.until_attached()
            await world.clock.sleep(10)
        assert replacer.has_replaced
        assert world.published("h2") == ["id-1"]


@pytest.mark.virtual_time
async def test_another_object_of_the_same_name_is_detached_though_the_first_was_detached_just_before():
    async with AttacherWorld() as world:
        replacer = Replacer(world, UNPUBLISH, being_deleted=True)
        await world.node()
        await world.volume()
        await world.volume("pv2", "h2")
        await world.wanted()
        await world.wanted("va2", "pv2")
        async with world.attacher():
            await world.until_attached()
            await world.until_attached("va2")
        unprotected = MergePatch({"metadata": {"finalizers": None}})
        await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, "va2"), unprotected)
        await world.delete(VOLUME_ATTACHMENT, "va2")
        await world.delete(VOLUME_ATTACHMENT, "va1")
        world.wire.before = replacer.before
        async with world.attacher():
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(10)
        assert replacer.has_replaced
        assert await world.find(VOLUME_ATTACHMENT, "va1") is None
        assert world.published("h2") == []
