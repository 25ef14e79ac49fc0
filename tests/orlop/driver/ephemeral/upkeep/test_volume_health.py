"""What kubelet is told of a volume: how full it is, and what is wrong with it."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import InvalidArgument, NotFound, Unimplemented
from orlop.csi.proto import csi_pb2
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.node_service import EphemeralNodeService, NodeIdentity, NodeRules
from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.driver.ephemeral.upkeep.volume_health import (
    Filling,
    LeftQuota,
    Target,
    VolumeFacts,
    VolumeHealth,
    troubles,
    volume_usage,
)
from orlop.host.folders.project_strays import StrayCount
from orlop.host.node_host import FolderPlace, FolderState
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import ID, UID, folders_on, machine_with_pods, names_of, order, right_here

MIB = 1 << 20
BLOCK = 4096
KUBELET = "/var/lib/kubelet"
TARGET = f"{KUBELET}/{order().target}"
Kind = csi_pb2.VolumeHealthErrorType
Unit = csi_pb2.VolumeUsage.Unit
RpcType = csi_pb2.NodeServiceCapability.RPC.Type


class Node:
    def __init__(self, *, with_health: bool = True) -> None:
        self.machine: FakeMachine = machine_with_pods()
        self.machine.why_no_quota = None
        self.folders: Folders = folders_on(self.machine)
        self.escapes: dict[str, StrayCount] = {}
        host = FakeNodeHost(self.machine)
        self.service = EphemeralNodeService(
            self.folders,
            host,
            NodeIdentity("n1", "csi.orlop.dev/node"),
            NodeRules((KUBELET,), AdminLimits(1.0, 1.0)),
            timed_threads=right_here,
            clock=VirtualClock(),
            health=VolumeHealth(host, self.escapes) if with_health else None,
        )

    async def usage(self) -> dict[int, tuple[int, int, int]]:
        asked = csi_pb2.NodeGetVolumeStatsRequest(volume_id=ID, volume_path=TARGET)
        answer = await self.service.NodeGetVolumeStats(asked)
        return {each.unit: (each.used, each.available, each.total) for each in answer.usage}

    async def health(self, path: str = TARGET, volume_id: str = ID) -> dict[str, int]:
        asked = csi_pb2.NodeGetVolumeHealthRequest(volume_id=volume_id, volume_publish_path=path)
        answer = await self.service.NodeGetVolumeHealth(asked)
        assert answer.volume_health.volume_id == volume_id
        assert all(entry.message.endswith(".") for entry in answer.volume_health.health_statuses)
        return {entry.reason: entry.status for entry in answer.volume_health.health_statuses}


# ---- how full it is --------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_the_size_of_a_volume_with_limits_is_its_limit():
    node = Node()
    await node.folders.publish(order(size_bytes=MIB, inodes=10))
    node.machine.folders[FolderPlace(FolderState.LIVE, ID)].files["data"] = bytes(10 * BLOCK)

    assert await node.usage() == {
        Unit.BYTES: (11 * BLOCK, MIB - 11 * BLOCK, MIB),
        Unit.INODES: (2, 8, 10),
    }


@pytest.mark.virtual_time
@pytest.mark.parametrize("path", ["some/path", "/etc", f"{KUBELET}/pods/other"])
async def test_a_path_where_a_volume_is_not_published_is_not_found(path: str):
    node = Node()
    await node.folders.publish(order())
    with pytest.raises(NotFound):
        await node.service.NodeGetVolumeStats(csi_pb2.NodeGetVolumeStatsRequest(volume_id=ID, volume_path=path))


@pytest.mark.virtual_time
async def test_what_the_disk_does_not_have_is_not_available():
    node = Node()
    await node.folders.publish(order(size_bytes=MIB))
    node.machine.used_by_others = node.machine.total_bytes - 3 * BLOCK

    assert (await node.usage())[Unit.BYTES] == (BLOCK, 2 * BLOCK, MIB)


@pytest.mark.virtual_time
@pytest.mark.parametrize("limits", [{}, {"inodes": 10}], ids=str)
async def test_a_volume_without_a_size_may_have_what_the_disk_has(limits: dict[str, int]):
    node = Node()
    await node.folders.publish(order(**limits))
    free = node.machine.free_bytes()

    assert (await node.usage())[Unit.BYTES] == (BLOCK, free, BLOCK + free)


@pytest.mark.virtual_time
@pytest.mark.parametrize("failing", ["quota_usage", "mounted without"])
async def test_a_volume_whose_quota_cannot_be_read_is_measured(failing: str):
    node = Node()
    await node.folders.publish(order(size_bytes=MIB))
    if failing == "quota_usage":
        node.machine.faults.fail("quota_usage", errno.EIO)
    else:
        node.machine.why_no_quota = "It was mounted without."

    assert (await node.usage())[Unit.BYTES][0] == BLOCK


fillings = st.builds(
    Filling,
    st.none() | st.integers(0, 1_000),
    st.none() | st.integers(1, 500),
    st.just(1_000),
    st.integers(0, 1_000),
)


@given(fillings, fillings)
def test_available_is_never_more_than_the_disk_has_nor_negative(one: Filling, other: Filling):
    for usage, filling in zip(volume_usage(one, other), (one, other), strict=True):
        assert 0 <= usage.available <= filling.disk_free
        assert usage.total == (filling.limit or usage.used + usage.available)


# ---- what is wrong with it -------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_nothing_is_wrong_with_a_volume_that_is_as_it_was_published():
    node = Node()
    await node.folders.publish(order(size_bytes=MIB))
    assert await node.health() == {}
    assert await node.health("") == {}


@pytest.mark.virtual_time
async def test_a_target_that_is_not_mounted_any_more_is_told():
    node = Node()
    await node.folders.publish(order())
    await node.folders.publish(order(volume="other"))
    node.machine.mounts.pop(names_of(UID))
    assert await node.health() == {"NotMounted": Kind.INACCESSIBLE}
    assert await node.health("") == {"NotMounted": Kind.INACCESSIBLE}
    assert await node.health(f"{KUBELET}/{order(volume='other').target}") == {}
    node.machine.mount_something_else(names_of(UID))
    assert await node.health() == {"OtherMount": Kind.INACCESSIBLE}


@pytest.mark.virtual_time
async def test_a_folder_that_is_gone_is_told_as_loss():
    node = Node()
    await node.folders.publish(order())
    node.machine.folders.clear()
    assert await node.health() == {"FolderMissing": Kind.DATA_LOSS}


@pytest.mark.virtual_time
@pytest.mark.parametrize("failing", ["identity", "mounted_at"])
async def test_a_disk_that_does_not_answer_is_told(failing: str):
    node = Node()
    await node.folders.publish(order())
    node.machine.faults.fail(failing, errno.EIO)
    assert await node.health() == {"DiskFailing": Kind.INACCESSIBLE}


@pytest.mark.virtual_time
async def test_a_disk_that_takes_no_changes_and_limits_that_are_not_held_are_told():
    node = Node()
    await node.folders.publish(order(size_bytes=MIB))
    node.machine.why_not_writable = "The disk is read-only."
    node.machine.why_no_quota = "It was mounted without."
    assert await node.health() == {"DiskTakesNoChanges": Kind.DEGRADED, "QuotaNotEnforced": Kind.DEGRADED}


@pytest.mark.virtual_time
async def test_a_tenant_that_left_its_quota_is_told():
    node = Node()
    await node.folders.publish(order(size_bytes=MIB))
    node.escapes[ID] = StrayCount(2, 99, "odd\udcffname\x1b[31m")
    assert await node.health() == {"QuotaLeft": Kind.DEGRADED}


@pytest.mark.virtual_time
async def test_health_is_asked_of_volumes_that_are_published_and_of_paths_below_kubelets_folder():
    node = Node()
    with pytest.raises(NotFound):
        await node.health()
    await node.folders.publish(order())
    with pytest.raises(InvalidArgument):
        await node.health("/etc")
    with pytest.raises(InvalidArgument):
        await node.health(volume_id="..")
    await node.folders.unpublish(ID, order().target)
    with pytest.raises(NotFound):
        await node.health()


@pytest.mark.virtual_time
async def test_what_is_served_is_what_is_listed():
    async def kinds(node: Node) -> list[int]:
        answer = await node.service.NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest())
        return [capability.rpc.type for capability in answer.capabilities]

    assert await kinds(Node()) == [RpcType.GET_VOLUME_STATS, RpcType.GET_VOLUME_HEALTH]
    assert await kinds(Node(with_health=False)) == [RpcType.GET_VOLUME_STATS]
    with pytest.raises(Unimplemented):
        await Node(with_health=False).health()


sentences = st.none() | st.just("It is so.")
facts = st.builds(
    VolumeFacts,
    disk_trouble=sentences,
    is_missing=st.booleans(),
    targets=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Target)), max_size=4).map(tuple),
    no_changes=sentences,
    no_quota=sentences,
    left_quota=st.none() | st.builds(LeftQuota, st.integers(1, 9), st.integers(0, 9), st.text(max_size=9)),
)


@given(facts)
def test_every_pair_of_status_and_reason_occurs_once_and_nothing_is_hidden(seen: VolumeFacts):
    found = [(entry.status, entry.reason) for entry in troubles(seen)]
    assert len(set(found)) == len(found)
    others = (seen.disk_trouble, seen.no_changes, seen.no_quota, seen.left_quota)
    is_well = not seen.is_missing and all(target is Target.THE_VOLUME for _path, target in seen.targets)
    assert (not found) == (is_well and others == (None,) * 4)
