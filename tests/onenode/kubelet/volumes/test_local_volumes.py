"""PersistentVolumes of the type `local`: the events of pods that cannot mount one, its node, and its group."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.host.payload_files import FileKind
from onenode.kubelet.volumes.volume_manager import VolumesNotMounted
from orlop.kube.objects import uid
from support.kubelet.volume_worlds import VolumeWorld

pytestmark = pytest.mark.virtual_time
DISK = "/mnt/disks/one"
TOP = ("pods", "{uid}", "volumes", "kubernetes.io~csi", "pv1", "mount")


def top_of(pod: Any) -> tuple[str, ...]:
    return tuple(name.format(uid=uid(pod)) for name in TOP)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (None, f'path "{DISK}" does not exist'),
        (FileKind.FILE, "only directory and block device are supported"),
    ],
)
async def test_a_path_that_cannot_be_mounted_is_an_event_in_kubelets_words_until_it_can(
    kind: FileKind | None, why: str
):
    async with VolumeWorld() as world:
        await world.local_claim(DISK)
        pod = await world.claimed_pod()
        if kind is not None:
            world.machine.host_files[DISK] = kind
        async with world.manager() as volumes:
            with pytest.raises(VolumesNotMounted):
                await volumes.wait_mounted(pod)
            events = await world.events()
            world.machine.host_files[DISK] = FileKind.FOLDER
            await volumes.wait_mounted(pod)

            assert f'FailedMount: MountVolume.NewMounter initialization failed for volume "pv1" : {why}' in events
            assert world.machine.mounts[top_of(pod)]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (None, f'MapVolume.EvalHostSymlinks failed for volume "pv1" : lstat {DISK}: no such file or directory'),
        (FileKind.FOLDER, f'MapVolume.MapBlockVolume failed for volume "pv1" : {DISK} is a directory, not a block'),
    ],
)
async def test_a_raw_volume_whose_device_is_missing_or_a_folder_is_an_event(kind: FileKind | None, why: str):
    async with VolumeWorld() as world:
        await world.local_claim(DISK, volumeMode="Block")
        pod = await world.device_pod()
        if kind is not None:
            world.machine.host_files[DISK] = kind
        async with world.manager() as volumes:
            with pytest.raises(VolumesNotMounted):
                await volumes.wait_mounted(pod)
            assert any(event.startswith(f"FailedMapVolume: {why}") for event in await world.events())
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(10)
        assert world.left() == []


async def test_a_volume_of_another_node_is_not_mounted_here():
    async with VolumeWorld() as world:
        world.machine.host_files[DISK] = FileKind.FOLDER
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
        await world.local_claim(DISK, nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
        pod = await world.claimed_pod()
        async with world.manager() as volumes:
            with pytest.raises(VolumesNotMounted):
                await volumes.wait_mounted(pod)

            assert any("no matching NodeSelectorTerms" in event for event in await world.events())
            assert not world.machine.mounts.get(top_of(pod))


async def test_a_disk_with_another_file_system_than_its_volume_names_is_refused_and_stays_as_it_is():
    async with VolumeWorld() as world:
        world.machine.host_files[DISK] = FileKind.BLOCK_DEVICE
        world.machine.disk_formats[DISK] = "ext4"
        await world.local_claim(DISK, fs_type="xfs")
        pod = await world.claimed_pod()
        async with world.manager() as volumes:
            with pytest.raises(VolumesNotMounted):
                await volumes.wait_mounted(pod)

            why = 'failed to mount the volume as "xfs", it already contains ext4'
            shown = f'FailedMount: MountVolume.MountDevice failed for volume "pv1" : {why}'
            assert any(event.startswith(shown) for event in await world.events())
            assert world.machine.disk_formats == {DISK: "ext4"}


async def test_the_group_of_the_first_pod_has_the_files_while_others_share_the_volume():
    async with VolumeWorld() as world:
        world.machine.host_files[DISK] = FileKind.FOLDER
        await world.local_claim(DISK)
        first = await world.claimed_pod("one", securityContext={"fsGroup": 2000})
        second = await world.claimed_pod("two", securityContext={"fsGroup": 3000})
        async with world.manager() as volumes:
            await volumes.wait_mounted(first)
            await volumes.wait_mounted(second)
            shared = world.machine.group_of.copy()
            await volumes.wait_unmounted(uid(first))
            await volumes.wait_unmounted(uid(second))
            third = await world.claimed_pod("three", securityContext={"fsGroup": 3000})
            await volumes.wait_mounted(third)

            assert shared == {top_of(first): 2000}
            assert world.machine.group_of[top_of(third)] == 3000


async def test_a_claim_that_is_read_only_is_bound_read_only():
    async with VolumeWorld() as world:
        world.machine.host_files[DISK] = FileKind.FOLDER
        await world.local_claim(DISK, mountOptions=["noatime"])
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}}
        pod = await world.pod("p", volume)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)

            options = world.machine.mounts[top_of(pod)][-1].options
            assert options.read_only
            assert "noatime" in options.words()
