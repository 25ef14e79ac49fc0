from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import FailedPrecondition, Internal, Unavailable
from orlop.csi.grpc.grpc_server import GrpcListener
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.proto import csi_pb2, rpc, services
from orlop.csi.server import serving
from orlop.csi.transport import Shape
from orlop.foundation.metrics import Metrics
from orlop.testing.virtual_clock import VirtualClock
from support.csi.csi_ends import Workshop
from support.csi.csi_services import Identity

CONTROLLER = csi_pb2.PluginCapability.Service.Type.CONTROLLER_SERVICE


class Controller(services.Controller):
    def __init__(self, *capabilities: int) -> None:
        self.capabilities = capabilities

    async def ControllerGetCapabilities(self, request):  # type: ignore[no-untyped-def]
        capability = csi_pb2.ControllerServiceCapability
        return csi_pb2.ControllerGetCapabilitiesResponse(
            capabilities=[capability(rpc=capability.RPC(type=number)) for number in self.capabilities]
        )


def on_virtual_time() -> Workshop:
    return Workshop("in process", Path("unused"), clock=VirtualClock())


@pytest.mark.virtual_time
async def test_a_driver_that_is_not_ready_is_asked_again_until_it_is():
    identity = Identity()
    identity.not_ready_for = 20
    workshop = on_virtual_time()
    async with workshop.ends(identity) as ends:
        await ends.client.ready()

    assert identity.asked == ["Probe"] * 21
    assert 60 < workshop.clock.elapsed() < 120


@pytest.mark.virtual_time
async def test_a_driver_that_is_gone_is_waited_for():
    workshop = on_virtual_time()
    async with workshop.ends(Identity()) as ends:
        assert isinstance(ends.transport, InProcessConnection)
        ends.transport.cut()
        with pytest.raises(Unavailable):
            await ends.client.plugin_info()
        asyncio.get_running_loop().call_later(3600, ends.transport.mend)
        await ends.client.ready()

    assert workshop.clock.elapsed() >= 3600


@pytest.mark.virtual_time
async def test_a_driver_that_says_it_never_will_be_ready_is_not_asked_again():
    class Broken(Identity):
        async def Probe(self, request):  # type: ignore[no-untyped-def]
            raise FailedPrecondition("the module xfs is not loaded")

    async with on_virtual_time().ends(Broken()) as ends:
        with pytest.raises(FailedPrecondition, match="xfs"):
            await ends.client.ready()


@pytest.mark.virtual_time
async def test_a_ready_field_that_is_left_out_means_ready():
    class Terse(Identity):
        async def Probe(self, request):  # type: ignore[no-untyped-def]
            return csi_pb2.ProbeResponse()

    async with on_virtual_time().ends(Terse()) as ends:
        await ends.client.ready()


