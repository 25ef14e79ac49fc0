"""Calls to the driver: only to the right one, within their deadline, and no other answer passes for the driver's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import (
    Code,
    CsiError,
    DeadlineExceeded,
    Delivery,
    Internal,
    Unavailable,
    Unimplemented,
    error_of,
    is_final,
    unanswered,
    unsent,
)
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
    is_silent: bool = False
    error: CsiError | None = None

    async def driver_name(self) -> str:
        name = self.names.pop(0)
        if isinstance(name, CsiError):
            raise name
        return name

    async def call(self, _method: object, request: Any, *, within: float) -> Any:
        assert within > 0
        self.requests.append(request)
        if self.is_silent:
            await VirtualClock().sleep(within)
            raise DeadlineExceeded(f"no response within {within:g} seconds")
        if self.error is not None:
            raise self.error
        return csi_pb2.CreateVolumeResponse(volume=csi_pb2.Volume(volume_id="v"))


class LeaseLost(Exception): ...


def calls(socket: Socket, may_act: Callable[[], None] = lambda: None) -> VolumeCalls:
    runtime = Runtime(clock=VirtualClock(), random=Random(1), log=silent_log(), metrics=Metrics("t", of_process=False))
    csi, kube = cast("CsiClient", socket), cast("Any", None)
    return VolumeCalls(DRIVER, timeout=10.0, runtime=runtime, csi=csi, kube=kube, may_act=may_act)


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
@pytest.mark.parametrize(
    ("earlier", "delivery"),
    [([], Delivery.UNSENT), ([DRIVER], Delivery.UNANSWERED)],
    ids=["before the call", "after it"],
)
async def test_a_driver_that_does_not_say_its_name_has_given_no_final_answer(
    error: CsiError, earlier: list[str], delivery: Delivery
):
    with pytest.raises(Unavailable) as raised:
        await created(Socket([*earlier, error]))
    assert raised.value.delivery is delivery
    assert not is_final(raised.value)
    assert may_still_run(raised.value) is bool(earlier)


async def test_nothing_is_sent_after_the_deadline():
    socket = Socket([DRIVER, DRIVER])
    with pytest.raises(DeadlineExceeded, match="was not called") as raised:
        await created(socket, deadline=0.0)
    assert raised.value.delivery is Delivery.UNSENT
    assert socket.requests == []


@pytest.mark.parametrize("method", ["CreateVolume", "DeleteVolume"])
async def test_nothing_is_sent_without_a_valid_lease_though_it_was_lost_only_while_the_driver_was_asked_its_name(
    method: str,
):
    socket = Socket([DRIVER, DRIVER])

    def may_act() -> None:
        if len(socket.names) < 2:
            raise LeaseLost

    the_calls, deadline = calls(socket, may_act), VirtualClock().elapsed() + 10.0
    with pytest.raises(LeaseLost):
        if method == "CreateVolume":
            await the_calls.create(csi_pb2.CreateVolumeRequest(name="pvc-1"), deadline)
        else:
            await the_calls.delete("vol-1", None, deadline)
    assert socket.requests == []


@pytest.mark.parametrize("left", [9.96684, 9.9, 5.0])
async def test_a_silent_driver_is_reported_in_the_same_words_whatever_was_left_of_the_timeout(left: float):
    with pytest.raises(DeadlineExceeded, match=r"^no response within 10 seconds$"):
        await created(Socket([DRIVER], is_silent=True), deadline=left)


async def test_a_driver_that_itself_gave_up_early_keeps_its_words():
    with pytest.raises(DeadlineExceeded, match="the array did not respond"):
        await created(Socket([DRIVER], error=DeadlineExceeded("the array did not respond")))


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_four_codes_leave_open_whether_the_driver_is_still_at_work(code: Code):
    unfinished = {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED}
    assert may_still_run(error_of(code, "x")) is (code in unfinished)
    assert may_still_run(unanswered(code, "x")), "our client made the error, after it sent the request"
    assert not may_still_run(unsent(code, "x"))
