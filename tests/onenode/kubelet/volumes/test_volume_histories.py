"""A volume's life on virtual time when something goes wrong: errors by their code, drivers that hang, vanish or lie."""

from __future__ import annotations

import asyncio
import base64
import itertools
from typing import Any

import pytest

from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.steps.subpaths import SubPathMount, SubPathRefused
from onenode.kubelet.volumes.volume_manager import VolumesNotMounted
from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM, SECRET
from orlop.kube.objects import uid
from support.api.api_objects import claim, named
from support.kubelet.volume_worlds import DRIVER, VolumeWorld, in_thread
from support.worlds import object_name

pytestmark = pytest.mark.virtual_time
INLINE_DRIVER: dict[str, Any] = {"attachRequired": False, "volumeLifecycleModes": ["Ephemeral", "Persistent"]}


def failing(method: str, code: str, times: int = 1, **options: Any) -> dict[str, Any]:
    return {method: [{"times": times, "error": {"code": code, "message": "boom"}, **options}]}


async def inline_world(world: VolumeWorld) -> Any:
    await world.csi_driver(**INLINE_DRIVER, podInfoOnMount=True)
    return await world.inline_pod()


async def persistent_world(world: VolumeWorld, **spec: Any) -> Any:
    await world.csi_driver(**INLINE_DRIVER)
    await world.bound_claim(**spec)
    return await world.claimed_pod()


@pytest.mark.parametrize(("code", "asked", "is_kept"), [("UNAVAILABLE", 1, True), ("INTERNAL", 0, False)])
async def test_the_code_of_an_error_decides_whether_a_publish_is_undone(code: str, asked: int, *, is_kept: bool):
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.play(failing("NodePublishVolume", code, times=100))
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            assert bool(world.machine.kubelet_contents) is is_kept

            world.play({})
            world.play(failing("NodePublishVolume", code, times=100))
            await volumes.wait_unmounted(uid(pod))

        assert world.calls().count("NodeUnpublishVolume") == asked
        assert world.left() == []


async def test_a_failure_is_told_in_kubelets_words():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.play(failing("NodePublishVolume", "INTERNAL"))
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)

        assert await world.events() == [
            'FailedMount: MountVolume.SetUp failed for volume "scratch" : rpc error: code = Internal desc = boom'
        ]


async def test_a_failure_of_staging_is_told_as_such_and_what_was_made_for_it_goes():
    async with VolumeWorld() as world:
        pod = await persistent_world(world)
        world.play(failing("NodeStageVolume", "INTERNAL", times=100))
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)

            assert world.left() == []
        assert await world.events() == [
            'FailedMount: MountVolume.MountDevice failed for volume "pv1" : rpc error: code = Internal desc = boom'
        ]


async def test_gaps_between_tries_double_and_an_unmount_does_not_wait_for_them():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.play(failing("NodePublishVolume", "UNAVAILABLE", times=100))
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(8)
            started = [call.started for call in world.driver.calls_of("NodePublishVolume")]
            gaps = [later - earlier for earlier, later in itertools.pairwise(started)]
            began = world.clock.elapsed()
            await volumes.wait_unmounted(uid(pod))

            assert gaps == pytest.approx([0.5, 1.0, 2.0, 4.0])
            assert world.clock.elapsed() - began < 0.1


async def test_what_was_staged_is_unstaged_though_it_was_never_published():
    async with VolumeWorld() as world:
        pod = await persistent_world(world)
        world.play(failing("NodePublishVolume", "INTERNAL", times=100))
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)

        assert world.left() == []
        assert "NodeUnpublishVolume" not in world.calls()
        assert world.calls()[-1] == "NodeUnstageVolume"


async def test_a_claim_that_is_not_bound_is_told_within_a_second_and_used_once_it_is():
    async with VolumeWorld() as world:
        await world.csi_driver(**INLINE_DRIVER)
        await world.client.create(PERSISTENT_VOLUME_CLAIM, claim("c"), namespace="default")
        pod = await world.claimed_pod()
        async with world.manager() as volumes:
            began = world.clock.elapsed()
            with pytest.raises(VolumesNotMounted) as refused:
                await volumes.wait_mounted(pod)
            assert world.clock.elapsed() - began < 1
            text = (
                "unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: "
                "error processing PVC default/c: PVC is not bound"
            )
            assert str(refused.value) == text
        assert await world.events() == [f"FailedMount: Unable to attach or mount volumes: {text}"]


