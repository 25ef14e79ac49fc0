from __future__ import annotations

from typing import Any

import pytest

from onenode.kubelet.volumes.volume_manager import VolumesNotMounted
from orlop.kube.objects import uid
from support.kubelet.volume_worlds import NODE_NAME, VolumeWorld


@pytest.mark.virtual_time
async def test_an_inline_volume_is_mounted_and_goes_with_its_pod():
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=False, podInfoOnMount=True, volumeLifecycleModes=["Ephemeral"])
        pod = await world.inline_pod()
        async with world.manager() as volumes:
            found = await volumes.wait_mounted(pod)

            assert found.mounted["scratch"].path.endswith(f"pods/{uid(pod)}/volumes/kubernetes.io~csi/scratch/mount")
            assert world.machine.mounts

            await volumes.wait_unmounted(uid(pod))

        assert world.left() == []
        assert world.calls() == ["NodePublishVolume", "NodeUnpublishVolume"]
        assert await world.events() == []


@pytest.mark.virtual_time
async def test_a_persistent_volume_is_staged_published_unpublished_and_unstaged_in_this_order():
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim()
        pod = await world.claimed_pod()
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)

        assert world.calls() == ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
        assert world.left() == []


INLINE = {"attachRequired": False, "podInfoOnMount": True, "volumeLifecycleModes": ["Ephemeral"]}
STRANGE: list[dict[str, Any]] = [
    {"containers": "none"},
    {"containers": [{"name": "main", "volumeMounts": [7]}]},
    {"containers": [{"name": "main", "volumeMounts": [{"name": "v"}]}], "volumes": [{"name": "v", "csi": "x"}]},
    {"containers": [{"name": "main", "volumeMounts": [{"name": "v"}]}], "volumes": ["v"]},
]


@pytest.mark.virtual_time
@pytest.mark.parametrize("spec", STRANGE, ids=str)
async def test_a_pod_that_cannot_be_understood_is_told_of_and_harms_no_other(spec: dict[str, Any]):
    async with VolumeWorld() as world:
        await world.csi_driver(**INLINE)
        pod = await world.inline_pod()
        about = {"name": "strange", "namespace": "default", "uid": "u-strange"}
        strange = {"metadata": about, "spec": {**spec, "nodeName": NODE_NAME}}
        async with world.manager() as volumes:
            with pytest.raises(VolumesNotMounted, match="cannot be understood"):
                await volumes.wait_mounted(strange)
            await volumes.wait_mounted(pod)
            await world.clock.sleep(60)
            await volumes.wait_unmounted("u-strange")
            await volumes.wait_unmounted(uid(pod))

        told = [event for event in await world.events() if "cannot be understood" in event]
        logged = [entry for entry in world.log if entry.message == "pod volumes not understood"]
        assert len(told) == len(logged) == 1
        assert told[0].startswith("FailedMount: Unable to attach or mount volumes: ")
        assert world.left() == []


@pytest.mark.virtual_time
async def test_a_pod_that_is_not_understood_any_more_keeps_its_volumes_also_over_a_restart():
    async with VolumeWorld() as world:
        await world.csi_driver(**INLINE)
        pod = await world.inline_pod()
        strange = {**pod, "spec": {**pod["spec"], "volumes": ["scratch"]}}
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            volumes.want(strange)
            await world.clock.sleep(60)
        async with world.manager(known=False) as volumes:
            volumes.want(strange)
            volumes.all_pods_known()
            await world.clock.sleep(60)
            assert world.calls() == ["NodePublishVolume"]

            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))

        assert world.left() == []
