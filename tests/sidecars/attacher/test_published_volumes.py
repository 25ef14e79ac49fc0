"""What the driver says is published, and what the objects say, are brought together."""

from __future__ import annotations

import pytest

from orlop.kube.kinds import VOLUME_ATTACHMENT
from support.attacher_worlds import PUBLISH, UNPUBLISH, AttacherWorld, attacher_world

pytestmark = pytest.mark.virtual_time
COUNT = 7
"""More than a page."""


async def attached(world: AttacherWorld) -> None:
    await world.node()
    for number in range(COUNT):
        await world.volume(f"pv{number}", f"h{number}")
        await world.wanted(f"va{number}", f"pv{number}")


async def test_what_vanished_at_the_driver_is_attached_again():
    async with attacher_world() as world:
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


async def test_where_both_agree_the_driver_is_only_asked_to_list():
    async with attacher_world() as world:
        await attached(world)
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(1000)
        assert world.calls() == [PUBLISH] * COUNT
        assert len(world.calls("ListVolumes")) >= 3 * 15


async def test_what_the_driver_still_has_though_it_was_let_go_is_taken_back():
    async with attacher_world() as world:
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher(reconcile=60.0):
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(300)
        assert world.published() == []
        assert world.calls() == [PUBLISH, UNPUBLISH]


async def test_a_driver_that_cannot_list_is_not_asked():
    async with attacher_world() as world:
        world.play({}, capabilities={"controller": ["PUBLISH_UNPUBLISH_VOLUME"]})
        await attached(world)
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(300)
        assert world.calls("ListVolumes") == []


async def test_a_list_whose_token_comes_back_is_given_up_and_nothing_is_concluded_from_it():
    async with attacher_world() as world:
        world.play({"ListVolumes": [{"times": 0, "answer": {"nextToken": "again"}}]})
        await attached(world)
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(300)
        assert len(world.calls("ListVolumes")) <= 2 * 5
        assert world.calls() == [PUBLISH] * COUNT
        assert any("gave one token twice" in str(entry) for entry in world.log)


async def test_a_volume_on_two_pages_is_published_on_the_nodes_of_both():
    def page(node: str, **token: str) -> dict[str, object]:
        return {"entries": [{"volume": {"volumeId": "h1"}, "status": {"publishedNodeIds": [node]}}], **token}

    async with attacher_world() as world:
        first = {"when": {"startingToken": "2"}, "times": 0, "answer": page("id-9")}
        world.play({"ListVolumes": [first, {"times": 0, "answer": page("id-1", nextToken="2")}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher(reconcile=60.0):
            await world.clock.sleep(600)
        assert world.calls() == [PUBLISH]
