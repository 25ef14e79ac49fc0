"""Calls to the driver: only to the right one, within their deadline, and no other answer passes for the driver's."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import Code, CsiError, DeadlineExceeded, Internal, Unavailable, Unimplemented, error_of
from orlop.csi.proto import csi_pb2
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.sidecars.provisioner.volume_calls import VolumeCalls, may_still_run
from orlop.testing.virtual_clock import VirtualClock
from support.provisioning.provisioner_worlds import DRIVER

pytestmark = pytest.mark.virtual_time


@dataclass
class Socket:
    """A socket on which one driver after the other responds; an error is one that does not say its name."""

    names: list[str | CsiError]
    requests: list[Any] = field(default_factory=list)

    async def driver_name(self) -> str:
        name = self.names.pop(0)
        if isinstance(name, CsiError):
            raise name
        return name

    async def call(self, _method: object, request: Any, *, within: float) -> Any:
        assert within > 0
        self.requests.append(request)
        return csi_pb2.CreateVolumeResponse(volume=csi_pb2.Volume(volume_id="v"))


def calls(socket: Socket) -> VolumeCalls:
    runtime = Runtime(clock=VirtualClock(), random=Random(1), log=silent_log(), metrics=Metrics("t", of_process=False))
    return VolumeCalls(
        DRIVER, runtime=runtime, csi=cast("CsiClient", socket), kube=cast("Any", None), may_act=lambda: None
    )


async def created(socket: Socket, deadline: float = 10.0) -> str:
    request = csi_pb2.CreateVolumeRequest(name="pvc-1")
    return (await calls(socket).create(request, VirtualClock().elapsed() + deadline)).volume_id


async def test_a_volume_of_the_right_driver_is_returned():
    assert await created(Socket([DRIVER, DRIVER])) == "v"


async def test_another_driver_is_not_called():
    socket = Socket(["other.example.com"])
    with pytest.raises(Unavailable, match=r"'other\.example\.com' responds on its socket"):
        await created(socket)
    assert socket.requests == []


async def test_the_answer_of_a_driver_that_took_the_socket_during_the_call_does_not_count():
    with pytest.raises(Unavailable):
        await created(Socket([DRIVER, "other.example.com"]))


@pytest.mark.parametrize("error", [Internal("no name"), Unimplemented("what?"), Unavailable("away")])
@pytest.mark.parametrize("earlier", [[], [DRIVER]], ids=["before the call", "after it"])
async def test_a_driver_that_does_not_say_its_name_has_given_no_final_answer(error: CsiError, earlier: list[str]):
    with pytest.raises(CsiError) as raised:
        await created(Socket([*earlier, error]))
    assert may_still_run(raised.value)


async def test_nothing_is_sent_after_the_deadline():
    socket = Socket([DRIVER, DRIVER])
    with pytest.raises(DeadlineExceeded, match="was not called"):
        await created(socket, deadline=0.0)
    assert socket.requests == []


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_four_codes_leave_open_whether_the_driver_is_still_at_work(code: Code):
    unfinished = {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED}
    assert may_still_run(error_of(code, "x")) is (code in unfinished)
