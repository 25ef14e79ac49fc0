"""Drift: what the driver lists as published and what the objects say are reconciled, and not at the first check."""

from __future__ import annotations

import pytest

from orlop.csi.proto import csi_pb2
from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.kinds import VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.drift import Drift, next_drift
from orlop.testing.driver_model.storage import VolumeUse
from support.api.api_wires import failing, refusal
from support.attaching.attacher_worlds import PUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
THEIRS = "somebody.example.com/else"
COUNT = 7
"""More than a page."""


async def attached(world: AttacherWorld) -> None:
    await world.node()
    for number in range(COUNT):
        await world.volume(f"pv{number}", f"h{number}")
        await world.wanted(f"va{number}", f"pv{number}")


async def test_what_vanished_at_the_driver_is_attached_again():
    async with AttacherWorld() as world:
        await attached(world)
        async with world.attacher(reconcile=60.0):
            for number in range(COUNT):
                await world.until_attached(f"va{number}")
            for handle in ("h2", "h6"):
                lost = world.storage.volumes.get(handle)
                assert lost is not None
                lost.attached.clear()
            await world.clock.sleep(200)
        assert all(world.published(f"h{number}") == ["id-1"] for number in range(COUNT))
        assert world.calls() == [PUBLISH] * (COUNT + 2)


async def test_what_vanished_is_attached_again_soon_also_where_that_cannot_be_told_at_first():
    async with AttacherWorld() as world:
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher(reconcile=60.0):
            await world.until_attached()
            world.wire.before = failing("PATCH volumeattachments/va1/status", answer=refusal(403, "Forbidden"))
            forgetful = world.storage.volumes.get("h1")
            assert forgetful is not None
            forgetful.attached.clear()
            await world.clock.sleep(130)
            assert world.published() == ["id-1"]
        assert (await world.attachment())["status"]["attached"] is True


async def test_where_both_agree_the_driver_is_only_asked_to_list():
    async with AttacherWorld() as world:
        await attached(world)
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(1000)
        assert world.calls() == [PUBLISH] * COUNT
        assert len(world.calls("ListVolumes")) >= 3 * 15


async def let_go_and_kept_by_others(world: AttacherWorld) -> None:
    """Attached, deleted and detached; somebody else's finalizer keeps the object."""
    await world.node()
    await world.volume()
    await world.wanted()
    theirs = MergePatch({"metadata": {"finalizers": [THEIRS]}})
    await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, "va1"), theirs)
    async with world.attacher():
        await world.until_attached()
        await world.delete(VOLUME_ATTACHMENT, "va1")
        await world.until_detached()
    assert objects.finalizers(await world.attachment()) == (THEIRS,)


async def test_what_the_driver_still_has_though_it_was_let_go_is_taken_back():
    async with AttacherWorld() as world:
        await let_go_and_kept_by_others(world)
        still_there = world.storage.volumes.get("h1")
        assert still_there is not None
        still_there.attached["id-1"] = VolumeUse(csi_pb2.VolumeCapability())
        async with world.attacher(reconcile=0.0):
            await world.clock.sleep(300)
        assert world.published() == ["id-1"], "only the driver's list tells of it"
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(300)
        assert world.published() == []
        found = await world.attachment()
        assert (objects.finalizers(found), found["status"]) == ((THEIRS,), {"attached": False})


async def test_what_was_let_go_is_not_taken_from_another_object_that_asks_for_it():
    async with AttacherWorld() as world:
        await let_go_and_kept_by_others(world)
        await world.wanted("va2")
        async with world.attacher(reconcile=60.0):
            await world.until_attached("va2")
            calls = len(world.calls())
            await world.clock.sleep(600)
            assert len(world.calls()) == calls
        assert world.published() == ["id-1"]
        assert (await world.attachment("va2"))["status"]["attached"] is True


@pytest.mark.parametrize("effect", [True, False], ids=["it is listed meanwhile", "it is not"])
async def test_an_attach_call_that_hangs_across_several_lists_is_not_detached_meanwhile(effect: bool):  # noqa: FBT001 - a row
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"hang": True, "effect": effect}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher(reconcile=60.0, timeout=1000.0):
            await world.clock.sleep(250)
            assert len(world.calls("ListVolumes")) >= 4
            assert world.calls() == [PUBLISH]
            assert world.published() == (["id-1"] if effect else [])
            world.drivers[-1].stop_hanging()
            await world.until_attached()
            await world.clock.sleep(250)
        assert world.published() == ["id-1"]
        assert world.calls() == [PUBLISH, PUBLISH]


