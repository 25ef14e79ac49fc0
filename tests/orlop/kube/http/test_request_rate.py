"""Requests to an API server that is to be spared."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.http.http_transport import LimitedTransport
from orlop.testing.virtual_clock import VirtualClock

ASKED = HttpRequest("GET", "/", (), {})


class Inner:
    is_remote = False

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.times: list[float] = []

    async def exchange(self, _request: HttpRequest, _within: float) -> HttpResponse:
        self.times.append(self.clock.elapsed())
        return HttpResponse(200, {}, b"")

    @asynccontextmanager
    async def open(self, _request: HttpRequest, _within: float) -> Any:
        self.times.append(self.clock.elapsed())
        yield None

    async def renew_credentials(self) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.virtual_time
async def test_a_burst_goes_at_once_and_the_rest_at_the_rate():
    clock = VirtualClock()
    inner = Inner(clock)
    limited = LimitedTransport(inner, per_second=2.0, burst=3, clock=clock)
    await asyncio.gather(*(limited.exchange(ASKED, 1.0) for _ in range(5)))
    assert inner.times == [0.0, 0.0, 0.0, 0.5, 1.0]
    await clock.sleep(100)
    async with limited.open(ASKED, 1.0):
        pass
    await asyncio.gather(*(limited.exchange(ASKED, 1.0) for _ in range(3)))
    assert inner.times[5:] == [101.0, 101.0, 101.0, 101.5]


def test_a_rate_that_lets_nothing_pass_is_refused():
    with pytest.raises(ValueError, match="lets no request pass"):
        LimitedTransport(Inner(VirtualClock()), per_second=0.0, burst=1, clock=VirtualClock())
