from __future__ import annotations

import pytest

from orlop.kube.objects import uid
from support.volume_worlds import volume_world


@pytest.mark.virtual_time
async def test_an_inline_volume_is_mounted_and_goes_with_its_pod():
    async with volume_world() as world:
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
    async with volume_world() as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim()
        pod = await world.claimed_pod()
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)

        assert world.calls() == ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]
        assert world.left() == []
