"""The life of a raw block volume on virtual time, and what goes wrong in it."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import Any

import pytest

from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.volume_manager import VolumesNotMounted
from orlop.kube.kinds import SECRET
from orlop.kube.objects import uid
from support.api.api_objects import named
from support.kubelet.volume_worlds import VolumeWorld

pytestmark = pytest.mark.virtual_time
ROOT = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices"


def failing(method: str, code: str, times: int = 1) -> dict[str, Any]:
    return {method: [{"times": times, "error": {"code": code, "message": "boom"}}]}


async def block_world(world: VolumeWorld, *, driver: dict[str, Any] | None = None, **spec: Any) -> Any:
    await world.csi_driver(attachRequired=False, **(driver or {}))
    await world.bound_claim(volumeMode="Block", **spec)
    return await world.device_pod()


async def test_a_device_is_staged_published_mounted_linked_and_held_and_all_of_it_goes_again():
    async with VolumeWorld() as world:
        pod = await block_world(world, driver={"podInfoOnMount": True})
        pod_uid, machine = uid(pod), world.machine
        async with world.manager() as volumes:
            found = await volumes.wait_mounted(pod)

            device = found.mounted["data"]
            assert (device.path, device.is_device) == (f"{ROOT}/pv1/dev/{pod_uid}", True)
            assert machine.loops == {"/dev/loop0": device.path}
            assert machine.links == {
                ("pods", pod_uid, "volumeDevices", "kubernetes.io~csi", "pv1"): f"{ROOT}/publish/pv1/{pod_uid}"
            }
            data = json.loads(world.contents()["plugins/kubernetes.io/csi/volumeDevices/pv1/data/vol_data.json"])
            assert sorted(data) == ["attachmentID", "driverName", "nodeName", "specVolID", "volumeHandle"]

            await volumes.wait_unmounted(pod_uid)
            await world.clock.sleep(3)
        assert world.left() == []
        assert world.calls() == ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
        links = f"/var/lib/kubelet/pods/{pod_uid}/volumeDevices/kubernetes.io~csi"
        told = 'SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume "pv1"'
        assert await world.events() == [
            f'{told} globalMapPath "{ROOT}/pv1/dev"',
            f'{told} volumeMapPath "{links}"',
        ]


async def test_a_driver_is_asked_for_a_device_with_kubelets_paths_and_no_file_system():
    async with VolumeWorld() as world:
        pod = await block_world(
            world,
            driver={"podInfoOnMount": True, "tokenRequests": [{"audience": "a"}]},
            mountOptions=["ro"],
            csi={"fsType": "xfs"},
        )
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)

        (stage,), (publish,) = world.requests("NodeStageVolume"), world.requests("NodePublishVolume")
        assert stage.staging_target_path == publish.staging_target_path == f"{ROOT}/staging/pv1"
        assert publish.target_path == f"{ROOT}/publish/pv1/{uid(pod)}"
        for request in (stage, publish):
            assert request.volume_capability.HasField("block")
        assert publish.volume_context["csi.storage.k8s.io/ephemeral"] == "false"
        assert not [key for key in publish.volume_context if "token" in key]


async def test_a_driver_that_does_not_stage_is_told_the_staging_path_all_the_same_and_nothing_is_made_there():
    async with VolumeWorld(node=[]) as world:
        pod = await block_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            assert (*volume_paths.BLOCK_ROOT, "staging") not in world.machine.kubelet_folders
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)

        (publish,) = world.requests("NodePublishVolume")
        assert publish.staging_target_path == f"{ROOT}/staging/pv1"
        assert world.left() == []


NO_DEVICE = (
    'MapVolume.MapBlockVolume failed for volume "pv1" : driver d.example answered NodePublishVolume with success, '
    "but {path} is a "
)
NOTHING = 'MapVolume.EvalHostSymlinks failed for volume "pv1" : lstat {path}: no such file or directory'


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("file", f"{NO_DEVICE}plain file, and no block device"),
        ("folder", f"{NO_DEVICE}folder, and no block device"),
        ("nothing", NOTHING),
    ],
)
async def test_what_is_no_device_is_noticed_told_and_taken_back(what: str, told: str):
    async with VolumeWorld() as world:
        pod = await block_world(world)
        world.targets.blocks, world.targets.makes = what, what != "nothing"
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            assert not volumes.volumes_of(pod).is_ready
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)

        (event,) = await world.events()
        assert event.startswith(f"FailedMapVolume: {told.format(path=f'{ROOT}/publish/pv1/{uid(pod)}')}")
        assert "NodeUnpublishVolume" in world.calls()
        assert world.left() == []


@pytest.mark.parametrize(("code", "asked"), [("UNAVAILABLE", 1), ("INTERNAL", 0)])
async def test_the_code_of_an_error_decides_whether_a_publish_is_undone(code: str, asked: int):
    async with VolumeWorld() as world:
        pod = await block_world(world)
        world.play(failing("NodePublishVolume", code, times=100))
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)

        (told,) = await world.events()
        assert told.startswith('FailedMapVolume: MapVolume.MapPodDevice failed for volume "pv1" : rpc error: code = ')
        assert world.calls().count("NodeUnpublishVolume") == asked
        assert world.calls()[-1] == "NodeUnstageVolume"
        assert world.left() == []


async def test_what_was_made_for_a_staging_that_failed_for_good_goes_at_once():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        world.play(failing("NodeStageVolume", "INTERNAL", times=100))
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            assert world.left() == []

        (told,) = await world.events()
        assert told == (
            'FailedMapVolume: MapVolume.SetUpDevice failed for volume "pv1" : rpc error: code = Internal desc = boom'
        )


async def test_a_driver_that_is_not_registered_is_told_in_kubelets_words_and_leaves_nothing():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        world.deregister()
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            assert world.left() == []
            await volumes.wait_unmounted(uid(pod))

        (told,) = await world.events()
        assert told == (
            'FailedMapVolume: MapVolume.SetUpDevice failed for volume "pv1" : kubernetes.io/csi: '
            "blockMapper.SetUpDevice failed to get CSI client: driver name d.example not found in the list of "
            "registered CSI drivers"
        )


async def test_a_device_of_another_node_is_told_as_kubelet_does_it():
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    async with VolumeWorld() as world:
        pod = await block_world(world, nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)

        assert await world.events() == [
            'FailedMount: MapVolume.NodeAffinity check failed for volume "pv1" : no matching NodeSelectorTerms'
        ]


async def test_two_pods_have_one_device_each_holds_it_and_it_is_unstaged_after_the_last():
    async with VolumeWorld(node=["STAGE_UNSTAGE_VOLUME", "SINGLE_NODE_MULTI_WRITER"]) as world:
        pod = await block_world(world)
        other = await world.device_pod("q")
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            await volumes.wait_mounted(other)
            assert sorted(world.machine.loops.values()) == sorted(
                f"{ROOT}/pv1/dev/{pod_uid}" for pod_uid in (uid(pod), uid(other))
            )
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)
            assert [*world.machine.loops.values()] == [f"{ROOT}/pv1/dev/{uid(other)}"]
            assert "NodeUnstageVolume" not in world.calls()
            await volumes.wait_unmounted(uid(other))
            await world.clock.sleep(3)

        assert world.calls().count("NodeStageVolume") == 1
        assert world.left() == []


async def test_a_device_for_one_pod_alone_is_refused_to_a_second():
    async with VolumeWorld() as world:
        pod = await block_world(world, accessModes=["ReadWriteOncePod"])
        other = await world.device_pod("q")
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            volumes.want(other)
            await world.clock.sleep(0.2)

        assert any(
            told.startswith('FailedMapVolume: MapVolume.SetUpDevice failed for volume "pv1" : volume uses the')
            for told in await world.events()
        )


async def test_a_loop_device_that_is_in_use_keeps_the_volume():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            world.machine.busy_loops.add("/dev/loop0")
            waiting = asyncio.ensure_future(volumes.wait_unmounted(uid(pod)))
            await world.clock.sleep(5)
            assert not waiting.done()
            assert "NodeUnpublishVolume" not in world.calls()

            world.machine.busy_loops.clear()
            await waiting
            await world.clock.sleep(3)
        assert world.left() == []


async def test_success_of_an_unpublish_that_leaves_the_device_is_not_believed():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        world.targets.unmounts = False
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            waiting = asyncio.ensure_future(volumes.wait_unmounted(uid(pod)))
            await world.clock.sleep(60)
            assert not waiting.done()
            assert world.calls().count("NodeUnpublishVolume") > 1

            world.machine.mounts.clear()  # somebody looked, and unmounted it by hand
            world.machine.devices.clear()
            await waiting
            await world.clock.sleep(130)
        assert "NodeUnstageVolume" in world.calls()


async def test_a_kubelet_that_comes_back_finds_the_loop_device_and_uses_it_again():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        held = dict(world.machine.loops)
        async with world.manager(known=False) as volumes:
            await volumes.wait_mounted(pod)
            volumes.all_pods_known()
            await world.clock.sleep(10)
            assert world.machine.loops == held
            assert world.calls() == ["NodeStageVolume", "NodePublishVolume"] * 2
        async with world.manager() as volumes:
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)
        assert world.left() == []


async def test_another_device_after_a_restart_takes_the_place_of_the_one_that_is_held():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        published = volume_paths.block_publish("pv1", uid(pod))
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        async with world.manager(known=False) as volumes:
            place = world.machine.place_device
            world.machine.place_device = lambda names, _number: place(names, 77)  # type: ignore[method-assign]
            await volumes.wait_mounted(pod)

            assert world.machine.devices[published] == 77
            assert world.machine.devices[volume_paths.block_device("pv1", uid(pod))] == 77
            assert len(world.machine.loops) == 1


async def test_a_pod_that_is_gone_after_a_reboot_is_unpublished_and_its_volume_unstaged():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
        world.machine.reboot()
        async with world.manager():
            await world.clock.sleep(200)

        assert world.calls()[-2:] == ["NodeUnpublishVolume", "NodeUnstageVolume"]
        assert world.left() == []


async def test_a_file_that_is_gone_keeps_the_pod_until_it_is_back():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        file = volume_paths.data_file(volume_paths.block_data("pv1"))
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            content = world.machine.kubelet_contents.pop(file)
            waiting = asyncio.ensure_future(volumes.wait_unmounted(uid(pod)))
            await world.clock.sleep(1)
            assert not waiting.done()

            world.machine.kubelet_contents[file] = content
            await waiting
            await world.clock.sleep(3)
        assert world.left() == []


async def test_a_device_that_our_books_have_lost_keeps_its_staging():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        lost = (*volume_paths.block_devices("pv1"), "lost")
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            world.machine.mount_something_else(lost)
            world.machine.kubelet_files.add(lost)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(60)
            assert "NodeUnstageVolume" not in world.calls()

            world.machine.mounts.pop(lost)
            await world.clock.sleep(130)
        assert world.calls()[-1] == "NodeUnstageVolume"
        assert world.left() == []


async def test_files_that_a_driver_left_in_the_staging_path_are_not_erased():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        staging = volume_paths.block_staging("pv1")
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            for name, content in (("target", b""), ("precious", b"data")):
                world.machine.kubelet_files.add((*staging, name))
                world.machine.kubelet_contents[*staging, name] = content
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(60)

        assert world.machine.kubelet_contents[*staging, "precious"] == b"data"


@pytest.mark.parametrize("name", ["staging", "publish"])
async def test_a_volume_cannot_have_the_name_of_one_of_kubelets_own_folders(name: str):
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim(volumeMode="Block", pv=name)
        pod = await world.device_pod()
        async with world.manager() as volumes:
            with pytest.raises(VolumesNotMounted, match="which is kubelet's: give it another name"):
                await volumes.wait_mounted(pod)
        assert world.left() == []


async def test_a_volume_that_is_mounted_cannot_be_a_device_and_the_other_way_round():
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim(volumeMode="Block")
        pod = await world.claimed_pod()
        async with world.manager() as volumes:
            with pytest.raises(VolumesNotMounted, match="has volumeMode Block, but is specified in volumeMounts"):
                await volumes.wait_mounted(pod)


async def test_secrets_reach_the_driver_of_a_device_and_a_missing_one_is_told():
    stage, publish = ({"namespace": "default", "name": name} for name in ("stage", "publish"))
    async with VolumeWorld() as world:
        await world.client.create(SECRET, named("stage", stringData={"key": "canary-stage"}), namespace="default")
        pod = await block_world(world, csi={"nodeStageSecretRef": stage, "nodePublishSecretRef": publish})
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            await world.client.create(SECRET, named("publish", stringData={"key": "canary-p"}), namespace="default")
            await volumes.wait_mounted(pod)

        assert dict(world.requests("NodeStageVolume")[-1].secrets) == {"key": "canary-stage"}
        assert dict(world.requests("NodePublishVolume")[-1].secrets) == {"key": "canary-p"}
        told = await world.events()
        assert told[0].startswith(
            'FailedMapVolume: MapVolume.MapPodDevice failed for volume "pv1" : kubernetes.io/csi: '
            "blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef default/publish: "
        )
        assert "canary" not in f"{told} {world.log} {world.contents()}"


async def test_a_mount_below_the_staging_path_of_a_device_keeps_all_of_the_volume():
    """A driver that says success of an unstage and leaves its mount is asked again: its file stays until then."""
    async with VolumeWorld() as world:
        pod = await block_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            below = (*volume_paths.block_staging("pv1"), "dev")
            world.machine.kubelet_makes(below)
            world.machine.mount_something_else(below)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(10)

            assert world.machine.mounts.get(below)
            assert "/".join(volume_paths.data_file(volume_paths.block_data("pv1"))) in world.contents()
            assert world.calls().count("NodeUnstageVolume") > 1

            world.machine.mounts.pop(below)
            await world.clock.sleep(130)
        assert world.left() == []


async def test_a_link_that_nobody_knows_goes_with_its_folders():
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=False)
        link = volume_paths.pod_device_link("u9", "pv9")
        world.machine.kubelet_makes(link[:-1])
        world.machine.kubelet_files.add(link)
        world.machine.links[link] = "/dev/sda"
        async with world.manager():
            await world.clock.sleep(10)
        assert world.left() == []


async def test_a_machine_without_a_free_loop_device_is_told_and_tried_again():
    async with VolumeWorld() as world:
        pod = await block_world(world)
        world.machine.faults.fail("hold_device", errno.ENOSPC)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)

        told = (await world.events())[0]
        assert told.startswith('FailedMapVolume: MapVolume.MapBlockVolume failed for volume "pv1" : ')
        assert world.left() == []
