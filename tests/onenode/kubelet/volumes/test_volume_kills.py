"""Killed at every effect, on the disk and at the driver; and what is left: nothing that should not be."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from onenode.host.payload_files import FileKind
from onenode.kubelet.volumes.steps.subpaths import SubPathMount
from orlop.csi.error_codes import CsiError
from orlop.kube.api_errors import NotFound
from orlop.kube.kinds import POD
from orlop.kube.objects import uid
from orlop.testing.kill_points import KillPoints, explore_kills
from support.kubelet.volume_worlds import VolumeWorld
from support.worlds import AT_ONCE, object_name

pytestmark = pytest.mark.virtual_time
SOAK = bool(os.environ.get("ORLOP_SOAK"))


async def make_inline(world: VolumeWorld) -> None:
    await world.csi_driver(attachRequired=False, podInfoOnMount=True, volumeLifecycleModes=["Ephemeral"])
    await world.inline_pod()


async def make_persistent(world: VolumeWorld) -> None:
    await world.csi_driver(attachRequired=False)
    await world.bound_claim()
    await world.claimed_pod()


async def make_block(world: VolumeWorld) -> None:
    await world.csi_driver(attachRequired=False)
    await world.bound_claim(volumeMode="Block")
    await world.device_pod()


async def make_both(world: VolumeWorld) -> None:
    await world.csi_driver(
        attachRequired=False,
        podInfoOnMount=True,
        volumeLifecycleModes=["Ephemeral", "Persistent"],
        fsGroupPolicy="File",
    )
    await world.bound_claim()
    inline = {"name": "scratch", "csi": {"driver": "d.example"}}
    claimed = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
    await world.pod("p", inline, claimed, securityContext={"fsGroup": 2000})


async def make_local(world: VolumeWorld, kind: FileKind, mode: str) -> None:
    world.machine.host_files["/mnt/disks/one"] = kind
    await world.local_claim("/mnt/disks/one", volumeMode=mode)


async def make_local_folder(world: VolumeWorld) -> None:
    await make_local(world, FileKind.FOLDER, "Filesystem")
    await world.claimed_pod()


async def make_local_disk(world: VolumeWorld) -> None:
    await make_local(world, FileKind.BLOCK_DEVICE, "Filesystem")
    await world.claimed_pod(securityContext={"fsGroup": 2000})


async def make_local_device(world: VolumeWorld) -> None:
    await make_local(world, FileKind.BLOCK_DEVICE, "Block")
    await world.device_pod()


class Worlds:
    """Each run has a world of its own, which ends before the next: all live on one clock, and each pass of it costs."""

    def __init__(self, stack: AsyncExitStack, make: Any, **capabilities: Any) -> None:
        self._stack = stack
        self._make = make
        self._capabilities = capabilities

    async def build(self) -> VolumeWorld:
        await self._stack.aclose()
        world = await self._stack.enter_async_context(VolumeWorld(**self._capabilities))
        await self._make(world)
        return world


async def live(world: VolumeWorld, points: KillPoints) -> None:
    """A kubelet's life: pods that are there have their volumes; the pod is deleted, and they go."""
    world.register(connection=points.wrap(world.connection, "call", describe=lambda path, *_: path))
    async with world.manager(points, known=False) as volumes:
        pods = (await world.client.list(POD)).items
        for pod in pods:
            volumes.want(pod)
        volumes.all_pods_known()
        for pod in pods:
            await volumes.wait_mounted(pod)
            for index, (name, mounted) in enumerate(volumes.volumes_of(pod).mounted.items()):
                if mounted.is_device:
                    continue
                await volumes.mount_subpath(pod, SubPathMount(name, "main", index, "a/b"))
            await world.client.delete(POD, object_name(POD, "p"), AT_ONCE)
            await volumes.wait_unmounted(uid(pod))
        await world.clock.sleep(200)  # as long as the longest delay: what is due is done by then


async def run(world: VolumeWorld, points: KillPoints) -> None:
    with suppress(CsiError):
        await live(world, points)


def check(world: VolumeWorld) -> None:
    assert world.left() == []


# A pod with both kinds has every effect of a pod with one of them.
@pytest.mark.parametrize(
    "make",
    [make_both, make_block, make_local_disk, make_local_device, *([make_inline, make_persistent] if SOAK else [])],
)
async def test_a_kubelet_killed_at_any_effect_leaves_nothing_once_it_is_back(make: Any):
    async with AsyncExitStack() as stack:
        deaths = 2 if SOAK and make is make_inline else 1
        explored = await explore_kills(Worlds(stack, make).build, run, check, deaths=deaths)

        assert len(explored.effects) > 10


