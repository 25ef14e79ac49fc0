"""Where volumes are mounted: what was there before, and who else wants to be there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from orlop.csi.error_codes import FailedPrecondition
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.foundation.structured_log import silent_log
from orlop.host.kernel.system_calls import umount2
from orlop.host.node_host import FolderState
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import (
    ID,
    UID,
    assert_book_is_true,
    folder_ids,
    folders_on,
    machine_with_pods,
    mounted,
    names_of,
    order,
)
from support.afterlife.kernel_nodes import KernelNode, node, publish, stats, unpublish

__all__ = ["node"]

T = TypeVar("T")


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_pods()


# ---- what was there before -------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_target_that_holds_something_is_refused_by_name_and_all_is_as_it_was(machine: FakeMachine):
    machine.kubelet_makes((*names_of(UID), "notes"))
    before = set(machine.kubelet_folders)
    folders = folders_on(machine)
    with pytest.raises(FailedPrecondition, match=r"is not empty.*'notes'.*move it away") as refused:
        await folders.publish(order())
    assert order().target in str(refused.value)
    assert (mounted(machine), machine.kubelet_folders) == ([], before)
    assert folder_ids(machine, FolderState.LIVE) == []
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_buried_volume_that_finds_its_target_taken_stays_buried(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    machine.kubelet_makes((*names_of(UID), "notes"))
    with pytest.raises(FailedPrecondition, match="is not empty"):
        await folders.publish(order())
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_target_that_is_there_and_empty_is_used(machine: FakeMachine):
    machine.kubelet_makes(names_of(UID))
    await folders_on(machine).publish(order())
    assert mounted(machine) == [names_of(UID)]


async def test_what_somebody_left_in_a_target_is_never_hidden_by_a_mount(node: KernelNode):
    target = node.pod()
    target.mkdir()
    (target / "notes").write_text("mine")
    async with node.running() as service:
        with pytest.raises(
            FailedPrecondition, match="holds 'notes', which this driver did not create and the mount would hide"
        ):
            await service.NodePublishVolume(publish(target))
        assert (node.mounts(), node.volumes("live")) == ([], [])
        assert (target / "notes").read_text() == "mine"
        (target / "notes").unlink()
        await service.NodePublishVolume(publish(target))
        (target / "result").write_text("1")
        await service.NodePublishVolume(publish(target))  # what the volume holds is no obstacle to itself
        assert node.mounts() == [str(target)]
        await service.NodeUnpublishVolume(unpublish(target))
        assert not target.exists()


async def test_what_somebody_wrote_while_nothing_was_mounted_keeps_the_target_and_is_told_by_name(node: KernelNode):
    target = node.pod()
    async with node.running() as service:
        await service.NodePublishVolume(publish(target, ID))
        umount2(str(target), 0)
        (target / "lost").write_text("written beside the volume")
        with pytest.raises(FailedPrecondition, match=r"cannot be removed.*'lost'.*move it away"):
            await service.NodeUnpublishVolume(unpublish(target, ID))
        assert (node.mounts(), node.volumes("live")) == ([], [ID])
        assert (target / "lost").read_text() == "written beside the volume"
        (target / "lost").unlink()
        await service.NodeUnpublishVolume(unpublish(target, ID))
    assert (target.exists(), node.volumes("retained")) == (False, [ID])


async def test_a_kubelet_folder_that_is_a_link_is_known_by_both_paths(node: KernelNode):
    link = node.kubelet.parent / "link"
    link.symlink_to(node.kubelet)
    async with node.running(kubelet_dir=str(link)) as service:
        real, linked = node.pod(volume="real"), link / node.pod(volume="linked").relative_to(node.kubelet)
        await service.NodePublishVolume(publish(real, "csi-real"))
        await service.NodePublishVolume(publish(linked, "csi-linked"))
        assert node.mounts() == sorted([str(real), str(linked.resolve())])
        await service.NodeGetVolumeStats(stats(link / real.relative_to(node.kubelet), "csi-real"))
        await service.NodeUnpublishVolume(unpublish(link / real.relative_to(node.kubelet), "csi-real"))
        await service.NodeUnpublishVolume(unpublish(linked.resolve(), "csi-linked"))
    assert (node.mounts(), node.volumes("retained")) == ([], ["csi-linked", "csi-real"])


# ---- who else wants to be there --------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_volumes_with_targets_of_their_own_do_not_wait_for_each_other():
    machine, clock = machine_with_pods(*(f"u{number}" for number in range(8))), VirtualClock()

    async def slow(work: Callable[[], T], /) -> T:
        await clock.sleep(1)
        return work()

    folders = Folders(FakeNodeHost(machine), folders_on(machine).book, threads=slow, clock=clock, log=silent_log())
    await folders.publish(order("csi-first", "u0", "other"))  # looks once whether pods see mounts at all
    start = clock.elapsed()
    await asyncio.gather(*(folders.publish(order(f"csi-{number}", f"u{number}")) for number in range(8)))
    assert clock.elapsed() - start == 1
    assert len(mounted(machine)) == 9


async def test_two_volumes_that_ask_for_one_target_at_once_never_stack(node: KernelNode):
    async with node.running() as service:
        for number in range(20):
            target = node.pod(volume=f"v{number}")
            asked = [service.NodePublishVolume(publish(target, f"csi-{number}-{each}")) for each in range(4)]
            told = await asyncio.gather(*asked, return_exceptions=True)
            assert sum(not isinstance(answer, Exception) for answer in told) == 1
            assert node.mounts().count(str(target)) == 1
