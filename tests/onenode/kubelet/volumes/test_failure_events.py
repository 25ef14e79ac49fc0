"""What people are told of volumes besides kubelet's own words: whom it happened to, why a pod stays, what to do."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.kube.kinds import EVENT
from orlop.kube.objects import uid
from support.kubelet.volume_worlds import VolumeWorld

pytestmark = pytest.mark.virtual_time
INLINE_DRIVER: dict[str, Any] = {"attachRequired": False, "volumeLifecycleModes": ["Ephemeral", "Persistent"]}


def failing(method: str, *messages: str) -> dict[str, Any]:
    return {method: [{"times": 1, "error": {"code": "INTERNAL", "message": message}} for message in messages]}


async def inline_pod(world: VolumeWorld) -> Any:
    await world.csi_driver(**INLINE_DRIVER, podInfoOnMount=True)
    return await world.inline_pod()


UNMOUNT_TOLD = (
    'OrlopFailedUnmount: UnmountVolume.TearDown failed for volume "scratch" : kubernetes.io/csi: '
    "Unmounter.TearDownAt failed: rpc error: code = Internal desc = {}. It is tried again; the pod stays until the "
    "volume is unmounted."
)


def failed_lines(world: VolumeWorld) -> list[dict[str, Any]]:
    return [dict(entry.fields) for entry in world.log if entry.message == "volume operation failed"]


async def test_an_unmount_that_fails_is_told_to_the_pod_once_for_each_reason():
    async with VolumeWorld() as world:
        pod = await inline_pod(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            world.play(failing("NodeUnpublishVolume", "boom", "boom", "boom", "bang"))
            await volumes.wait_unmounted(uid(pod))
        assert world.calls().count("NodeUnpublishVolume") == 5
        assert sorted(await world.events()) == [UNMOUNT_TOLD.format("bang"), UNMOUNT_TOLD.format("boom")]
        assert [event.get("series") for event in (await world.client.list(EVENT)).items] == [None, None]


async def test_an_unmount_that_fails_is_told_also_when_the_pod_was_never_wanted_in_this_life():
    async with VolumeWorld() as world:
        pod = await inline_pod(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        world.play(failing("NodeUnpublishVolume", "boom"))
        async with world.manager() as volumes:
            await volumes.wait_reconstructed()
            volumes.know(pod)
            await volumes.wait_unmounted(uid(pod))
        assert await world.events() == [UNMOUNT_TOLD.format("boom")]


async def test_the_log_names_the_pod_and_its_volume_and_says_the_same_reason_once():
    async with VolumeWorld() as world:
        pod = await inline_pod(world)
        world.play(failing("NodePublishVolume", *["boom"] * 4))
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        said = failed_lines(world)

        assert world.calls().count("NodePublishVolume") == 5
        assert [(line["pod"], line["volume"]) for line in said] == [("default/p", "scratch")]
        assert "code = Internal desc = boom" in said[0]["error"]


async def test_the_log_says_a_reason_anew_when_another_pod_has_it_or_it_went_away_meanwhile():
    async with VolumeWorld() as world:
        pod, other = await inline_pod(world), await world.inline_pod("other")
        async with world.manager() as volumes:
            for each in (pod, other, pod):
                world.play(failing("NodePublishVolume", "boom", "boom"))
                await volumes.wait_mounted(each)
                await volumes.wait_unmounted(uid(each))

        assert [line["pod"] for line in failed_lines(world)] == ["default/p", "default/other", "default/p"]


async def test_a_pod_that_cannot_end_because_a_file_is_gone_is_told_so_once():
    async with VolumeWorld() as world:
        pod = await inline_pod(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            (file,) = world.machine.kubelet_contents
            content = world.machine.kubelet_contents.pop(file)
            volumes.let_go(uid(pod))
            await world.clock.sleep(5)
            world.machine.kubelet_contents[file] = content
            await volumes.wait_unmounted(uid(pod))
        (event,) = await world.events()
        assert event.startswith('OrlopFailedUnmount: UnmountVolume.NewUnmounter failed for volume "scratch" : ')
        assert len(failed_lines(world)) == 1
