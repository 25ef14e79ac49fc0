"""The cases of detaching, and of letting go of volumes, that the upstream attacher documents, and no other test has."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from support.api.api_objects import attachment, finalized, named, volume
from support.api.api_wires import failing
from support.attaching.attacher_worlds import DRIVER, OURS, PUBLISH, UNPUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
SECRET_OF = {"controllerPublishSecretRef": {"name": "s", "namespace": "default"}}
THEIRS = "somebody/else"


async def prepared(world: AttacherWorld, **csi: Any) -> None:
    await world.node()
    await world.volume(**csi)
    await world.wanted()


async def volume_of(world: AttacherWorld, name: str = "pv1") -> dict[str, Any]:
    found = await world.find(PERSISTENT_VOLUME, name)
    assert found is not None
    return found


# ---- detaching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [{}, {"k": "v"}], ids=["nothing in it", "something in it"])
async def test_a_volume_with_a_secret_is_detached_with_it(data: dict[str, str]):
    async with AttacherWorld() as world:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        await world.client.create(SECRET, named("s", data=encoded), namespace="default")
        await prepared(world, **SECRET_OF)
        async with world.attacher():
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        (request,) = world.requests(UNPUBLISH)
        assert dict(request.secrets) == data


async def test_a_secret_that_went_away_is_told_and_detached_with_when_it_is_back():
    async with AttacherWorld() as world:
        secret = named("s", data={"k": base64.b64encode(b"v").decode()})
        await world.client.create(SECRET, secret, namespace="default")
        await prepared(world, **SECRET_OF)
        async with world.attacher():
            await world.until_attached()
            await world.client.delete(SECRET, ObjectName("default", "s"))
            await world.delete(VOLUME_ATTACHMENT, "va1")
            told = await world.until_told("detachError")
            assert "the secret default/s cannot be read" in told["message"]
            assert world.calls() == [PUBLISH]
            await world.client.create(SECRET, secret, namespace="default")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.published() == []


async def test_a_call_that_takes_too_long_is_told_and_made_again():
    async with AttacherWorld() as world:
        world.play({UNPUBLISH: [{"delay": "60s"}]})
        await prepared(world)
        async with world.attacher(timeout=15.0):
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            told = await world.until_told("detachError")
            assert told["errorCode"] == 4, "DeadlineExceeded"
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.published() == []


async def test_one_that_is_detached_already_and_kept_by_others_is_ignored():
    async with AttacherWorld() as world:
        await world.node()
        await world.volume()
        source = {"persistentVolumeName": "pv1"}
        body = finalized(attachment("va1", attacher=DRIVER, nodeName="n1", source=source), THEIRS)
        await world.client.create(VOLUME_ATTACHMENT, body)
        await world.delete(VOLUME_ATTACHMENT, "va1")
        async with world.attacher():
            await world.clock.sleep(700)
        assert world.wire.written() == []
        assert world.calls() == []


@pytest.mark.parametrize("field", ["finalizers", "status"])
async def test_a_write_that_fails_is_made_again_and_it_goes(field: str):
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            keeps = MergePatch({"metadata": {"finalizers": [OURS, THEIRS]}})
            await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, "va1"), keeps)
            path = "PATCH volumeattachments/va1" + ("/status" if field == "status" else "")
            world.wire.before = failing(path, times=2)
            await world.delete(VOLUME_ATTACHMENT, "va1")

            async def is_detached() -> bool:
                found = await world.attachment()
                return objects.finalizers(found) == (THEIRS,) and found["status"] == {"attached": False}

            await world.until(is_detached)
        assert world.published() == []


async def test_one_whose_node_is_gone_is_there_until_the_driver_has_taken_it_back():
    async with AttacherWorld() as world:
        world.play({UNPUBLISH: [{"times": 5, "error": {"code": "INTERNAL", "message": "stuck"}}]})
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            await world.delete(CSI_NODE, "n1")
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(20)
            assert world.published() == ["id-1"]
            assert (await world.attachment())["status"]["attached"] is True, "so its absence means that it is detached"
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.published() == []


# ---- letting go of volumes -------------------------------------------------------------------------------------------


async def test_a_detached_volume_is_let_go_when_it_is_deleted_later():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(100)
            assert objects.has_finalizer(await volume_of(world), OURS)
            await world.delete(PERSISTENT_VOLUME, "pv1")
            began = world.clock.elapsed()
            await world.until_released("pv1")
            assert world.clock.elapsed() - began < 1


async def test_of_the_finalizers_of_a_volume_only_ours_goes():
    async with AttacherWorld() as world:
        await world.node()
        source = {"driver": DRIVER, "volumeHandle": "h1"}
        body = finalized(volume("pv1", csi=source), "a.example.com/x", OURS, "b.example.com/y")
        await world.client.create(PERSISTENT_VOLUME, body)
        async with world.attacher():
            await world.delete(PERSISTENT_VOLUME, "pv1")
            await world.until_released("pv1")
            left = objects.finalizers(await volume_of(world))
        assert {"a.example.com/x", "b.example.com/y"} <= set(left)


async def test_a_volume_that_cannot_be_let_go_is_tried_again():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
            world.wire.before = failing("PATCH persistentvolumes/pv1", times=3)
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.delete(PERSISTENT_VOLUME, "pv1")
            await world.until_released("pv1")


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_volume_without_our_finalizer_is_ignored(*, deleted: bool):
    async with AttacherWorld() as world:
        source = {"driver": DRIVER, "volumeHandle": "h1"}
        await world.client.create(PERSISTENT_VOLUME, finalized(volume("pv1", csi=source), THEIRS))
        async with world.attacher():
            if deleted:
                await world.delete(PERSISTENT_VOLUME, "pv1")
            await world.clock.sleep(700)
        assert world.wire.written() == []


@pytest.mark.parametrize("source", [{"csi": {"driver": "other", "volumeHandle": "h"}}, {"hostPath": {"path": "/x"}}])
async def test_volumes_of_other_drivers_and_of_kubernetes_itself_are_ignored(source: dict[str, Any]):
    async with AttacherWorld() as world:
        body = finalized(volume("pv1", **source), "external-attacher/other")
        body["spec"] = {key: value for key, value in body["spec"].items() if key != "csi" or "csi" in source}
        await world.client.create(PERSISTENT_VOLUME, body)
        async with world.attacher():
            await world.delete(PERSISTENT_VOLUME, "pv1")
            await world.clock.sleep(700)
        assert world.wire.written() == []


async def test_a_volume_of_a_migrated_plugin_that_carries_our_finalizer_does_not_stay_behind():
    async with AttacherWorld() as world:
        body = finalized(volume("pv1", gcePersistentDisk={"pdName": "d"}), OURS)
        del body["spec"]["csi"]
        await world.client.create(PERSISTENT_VOLUME, body)
        async with world.attacher():
            await world.clock.sleep(5)
            assert objects.has_finalizer(await volume_of(world), OURS)
            await world.delete(PERSISTENT_VOLUME, "pv1")
            await world.until_released("pv1")


async def test_a_volume_is_kept_for_as_long_as_any_of_its_attachments_is_there():
    async with AttacherWorld() as world:
        await prepared(world)
        await world.node("n2", "id-2")
        async with world.attacher():
            await world.until_attached()
            await world.wanted("va2", "pv1", "n2")
            await world.delete(PERSISTENT_VOLUME, "pv1")
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(60)
            assert objects.has_finalizer(await volume_of(world), OURS)
            await world.delete(VOLUME_ATTACHMENT, "va2")
            await world.until_gone(VOLUME_ATTACHMENT, "va2")
            await world.until_released("pv1")
        assert world.published() == []
