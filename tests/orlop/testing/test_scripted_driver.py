"""A driver that plays a script: in which order, with which effect, and what it remembers of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from orlop.csi.error_codes import Aborted, Code, CsiError, DeadlineExceeded, Internal, NotFound, Unavailable
from orlop.csi.proto import csi_pb2, rpc
from orlop.testing.scripted_driver import in_process_driver
from orlop.testing.virtual_clock import VirtualClock
from support.csi.csi_drivers import (
    CREATE,
    EVERYWHERE,
    MOUNT,
    ON_NODE_1,
    Bench,
    Way,
    client_of,
    create,
    in_process_bench,
)

NOT_YET = {"code": "UNAVAILABLE", "message": "not yet"}


def scripted(*steps: dict[str, Any], method: str = "CreateVolume") -> dict[str, Any]:
    return {"script": {method: list(steps)}}


async def outcome(bench: Bench, method: str = "CreateVolume", **fields: Any) -> str:
    """The code of the answer."""
    try:
        await bench.call(method, **(fields or CREATE))
    except CsiError as error:
        return error.code.name
    return "OK"


async def test_steps_are_taken_in_order_and_then_the_model_answers(way: Way):
    async with way(**scripted({"times": 2, "error": NOT_YET}, {}, {"error": {"code": "INTERNAL"}})) as bench:
        codes = [await outcome(bench) for _ in range(6)]
        assert codes == ["UNAVAILABLE", "UNAVAILABLE", "OK", "INTERNAL", "OK", "OK"]


async def test_the_message_of_a_scripted_error_reaches_the_caller(way: Way):
    async with way(**scripted({"error": NOT_YET}, {"error": {"code": "INTERNAL"}})) as bench:
        with pytest.raises(Unavailable, match=r"^not yet$"):
            await create(bench)
        with pytest.raises(Internal, match=r"^error from the script$"):
            await create(bench)


async def test_a_step_for_ever_is_never_used_up(way: Way):
    async with way(**scripted({"times": 0, "error": NOT_YET}, {})) as bench:
        assert {await outcome(bench) for _ in range(10)} == {"UNAVAILABLE"}


async def test_a_step_waits_for_a_request_that_matches_it(way: Way):
    async with way(**scripted({"when": {"name": "b"}, "error": NOT_YET}, {"error": {"code": "ABORTED"}})) as bench:
        codes = [await outcome(bench, **CREATE | {"name": name}) for name in "aabb"]
        assert codes == ["ABORTED", "OK", "UNAVAILABLE", "OK"]


async def test_an_error_has_no_effect_unless_the_script_says_so(way: Way):
    steps = [{"error": NOT_YET}, {"effect": True, "error": {"code": "DEADLINE_EXCEEDED"}}]
    async with way(**scripted(*steps)) as bench:
        assert await outcome(bench) == "UNAVAILABLE"
        assert len(bench.storage.volumes) == 0
        assert await outcome(bench) == "DEADLINE_EXCEEDED"
        assert [volume.name for volume in bench.storage.volumes] == ["a"]
        assert await create(bench) == "vol-1"


async def test_an_answer_stands_in_for_the_model_which_acts_all_the_same(way: Way):
    script = scripted({"answer": {"publishContext": {"device": "sda"}}}, method="ControllerPublishVolume")
    async with way(**script, volumes=[{"id": "v1"}]) as bench:
        answer = await bench.call("ControllerPublishVolume", volumeId="v1", **ON_NODE_1)
        assert answer == {"publishContext": {"device": "sda"}}
        assert list(bench.volume("v1").attached) == ["node-1"]


async def test_an_answer_without_effect_is_a_lie(way: Way):
    lie = {"answer": {"publishContext": {}}, "effect": False}
    async with way(**scripted(lie, method="ControllerPublishVolume"), volumes=[{"id": "v1"}]) as bench:
        await bench.call("ControllerPublishVolume", volumeId="v1", **ON_NODE_1)
        assert bench.volume("v1").attached == {}


async def test_an_answer_is_given_also_where_the_model_would_refuse(way: Way):
    script = scripted({"answer": {"publishContext": {"device": "sda"}}}, method="ControllerPublishVolume")
    async with way(**script) as bench:
        assert await bench.call("ControllerPublishVolume", volumeId="gone", **ON_NODE_1)
        with pytest.raises(NotFound):
            await bench.call("ControllerPublishVolume", volumeId="gone", **ON_NODE_1)


async def test_the_volumes_of_the_script_are_there_from_the_start(way: Way):
    async with way(volumes=[{"id": "v1", "size": "2Gi"}, {"id": "v2"}]) as bench:
        listed = (await bench.call("ListVolumes"))["entries"]
        assert [(each["volume"]["volumeId"], int(each["volume"]["capacityBytes"]) >> 30) for each in listed] == [
            ("v1", 2),
            ("v2", 1),
        ]


# ---- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_delay_passes_on_the_clock_and_then_the_model_answers():
    clock = VirtualClock()
    async with in_process_bench(scripted({"delay": "5m"}), clock) as bench:
        await create(bench)
        await create(bench)
        assert [(call.started, call.ended) for call in bench.calls] == [(0.0, 300.0), (300.0, 300.0)]


@pytest.mark.virtual_time
async def test_work_goes_on_after_its_caller_has_left_and_a_retry_meanwhile_is_refused():
    clock = VirtualClock()
    async with in_process_bench(scripted({"delay": "1h"}), clock) as bench:
        with pytest.raises(DeadlineExceeded):
            await bench.call("CreateVolume", within=60.0, **CREATE)
        with pytest.raises(Aborted, match=r"Controller\.CreateVolume"):
            await create(bench)
        await clock.sleep(3600)
        assert await create(bench) == "vol-1"
        codes = [(call.code, call.refused, call.overlapping) for call in bench.calls]
        assert codes == [(Code.OK, False, True), (Code.ABORTED, True, True), (Code.OK, False, False)]


@pytest.mark.virtual_time
async def test_a_call_that_hangs_never_ends_by_itself():
    clock = VirtualClock()
    async with in_process_bench(scripted({"hang": True}), clock) as bench:
        with pytest.raises(DeadlineExceeded):
            await bench.call("CreateVolume", within=86400.0, **CREATE)
        (call,) = bench.calls
        assert (call.code, call.ended) == (None, None)
        assert len(bench.storage.volumes) == 0


@pytest.mark.virtual_time
async def test_calls_that_hang_can_be_let_go():
    clock = VirtualClock()
    async with in_process_bench(scripted({"hang": True, "effect": True}), clock) as bench:
        hanging = asyncio.ensure_future(create(bench))
        await clock.sleep(10)
        assert len(bench.storage.volumes) == 1
        bench.driver.stop_hanging()
        with pytest.raises(Unavailable, match="made this call hang until it was released"):
            await hanging
        assert [(call.code, call.ended) for call in bench.calls] == [(Code.UNAVAILABLE, 10.0)]


# ---- streams ---------------------------------------------------------------------------------------------------------


async def read_into(got: list[int], bench: Bench) -> None:
    request = csi_pb2.GetMetadataAllocatedRequest(snapshot_id="s")
    async for answer in bench.client.stream(rpc.GET_METADATA_ALLOCATED, request):
        got.append(answer.volume_capacity_bytes)


async def test_a_stream_follows_its_script(way: Way):
    pages = [{"volumeCapacityBytes": "1024"}, {"volumeCapacityBytes": "2048"}]
    broken = {"answer": pages, "error": {"code": "INTERNAL", "message": "the stream broke"}}
    async with way(**scripted({"answer": pages}, broken, {}, method="GetMetadataAllocated")) as bench:
        assert await bench.stream("GetMetadataAllocated", snapshotId="s") == pages
        got: list[int] = []
        with pytest.raises(Internal, match="the stream broke"):
            await read_into(got, bench)
        assert got == [1024, 2048]
        with pytest.raises(NotFound):
            await bench.stream("GetMetadataAllocated", snapshotId="s")
        assert [call.code for call in bench.calls] == [Code.OK, Code.INTERNAL, Code.NOT_FOUND]


@pytest.mark.virtual_time
async def test_a_stream_that_hangs_after_some_time_ends_with_its_caller():
    clock = VirtualClock()
    script = scripted({"delay": "5s", "hang": True}, method="GetMetadataDelta")
    async with in_process_bench(script, clock) as bench:
        request = csi_pb2.GetMetadataDeltaRequest()
        with pytest.raises(DeadlineExceeded):
            await anext(bench.client.stream(rpc.GET_METADATA_DELTA, request, within=60.0))
        assert [(call.code, call.ended) for call in bench.calls] == [(Code.CANCELLED, 60.0)]


# ---- the record ------------------------------------------------------------------------------------------------------


async def test_every_call_is_recorded_with_its_request_and_its_code(way: Way):
    async with way() as bench:
        volume = await create(bench)
        with pytest.raises(NotFound):
            await bench.call("ControllerExpandVolume", volumeId="gone", capacityRange={"requiredBytes": 5})
        await bench.call("DeleteVolume", volumeId=volume)
        assert [(call.method, call.volume, call.code) for call in bench.calls] == [
            ("CreateVolume", "named a", Code.OK),
            ("ControllerExpandVolume", "gone", Code.NOT_FOUND),
            ("DeleteVolume", volume, Code.OK),
        ]
        assert bench.calls[1].message == "there is no volume gone"
        assert [call.request.volume_id for call in bench.driver.calls_of("DeleteVolume")] == [volume]


@pytest.mark.virtual_time
async def test_calls_for_one_volume_at_the_same_time_are_marked_and_others_are_not():
    clock = VirtualClock()
    script = {
        "volumes": [{"id": "v1"}, {"id": "v2"}],
        "script": {"ControllerPublishVolume": [{"times": 0, "delay": "10s"}]},
    }

    def attach(bench: Bench, volume: str, node: str) -> Any:
        return bench.call("ControllerPublishVolume", volumeId=volume, nodeId=node, volumeCapability=EVERYWHERE)

    async with in_process_bench(script, clock) as bench:
        await asyncio.gather(attach(bench, "v1", "node-1"), attach(bench, "v2", "node-1"))
        assert [call.overlapping for call in bench.calls] == [False, False]
        await asyncio.gather(
            attach(bench, "v1", "node-2"), attach(bench, "v1", "node-3"), attach(bench, "v2", "node-2")
        )
        assert [call.overlapping for call in bench.calls[2:]] == [True, True, False]
        reading = [bench.call("ControllerGetVolume", volumeId="v1") for _ in range(2)]
        await asyncio.gather(attach(bench, "v1", "node-4"), *reading)
        assert [call.overlapping for call in bench.calls[5:]] == [False, False, False]


async def test_a_request_that_cannot_be_read_is_recorded_as_refused(way: Way):
    async with way() as bench:
        with pytest.raises(CsiError):
            await bench.connection.call(rpc.CREATE_VOLUME.path, b"\xff", 5.0)
        (call,) = bench.calls
        assert (call.method, call.code, call.refused) == ("CreateVolume", Code.INVALID_ARGUMENT, True)


async def test_secrets_are_kept_in_the_request_and_shown_nowhere(way: Way):
    leak = {"error": {"code": "INTERNAL", "message": "cannot log in with hunter2"}}
    async with way(**scripted(leak)) as bench:
        with pytest.raises(Internal):
            await create(bench, secrets={"password": "hunter2"})
        (call,) = bench.calls
        assert call.request.secrets["password"] == "hunter2"
        assert "hunter2" not in repr(bench.calls)
        assert "hunter2" not in json.dumps(call.as_json())
        assert call.as_json()["message"] == "cannot log in with ***"


@pytest.mark.virtual_time
async def test_a_call_as_json_holds_what_is_known_of_it():
    clock = VirtualClock()
    async with in_process_bench(scripted({"delay": "5s"}), clock) as bench:
        await create(bench)
        (call,) = bench.calls
        assert call.as_json() == {
            "at": "2026-01-01T00:00:00+00:00",
            "method": "CreateVolume",
            "request": {"name": "a", "volumeCapabilities": [MOUNT]},
            "code": "OK",
            "seconds": 5.0,
        }


async def test_who_asked_for_it_is_told_of_each_call_as_it_ends():
    told: list[tuple[str, Any]] = []
    async with in_process_bench(when_ended=lambda call: told.append((call.method, call.code))) as bench:
        await create(bench)
        assert told == [("CreateVolume", Code.OK)]


async def test_a_bug_in_the_driver_is_recorded_as_internal(monkeypatch: pytest.MonkeyPatch):
    async with in_process_bench() as bench:
        monkeypatch.setattr(bench.storage.volumes, "named", lambda name: 1 / 0)
        with pytest.raises(Internal):
            await create(bench)
        assert [call.code for call in bench.calls] == [Code.INTERNAL]


@pytest.mark.virtual_time
async def test_a_driver_within_the_process_takes_one_line():
    clock = VirtualClock()
    driver, connection = in_process_driver(scripted({"delay": "5s"}), clock)
    client = client_of(connection, clock)
    assert (await client.plugin_info()).name == "mock.example.com"
    with pytest.raises(CsiError):
        await client.call(rpc.CREATE_VOLUME, csi_pb2.CreateVolumeRequest())
    assert [call.method for call in driver.calls] == ["GetPluginInfo", "CreateVolume"]
    assert driver.calls[1].ended == 5.0


@pytest.mark.virtual_time
async def test_the_same_script_and_calls_give_the_same_record():
    async def play() -> list[dict[str, Any]]:
        clock = VirtualClock()
        async with in_process_bench(scripted({"delay": "3s"}, {"error": NOT_YET}), clock) as bench:
            names = [outcome(bench, **CREATE | {"name": name}) for name in "abc"]
            await asyncio.gather(*names)
            return [call.as_json() | {"at": None} for call in bench.calls]

    assert await play() == await play()