async def test_a_claim_that_was_read_before_the_pod_was_last_told_does_not_count():
    async with VolumeWorld() as world:
        await world.csi_driver(**INLINE_DRIVER)
        await world.bound_claim()
        await world.client.patch(
            PERSISTENT_VOLUME_CLAIM,
            object_name(PERSISTENT_VOLUME_CLAIM, "c"),
            MergePatch({"status": {"phase": "Pending"}}),
            subresource="status",
        )
        pod = await world.claimed_pod()
        async with world.manager() as volumes:
            await world.clock.sleep(1)
            world.way.held = asyncio.Event()
            volumes.want(pod)
            await world.clock.sleep(1)  # the claim that is not bound is on its way
            await world.bind("c")
            waiting = asyncio.ensure_future(volumes.wait_mounted(pod))
            await world.clock.sleep(1)
            world.way.held.set()

            assert (await waiting).is_ready


async def test_waiting_too_long_is_no_event():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.play({"NodePublishVolume": [{"hang": True}]})
        async with world.manager() as volumes:
            with pytest.raises(VolumesNotMounted) as late:
                await volumes.wait_mounted(pod)

            assert late.value.timed_out
            assert world.clock.elapsed() >= 123
        assert not [told for told in await world.events() if "Unable to attach" in told]


async def test_a_driver_that_never_answers_harms_no_other():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        handle = {"volumeContext": {"csi.storage.k8s.io/pod.name": "stuck"}}
        world.play({"NodePublishVolume": [{"hang": True, "times": 100, "when": handle}]})
        stuck = await world.inline_pod("stuck")
        async with world.manager() as volumes:
            volumes.want(stuck)
            await world.clock.sleep(1)
            began = world.clock.elapsed()
            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))
            assert world.clock.elapsed() - began < 1

            volumes.let_go(uid(stuck))
            await world.clock.sleep(300)
            assert volumes.volumes_of(pod).wanted == ()
            world.driver.stop_hanging()
            await volumes.wait_unmounted(uid(stuck))
            await world.clock.sleep(3)
        assert world.left() == []


async def test_success_with_nothing_at_the_target_is_not_believed():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.targets.makes = False
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(1)
            assert not volumes.volumes_of(pod).is_ready
            world.targets.makes = True
            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))

        (told,) = await world.events()
        assert "answered NodePublishVolume with success, but there is nothing at" in told
        assert world.left() == []


async def test_success_with_a_plain_folder_is_believed_and_told():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.targets.mounts = False
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))

        (told,) = await world.events()
        assert told.startswith("VolumeNotAMountPoint: ")
        assert world.left() == []


async def test_success_of_an_unpublish_that_leaves_the_mount_removes_nothing_and_the_pod_does_not_finish():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.targets.unmounts = False
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            waiting = asyncio.ensure_future(volumes.wait_unmounted(uid(pod)))
            await world.clock.sleep(60)

            assert not waiting.done()
            assert any(name.endswith("vol_data.json") for name in world.contents())
            assert any(world.machine.mounts.values())

            world.machine.mounts.clear()  # somebody looked, and unmounted it by hand
            await waiting
        assert world.left() == []


async def test_a_target_that_is_not_empty_keeps_its_file_and_its_driver_is_asked_again():
    """Without vol_data.json nobody could ask the driver any more."""
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            target = volume_paths.mount_target(uid(pod), "scratch")
            world.targets.unmounts = False  # it unmounts, and leaves the folder with something in it
            world.machine.mounts.pop(target)
            world.machine.kubelet_files.add((*target, "stray"))
            waiting = asyncio.ensure_future(volumes.wait_unmounted(uid(pod)))
            await world.clock.sleep(10)

            assert not waiting.done()
            assert "/".join(volume_paths.data_file(target[:-1])) in world.contents()

            world.machine.kubelet_files.remove((*target, "stray"))
            await waiting
        assert world.calls().count("NodeUnpublishVolume") > 1
        assert world.left() == []