@pytest.mark.parametrize(
    "make", [make_inline, make_persistent, make_block, make_local_folder, make_local_disk, make_local_device]
)
async def test_a_kubelet_killed_at_any_effect_leaves_nothing_of_a_pod_that_is_gone_when_it_is_back(make: Any):
    """Nobody wants the volume any more: what the driver did can be undone only where a file says so."""
    begun: list[VolumeWorld] = []

    async def run_once(world: VolumeWorld, points: KillPoints) -> None:
        if any(known is world for known in begun):
            with suppress(NotFound):
                await world.client.delete(POD, object_name(POD, "p"), AT_ONCE)
        begun.append(world)
        await run(world, points)

    async with AsyncExitStack() as stack:
        await explore_kills(Worlds(stack, make).build, run_once, check)


@pytest.mark.parametrize("make", [make_persistent, make_block] if SOAK else [make_persistent])
async def test_a_kubelet_killed_at_any_effect_leaves_nothing_of_a_driver_that_does_not_stage(make: Any):
    async with AsyncExitStack() as stack:
        await explore_kills(Worlds(stack, make, node=[]).build, run, check)


STAGES = [0.0, 0.05, 0.1, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 1.0]
SLOW = ("GetCapabilities", "StageVolume", "PublishVolume", "UnpublishVolume", "UnstageVolume")


def slow() -> dict[str, Any]:
    return {f"Node{name}": [{"times": 1000, "delay": "100ms"}] for name in SLOW}


@pytest.mark.parametrize("seconds", STAGES)
@pytest.mark.parametrize("make", [make_inline, make_persistent, make_block])
async def test_a_pod_that_is_deleted_at_any_stage_of_its_start_leaves_nothing(make: Any, seconds: float):
    async with VolumeWorld() as world:
        await make(world)
        world.play(slow())
        (pod,) = (await world.client.list(POD)).items
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(seconds)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(10)

        assert world.left() == []


@pytest.mark.parametrize("seconds", STAGES)
@pytest.mark.parametrize("make", [make_inline, make_persistent, make_block])
async def test_a_driver_that_is_killed_at_any_stage_is_asked_again_when_it_is_back(make: Any, seconds: float):
    async with VolumeWorld() as world:
        await make(world)
        world.play(slow())
        (pod,) = (await world.client.list(POD)).items
        async with world.manager() as volumes:
            waiting = asyncio.ensure_future(volumes.wait_mounted(pod))
            await world.clock.sleep(seconds)
            world.connection.cut()
            await world.clock.sleep(1)
            world.play({})
            await waiting
            assert volumes.volumes_of(pod).is_ready

            world.play(slow())
            waiting_for_end = asyncio.ensure_future(volumes.wait_unmounted(uid(pod)))
            await world.clock.sleep(seconds)
            world.connection.cut()
            await world.clock.sleep(1)
            world.play({})
            await waiting_for_end
            await world.clock.sleep(10)

        assert world.left() == []


async def test_nothing_is_unmounted_before_all_pods_are_known_and_all_is_mounted_anew_after_a_restart():
    async with VolumeWorld() as world:
        await make_persistent(world)
        (pod,) = (await world.client.list(POD)).items
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        async with world.manager(known=False) as volumes:
            await world.clock.sleep(300)
            assert world.calls() == ["NodeStageVolume", "NodePublishVolume"]

            await volumes.wait_mounted(pod)
            volumes.all_pods_known()
            await world.clock.sleep(300)
            assert world.calls() == ["NodeStageVolume", "NodePublishVolume"] * 2
        assert world.contents()


async def test_a_final_error_after_a_restart_removes_nothing_of_a_pod_that_runs():
    async with VolumeWorld() as world:
        await make_inline(world)
        (pod,) = (await world.client.list(POD)).items
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        before = world.contents()
        error = {"code": "INTERNAL", "message": "not today"}
        world.play({"NodePublishVolume": [{"times": 1000, "error": error}]})
        async with world.manager(known=False) as volumes:
            volumes.want(pod)
            volumes.all_pods_known()
            await world.clock.sleep(10)
            assert world.contents() == before
            assert any(world.machine.mounts.values())

            await volumes.wait_unmounted(uid(pod))
        assert world.calls()[-1] == "NodeUnpublishVolume"
        assert world.left() == []


