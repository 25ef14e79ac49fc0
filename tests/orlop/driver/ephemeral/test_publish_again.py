"""A volume that is published already, and published again under other flags or at a target in disorder."""

from __future__ import annotations

import pytest

from orlop.csi.error_codes import CsiError, OutOfRange, Unavailable, is_final
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.foundation.duration import Duration
from orlop.foundation.quantity import Quantity
from orlop.foundation.structured_log import silent_log
from orlop.host.kernel.system_calls import umount2
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import decode_record
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
    right_here,
)
from support.afterlife.kernel_nodes import ID as KUBELETS_ID
from support.afterlife.kernel_nodes import KernelNode, node, publish, unpublish

__all__ = ["node"]
HOUR = 3600.0


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_pods()


# ---- flags that changed while it was published -----------------------------------------------------------------------


def flags(longest: str, afterlifespan: str = "1h") -> dict[str, Duration]:
    return {"afterlifespan": Duration.parse(afterlifespan), "max_afterlifespan": Duration.parse(longest)}


def lifespan_hours(node: KernelNode) -> float:
    return int(node.buried().name.split("_")[1]) / 1000 / HOUR


async def test_a_volume_beyond_a_limit_that_came_later_is_published_again_and_unpublished(node: KernelNode):
    async with node.running(**flags("24h")) as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="20h"))
        (node.target() / "result").write_text("1,2,3")
    async with node.running(**flags("12h")) as service:
        await service.NodePublishVolume(publish(node.target(), afterlifespan="20h"))
        assert node.mounts() == [str(node.target())]
        assert (node.target() / "result").read_text() == "1,2,3"
        assert node.record(node.live()).options.lifespan_seconds == 20 * HOUR
        await service.NodeUnpublishVolume(unpublish(node.target()))
    assert (node.mounts(), node.volumes("live"), node.volumes("retained")) == ([], [], [KUBELETS_ID])
    assert lifespan_hours(node) == 12


async def test_a_volume_beyond_a_limit_that_came_later_is_mounted_again_after_a_reboot(node: KernelNode):
    async with node.running(**flags("24h")) as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="20h"))
    umount2(str(node.target()), 0)
    async with node.running(**flags("12h")) as service:
        await service.NodePublishVolume(publish(node.target(), afterlifespan="20h"))
        assert node.mounts() == [str(node.target())]


async def test_a_retained_folder_beyond_a_limit_that_came_later_is_brought_back(node: KernelNode):
    async with node.running(**flags("24h")) as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="20h"))
        await service.NodeUnpublishVolume(unpublish(node.target()))
    async with node.running(**flags("12h")) as service:
        await service.NodePublishVolume(publish(node.target(), afterlifespan="20h"))
        assert (node.mounts(), node.volumes("retained")) == ([str(node.target())], [])


async def test_limits_hold_for_new_folders_and_leave_nothing_behind(node: KernelNode):
    async with node.running(**flags("12h")) as service:
        with pytest.raises(OutOfRange, match=r"afterlifespan cannot be '20h': .* at most 12h"):
            await service.NodePublishVolume(publish(node.pod(), afterlifespan="20h"))
    assert (node.mounts(), node.left(), node.target().exists()) == ([], [], False)


async def test_a_size_beyond_a_limit_that_came_later_is_published_again(node: KernelNode, monkeypatch):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
    # The room of a test has no quota: what counts here is that the request is not refused by today's limit.
    monkeypatch.setattr("orlop.processes.ephemeral_wiring.why_limits_cannot_be_held", lambda *_: None)
    async with node.running(max_size=Quantity.parse("1Gi")) as service:
        await service.NodePublishVolume(publish(node.target(), size="2Gi"))
        assert node.mounts() == [str(node.target())]


async def test_a_folder_whose_pod_chose_no_lifespan_is_kept_as_the_flag_says_when_it_is_buried(node: KernelNode):
    async with node.running(**flags("24h", "10h")) as service:
        await service.NodePublishVolume(publish(node.pod()))
    async with node.running(**flags("24h", "3h")) as service:
        await service.NodeUnpublishVolume(unpublish(node.target()))
    assert lifespan_hours(node) == 3


