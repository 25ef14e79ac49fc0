"""An attacher with an API server and a driver, on virtual time: what stands on the objects, and what the driver has."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conftest import SOAK
from orlop.kube import objects
from orlop.kube.cache.informer import Informer
from orlop.kube.client import MergePatch, WatchEvent
from orlop.kube.kinds import CSI_NODE, NODE, PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT, Kind
from orlop.kube.objects import ObjectName
from orlop.kube.queue.own_writes import OwnWrites
from orlop.sidecars.attacher.attach_rules import NODE_ID_ANNOTATION, NODE_IDS_ANNOTATION, is_attached
from orlop.sidecars.attacher.attachment_controller import AttachmentController
from orlop.testing.driver_model.attachment_model import DEVICE_KEY
from support.api.api_objects import attachment, named
from support.attaching.attacher_worlds import OURS, PUBLISH, UNPUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
DRIVER = "mock.example.com"


async def prepared(world: AttacherWorld) -> None:
    await world.node()
    await world.volume()
    await world.wanted()


async def test_a_volume_is_attached_with_one_call_and_told_with_what_the_driver_gave():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            found = await world.until_attached()
            await world.clock.sleep(5)

        assert objects.finalizers(found) == (OURS,)
        assert objects.annotations(found)[NODE_ID_ANNOTATION] == "id-1"
        assert found["status"] == {"attached": True, "attachmentMetadata": {DEVICE_KEY: "/dev/h1"}}
        volume = await world.find(PERSISTENT_VOLUME, "pv1")
        assert volume is not None
        assert objects.has_finalizer(volume, OURS)
        assert world.published() == ["id-1"]
        assert world.calls() == [PUBLISH]


async def test_a_deleted_one_is_detached_with_one_call_and_goes_and_its_volume_after_it():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            await world.delete(PERSISTENT_VOLUME, "pv1")
            await world.clock.sleep(5)
            assert await world.find(PERSISTENT_VOLUME, "pv1") is not None, "an attached volume's object stays"
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            volume = await world.find(PERSISTENT_VOLUME, "pv1")
            await world.clock.sleep(5)
            volume = await world.find(PERSISTENT_VOLUME, "pv1")

        assert volume is None or not objects.has_finalizer(volume, OURS)
        assert world.published() == []
        assert world.calls() == [PUBLISH, UNPUBLISH]


@pytest.mark.parametrize("first", [VOLUME_ATTACHMENT, PERSISTENT_VOLUME], ids=["attachment first", "volume first"])
async def test_a_deleted_volume_stays_while_its_attachment_is_being_detached(first: Kind):
    async with AttacherWorld() as world:
        world.play({UNPUBLISH: [{"times": 3, "error": {"code": "INTERNAL", "message": "busy"}}]})
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            names = {VOLUME_ATTACHMENT: "va1", PERSISTENT_VOLUME: "pv1"}
            for kind in sorted(names, key=lambda kind: kind != first):
                await world.delete(kind, names[kind])
            while await world.find(VOLUME_ATTACHMENT, "va1") is not None:
                volume = await world.find(PERSISTENT_VOLUME, "pv1")
                assert objects.has_finalizer(volume or {}, OURS), "without its handle nothing could be detached"
                await world.clock.sleep(0.2)
            await world.until_released("pv1")
        assert world.published() == []


async def test_what_another_attachment_has_attached_stays_attached_though_an_old_id_was_left_on_this_one():
    async with AttacherWorld() as world:
        await world.node("n2", "id-2")
        await world.volume()
        await world.wanted("va2", "pv1", "n2")
        async with world.attacher():
            await world.until_attached("va2")
            await world.node()
            body = attachment("va1", attacher=DRIVER, nodeName="n1", source={"persistentVolumeName": "pv1"})
            body["metadata"]["annotations"] = {NODE_ID_ANNOTATION: "id-2"}
            await world.client.create(VOLUME_ATTACHMENT, body)
            await world.clock.sleep(30)
        assert "id-2" in world.published()
        assert world.calls(UNPUBLISH) == []


async def test_a_volume_that_is_not_deleted_keeps_our_finalizer_when_it_is_detached():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(5)
        volume = await world.find(PERSISTENT_VOLUME, "pv1")
        assert volume is not None
        assert objects.has_finalizer(volume, OURS)


async def test_a_failure_is_told_with_its_code_and_an_event_and_tried_again_ever_later():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 3, "error": {"code": "RESOURCE_EXHAUSTED", "message": "no slot"}}]})
        await prepared(world)
        async with world.attacher():

            async def is_told() -> bool:
                return "attachError" in (await world.attachment())["status"]

            await world.until(is_told)
            error = (await world.attachment())["status"]["attachError"]
            assert (error["message"], error["errorCode"]) == ("no slot", 8)
            began = world.clock.elapsed()
            found = await world.until_attached()
            assert 6 <= world.clock.elapsed() - began <= 9, "one, two and four seconds"
        assert "attachError" not in found["status"]
        assert world.calls() == [PUBLISH] * 4
        assert "FailedAttachVolume: no slot" in await world.events()


async def test_an_attempt_that_may_still_run_is_taken_back_though_it_never_succeeded():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 0, "effect": True, "error": {"code": "DEADLINE_EXCEEDED", "message": "slow"}}]})
        await prepared(world)
        async with world.attacher():

            async def is_published() -> bool:
                return world.published() == ["id-1"]

            await world.until(is_published)
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.published() == []


async def test_a_detachment_that_fails_is_told_and_the_object_stays_until_it_succeeds():
    async with AttacherWorld() as world:
        world.play({UNPUBLISH: [{"times": 2, "error": {"code": "INTERNAL", "message": "stuck"}}]})
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")

            async def is_told() -> bool:
                return "detachError" in (await world.attachment())["status"]

            await world.until(is_told)
            status = (await world.attachment())["status"]
            assert status["attached"] is True
            assert (status["detachError"]["message"], status["detachError"]["errorCode"]) == ("stuck", 13)
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.calls() == [PUBLISH, UNPUBLISH, UNPUBLISH, UNPUBLISH]
        assert "FailedDetachVolume: stuck" in await world.events()


async def test_what_others_keep_is_told_as_detached_and_our_finalizer_is_gone():
    async with AttacherWorld() as world:
        await prepared(world)
        theirs = MergePatch({"metadata": {"finalizers": ["somebody/else"]}})
        await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, "va1"), theirs)
        async with world.attacher():
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_detached()
            await world.clock.sleep(5)
        found = await world.attachment()
        assert objects.finalizers(found) == ("somebody/else",)
        assert found["status"] == {"attached": False}
        assert world.calls() == [PUBLISH, UNPUBLISH]


async def test_a_node_that_is_known_later_is_attached_to_at_once():
    async with AttacherWorld() as world:
        await world.volume()
        await world.wanted()
        async with world.attacher():
            await world.clock.sleep(100)
            error = (await world.attachment())["status"]["attachError"]
            assert "'n1'" in error["message"]
            await world.node()
            began = world.clock.elapsed()
            await world.until_attached()
            assert world.clock.elapsed() - began < 1


async def test_one_that_is_to_be_detached_from_a_node_that_is_known_later_is_detached_at_once():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
        without = MergePatch({"metadata": {"annotations": {NODE_ID_ANNOTATION: None}}})
        await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, "va1"), without)
        await world.delete(CSI_NODE, "n1")
        await world.delete(VOLUME_ATTACHMENT, "va1")
        async with world.attacher():
            await world.clock.sleep(1000)
            assert "'n1'" in (await world.attachment())["status"]["detachError"]["message"]
            await world.node()
            began = world.clock.elapsed()
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            assert world.clock.elapsed() - began < 1
        assert world.published() == []


async def test_the_annotation_of_a_node_names_it_where_no_csinode_does():
    async with AttacherWorld() as world:
        node = named("n1")
        node["metadata"]["annotations"] = {NODE_IDS_ANNOTATION: f'{{"{DRIVER}": "old-id"}}'}
        await world.client.create(NODE, node)
        await world.volume()
        await world.wanted()
        async with world.attacher():
            await world.until_attached()
        assert world.published() == ["old-id"]


async def test_it_is_detached_from_a_node_that_is_gone():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            await world.delete(CSI_NODE, "n1")
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.published() == []


async def test_the_former_id_of_a_node_stays_recorded_until_the_volume_is_unpublished_from_it():
    async with AttacherWorld() as world:
        reached = {"effect": True, "error": {"code": "DEADLINE_EXCEEDED", "message": "slow"}}
        busy = {"times": 2, "error": {"code": "INTERNAL", "message": "busy"}}
        world.play({PUBLISH: [reached], UNPUBLISH: [busy]})
        await prepared(world)
        async with world.attacher():
            await world.until_told()
            await world.delete(CSI_NODE, "n1")
            await world.node("n1", "id-2")

            async def has_failed() -> bool:
                return len(world.calls(UNPUBLISH)) == 1

            await world.until(has_failed)
            await world.clock.sleep(0.1)
            assert objects.annotations(await world.attachment())[NODE_ID_ANNOTATION] == "id-1"
            assert world.published() == ["id-1"]
            await world.until_attached()
        assert world.published() == ["id-2"]


async def test_secrets_are_handed_to_both_calls_and_stand_nowhere_also_where_the_driver_quotes_them():
    canary = "tw33t-tw33t"
    async with AttacherWorld() as world:
        refused = {"error": {"code": "INTERNAL", "message": "login failed"}}
        world.play({PUBLISH: [refused], UNPUBLISH: [refused]})
        data = {"password": base64.b64encode(canary.encode()).decode()}
        await world.client.create(SECRET, named("s", data=data), namespace="default")
        await world.node()
        await world.volume(controllerPublishSecretRef={"name": "s", "namespace": "default"})
        await world.wanted()
        async with world.attacher():
            errors = [await world.until_told("attachError")]
            stood = [str(await world.attachment())]
            stood += [str(await world.until_attached())]
            await world.delete(VOLUME_ATTACHMENT, "va1")
            errors += [await world.until_told("detachError")]
            stood += [str(await world.attachment())]
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        asked = [*world.requests(PUBLISH), *world.requests(UNPUBLISH)]
        assert [dict(request.secrets) for request in asked] == [{"password": canary}] * 4
        hidden = "login failed, with ***"
        assert [error["message"] for error in errors] == [hidden, hidden]
        events = await world.events()
        assert events == [f"FailedAttachVolume: {hidden}", f"FailedDetachVolume: {hidden}"]
        volume = await world.find(PERSISTENT_VOLUME, "pv1")
        assert canary not in str([world.log, events, stood, volume, world.scrape("")])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "cannot be read"),
        ({"k": base64.b64encode(b"\xff\xfe").decode()}, "the key 'k' in the secret default/s is not UTF-8 text"),
    ],
    ids=["missing", "not UTF-8"],
)
async def test_a_secret_that_cannot_be_used_is_told_and_nothing_is_asked(data: dict[str, str] | None, sentence: str):
    async with AttacherWorld() as world:
        if data is not None:
            await world.client.create(SECRET, named("s", data=data), namespace="default")
        await world.node()
        await world.volume(controllerPublishSecretRef={"name": "s", "namespace": "default"})
        await world.wanted()
        async with world.attacher():
            await world.clock.sleep(10)
        assert sentence in (await world.attachment())["status"]["attachError"]["message"]
        assert world.calls() == []


async def test_an_attacher_that_died_at_its_work_is_followed_by_one_that_ends_it():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"delay": "10s"}]})
        await prepared(world)
        async with world.attacher():
            await world.clock.sleep(3)
            assert objects.finalizers(await world.attachment()) == (OURS,)
        async with world.attacher():
            await world.until_attached()
        assert world.published() == ["id-1"]


class HeldWatch:
    """Keeps the events of an informer back, as a slow API server does, until it is released."""

    def __init__(self, informer: Informer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._take = informer._apply
        self._events: list[WatchEvent] = []
        monkeypatch.setattr(informer, "_apply", self._events.append)

    def release(self, informer: Informer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(informer, "_apply", self._take)
        for event in self._events:
            self._take(event)


@asynccontextmanager
async def behind_its_watch(world: AttacherWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """An attacher that works, and resyncs, while its cache sees nothing of what it does; then it sees all of it."""
    async with world.parts(resync=0.5, drift_check=0.0) as parts:
        await world.clock.sleep(1)
        attachments = parts.caches.attachments
        before = attachments.get(ObjectName(None, "va1"))
        held = HeldWatch(attachments, monkeypatch)
        running = asyncio.ensure_future(parts.controller().run())
        yield
        await world.clock.sleep(1.5)
        assert attachments.get(ObjectName(None, "va1")) == before, "the cache has seen nothing"
        held.release(attachments, monkeypatch)
        await world.clock.sleep(10)
        running.cancel()
        await asyncio.wait([running])


async def test_nothing_is_attached_twice_because_the_cache_does_not_show_it_yet(monkeypatch: pytest.MonkeyPatch):
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"error": {"code": "UNAVAILABLE", "message": "later"}}]})
        await prepared(world)
        async with world.attacher():
            await world.until_told()
        async with behind_its_watch(world, monkeypatch):
            pass
        assert is_attached(await world.attachment())
        assert world.calls() == [PUBLISH, PUBLISH]


async def test_nothing_is_detached_twice_because_the_cache_does_not_show_it_yet(monkeypatch: pytest.MonkeyPatch):
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
        await world.delete(VOLUME_ATTACHMENT, "va1")
        async with behind_its_watch(world, monkeypatch):
            pass
        assert world.calls() == [PUBLISH, UNPUBLISH]


async def test_what_somebody_else_has_ended_meanwhile_is_not_detached_again(monkeypatch: pytest.MonkeyPatch):
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
        world.play({UNPUBLISH: [{"delay": "0.2s"}]})
        await world.delete(VOLUME_ATTACHMENT, "va1")
        async with behind_its_watch(world, monkeypatch):
            await world.clock.sleep(0.1)
            unprotected = MergePatch({"metadata": {"finalizers": None}})
            await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, "va1"), unprotected)
        assert world.calls() == [PUBLISH, UNPUBLISH]


async def test_hundreds_are_attached_and_detached_with_one_call_each():
    count = 1_000 if SOAK else 100
    async with AttacherWorld() as world:

        async def all_there() -> list[dict[str, Any]]:
            return (await world.client.list(VOLUME_ATTACHMENT)).items

        async def all_are_attached() -> bool:
            await world.clock.sleep(1)
            return all(is_attached(found) for found in await all_there())

        async def all_are_gone() -> bool:
            await world.clock.sleep(1)
            return await all_there() == []

        await world.node()
        for number in range(count):
            await world.volume(f"pv{number}", f"h{number}")
            await world.wanted(f"va{number}", f"pv{number}")
        async with world.attacher(workers=100):
            await world.until(all_are_attached)
            assert all(world.published(f"h{number}") == ["id-1"] for number in range(count))
            for number in range(count):
                await world.delete(VOLUME_ATTACHMENT, f"va{number}")
            await world.until(all_are_gone)
        assert not any(world.published(f"h{number}") for number in range(count))
        assert sorted(world.calls()) == [PUBLISH] * count + [UNPUBLISH] * count


async def test_a_node_whose_volumes_hang_holds_up_no_other():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"when": {"nodeId": "id-1"}, "times": 0, "delay": "1000s"}]})
        await world.node("n1", "id-1")
        await world.node("n2", "id-2")
        for number in range(30):
            await world.volume(f"pv{number}", f"h{number}")
            await world.wanted(f"va{number}", f"pv{number}", "n1")
        async with world.attacher(workers=10, timeout=2000.0):
            await world.clock.sleep(5)
            await world.volume("other", "h-other")
            await world.wanted("va-other", "other", "n2")
            began = world.clock.elapsed()
            await world.until_attached("va-other")
            assert world.clock.elapsed() - began < 1


async def test_three_nodes_whose_volumes_hang_hold_up_no_other():
    async with AttacherWorld() as world:
        bad = [f"bad{number}" for number in range(3)]
        hang = [{"when": {"nodeId": f"id-{node}"}, "times": 0, "delay": "1000s"} for node in bad]
        world.play({PUBLISH: hang})
        for node in (*bad, "good"):
            await world.node(node, f"id-{node}")
        for node in bad:
            for number in range(20):
                await world.volume(f"pv-{node}-{number}", f"h-{node}-{number}")
                await world.wanted(f"va-{node}-{number}", f"pv-{node}-{number}", node)
        async with world.attacher(workers=10, timeout=2000.0):
            await world.clock.sleep(5)
            for number in range(10):
                await world.volume(f"pv{number}", f"h{number}")
                await world.wanted(f"va{number}", f"pv{number}", "good")
            began = world.clock.elapsed()
            for number in range(10):
                await world.until_attached(f"va{number}")
            assert world.clock.elapsed() - began < 2


async def test_nodes_that_hang_hold_up_another_no_longer_than_one_call_takes_however_many_they_are():
    async with AttacherWorld() as world:
        bad = [f"bad{number}" for number in range(12)]
        hang = [{"when": {"nodeId": f"id-{node}"}, "times": 0, "delay": "1000s"} for node in bad]
        world.play({PUBLISH: hang})
        for node in (*bad, "good"):
            await world.node(node, f"id-{node}")
            for number in range(5):
                await world.volume(f"pv-{node}-{number}", f"h-{node}-{number}")
        async with world.attacher(workers=10, timeout=15.0):
            for node in (*bad, "good"):
                for number in range(5):
                    await world.wanted(f"va-{node}-{number}", f"pv-{node}-{number}", node)
            began = world.clock.elapsed()
            for number in range(5):
                await world.until_attached(f"va-good-{number}")
            assert world.clock.elapsed() - began < 16


async def test_what_a_driver_says_cannot_write_on_the_terminal_of_whoever_reads_it():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"error": {"code": "INTERNAL", "message": "gone\x1b[2J\u009b31m\r\nError: none\u202e"}}]})
        await world.node()
        await world.volume()
        await world.wanted()
        async with world.attacher():
            await world.until_attached()
        told = [event for event in await world.events() if "gone" in event]
        assert told
        assert all(event.isprintable() for event in told), told


async def test_what_it_keeps_does_not_grow_with_what_was_there_and_is_gone():
    def kept(controller: AttachmentController) -> int:
        held = [each for each in vars(controller).values() if isinstance(each, dict | set | OwnWrites)]
        assert len(held) >= 4, "else nothing would be counted here"
        return sum(len(each) for each in held)

    async with AttacherWorld() as world, world.attacher(reconcile=10.0) as controller:
        for number in range(20):
            await world.node(f"n{number}")
            await world.volume(f"pv{number}", f"h{number}")
            await world.wanted(f"va{number}", f"pv{number}", f"n{number}")
            await world.until_attached(f"va{number}")
            lost = world.storage.volumes.get(f"h{number}")
            assert lost is not None
            lost.attached.clear()
            await world.clock.sleep(11)
            await world.delete(VOLUME_ATTACHMENT, f"va{number}")
            await world.until_gone(VOLUME_ATTACHMENT, f"va{number}")
            await world.delete(PERSISTENT_VOLUME, f"pv{number}")
            await world.until_released(f"pv{number}")
            unprotected = MergePatch({"metadata": {"finalizers": None}})
            await world.client.patch(PERSISTENT_VOLUME, ObjectName(None, f"pv{number}"), unprotected)
            await world.delete(CSI_NODE, f"n{number}")
        await world.clock.sleep(60)
        assert kept(controller) == 0
