"""The cases of attaching that the upstream attacher documents, as far as no other test has them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from orlop.csi.proto import csi_pb2
from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpResponse
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from support.api.api_objects import attachment, csi_node, finalized, named, volume
from support.api.api_wires import failing, refusal
from support.attaching.attacher_worlds import DRIVER, OURS, PUBLISH, UNPUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
Mode = csi_pb2.VolumeCapability.AccessMode.Mode
SECRET_OF = {"controllerPublishSecretRef": {"name": "s", "namespace": "default"}}


async def prepared(world: AttacherWorld, **csi: Any) -> None:
    await world.node()
    await world.volume(**csi)
    await world.wanted()


async def with_secret(world: AttacherWorld, **data: bytes) -> None:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    await world.client.create(SECRET, named("s", **({"data": encoded} if encoded else {})), namespace="default")


def publish_request(world: AttacherWorld) -> csi_pb2.ControllerPublishVolumeRequest:
    (request,) = world.requests(PUBLISH)
    assert isinstance(request, csi_pb2.ControllerPublishVolumeRequest)
    return request


# ---- what the driver is asked with -----------------------------------------------------------------------------------


async def test_a_volume_with_attributes_is_attached_with_them():
    async with AttacherWorld() as world:
        await prepared(world, volumeAttributes={"tier": "gold", "zone": "a"}, fsType="xfs")
        async with world.attacher():
            await world.until_attached()
        request = publish_request(world)
        assert dict(request.volume_context) == {"tier": "gold", "zone": "a"}
        assert request.volume_capability.mount.fs_type == "xfs"
        assert (request.volume_id, request.node_id, request.readonly) == ("h1", "id-1", False)


@pytest.mark.parametrize(("more", "asked"), [(["PUBLISH_READONLY"], True), ([], False)], ids=["can", "cannot"])
async def test_a_read_only_volume_is_attached_as_such_only_where_the_driver_can(more: list[str], *, asked: bool):
    async with AttacherWorld() as world:
        world.play({}, capabilities={"controller": ["PUBLISH_UNPUBLISH_VOLUME", *more]})
        await prepared(world, readOnly=True)
        async with world.attacher():
            await world.until_attached()
        assert publish_request(world).readonly is asked


async def test_a_volume_of_a_driver_that_knows_single_writers_is_attached_as_of_one_node():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher(default_fs_type="ext4"):
            await world.until_attached()
        capability = publish_request(world).volume_capability
        assert capability.access_mode.mode == Mode.SINGLE_NODE_MULTI_WRITER
        assert capability.mount.fs_type == "ext4", "the default of the flags"


async def test_a_secret_with_nothing_in_it_is_none():
    async with AttacherWorld() as world:
        await with_secret(world)
        await prepared(world, **SECRET_OF)
        async with world.attacher():
            await world.until_attached()
        assert dict(publish_request(world).secrets) == {}


@pytest.mark.parametrize(
    ("csi", "secrets"),
    [({}, {}), ({"readOnly": True}, {}), ({"volumeAttributes": {"a": "b"}}, {}), (SECRET_OF, {"k": "v"})],
    ids=["plain", "read-only", "with attributes", "with secrets"],
)
async def test_a_volume_that_the_attachment_describes_itself_is_attached_and_detached(
    csi: dict[str, Any], secrets: dict[str, str]
):
    async with AttacherWorld() as world:
        await with_secret(world, k=b"v")
        await world.node()
        world.storage.add_volume("h1", 1 << 30)
        spec = {"csi": {"driver": DRIVER, "volumeHandle": "h1", **csi}, "accessModes": ["ReadWriteOnce"]}
        source = {"inlineVolumeSpec": spec}
        await world.client.create(VOLUME_ATTACHMENT, attachment("va1", attacher=DRIVER, nodeName="n1", source=source))
        async with world.attacher():
            await world.until_attached()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        request = publish_request(world)
        assert request.readonly is csi.get("readOnly", False)
        assert dict(request.volume_context) == csi.get("volumeAttributes", {})
        assert dict(request.secrets) == secrets
        assert not [one for one in world.wire.written() if "persistentvolumes" in one]
        assert world.calls() == [PUBLISH, UNPUBLISH]


# ---- what is left alone ----------------------------------------------------------------------------------------------


async def test_one_that_is_attached_already_is_ignored():
    async with AttacherWorld() as world:
        await prepared(world)
        async with world.attacher():
            await world.until_attached()
        before = len(world.wire.requests)
        async with world.attacher():
            await world.clock.sleep(60)
        assert world.wire.written(before) == []
        assert world.calls() == [PUBLISH]


async def test_one_of_an_unknown_driver_is_ignored():
    async with AttacherWorld() as world:
        await prepared(world)
        other = attachment("va2", attacher="other.example.com", nodeName="n1", source={"persistentVolumeName": "pv1"})
        made = await world.client.create(VOLUME_ATTACHMENT, other)
        async with world.attacher():
            await world.until_attached()
        found = await world.attachment("va2")
        assert objects.resource_version(found) == objects.resource_version(made)
        assert world.calls() == [PUBLISH]


async def test_a_volume_that_is_being_deleted_is_told_and_not_attached():
    async with AttacherWorld() as world:
        await world.node()
        world.storage.add_volume("h1", 1 << 30)
        source = {"driver": DRIVER, "volumeHandle": "h1"}
        await world.client.create(PERSISTENT_VOLUME, finalized(volume("pv1", csi=source), "somebody/else"))
        await world.delete(PERSISTENT_VOLUME, "pv1")
        await world.wanted()
        async with world.attacher():
            told = await world.until_told()
        assert "pv1 is being deleted" in told["message"]
        assert objects.finalizers(await world.attachment()) == ()
        assert world.calls() == []


# ---- what is not there yet -------------------------------------------------------------------------------------------


async def test_a_csinode_that_does_not_name_the_driver_is_told_and_attached_to_when_it_does():
    async with AttacherWorld() as world:
        await world.client.create(CSI_NODE, csi_node("n1", {"name": "other.example.com", "nodeID": "x"}))
        await world.volume()
        await world.wanted()
        async with world.attacher():
            told = await world.until_told()
            assert "no CSINode of that name lists the driver" in told["message"]
            drivers = [{"name": "other.example.com", "nodeID": "x"}, {"name": DRIVER, "nodeID": "id-1"}]
            patch = MergePatch({"spec": {"drivers": drivers}})
            await world.client.patch(CSI_NODE, ObjectName(None, "n1"), patch)
            await world.until_attached()
        assert world.published() == ["id-1"]


async def test_a_volume_that_comes_later_is_attached_at_once():
    async with AttacherWorld() as world:
        await world.node()
        await world.wanted()
        async with world.attacher():
            await world.clock.sleep(200)
            await world.volume()
            began = world.clock.elapsed()
            await world.until_attached()
            assert world.clock.elapsed() - began < 1


# ---- what fails ------------------------------------------------------------------------------------------------------


async def test_a_call_that_takes_too_long_is_told_and_tried_again():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"delay": "60s"}]})
        await prepared(world)
        async with world.attacher(timeout=15.0):
            told = await world.until_told()
            assert told["errorCode"] == 4, "DeadlineExceeded"
            await world.until_attached()
        assert world.published() == ["id-1"]


@pytest.mark.parametrize("code", ["CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"])
async def test_what_may_still_be_running_is_detached_though_it_was_never_attached(code: str):
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 0, "effect": True, "error": {"code": code, "message": "m"}}]})
        await prepared(world)
        async with world.attacher():
            await world.until_told()
            assert world.published() == ["id-1"]
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.published() == []


async def test_a_volume_of_which_attaching_failed_for_good_does_not_stay_behind():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 0, "error": {"code": "INVALID_ARGUMENT", "message": "never"}}]})
        await prepared(world)
        async with world.attacher():
            await world.until_told()
            await world.delete(PERSISTENT_VOLUME, "pv1")
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
            await world.until_released("pv1")


WRITES = ["PATCH persistentvolumes/pv1", "PATCH volumeattachments/va1", "PATCH volumeattachments/va1/status"]


@pytest.mark.parametrize("write", WRITES, ids=["the volume's finalizer", "the attachment's finalizer", "attached"])
async def test_a_write_that_fails_is_made_again_and_all_ends_well(write: str):
    async with AttacherWorld() as world:
        world.wire.before = failing(write, times=2)
        await prepared(world)
        async with world.attacher():
            found = await world.until_attached()
        assert objects.finalizers(found) == (OURS,)
        assert "attachError" not in found["status"]
        assert world.published() == ["id-1"]
        assert world.calls() == [PUBLISH] * len(world.calls()), "never detached"


async def test_a_volume_that_may_not_be_protected_is_told_where_people_look():
    async with AttacherWorld() as world:
        world.wire.before = failing(WRITES[0], times=1)
        await prepared(world)
        async with world.attacher():
            told = await world.until_told()
            assert told["message"].startswith("our finalizer cannot be added to the PersistentVolume pv1: ")
            await world.until_attached()


@pytest.mark.parametrize(
    "answer",
    [refusal(413, "RequestEntityTooLarge"), refusal(500, "", "etcdserver: request is too large")],
    ids=["by the server", "by its database"],
)
async def test_an_answer_that_is_too_large_for_a_server_of_somebody_elses_is_told(answer: HttpResponse):
    async with AttacherWorld() as world:
        world.wire.before = failing(WRITES[2], times=1, answer=answer)
        await prepared(world)
        async with world.attacher():
            told = await world.until_told()
            assert told["message"].startswith("the volume is attached, but the driver's response cannot be stored: ")
            await world.until_attached()


async def test_an_answer_of_the_driver_that_no_object_can_hold_is_told_and_taken_back_with_the_object():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 0, "answer": {"publishContext": {"disk": "x" * (1 << 19)}}}]})
        await prepared(world)
        async with world.attacher():
            told = await world.until_told()
            assert told["message"].startswith("the volume is attached, but the driver's response cannot be stored: ")
            assert (await world.attachment())["status"]["attached"] is False
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.published() == []


async def test_an_error_that_cannot_be_told_is_told_later():
    async with AttacherWorld() as world:
        world.wire.before = failing("PATCH volumeattachments/va1/status", times=3)
        await world.node()
        await world.wanted()
        async with world.attacher():
            told = await world.until_told()
        assert "there is no PersistentVolume pv1" in told["message"]


async def test_a_node_that_came_back_under_its_name_is_attached_to_by_its_new_id():
    async with AttacherWorld() as world:
        world.play({PUBLISH: [{"times": 1, "effect": True, "error": {"code": "UNAVAILABLE", "message": "m"}}]})
        await prepared(world)
        async with world.attacher(retry_start=60.0):
            await world.until_told()
            await world.delete(CSI_NODE, "n1")
            await world.node("n1", "id-2")
            await world.until_attached()
        assert world.published() == ["id-2"]
        assert world.calls() == [PUBLISH, UNPUBLISH, PUBLISH]
