"""One suite for everything that carries CSI calls: whichever it is, the same call has the same end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from orlop.csi.error_codes import (
    Aborted,
    Cancelled,
    Code,
    CsiError,
    DeadlineExceeded,
    Delivery,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unimplemented,
    error_of,
)
from orlop.csi.proto import csi_pb2, rpc, services
from orlop.csi.transport import LARGEST_MESSAGE
from support.csi.csi_ends import TRANSPORTS, Workshop
from support.csi.csi_services import Blocks, FailingNode, Identity, SlowNode
from support.waiting import LIMITS


@pytest.fixture(params=TRANSPORTS)
def workshop(request: pytest.FixtureRequest, short_folder: Path) -> Workshop:
    return Workshop(request.param, short_folder)


def publish(volume: str) -> csi_pb2.NodePublishVolumeRequest:
    return csi_pb2.NodePublishVolumeRequest(volume_id=volume)


def unpublish(volume: str, path: str = "") -> csi_pb2.NodeUnpublishVolumeRequest:
    return csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume, target_path=path)


async def test_an_answer_arrives_as_it_was_given(workshop: Workshop):
    async with workshop.ends(Identity()) as ends:
        info = await ends.client.plugin_info()

    assert (info.name, info.vendor_version, dict(info.manifest)) == ("test.example.com", "1", {"greeting": "grüß dich"})


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK], ids=lambda code: code.name)
async def test_an_error_arrives_with_its_code_and_its_sentence(workshop: Workshop, code: Code):
    sentence = "the disk 'd1' is gone: 100 % of nothing is ünavailable"
    async with workshop.ends(FailingNode(lambda _: error_of(code, sentence))) as ends:
        with pytest.raises(type(error_of(code, ""))) as caught:
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1"))

    assert (caught.value.code, caught.value.message) == (code, sentence)


async def test_an_rpc_that_the_service_leaves_out_is_unimplemented_and_named(workshop: Workshop):
    async with workshop.ends(Identity(), SlowNode()) as ends:
        with pytest.raises(Unimplemented, match="NodeExpandVolume"):
            await ends.client.call(rpc.NODE_EXPAND_VOLUME, csi_pb2.NodeExpandVolumeRequest(volume_id="v1"))


async def test_a_service_that_is_not_served_is_unimplemented(workshop: Workshop):
    async with workshop.ends(Identity()) as ends:
        with pytest.raises(Unimplemented, match=r"CreateVolume is not served here"):
            await ends.client.call(rpc.CREATE_VOLUME, csi_pb2.CreateVolumeRequest(name="v1"))


async def test_a_malformed_request_is_an_invalid_argument_and_logged(workshop: Workshop):
    async with workshop.ends(Identity()) as ends:
        with pytest.raises(InvalidArgument, match="no valid ProbeRequest"):
            await ends.transport.call(rpc.PROBE.path, b"\xff\xff\xff", 5.0)

    assert "call failed" in ends.logged
    assert "INVALID_ARGUMENT" in ends.logged


async def test_a_text_that_is_not_utf_8_is_an_invalid_argument(workshop: Workshop):
    async with workshop.ends(SlowNode()) as ends:
        with pytest.raises(InvalidArgument, match="NodeUnpublishVolume"):
            await ends.transport.call(rpc.NODE_UNPUBLISH_VOLUME.path, b"\x0a\x02\xff\xfe", 5.0)


async def test_fields_of_a_newer_interface_are_passed_over(workshop: Workshop):
    newer = csi_pb2.NodeUnpublishVolumeRequest(volume_id="v1").SerializeToString() + b"\xfa\x7f\x03new"
    async with workshop.ends(SlowNode()) as ends:
        answer = await ends.transport.call(rpc.NODE_UNPUBLISH_VOLUME.path, newer, 5.0)

    assert csi_pb2.NodeUnpublishVolumeResponse.FromString(answer) == csi_pb2.NodeUnpublishVolumeResponse()


async def test_a_request_of_more_than_four_mebibytes_is_refused(workshop: Workshop):
    async with workshop.ends(SlowNode()) as ends:
        with pytest.raises(ResourceExhausted, match=str(LARGEST_MESSAGE)):
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1", "x" * LARGEST_MESSAGE))
        largest = unpublish("v1", "x" * (LARGEST_MESSAGE - 9))
        assert largest.ByteSize() == LARGEST_MESSAGE
        await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, largest)


async def test_an_answer_of_more_than_four_mebibytes_is_refused(workshop: Workshop):
    async with workshop.ends(Identity("x" * LARGEST_MESSAGE)) as ends:
        with pytest.raises(ResourceExhausted) as caught:
            await ends.client.plugin_info()

    # grpcio does not show whether a status is the server's or its own.
    assert workshop.kind == "grpcio" or caught.value.delivery is Delivery.UNANSWERED


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED], ids=lambda code: code.name)
async def test_a_status_of_the_service_counts_as_returned_by_it(workshop: Workshop, code: Code):
    async with workshop.ends(FailingNode(lambda _: error_of(code, "no"))) as ends:
        with pytest.raises(CsiError) as caught:
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1"))

    assert caught.value.delivery is Delivery.RETURNED


async def test_a_deadline_ends_the_waiting_and_never_the_work(workshop: Workshop):
    node = SlowNode()
    async with workshop.ends(node) as ends:
        with pytest.raises(DeadlineExceeded):
            await ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1"), within=0.05)
        # On a machine that is very busy the first one may not get as far as the service.
        for within in LIMITS:
            if not node.begun:
                with pytest.raises((DeadlineExceeded, Aborted)):
                    await ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1"), within=within)
        assert (node.begun, node.finished) == (["v1"], [])
        with pytest.raises(Aborted, match=r"Node\.NodePublishVolume \(request r-[1-5]\)"):
            await ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1"))
        node.go_on.set()
        assert await ends.interceptor.drain(5.0) == []
        await ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1"))

    assert (node.begun, node.finished) == (["v1", "v1"], ["v1", "v1"])


async def test_a_caller_who_cancels_ends_the_waiting_and_never_the_work(workshop: Workshop):
    node = SlowNode()
    async with workshop.ends(node) as ends:
        call = asyncio.ensure_future(ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1")))
        await node.began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(Aborted):
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1"))
        node.go_on.set()
        assert await ends.interceptor.drain(5.0) == []

    assert node.finished == ["v1"]


async def test_volumes_do_not_wait_for_each_other(workshop: Workshop):
    node = SlowNode()
    async with workshop.ends(node) as ends:
        first = asyncio.ensure_future(ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1")))
        await node.began.wait()
        await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v2"))
        node.go_on.set()
        await first


async def test_an_unexpected_exception_is_internal_with_the_whole_of_it_in_the_log(workshop: Workshop):
    async with workshop.ends(FailingNode(lambda _: ZeroDivisionError("inner detail"))) as ends:
        with pytest.raises(Internal) as caught:
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1"))

    assert "inner detail" not in caught.value.message
    assert "request r-1" in caught.value.message
    assert "ZeroDivisionError: inner detail" in ends.logged
    assert "Traceback" in ends.logged


async def test_a_service_that_is_cancelled_from_within_is_internal_and_logged(workshop: Workshop):
    node = FailingNode(lambda _: asyncio.CancelledError())
    async with workshop.ends(node) as ends:
        with pytest.raises(Internal, match="CancelledError"):
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1"))

    assert "call failed unexpectedly" in ends.logged
    assert 'method_name="/csi.v1.Node/NodeUnpublishVolume"' in ends.counted


async def test_a_stream_that_is_cancelled_from_within_is_internal(workshop: Workshop):
    async with workshop.ends(Blocks(1, error=asyncio.CancelledError())) as ends:
        with pytest.raises(Internal, match="CancelledError"):
            _ = [
                each
                async for each in ends.client.stream(rpc.GET_METADATA_ALLOCATED, csi_pb2.GetMetadataAllocatedRequest())
            ]


async def test_an_error_that_breaks_where_it_is_shown_keeps_its_code(workshop: Workshop):
    class Unshowable(NotFound):
        def __str__(self) -> str:
            raise ValueError("hunter2")

    async with workshop.ends(FailingNode(lambda _: Unshowable())) as ends:
        with pytest.raises(NotFound, match="Unshowable, which cannot be shown: ValueError"):
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1"))

    assert "hunter2" not in ends.logged


async def test_a_sentence_too_long_for_a_header_arrives_cut(workshop: Workshop):
    async with workshop.ends(FailingNode(lambda _: InvalidArgument("ü" * 100_000))) as ends:
        with pytest.raises(InvalidArgument, match=r"üüü.*cut") as caught:
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1"))

    assert len(caught.value.message) < 2100


async def test_closing_the_connection_cancels_who_waits(workshop: Workshop):
    node = SlowNode()
    async with workshop.ends(node) as ends:
        call = asyncio.ensure_future(ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1")))
        await node.began.wait()
        await ends.client.close()
        with pytest.raises(Cancelled) as in_flight:
            await call
        with pytest.raises(Cancelled) as refused:
            await ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v2"))
        if workshop.kind != "grpcio":
            deliveries = (in_flight.value.delivery, refused.value.delivery)
            assert deliveries == (Delivery.UNANSWERED, Delivery.UNSENT)
        node.go_on.set()


def allocated() -> csi_pb2.GetMetadataAllocatedRequest:
    return csi_pb2.GetMetadataAllocatedRequest(snapshot_id="s1")


async def test_nobody_waits_for_a_connection_that_was_closed(workshop: Workshop):
    async with workshop.ends(Identity()) as ends:
        await ends.client.connected()
        await ends.transport.close()
        await ends.transport.close()
        with pytest.raises(Cancelled):
            await ends.client.connected()
        with pytest.raises(Cancelled):
            await ends.client.plugin_info()


async def test_many_answers_arrive_in_order(workshop: Workshop):
    async with workshop.ends(Blocks(100)) as ends:
        got = [a.volume_capacity_bytes async for a in ends.client.stream(rpc.GET_METADATA_ALLOCATED, allocated())]

    assert got == list(range(100))


async def test_an_error_between_answers_arrives_after_them(workshop: Workshop):
    got = []
    async with workshop.ends(Blocks(3, error=InvalidArgument("offset 3 lies behind the end"))) as ends:
        with pytest.raises(InvalidArgument, match="offset 3"):
            async for answer in ends.client.stream(rpc.GET_METADATA_ALLOCATED, allocated()):
                got.append(answer.volume_capacity_bytes)

    assert got == [0, 1, 2]


async def test_a_stream_that_nobody_reads_to_its_end_ends_in_the_driver_too(workshop: Workshop):
    ended = asyncio.Event()

    class EndlessBlocks(services.SnapshotMetadata):
        async def GetMetadataAllocated(self, request):  # type: ignore[no-untyped-def]
            try:
                while True:
                    yield csi_pb2.GetMetadataAllocatedResponse()
                    await asyncio.sleep(0)
            finally:
                ended.set()

    async with workshop.ends(EndlessBlocks()) as ends:
        stream = ends.client.stream(rpc.GET_METADATA_ALLOCATED, csi_pb2.GetMetadataAllocatedRequest(), within=60)
        async with aclosing(stream) as answers:
            async for _ in answers:
                break
        async with asyncio.timeout(60):
            await ended.wait()


async def test_a_stream_that_does_not_end_in_time_is_over(workshop: Workshop):
    got: list[int] = []
    async with workshop.ends(Blocks(2, hold=asyncio.Event())) as ends:
        for within in LIMITS:
            if len(got) < 2:
                got.clear()
                with pytest.raises(DeadlineExceeded):
                    async for answer in ends.client.stream(rpc.GET_METADATA_ALLOCATED, allocated(), within=within):
                        got.append(answer.volume_capacity_bytes)

    assert got == [0, 1]


async def test_every_call_is_counted_by_method_and_code(workshop: Workshop):
    async with workshop.ends(Identity(), FailingNode(lambda _: InvalidArgument("no"))) as ends:
        await ends.client.plugin_info()
        with pytest.raises(InvalidArgument):
            await ends.client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish("v1"))

    def count(metric: str, method: str, code: str) -> str:
        labels = f'driver_name="test.example.com",grpc_status_code="{code}",method_name="{method}"'
        return f"{metric}_count{{{labels}}} 1.0"

    assert count("csi_plugin_operations_seconds", "/csi.v1.Identity/GetPluginInfo", "OK") in ends.counted
    unpublished = "/csi.v1.Node/NodeUnpublishVolume"
    assert count("csi_plugin_operations_seconds", unpublished, "InvalidArgument") in ends.counted
    assert count("csi_sidecar_operations_seconds", unpublished, "InvalidArgument") in ends.counted