async def test_a_mount_that_nothing_says_anything_about_is_left_alone_and_keeps_its_pod():
    async with VolumeWorld() as world:
        target = volume_paths.mount_target("u9", "v9")
        world.machine.kubelet_makes(target)
        world.machine.mount_something_else(target)
        async with world.manager() as volumes:
            waiting = asyncio.ensure_future(volumes.wait_unmounted("u9"))
            await world.clock.sleep(100)

            assert not waiting.done()
            assert world.machine.mounts.get(target)
            assert any("is mounted, and nothing says by which driver" in str(entry) for entry in world.log)

            world.machine.mounts.pop(target)
            await waiting
        assert world.left() == []


SLOW_PUBLISH: dict[str, Any] = {"NodePublishVolume": [{"times": 1, "delay": "10s"}]}


async def test_a_pod_does_not_end_before_the_publish_that_is_under_way_and_its_unpublish():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.play(SLOW_PUBLISH)
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(1)
            await volumes.wait_unmounted(uid(pod))

            assert world.calls() == ["NodePublishVolume", "NodeUnpublishVolume"]
            assert world.left() == []


async def test_a_sweep_leaves_the_folders_of_a_mount_that_is_under_way_though_its_pod_was_let_go():
    """The file would be missing when the driver must be asked to unpublish."""
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.play(SLOW_PUBLISH)
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(1)
            volumes.let_go(uid(pod))
            await world.clock.sleep(6)  # a sweep is due two seconds after a pod was let go

            data = volume_paths.data_file(volume_paths.pod_volume(uid(pod), "scratch"))
            assert "/".join(data) in world.contents()
            await volumes.wait_unmounted(uid(pod))
        assert world.calls() == ["NodePublishVolume", "NodeUnpublishVolume"]
        assert world.left() == []


async def test_nothing_is_mounted_while_a_sweep_removes_empty_folders():
    """It could meet the folder of a volume between its making and its file."""
    sweeping = asyncio.Event()

    async def threads(work: Any) -> Any:
        if getattr(work, "func", None).__name__ == "all_but":
            await sweeping.wait()
        return await in_thread(work)

    async with VolumeWorld() as world:
        pod = await inline_world(world)
        async with world.manager(threads=threads) as volumes:
            await world.clock.sleep(1)
            volumes.want(pod)
            await world.clock.sleep(5)
            before = world.left()
            sweeping.set()
            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))

        assert before == []
        assert world.left() == []


async def test_a_file_that_is_gone_keeps_the_pod_and_is_looked_for_ten_times_a_second():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            (file,) = world.machine.kubelet_contents
            content = world.machine.kubelet_contents.pop(file)
            before = world.machine.faults.calls("read_file")
            waiting = asyncio.ensure_future(volumes.wait_unmounted(uid(pod)))
            await world.clock.sleep(1)

            assert not waiting.done()
            assert world.machine.faults.calls("read_file") - before in {10, 11}
            world.machine.kubelet_contents[file] = content
            await waiting
        assert world.left() == []


async def test_a_driver_that_is_not_registered_is_waited_for_and_its_coming_ends_the_delay():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        world.deregister()
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(20)
            world.register()
            began = world.clock.elapsed()
            volumes.driver_came(DRIVER)
            await volumes.wait_mounted(pod)
            assert world.clock.elapsed() - began < 0.5

        told = (await world.events())[0]
        assert told == (
            'FailedMount: MountVolume.SetUp failed for volume "scratch" : kubernetes.io/csi: mounter.SetUpAt failed to '
            "get CSI client: driver name d.example not found in the list of registered CSI drivers"
        )


async def test_an_inline_volume_needs_a_driver_that_says_so():
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=False)
        pod = await world.inline_pod()
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.1)

        (told,) = await world.events()
        assert told == (
            'FailedMount: MountVolume.SetUp failed for volume "scratch" : kubernetes.io/csi: mounter.SetupAt failed to '
            'check volume lifecycle mode: volume mode "Ephemeral" not supported by driver d.example (only supports '
            '["Persistent"])'
        )
        assert world.calls() == []


