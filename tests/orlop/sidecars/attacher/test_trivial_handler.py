"""Drivers that cannot attach, and those that gain or lose the capability while volumes are attached."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpResponse
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import MARKED_ANNOTATION, NODE_ID_ANNOTATION, Nothing
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.attacher.trivial_rules import AnnotateMarked, MarkAttached, ReleaseFinalizer, next_trivial_step
from support.api.api_objects import attachment
from support.api.api_wires import failing
from support.attaching.attacher_worlds import DRIVER, OURS, PUBLISH, UNPUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
LEAVING = {"deletionTimestamp": "2026-01-02T03:04:05Z"}
MARKED = {"annotations": {MARKED_ANNOTATION: "true"}}
KEPT = "orlop_attacher_finalizers_kept"
STEPS: list[tuple[str, dict[str, Any], dict[str, Any], type]] = [
    ("a new one is marked attached", {}, {}, MarkAttached),
    ("one that is attached is left alone", {}, {"attached": True}, Nothing),
    ("one that is attached keeps our finalizer", {"finalizers": [OURS]}, {"attached": True}, Nothing),
    ("one that goes is left alone", {**LEAVING, "finalizers": ["other"]}, {}, Nothing),
    ("our finalizer goes from one that goes", {**LEAVING, "finalizers": [OURS]}, {"attached": True}, ReleaseFinalizer),
    ("an attach that had begun is annotated first", {"finalizers": ["other", OURS]}, {}, AnnotateMarked),
    ("then it is marked attached", {"finalizers": ["other", OURS], **MARKED}, {}, MarkAttached),
]


@pytest.mark.parametrize(("metadata", "status", "step"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
async def test_the_next_step(metadata: dict[str, Any], status: dict[str, Any], step: type):
    found = {"metadata": {"name": "va1", "uid": "u", **metadata}, "status": status}
    assert isinstance(next_trivial_step(found, OURS), step)


async def test_all_are_marked_attached_with_no_call_and_no_finalizer():
    async with AttacherWorld() as world:
        await world.volume()
        await world.wanted()
        async with world.attacher(trivial=True):
            found = await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert objects.finalizers(found) == ()
        assert objects.annotations(found) == {}
        assert world.calls() == []
        assert world.metrics().get(KEPT, 0.0) == 0.0


async def attached_for_real(world: AttacherWorld, count: int) -> None:
    await world.node()
    for number in range(count):
        await world.volume(f"pv{number}", f"h{number}")
        await world.wanted(f"va{number}", f"pv{number}")
    async with world.attacher():
        for number in range(count):
            await world.until_attached(f"va{number}")


async def test_what_is_attached_keeps_its_finalizers_when_the_driver_loses_its_capability_and_is_counted():
    async with AttacherWorld() as world:
        await attached_for_real(world, 3)
        async with world.attacher(trivial=True):
            await world.clock.sleep(700)
            for number in range(3):
                found = await world.attachment(f"va{number}")
                assert objects.finalizers(found) == (OURS,)
                assert found["status"]["attached"] is True
                volume = await world.find(PERSISTENT_VOLUME, f"pv{number}")
                assert objects.has_finalizer(volume or {}, OURS)
            assert world.metrics()[KEPT] == 3
        warned = [entry for entry in world.log if "keep the finalizer" in entry.message]
        assert [entry.fields["attachments"] for entry in warned] == [3], "one line"


async def test_what_kept_its_finalizer_is_detached_when_the_capability_is_back():
    async with AttacherWorld() as world:
        await attached_for_real(world, 1)
        async with world.attacher(trivial=True):
            await world.clock.sleep(10)
        async with world.attacher():
            await world.clock.sleep(10)
            assert world.calls() == [PUBLISH], "it is attached, and is not attached again"
            await world.delete(VOLUME_ATTACHMENT, "va0")
            await world.until_gone(VOLUME_ATTACHMENT, "va0")
            assert world.metrics()[KEPT] == 0
        assert world.calls() == [PUBLISH, UNPUBLISH]
        assert world.published("h0") == []


async def test_what_is_deleted_without_the_capability_goes_and_its_volume_after_it():
    async with AttacherWorld() as world:
        await attached_for_real(world, 2)
        async with world.attacher(trivial=True, reconcile=60.0):
            await world.delete(PERSISTENT_VOLUME, "pv0")
            await world.clock.sleep(5)
            assert await world.find(PERSISTENT_VOLUME, "pv0") is not None, "a VolumeAttachment names it"
            await world.delete(VOLUME_ATTACHMENT, "va0")
            await world.until_gone(VOLUME_ATTACHMENT, "va0")
            await world.until_released("pv0")
            await world.clock.sleep(100)
            assert world.metrics()[KEPT] == 1
        volume = await world.find(PERSISTENT_VOLUME, "pv1")
        assert objects.has_finalizer(volume or {}, OURS)


async def test_an_attach_that_had_begun_is_made_good_when_the_capability_is_back_though_it_was_marked_attached():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 0, "error": {"code": "INTERNAL", "message": "no"}}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():
            await world.until_told()
        async with world.attacher(trivial=True):
            found = await world.until_attached()
        assert objects.finalizers(found) == (OURS,), "the driver may have published it"
        assert world.published() == []
        world.play({})
        async with world.attacher():

            async def is_published() -> bool:
                return world.published() == ["id-1"]

            await world.until(is_published)
            found = await world.until_attached()
        assert objects.annotations(found) == {NODE_ID_ANNOTATION: "id-1"}


async def test_a_deleted_volume_keeps_the_finalizer_while_another_driver_whose_name_is_written_alike_has_it_attached():
    alike = DRIVER.replace(".", "-")
    assert finalizer_of(alike) == OURS
    protected = MergePatch({"metadata": {"finalizers": [OURS]}})
    async with AttacherWorld() as world:
        for name, driver in (("ours", DRIVER), ("theirs", alike)):
            await world.volume(name, name, driver=driver)
            await world.client.patch(PERSISTENT_VOLUME, ObjectName(None, name), protected)
        theirs = attachment("va1", attacher=alike, nodeName="n1", source={"persistentVolumeName": "theirs"})
        await world.client.create(VOLUME_ATTACHMENT, theirs)
        for name in ("ours", "theirs"):
            await world.delete(PERSISTENT_VOLUME, name)
        async with world.attacher(trivial=True):
            await world.until_released("ours")
            await world.clock.sleep(5)
        found = await world.find(PERSISTENT_VOLUME, "theirs")
        assert objects.has_finalizer(found or {}, OURS)


async def test_an_api_server_that_drops_our_writes_is_not_written_to_without_end():
    async with AttacherWorld() as world:
        made = await world.wanted()
        unchanged = HttpResponse(200, {"content-type": "application/json"}, json.dumps(made).encode())
        world.wire.before = failing("PATCH volumeattachments/va1/status", times=10_000, answer=unchanged)
        async with world.attacher(trivial=True):
            await world.clock.sleep(60)
        assert len(world.wire.written()) <= 30
        assert "the API server drops our writes" in str(world.log)


async def test_a_driver_that_gains_the_capability_is_called_for_what_was_only_marked_attached():
    async with AttacherWorld() as world:
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher(trivial=True):
            await world.until_attached()
        async with world.attacher():

            async def is_published() -> bool:
                return world.published() == ["id-1"]

            await world.until(is_published)
            found = await world.until_attached()
        assert objects.finalizers(found) == (OURS,)
        assert world.calls() == [PUBLISH]