async def test_a_folder_whose_pod_chose_its_lifespan_keeps_it_whatever_the_flag_says(node: KernelNode):
    async with node.running(**flags("24h", "10h")) as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="5h"))
    async with node.running(**flags("24h", "3h")) as service:
        await service.NodeUnpublishVolume(unpublish(node.target()))
    assert lifespan_hours(node) == 5


@pytest.mark.virtual_time
@pytest.mark.parametrize(("own", "lifespan"), [(True, 12 * HOUR), (False, 3 * HOUR)])
async def test_a_folder_whose_pod_kubelet_has_forgotten_is_kept_as_the_flags_say_when_it_is_buried(
    machine: FakeMachine,
    own: bool,  # noqa: FBT001 - a case
    lifespan: float,
):
    before = folders_on(machine)
    await before.publish(order(lifespan_seconds=20 * HOUR, own_lifespan=own))
    machine.mounts.clear()
    limits = AdminLimits(afterlifespan=3 * HOUR, max_afterlifespan=12 * HOUR)
    folders = Folders(
        FakeNodeHost(machine), before.book, threads=right_here, clock=VirtualClock(), log=silent_log(), limits=limits
    )
    assert await folders.bury_if_unused(ID, why="kubelet has forgotten its pod")
    assert folders.book.retained[ID].burial.lifespan_seconds == lifespan


@pytest.mark.virtual_time
async def test_a_folder_removed_by_hand_is_made_anew_with_the_options_of_its_record(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(lifespan_seconds=20 * HOUR))
    machine.mounts.clear()
    machine.folders.clear()
    await folders.publish(order(lifespan_seconds=5 * HOUR))
    record = decode_record(machine.folders[FolderPlace(FolderState.LIVE, ID)].record or b"")
    assert record.options.lifespan_seconds == 20 * HOUR
    assert_book_is_true(folders, machine)


# ---- what an earlier call may have mounted is never answered with a final code ---------------------------------------


async def failure(asked) -> CsiError:
    with pytest.raises(CsiError) as raised:
        await asked
    return raised.value


@pytest.mark.virtual_time
async def test_a_published_target_that_something_else_was_mounted_on_is_answered_so_that_kubelet_comes_again(machine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.mount_something_else(names_of(UID))
    error = await failure(folders.publish(order()))
    assert isinstance(error, Unavailable)
    assert "something else is mounted" in str(error)
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_published_target_that_holds_somebodys_file_is_answered_so_that_kubelet_comes_again(machine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.mounts.clear()  # as after a reboot
    machine.kubelet_makes((*names_of(UID), "notes"))
    error = await failure(folders.publish(order()))
    assert isinstance(error, Unavailable)
    assert "'notes'" in str(error)


@pytest.mark.virtual_time
async def test_a_published_target_below_a_folder_that_is_no_shared_mount_is_answered_so_that_kubelet_comes_again(
    machine: FakeMachine,
):
    await folders_on(machine).publish(order())
    machine.kubelet_is_shared = False
    error = await failure(folders_on(machine).publish(order()))
    assert not is_final(error)
    assert mounted(machine) == [names_of(UID)]


@pytest.mark.virtual_time
@pytest.mark.parametrize("step", ["is_shown_by", "make_target", "mounted_at", "bind", "is_shared"])
@pytest.mark.parametrize("number", [5, 13, 20, 40, 95])
async def test_no_error_of_the_machine_is_final_where_an_earlier_call_may_have_mounted_the_target(
    machine: FakeMachine, step: str, number: int
):
    """EIO, EACCES, ENOTDIR, ELOOP, EOPNOTSUPP: most of them are final codes for a new folder."""
    await folders_on(machine).publish(order())
    if step == "bind":
        machine.mounts.clear()  # as after a reboot: it has to be bound again
    folders = folders_on(machine)
    machine.faults.fail(step, number, times=2)  # the first look at its folder may fail unnoticed
    assert not is_final(await failure(folders.publish(order())))
    machine.faults.forget()
    await folders.publish(order())
    assert mounted(machine) == [names_of(UID)]
    assert_book_is_true(folders, machine)
