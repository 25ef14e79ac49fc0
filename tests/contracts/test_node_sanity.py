"""What csi-sanity asks of a node service, asked of volumes on drives: by messages, of the model and of this kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError, FailedPrecondition, InvalidArgument, NotFound
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import csi_pb2, rpc
from orlop.driver.combined_node_service import CombinedNodeService
from orlop.driver.ephemeral.node_service import NodeIdentity
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from orlop.host.drives import drive_files, drive_reserve
from orlop.records.drive_record import MIB, DriveType
from orlop.records.volume_context import TOPOLOGY_NODE
from orlop.testing.virtual_clock import VirtualClock
from support.drives.linux_node import LinuxNode
from support.drives.node_drives import ID, drive_record
from support.drives.volume_node import DEVICE, STAGING, TARGET, Node, form, new_ground
from support.host.kernel_rooms import descriptor, mount_room

pytestmark = pytest.mark.virtual_time
CAPACITY = 64 * MIB
FACTS = {"bytes": 16 * MIB, "file_system": "ext4"}
Kind = csi_pb2.NodeServiceCapability.RPC.Type
ELSEWHERE = "some/path"
"""The path of csi-sanity at which no volume is."""


class Sanity:
    """A client of one node, and the form of the volumes that it uses."""

    def __init__(self, node: Node, kind: str) -> None:
        self.node, self.paths = node, node.paths
        self.block = kind == "block"
        self.backing = "directory" if kind == "directory" else "image"

    @cached_property
    def _client(self) -> CsiClient:
        metrics = Metrics("test", of_process=False)
        interceptor = CallInterceptor(
            methods_of(CombinedNodeService(None, self.node.service, NodeIdentity("n1", TOPOLOGY_NODE).info)),
            driver_name="csi.orlop.dev",
            log=silent_log(),
            metrics=metrics,
            clock=VirtualClock(),
            new_id=map(str, count()).__next__,
        )
        return CsiClient(
            InProcessConnection(interceptor),
            clock=VirtualClock(),
            random=Random(1),
            log=silent_log(),
            metrics=metrics,
            timeout=60.0,
        )

    @property
    def target(self) -> str:
        return self.paths.of(DEVICE if self.block else TARGET)

    async def call(self, method: Any, request: Any) -> Any:
        return await self._client.call(method, request)

    def staging(self) -> csi_pb2.NodeStageVolumeRequest:
        facts = {"bytes": FACTS["bytes"], **({} if self.block else FACTS)}
        if self.backing == "directory":
            facts["file_system"] = "xfs"
        return self.paths.staging(block=self.block, backing=self.backing, facts=facts)

    def publishing(self) -> csi_pb2.NodePublishVolumeRequest:
        return self.paths.publishing(block=self.block)

    async def stage(self) -> None:
        await self.call(rpc.NODE_STAGE_VOLUME, self.staging())

    async def publish(self) -> None:
        await self.call(rpc.NODE_PUBLISH_VOLUME, self.publishing())

    async def unpublish(self) -> None:
        request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=ID, target_path=self.target)
        await self.call(rpc.NODE_UNPUBLISH_VOLUME, request)

    async def unstage(self) -> None:
        request = csi_pb2.NodeUnstageVolumeRequest(volume_id=ID, staging_target_path=self.paths.of(STAGING))
        await self.call(rpc.NODE_UNSTAGE_VOLUME, request)

    async def stats(self, path: str) -> csi_pb2.NodeGetVolumeStatsResponse:
        return await self.call(
            rpc.NODE_GET_VOLUME_STATS, csi_pb2.NodeGetVolumeStatsRequest(volume_id=ID, volume_path=path)
        )

    async def expand(self, path: str) -> int:
        size = csi_pb2.CapacityRange(required_bytes=32 * MIB)
        request = csi_pb2.NodeExpandVolumeRequest(volume_id=ID, volume_path=path, capacity_range=size)
        response = await self.call(rpc.NODE_EXPAND_VOLUME, request)
        return int(response.capacity_bytes)


@pytest.fixture(params=["model directory", "model image", "model block", "kernel image", "kernel block"])
def sanity(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sanity]:
    where, kind = request.param.split()
    if where == "model":
        yield Sanity(new_ground().start(), kind)
        return
    with mount_room(tmp_path / "room") as room, ExitStack() as opened:
        drive = room / "drive"
        drive.mkdir()
        with descriptor(drive) as root:
            drive_files.make_shelves(root)
            drive_reserve.make(root, CAPACITY)
        node = LinuxNode(room / "kubelet", drive, drive_record(type_=DriveType.FOLDER, capacity=CAPACITY))
        opened.callback(node.take_apart)
        yield Sanity(node, kind)


Call = Callable[[Sanity], Awaitable[Any]]


def without(method: Any, request: Callable[[Sanity], Any], field: str) -> Call:
    async def call(sanity: Sanity) -> None:
        asked = request(sanity)
        asked.ClearField(field)
        await sanity.call(method, asked)

    return call


def unpublishing(sanity: Sanity) -> csi_pb2.NodeUnpublishVolumeRequest:
    return csi_pb2.NodeUnpublishVolumeRequest(volume_id=ID, target_path=sanity.target)


def unstaging(sanity: Sanity) -> csi_pb2.NodeUnstageVolumeRequest:
    return csi_pb2.NodeUnstageVolumeRequest(volume_id=ID, staging_target_path=sanity.paths.of(STAGING))


def asking_stats(sanity: Sanity) -> csi_pb2.NodeGetVolumeStatsRequest:
    return csi_pb2.NodeGetVolumeStatsRequest(volume_id=ID, volume_path=sanity.target)


def expanding(sanity: Sanity) -> csi_pb2.NodeExpandVolumeRequest:
    return csi_pb2.NodeExpandVolumeRequest(volume_id=ID, volume_path=sanity.target)


INCOMPLETE = {
    "stage without id": without(rpc.NODE_STAGE_VOLUME, Sanity.staging, "volume_id"),
    "stage without path": without(rpc.NODE_STAGE_VOLUME, Sanity.staging, "staging_target_path"),
    "stage without capability": without(rpc.NODE_STAGE_VOLUME, Sanity.staging, "volume_capability"),
    "unstage without id": without(rpc.NODE_UNSTAGE_VOLUME, unstaging, "volume_id"),
    "unstage without path": without(rpc.NODE_UNSTAGE_VOLUME, unstaging, "staging_target_path"),
    "publish without id": without(rpc.NODE_PUBLISH_VOLUME, Sanity.publishing, "volume_id"),
    "publish without path": without(rpc.NODE_PUBLISH_VOLUME, Sanity.publishing, "target_path"),
    "publish without capability": without(rpc.NODE_PUBLISH_VOLUME, Sanity.publishing, "volume_capability"),
    "unpublish without id": without(rpc.NODE_UNPUBLISH_VOLUME, unpublishing, "volume_id"),
    "unpublish without path": without(rpc.NODE_UNPUBLISH_VOLUME, unpublishing, "target_path"),
    "stats without id": without(rpc.NODE_GET_VOLUME_STATS, asking_stats, "volume_id"),
    "stats without path": without(rpc.NODE_GET_VOLUME_STATS, asking_stats, "volume_path"),
    "expand without id": without(rpc.NODE_EXPAND_VOLUME, expanding, "volume_id"),
    "expand without path": without(rpc.NODE_EXPAND_VOLUME, expanding, "volume_path"),
}


async def test_an_incomplete_request_is_refused(sanity: Sanity):
    for name, call in INCOMPLETE.items():
        with pytest.raises(InvalidArgument):
            await call(sanity)
            raise AssertionError(name)


async def test_an_unknown_volume_is_not_found_and_leaves_nothing_to_unpublish(sanity: Sanity):
    for path in (sanity.target, ELSEWHERE):
        for call in (sanity.publish, lambda path=path: sanity.stats(path), lambda path=path: sanity.expand(path)):
            with pytest.raises(NotFound):
                await call()
    await sanity.unpublish()
    await sanity.unstage()


async def test_info_and_capabilities_are_those_of_csi(sanity: Sanity):
    info = await sanity.call(rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest())
    served = await sanity.call(rpc.NODE_GET_CAPABILITIES, csi_pb2.NodeGetCapabilitiesRequest())
    assert info.node_id == "n1"
    assert dict(info.accessible_topology.segments) == {"topology.orlop.dev/node": "n1"}
    kinds = {each.rpc.type for each in served.capabilities}
    assert {
        Kind.STAGE_UNSTAGE_VOLUME,
        Kind.GET_VOLUME_STATS,
        Kind.EXPAND_VOLUME,
        Kind.SINGLE_NODE_MULTI_WRITER,
    } <= kinds


async def test_the_whole_life_works_and_every_call_can_be_repeated(sanity: Sanity):
    for call in (sanity.stage, sanity.publish):
        await call()
        await call()
    assert (await sanity.stats(sanity.target)).usage[0].total > 0
    for call in (sanity.unpublish, sanity.unstage):
        await call()
        await call()
    with pytest.raises(FailedPrecondition):
        await sanity.publish()


async def test_a_path_where_the_volume_is_not_published_is_not_found(sanity: Sanity):
    await sanity.stage()
    await sanity.publish()
    for call in (sanity.stats, sanity.expand):
        for path in (sanity.paths.of(("pods", "nowhere")), ELSEWHERE, "/", "/etc"):
            with pytest.raises(NotFound):
                await call(path)


async def test_a_volume_is_expanded_after_it_was_staged_and_after_it_was_published(sanity: Sanity):
    await sanity.stage()
    if not isinstance(sanity.node, LinuxNode) or sanity.block:  # ext4 needs a capability that not every machine has
        assert await sanity.expand(sanity.paths.of(STAGING)) == 32 * MIB
        await sanity.publish()
        assert await sanity.expand(sanity.target) == 32 * MIB


async def test_the_other_access_type_is_refused(sanity: Sanity):
    await sanity.stage()
    request = sanity.publishing()
    request.volume_capability.CopyFrom(form(block=not sanity.block))
    with pytest.raises(CsiError) as caught:
        await sanity.call(rpc.NODE_PUBLISH_VOLUME, request)
    assert isinstance(caught.value, FailedPrecondition)