async def test_a_volume_is_published_anew_at_each_sync_where_the_driver_asks_and_a_failure_of_that_keeps_it():
    async with VolumeWorld() as world:
        await world.csi_driver(**INLINE_DRIVER, requiresRepublish=True, podInfoOnMount=True)
        pod = await world.inline_pod()
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            world.play(failing("NodePublishVolume", "INTERNAL"))
            await volumes.wait_mounted(pod)
            await world.clock.sleep(0.1)
            assert world.contents()
            assert any(world.machine.mounts.values())
            await world.clock.sleep(2)
            await volumes.wait_unmounted(uid(pod))

        assert world.calls("NodePublishVolume") == ["NodePublishVolume"] * 3
        assert world.left() == []


async def test_one_volume_serves_two_pods_and_is_unstaged_after_the_last():
    async with VolumeWorld(node=["STAGE_UNSTAGE_VOLUME", "SINGLE_NODE_MULTI_WRITER"]) as world:
        pod = await persistent_world(world)
        other = await world.claimed_pod("q")
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            await volumes.wait_mounted(other)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)
            assert "NodeUnstageVolume" not in world.calls()
            await volumes.wait_unmounted(uid(other))
            await world.clock.sleep(3)

        assert world.calls().count("NodeStageVolume") == 1
        assert world.calls()[-1] == "NodeUnstageVolume"
        assert world.left() == []


async def test_a_volume_for_one_pod_alone_is_refused_to_a_second_until_the_first_has_gone():
    async with VolumeWorld() as world:
        pod = await persistent_world(world, accessModes=["ReadWriteOncePod"])
        other = await world.claimed_pod("q")
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            volumes.want(other)
            await world.clock.sleep(1)
            assert not volumes.volumes_of(other).is_ready
            await volumes.wait_unmounted(uid(pod))
            await volumes.wait_mounted(other)

        assert any("is already in use by another pod" in told for told in await world.events())


async def test_a_volume_of_another_node_is_not_mounted_here():
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    async with VolumeWorld() as world:
        pod = await persistent_world(world, nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)

        assert await world.events() == [
            'FailedMount: MountVolume.NodeAffinity check failed for volume "pv1" : no matching NodeSelectorTerms'
        ]
        assert world.calls() == []


async def test_secrets_reach_the_driver_and_nobody_else():
    stage = {"namespace": "default", "name": "stage"}
    publish = {"namespace": "default", "name": "publish"}
    async with VolumeWorld() as world:
        for name in ("stage", "publish"):
            await world.client.create(SECRET, named(name, stringData={"key": f"canary-{name}"}), namespace="default")
        pod = await persistent_world(world, csi={"nodeStageSecretRef": stage, "nodePublishSecretRef": publish})
        told = {"code": "INTERNAL", "message": "bad canary-stage"}
        late = {"code": "UNAVAILABLE", "message": "bad canary-publish"}
        world.play(
            {"NodeStageVolume": [{"times": 1, "error": told}], "NodePublishVolume": [{"times": 1, "error": late}]}
        )
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)

        assert [dict(request.secrets) for request in world.requests("NodeStageVolume")][-1] == {"key": "canary-stage"}
        assert dict(world.requests("NodePublishVolume")[-1].secrets) == {"key": "canary-publish"}
        shown = f"{await world.events()} {world.log} {world.contents()} {world.driver.calls}"
        assert "canary" not in shown
        assert "bad ***" in shown


async def test_a_secret_that_is_missing_is_told_and_waited_for():
    async with VolumeWorld() as world:
        await world.csi_driver(**INLINE_DRIVER, podInfoOnMount=True)
        pod = await world.inline_pod(nodePublishSecretRef={"name": "s"})
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            assert world.left() == []
            await world.client.create(SECRET, named("s", stringData={"k": "v"}), namespace="default")
            await volumes.wait_mounted(pod)

        (told,) = await world.events()
        assert told.startswith(
            'FailedMount: MountVolume.SetUp failed for volume "scratch" : fetching NodePublishSecret'
        )


