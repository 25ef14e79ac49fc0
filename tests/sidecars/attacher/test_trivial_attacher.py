"""Drivers that attach nothing, and those that come to, or cease to."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import Nothing
from orlop.sidecars.attacher.attacher_name_rules import finalizer_of
from orlop.sidecars.attacher.trivial_attacher import TrivialAttacher
from orlop.sidecars.attacher.trivial_rules import LetGo, MarkAttached, next_trivial_step
from support.attacher_worlds import DRIVER, OURS, PUBLISH, attacher_world

pytestmark = pytest.mark.virtual_time
LEAVING = {"deletionTimestamp": "2026-01-02T03:04:05Z"}
STEPS: list[tuple[str, dict[str, Any], dict[str, Any], type]] = [
    ("a new one is told to be attached", {}, {}, MarkAttached),
    ("one that was told so is left alone", {}, {"attached": True}, Nothing),
    ("one that goes is told nothing", {**LEAVING, "finalizers": ["other"]}, {}, Nothing),
    ("our finalizer goes first", {"finalizers": ["other", OURS]}, {}, LetGo),
    ("our finalizer goes from one that goes", {**LEAVING, "finalizers": [OURS]}, {"attached": True}, LetGo),
]


@pytest.mark.parametrize(("metadata", "status", "step"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
async def test_what_comes_next(metadata: dict[str, Any], status: dict[str, Any], step: type):
    found = {"metadata": {"name": "va1", "uid": "u", **metadata}, "status": status}
    assert isinstance(next_trivial_step(found, OURS), step)


async def test_all_are_told_to_be_attached_with_no_call_and_no_finalizer():
    async with attacher_world() as world:
        await world.volume()
        await world.wanted()
        async with world.attacher(TrivialAttacher):
            found = await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert objects.finalizers(found) == ()
        assert world.calls() == []


async def test_what_a_real_one_left_is_taken_off_and_all_of_it_can_go():
    async with attacher_world() as world:
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():
            await world.until_attached()
        async with world.attacher(TrivialAttacher):
            await world.clock.sleep(5)
            found = await world.attachment()
            assert objects.finalizers(found) == ()
            assert found["status"]["attached"] is True
        volume = await world.get(PERSISTENT_VOLUME, "pv1")
        assert volume is not None
        assert not objects.has_finalizer(volume, OURS)


async def test_the_finalizer_stays_on_volumes_of_another_driver_whose_name_is_written_alike():
    alike = DRIVER.replace(".", "-")
    assert finalizer_of(alike) == OURS
    async with attacher_world() as world:
        for name, driver in (("ours", DRIVER), ("theirs", alike)):
            await world.volume(name, name, driver=driver)
            await world.client.patch(
                PERSISTENT_VOLUME, ObjectName(None, name), MergePatch({"metadata": {"finalizers": [OURS]}})
            )
        async with world.attacher(TrivialAttacher):
            await world.until_released("ours")
            await world.clock.sleep(5)
        found = await world.get(PERSISTENT_VOLUME, "theirs")
        assert found is not None
        assert objects.has_finalizer(found, OURS)


async def test_a_driver_that_comes_to_attach_is_asked_for_what_was_only_said_to_be_attached():
    async with attacher_world() as world:
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher(TrivialAttacher):
            await world.until_attached()
        async with world.attacher():

            async def is_published() -> bool:
                return world.published() == ["id-1"]

            await world.until(is_published)
            found = await world.until_attached()
        assert objects.finalizers(found) == (OURS,)
        assert world.calls() == [PUBLISH]
