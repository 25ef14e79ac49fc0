"""What csi-sanity asks of a controller service, asked of ours through messages, locks and codes as on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import Code, CsiError
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.rpc_type import Rpc
from orlop.driver.persistent.controller_service import CAPABILITIES
from support.drives.drive_facts import GIB, block, mount
from support.drives.drive_worlds import DriveWorld
from support.drives.node_models import NodeModel

pytestmark = pytest.mark.virtual_time
DRIVER = "csi.orlop.dev"
LONGEST = "n" * 128


@dataclass
class ControllerSanity:
    world: DriveWorld
    csi: CsiClient

    async def call(self, method: Rpc[Any, Any], request: Any) -> Any:
        return await self.csi.call(method, request)

    async def code(self, method: Rpc[Any, Any], request: Any) -> Code:
        try:
            await self.call(method, request)
        except CsiError as error:
            return error.code
        return Code.OK

    async def create(self, name: str, size: int = GIB, **fields: Any) -> csi_pb2.Volume:
        fields.setdefault("volume_capabilities", [mount()])
        request = csi_pb2.CreateVolumeRequest(
            name=name, capacity_range=csi_pb2.CapacityRange(required_bytes=size), **fields
        )
        volume: csi_pb2.Volume = (await self.call(rpc.CREATE_VOLUME, request)).volume
        return volume

    async def delete(self, volume_id: str) -> None:
        await self.call(rpc.DELETE_VOLUME, csi_pb2.DeleteVolumeRequest(volume_id=volume_id))

    async def listed(self, **page: Any) -> csi_pb2.ListVolumesResponse:
        response: csi_pb2.ListVolumesResponse = await self.call(rpc.LIST_VOLUMES, csi_pb2.ListVolumesRequest(**page))
        return response

    async def names(self) -> set[str]:
        return {entry.volume.volume_id for entry in (await self.listed()).entries}


@asynccontextmanager
async def controller_sanity() -> AsyncIterator[ControllerSanity]:
    async with DriveWorld() as world:
        node = NodeModel("n1", world.on, world.client, world.clock)
        node.add_disk(1, 100 * GIB)
        world.start(node.run(), "node")
        await world.settle(5.0)
        async with world.controller() as controller:
            runtime, ids = world.runtime("wire"), count(1)
            interceptor = CallInterceptor(
                methods_of(controller.service),
                driver_name=DRIVER,
                log=runtime.log,
                metrics=runtime.metrics,
                clock=world.clock,
                new_id=lambda: str(next(ids)),
            )
            connection = InProcessConnection(interceptor)
            csi = CsiClient(
                connection, log=runtime.log, metrics=runtime.metrics, clock=runtime.clock, random=runtime.random
            )
            yield ControllerSanity(world, csi)
            await interceptor.drain(60.0)
            await connection.close()


def range_of(size: int) -> csi_pb2.CapacityRange:
    return csi_pb2.CapacityRange(required_bytes=size)


INCOMPLETE = [
    (rpc.CREATE_VOLUME, csi_pb2.CreateVolumeRequest(volume_capabilities=[mount()])),
    (rpc.CREATE_VOLUME, csi_pb2.CreateVolumeRequest(name="v")),
    (rpc.DELETE_VOLUME, csi_pb2.DeleteVolumeRequest()),
    (rpc.VALIDATE_VOLUME_CAPABILITIES, csi_pb2.ValidateVolumeCapabilitiesRequest(volume_capabilities=[mount()])),
    (rpc.VALIDATE_VOLUME_CAPABILITIES, csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id="v")),
    (rpc.CONTROLLER_EXPAND_VOLUME, csi_pb2.ControllerExpandVolumeRequest(capacity_range=range_of(GIB))),
    (rpc.CONTROLLER_EXPAND_VOLUME, csi_pb2.ControllerExpandVolumeRequest(volume_id="v")),
    (rpc.CONTROLLER_GET_VOLUME, csi_pb2.ControllerGetVolumeRequest()),
    (rpc.CONTROLLER_GET_VOLUME_HEALTH, csi_pb2.ControllerGetVolumeHealthRequest()),
]
UNKNOWN = [
    (
        rpc.VALIDATE_VOLUME_CAPABILITIES,
        csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id="reallyfakevolumeid", volume_capabilities=[mount()]),
    ),
    (
        rpc.CONTROLLER_EXPAND_VOLUME,
        csi_pb2.ControllerExpandVolumeRequest(volume_id="reallyfakevolumeid", capacity_range=range_of(GIB)),
    ),
    (rpc.CONTROLLER_GET_VOLUME, csi_pb2.ControllerGetVolumeRequest(volume_id="reallyfakevolumeid")),
    (rpc.CONTROLLER_GET_VOLUME_HEALTH, csi_pb2.ControllerGetVolumeHealthRequest(volume_id="reallyfakevolumeid")),
]


async def test_an_incomplete_request_is_an_invalid_argument_and_an_unknown_volume_not_found():
    async with controller_sanity() as sanity:
        incomplete = [await sanity.code(method, request) for method, request in INCOMPLETE]
        unknown = [await sanity.code(method, request) for method, request in UNKNOWN]
        deleted = await sanity.code(rpc.DELETE_VOLUME, csi_pb2.DeleteVolumeRequest(volume_id="reallyfakevolumeid"))

    assert incomplete == [Code.INVALID_ARGUMENT] * len(INCOMPLETE)
    assert unknown == [Code.NOT_FOUND] * len(UNKNOWN)
    assert deleted is Code.OK


async def test_capabilities_and_capacity_are_those_of_csi():
    async with controller_sanity() as sanity:
        found = await sanity.call(rpc.CONTROLLER_GET_CAPABILITIES, csi_pb2.ControllerGetCapabilitiesRequest())
        capacity = await sanity.call(rpc.GET_CAPACITY, csi_pb2.GetCapacityRequest())

    assert [each.rpc.type for each in found.capabilities] == list(CAPABILITIES)
    assert capacity.available_capacity == 100 * GIB


@pytest.mark.parametrize("capability", [mount(), mount("ext4"), block()])
async def test_the_life_of_a_volume(capability: csi_pb2.VolumeCapability):
    async with controller_sanity() as sanity:
        volume = await sanity.create("life", 10 * GIB, volume_capabilities=[capability])
        again = await sanity.create("life", 10 * GIB, volume_capabilities=[capability])
        differs = csi_pb2.CreateVolumeRequest(
            name="life", capacity_range=range_of(20 * GIB), volume_capabilities=[capability]
        )
        validated = await sanity.call(
            rpc.VALIDATE_VOLUME_CAPABILITIES,
            csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id=volume.volume_id, volume_capabilities=[capability]),
        )
        already = await sanity.code(rpc.CREATE_VOLUME, differs)
        grown = await sanity.call(
            rpc.CONTROLLER_EXPAND_VOLUME,
            csi_pb2.ControllerExpandVolumeRequest(volume_id=volume.volume_id, capacity_range=range_of(20 * GIB)),
        )
        for _ in range(2):
            await sanity.delete(volume.volume_id)
        await sanity.world.settle(60.0)

        assert volume.volume_id
        assert volume.capacity_bytes == 10 * GIB
        assert again == volume
        assert already is Code.ALREADY_EXISTS
        assert validated.HasField("confirmed")
        assert grown.capacity_bytes == 20 * GIB
        assert await sanity.names() == set()
        assert await sanity.world.allocations(1) == {}


async def test_the_longest_name_makes_a_volume_that_can_be_deleted():
    async with controller_sanity() as sanity:
        volume = await sanity.create(LONGEST)
        upper = await sanity.create("A Name That Is No Object's")
        for each in (volume, upper):
            assert each.volume_id in await sanity.names()
            await sanity.delete(each.volume_id)

        assert await sanity.names() == set()


async def test_a_list_shows_new_volumes_and_not_deleted_ones_and_takes_tokens_whose_volume_is_gone():
    async with controller_sanity() as sanity:
        before = await sanity.names()
        made = [(await sanity.create(f"list-{number}")).volume_id for number in range(4)]
        first = await sanity.listed(max_entries=2)
        await sanity.delete(made[1])
        await sanity.delete(made[2])
        added = (await sanity.create("list-9")).volume_id
        rest = await sanity.listed(starting_token=first.next_token)
        invalid = await sanity.code(rpc.LIST_VOLUMES, csi_pb2.ListVolumesRequest(starting_token="invalid-token"))

        assert before == set()
        assert [entry.volume.volume_id for entry in first.entries] == made[:2]
        assert [entry.volume.volume_id for entry in rest.entries] == [made[3], added]
        assert invalid is Code.ABORTED
        assert await sanity.names() == {made[0], made[3], added}