@pytest.mark.parametrize("which", ["nodeStageSecretRef", "nodePublishSecretRef"])
async def test_a_secret_that_is_not_text_never_reaches_the_driver_and_the_event_names_its_key(which: str):
    """Replaced bytes would be another credential, and nobody would see why it is refused."""
    binary = base64.b64encode(b"canary\xff\xfe").decode()
    async with VolumeWorld() as world:
        await world.client.create(SECRET, named("s", data={"pass": binary}), namespace="default")
        pod = await persistent_world(world, csi={which: {"namespace": "default", "name": "s"}})
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(0.2)
            asked = world.calls("NodeStageVolume" if which == "nodeStageSecretRef" else "NodePublishVolume")
            await world.client.patch(SECRET, object_name(SECRET, "s"), MergePatch({"data": {"pass": "dGV4dA=="}}))
            await volumes.wait_mounted(pod)
        told = [note for note in await world.events() if note.startswith("FailedMount")]

        assert asked == []
        assert any("the value of the key 'pass' in the secret default/s is not UTF-8 text" in note for note in told)
        assert "canary" not in f"{told} {world.log}"


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../b", "..", "a\0b"])
async def test_a_subpath_that_leads_elsewhere_is_refused(path: str):
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            with pytest.raises(SubPathRefused):
                await volumes.mount_subpath(pod, SubPathMount("scratch", "main", 0, path))
            with pytest.raises(SubPathRefused):
                await volumes.mount_subpath(pod, SubPathMount("scratch", "..", 0, "a"))
            with pytest.raises(SubPathRefused, match="is not mounted"):
                await volumes.mount_subpath(pod, SubPathMount("other", "main", 0, "a"))
            await volumes.wait_unmounted(uid(pod))
        assert world.left() == []


async def test_a_subpath_is_unmounted_before_its_volume_and_one_in_use_keeps_it():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            mounted = await volumes.mount_subpath(pod, SubPathMount("scratch", "main", 2, "a/b"))
            target = ("pods", uid(pod), "volume-subpaths", "scratch", "main", "2")
            assert mounted == target
            world.machine.busy.add(target)
            waiting = asyncio.ensure_future(volumes.wait_unmounted(uid(pod)))
            await world.clock.sleep(5)
            assert "NodeUnpublishVolume" not in world.calls()

            world.machine.busy.clear()
            await waiting
        assert world.left() == []


async def test_a_claim_that_can_no_longer_be_read_takes_no_volume_from_a_pod_that_runs():
    async with VolumeWorld() as world:
        pod = await persistent_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            gone = {"name": "data", "persistentVolumeClaim": {"claimName": "gone"}}
            volumes.want({**pod, "spec": {**pod["spec"], "volumes": [gone]}})
            await world.clock.sleep(60)

            assert any(world.machine.mounts.values())
        assert "NodeUnpublishVolume" not in world.calls()


async def test_what_is_staged_is_not_unstaged_while_it_is_mounted_elsewhere():
    async with VolumeWorld() as world:
        pod = await persistent_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            staging = volume_paths.global_mount(DRIVER, "h1")
            world.machine.mount_something_else(staging)
            elsewhere = ("pods", "lost", "mount")
            world.machine.mounts[elsewhere] = list(world.machine.mounts[staging])
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(60)
            assert "NodeUnstageVolume" not in world.calls()

            del world.machine.mounts[elsewhere], world.machine.mounts[staging]
            await world.clock.sleep(130)
        assert world.calls()[-1] == "NodeUnstageVolume"
        assert world.left() == []


async def test_an_empty_folder_of_a_pod_that_somebody_is_making_is_left_alone():
    async with VolumeWorld() as world:
        pod = await inline_world(world)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            world.machine.kubelet_makes(("pods", "in-the-making"))
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(60)

        assert world.left() == ["pods/in-the-making"]
        async with world.manager():
            await world.clock.sleep(1)
        assert world.left() == []