async def test_a_driver_whose_list_is_wrong_for_good_is_asked_to_attach_less_and_less_often():
    async with AttacherWorld() as world:
        world.play({"ListVolumes": [{"times": 0, "answer": {"entries": []}}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(150)
            assert len(world.calls(PUBLISH)) == 2
            await world.clock.sleep(3450)
            assert len(world.calls(PUBLISH)) <= 9
        assert (await world.attachment())["status"]["attached"] is True
        assert world.published() == ["id-1"]


async def test_a_driver_that_cannot_list_is_not_asked():
    async with AttacherWorld() as world:
        world.play({}, capabilities={"controller": ["PUBLISH_UNPUBLISH_VOLUME"]})
        await attached(world)
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(300)
        assert world.calls("ListVolumes") == []


async def test_a_list_whose_token_comes_back_is_given_up_and_nothing_is_concluded_from_it():
    async with AttacherWorld() as world:
        world.play({"ListVolumes": [{"times": 0, "answer": {"nextToken": "again"}}]})
        await attached(world)
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(300)
        assert len(world.calls("ListVolumes")) <= 2 * 5
        assert world.calls() == [PUBLISH] * COUNT
        assert any("returned one token twice" in str(entry) for entry in world.log)


async def test_a_volume_on_two_pages_is_published_on_the_nodes_of_both():
    def page(node: str, **token: str) -> dict[str, object]:
        return {"entries": [{"volume": {"volumeId": "h1"}, "status": {"publishedNodeIds": [node]}}], **token}

    async with AttacherWorld() as world:
        first = {"when": {"startingToken": "2"}, "times": 0, "answer": page("id-9")}
        world.play({"ListVolumes": [first, {"times": 0, "answer": page("id-1", nextToken="2")}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(600)
        assert world.calls() == [PUBLISH]


# ---- after how many checks it is acted upon --------------------------------------------------------------------------


def due_at(*seen: tuple[str, bool] | None) -> list[int]:
    """The checks at which it is acted upon; None: nothing differed at that one."""
    due = []
    before: Drift | None = None
    for number, now in enumerate(seen, start=1):
        before = None if now is None else next_drift(before, now[0], published=now[1])
        if before is not None and before.is_due:
            due.append(number)
    return due


GONE = ("uid-1", False)


def test_one_check_is_not_enough_and_two_are():
    assert due_at(GONE) == []
    assert due_at(GONE, GONE) == [2]


def test_what_the_driver_still_lacks_is_acted_upon_less_and_less_often_but_never_no_more():
    assert due_at(*[GONE] * 31) == [2, 6, 14, 22, 30]


def test_what_the_driver_still_has_is_acted_upon_at_every_check():
    assert due_at(*[("uid-1", True)] * 5) == [2, 3, 4, 5]


def test_once_it_agreed_all_begins_anew():
    assert due_at(*[GONE] * 3, None, *[GONE] * 2) == [2, 6]


def test_another_object_or_another_answer_is_another_drift():
    assert due_at(GONE, ("uid-2", False), ("uid-2", True), ("uid-2", True)) == [4]


async def test_what_was_found_of_an_object_that_went_before_anybody_could_act_on_it_is_forgotten():
    async with AttacherWorld() as world:
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():
            await world.until_attached()
        world.play({PUBLISH: [{"when": {"volumeId": "h2"}, "times": 0, "delay": "1000s"}]})
        async with world.attacher(reconcile=10.0, workers=1, timeout=2000.0) as controller:
            await world.volume("pv2", "h2")
            await world.wanted("va2", "pv2")
            await world.clock.sleep(1)
            lost = world.storage.volumes.get("h1")
            assert lost is not None
            lost.attached.clear()
            await world.clock.sleep(25)
            assert controller._drifted == {ObjectName(None, "va1"): False}, "the only worker is busy"
            unprotected = MergePatch({"metadata": {"finalizers": None}})
            await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, "va1"), unprotected)
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(1)
            assert controller._drifted == {}