async def test_a_pod_whose_claim_cannot_be_read_after_a_restart_keeps_its_volume():
    async with VolumeWorld() as world:
        await make_persistent(world)
        (pod,) = (await world.client.list(POD)).items
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "x"}}
        gone = {**pod, "spec": {**pod["spec"], "volumes": [volume]}}
        async with world.manager(known=False) as volumes:
            volumes.want(gone)
            volumes.all_pods_known()
            await world.clock.sleep(60)

        assert "NodeUnpublishVolume" not in world.calls()
        assert any(world.machine.mounts.values())


@pytest.mark.parametrize("make", [make_persistent, make_block, make_local_folder, make_local_disk, make_local_device])
async def test_what_a_reboot_left_without_its_mounts_is_cleaned_or_mounted_anew(make: Any):
    async with VolumeWorld() as world:
        await make(world)
        (pod,) = (await world.client.list(POD)).items
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        world.machine.reboot()
        for volume in world.volumes_of_driver():
            volume.published.clear()
            volume.staged.clear()
        async with world.manager(known=False) as volumes:
            await volumes.wait_mounted(pod)
            volumes.all_pods_known()
            assert any(world.machine.mounts.values())
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(10)
        assert world.left() == []


async def test_a_file_that_names_another_volume_than_its_folder_unmounts_nothing():
    async with VolumeWorld() as world:
        await make_inline(world)
        folder = ("pods", "u9", "volumes", "kubernetes.io~csi", "mine")
        world.machine.kubelet_makes(folder)
        file = (*folder, "vol_data.json")
        world.machine.kubelet_files.add(file)
        world.machine.kubelet_contents[file] = (
            b'{"specVolID":"theirs","driverName":"d.example","volumeHandle":"h1","volumeLifecycleMode":"Persistent"}'
        )
        async with world.manager():
            await world.clock.sleep(10)

        assert world.calls() == []
        assert world.left() == []


async def test_a_kubelet_that_comes_back_while_the_api_server_is_away_unmounts_nothing_until_it_is_there():
    async with VolumeWorld() as world:
        await make_persistent(world)
        (pod,) = (await world.client.list(POD)).items
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        world.way.is_away = True
        async with world.manager(known=False) as volumes:
            volumes.want(pod)
            volumes.all_pods_known()
            await world.clock.sleep(600)
            assert world.calls() == ["NodeStageVolume", "NodePublishVolume"]

            world.way.is_away = False
            await volumes.wait_mounted(pod)
            assert world.calls() == ["NodeStageVolume", "NodePublishVolume"] * 2
            # It unmounts nothing before it has read its Node, too, which it retries after some seconds.
            await world.settle(60)
            world.way.is_away = True
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(5)
        assert world.left() == []


async def test_a_kubelet_that_comes_back_unmounts_nothing_of_a_pod_that_is_gone_before_it_has_read_its_node():
    """The Node says which of the volumes found are attached for us: they must not be forgotten as others."""
    async with VolumeWorld() as world:
        await make_persistent(world)
        (pod,) = (await world.client.list(POD)).items
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        await world.client.delete(POD, object_name(POD, "p"), AT_ONCE)
        world.way.is_away = True
        async with world.manager() as volumes:
            await world.clock.sleep(60)
            calls = world.calls()
            world.way.is_away = False
            await world.clock.sleep(60)

        assert calls == ["NodeStageVolume", "NodePublishVolume"]
        assert world.calls()[2:] == ["NodeUnpublishVolume", "NodeUnstageVolume"]
        assert world.left() == []


async def test_a_kubelet_that_comes_back_does_not_unstage_what_a_pod_wants_whose_claim_is_not_read_yet():
    async with VolumeWorld() as world:
        await make_persistent(world)
        (pod,) = (await world.client.list(POD)).items
        world.play({"NodePublishVolume": [{"times": 100, "error": {"code": "INTERNAL", "message": "boom"}}]})
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
        world.play({})  # staged, and nothing of the pod's own is left
        async with world.manager(known=False) as volumes:
            volumes.want(pod)
            volumes.all_pods_known()
            await volumes.wait_mounted(pod)

            assert "NodeUnstageVolume" not in world.calls()
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(10)
        assert world.left() == []
