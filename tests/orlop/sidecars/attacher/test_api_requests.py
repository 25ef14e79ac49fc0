"""What an attacher asks of the API server and of the driver when nothing fails: nothing that it need not."""

from __future__ import annotations

import base64

import pytest

from orlop.kube.client import MergePatch
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import NODE_IDS_ANNOTATION
from support.api.api_objects import named
from support.attaching.attacher_worlds import DRIVER, OURS, PUBLISH, UNPUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
ATTACHES = ["PATCH persistentvolumes/pv1", "PATCH volumeattachments/va1", "PATCH volumeattachments/va1/status"]


async def settled(world: AttacherWorld) -> int:
    """How much was asked so far: the caches are filled, and nothing is to be done."""
    await world.clock.sleep(5)
    return len(world.wire.requests)


async def test_an_attach_is_three_writes_and_no_read_and_a_detach_one_write():
    async with AttacherWorld() as world, world.attacher():
        await world.node()
        await world.volume()
        before = await settled(world)
        await world.wanted()
        await world.until_attached()
        attached = await settled(world)
        assert world.wire.asked(before) == ATTACHES
        await world.delete(VOLUME_ATTACHMENT, "va1")
        await world.until_gone(VOLUME_ATTACHMENT, "va1")
        await settled(world)
        assert world.wire.asked(attached) == ["PATCH volumeattachments/va1"]
        assert world.calls() == [PUBLISH, UNPUBLISH]


async def test_where_the_volume_carries_the_finalizer_already_it_is_two():
    async with AttacherWorld() as world, world.attacher():
        await world.node()
        await world.volume()
        ours = MergePatch({"metadata": {"finalizers": [OURS]}})
        await world.client.patch(PERSISTENT_VOLUME, ObjectName(None, "pv1"), ours)
        before = await settled(world)
        await world.wanted()
        await world.until_attached()
        await settled(world)
        assert world.wire.asked(before) == ATTACHES[1:]
        assert world.calls() == [PUBLISH]


async def test_the_only_read_is_that_of_the_secret_once_for_each_call():
    async with AttacherWorld() as world, world.attacher():
        await world.client.create(SECRET, named("s", data={"k": base64.b64encode(b"v").decode()}), namespace="default")
        await world.node()
        await world.volume(controllerPublishSecretRef={"name": "s", "namespace": "default"})
        before = await settled(world)
        await world.wanted()
        await world.until_attached()
        attached = await settled(world)
        read = "GET namespaces/default/secrets/s"
        assert world.wire.asked(before) == [*ATTACHES[:2], read, ATTACHES[2]]
        await world.delete(VOLUME_ATTACHMENT, "va1")
        await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.wire.asked(attached) == [read, "PATCH volumeattachments/va1"]


async def test_a_node_without_a_csinode_is_read_once_to_attach_and_not_at_all_to_detach():
    async with AttacherWorld() as world, world.attacher():
        node = named("n1")
        node["metadata"]["annotations"] = {NODE_IDS_ANNOTATION: f'{{"{DRIVER}": "old-id"}}'}
        await world.client.create(NODE, node)
        await world.volume()
        before = await settled(world)
        await world.wanted()
        await world.until_attached()
        attached = await settled(world)
        assert world.wire.asked(before) == ["GET nodes/n1", *ATTACHES]
        await world.delete(VOLUME_ATTACHMENT, "va1")
        await world.until_gone(VOLUME_ATTACHMENT, "va1")
        await settled(world)
        assert world.wire.asked(attached) == ["PATCH volumeattachments/va1"]


async def test_where_others_keep_the_object_a_detach_is_two_writes():
    async with AttacherWorld() as world, world.attacher():
        await world.node()
        await world.volume()
        await world.wanted()
        await world.until_attached()
        theirs = MergePatch({"metadata": {"finalizers": [OURS, "somebody/else"]}})
        await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, "va1"), theirs)
        attached = await settled(world)
        await world.delete(VOLUME_ATTACHMENT, "va1")
        await settled(world)
        assert world.wire.asked(attached) == ["PATCH volumeattachments/va1", "PATCH volumeattachments/va1/status"]
        assert world.calls() == [PUBLISH, UNPUBLISH]


async def test_an_hour_of_rest_asks_for_nothing_at_all():
    async with AttacherWorld() as world, world.attacher():
        await world.node()
        await world.volume()
        await world.wanted()
        await world.until_attached()
        before = await settled(world)
        await world.clock.sleep(3600)
        assert world.wire.asked(before) == []
        assert world.calls() == [PUBLISH]