@pytest.mark.virtual_time
async def test_abilities_are_asked_once_per_connection():
    identity, controller = Identity(), Controller(1, 2, 9999)
    identity.capabilities = [CONTROLLER]
    async with on_virtual_time().ends(identity, controller) as ends:
        first = await ends.client.capabilities()
        await ends.client.capabilities()
        assert identity.asked == ["GetPluginCapabilities"]
        controller.capabilities = (1,)
        assert isinstance(ends.transport, InProcessConnection)
        ends.transport.cut()
        ends.transport.mend()
        second = await ends.client.capabilities()

    assert first.plugin == {"CONTROLLER_SERVICE"}
    assert first.controller == {"CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "9999"}
    assert first.node == frozenset()
    assert second.controller == {"CREATE_DELETE_VOLUME"}


@pytest.mark.virtual_time
async def test_a_socket_that_serves_none_of_the_services_its_plugin_lists_can_be_asked():
    identity = Identity()
    kinds = csi_pb2.PluginCapability.Service.Type
    identity.capabilities = [kinds.CONTROLLER_SERVICE, kinds.GROUP_CONTROLLER_SERVICE]
    async with on_virtual_time().ends(identity) as ends:
        capabilities = await ends.client.capabilities()

    assert capabilities.plugin == {"CONTROLLER_SERVICE", "GROUP_CONTROLLER_SERVICE"}
    assert capabilities.controller == capabilities.group_controller == capabilities.node == frozenset()


@pytest.mark.virtual_time
async def test_a_driver_without_a_controller_has_no_abilities_of_one():
    async with on_virtual_time().ends(Identity()) as ends:
        capabilities = await ends.client.capabilities()

    assert (
        capabilities.controller
        == capabilities.group_controller
        == capabilities.node
        == capabilities.plugin
        == frozenset()
    )


@pytest.mark.virtual_time
async def test_a_driver_without_a_name_is_refused():
    async with on_virtual_time().ends(Identity("")) as ends:
        with pytest.raises(Internal, match="no name"):
            await ends.client.plugin_info()


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", ["../up", "a/b", "-a", "a.", "a_b", "ä.example.com", "a b", "a" * 64, "x" * 10_000])
async def test_a_driver_whose_name_is_not_allowed_is_refused_and_counted_under_no_such_name(name: str):
    async with on_virtual_time().ends(Identity(name)) as ends:
        with pytest.raises(Internal, match="not allowed as the name of a driver: allowed are up to 63") as refused:
            await ends.client.plugin_info()
        with pytest.raises(Internal):
            await ends.client.driver_name()

        assert len(str(refused.value)) < 300
        assert ends.client._name == "unknown"


class Garbled:
    """A transport whose answers are no messages."""

    connections = 1

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        return b"\xff\xff\xff"


@pytest.mark.virtual_time
async def test_an_answer_that_is_no_message_is_an_error_of_the_driver():
    client = on_virtual_time().client(Garbled(), Metrics("test"))  # type: ignore[arg-type]

    with pytest.raises(Internal, match="no valid ProbeResponse"):
        await client.call(rpc.PROBE, csi_pb2.ProbeRequest())


class SaysNothing:
    """A driver that says OK to Probe and leaves the answer out."""

    def shape_of(self, path: str) -> Shape | None:
        return Shape.STREAMING

    async def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        for answer in ():
            yield answer


async def test_an_answer_that_is_left_out_is_an_error_of_the_driver(short_folder: Path):
    workshop = Workshop("socket", short_folder)
    listener = GrpcListener(SaysNothing(), workshop.log())  # type: ignore[arg-type]  # all that is called of it
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(short_folder / "csi.sock"))
    await listener.listen(bound)
    client = workshop.client(GrpcConnection(UnixEndpoint(bound.getsockname())), Metrics("test"))
    try:
        with pytest.raises(Internal, match="no response"):
            await client.call(rpc.PROBE, csi_pb2.ProbeRequest())
    finally:
        await client.close()
        await listener.stop(0)


async def test_whoever_is_cancelled_while_he_closes_a_connection_learns_of_it(short_folder: Path):
    connection = GrpcConnection(UnixEndpoint(str(short_folder / "csi.sock")))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()


async def test_whoever_waits_for_three_centuries_gets_an_answer(short_folder: Path):
    async with Workshop("socket", short_folder).ends(Identity()) as ends:
        answer = await ends.client.call(rpc.PROBE, csi_pb2.ProbeRequest(), within=9.2e9)

    assert answer.ready.value


async def test_a_restarted_driver_is_found_again_and_asked_anew(short_folder: Path):
    workshop = Workshop("socket", short_folder)
    endpoint = UnixEndpoint(str(short_folder / "csi.sock"))
    client = workshop.client(GrpcConnection(endpoint), Metrics("test"))
    try:
        for name in ("first.example.com", "second.example.com"):
            identity = Identity(name)
            interceptor, _ = workshop.interceptor(identity)
            async with serving(endpoint, interceptor, grace=1.0, log=workshop.log()):
                await client.ready()
                assert (await client.plugin_info()).name == name
                await client.capabilities()
                assert "GetPluginCapabilities" in identity.asked
            with pytest.raises(Unavailable):
                await client.plugin_info()
    finally:
        await client.close()


async def test_connecting_begins_before_there_is_a_socket(short_folder: Path):
    workshop = Workshop("socket", short_folder)
    endpoint = UnixEndpoint(str(short_folder / "csi.sock"))
    client = workshop.client(GrpcConnection(endpoint), Metrics("test"))
    with pytest.raises(Unavailable):
        await client.plugin_info()
    interceptor, _ = workshop.interceptor(Identity())
    async with serving(endpoint, interceptor, grace=1.0, log=workshop.log()):
        await client.ready()
        assert (await client.plugin_info()).name == "test.example.com"
    await client.close()
