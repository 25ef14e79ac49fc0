"""The way to the API server without a socket."""

from __future__ import annotations

import asyncio

import pytest

from onenode.apiserver.access.rbac_rules import ADMIN
from onenode.apiserver.edge.in_process_client import InProcessTransport
from orlop.kube.api_errors import ConnectionBroken, NotConnected, RequestTooLarge, ResponseTimeout
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream
from orlop.kube.kinds import CONFIG_MAP
from support.api.api_servers import api_server

WATCH = HttpRequest("GET", "/api/v1/configmaps", (("watch", "true"),))
LIST = HttpRequest("GET", "/api/v1/configmaps")


class Silent:
    async def answer(self, request: HttpRequest, user: object) -> HttpResponse | HttpStream:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_stream_can_be_left_at_any_time_and_the_watch_ends():
    async with api_server() as server:
        transport = server.transport()
        async with transport.open(WATCH, 5) as stream:
            waiting = asyncio.ensure_future(anext(stream.pieces))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with transport.open(LIST, 5) as stream:
            assert [piece async for piece in stream.pieces]
        await transport.close()
        assert len(server.store._watches) <= 5  # the policy's, and that of namespaces


async def test_closing_breaks_what_is_under_way_and_nothing_can_be_sent_any_more():
    async with api_server() as server:
        transport = server.transport()
        async with transport.open(WATCH, 5) as stream:
            waiting = asyncio.ensure_future(anext(stream.pieces))
            await asyncio.sleep(0)
            await transport.close()
            with pytest.raises(ConnectionBroken):
                await waiting
        with pytest.raises(NotConnected):
            await transport.exchange(LIST, 5)
        with pytest.raises(NotConnected):
            async with transport.open(WATCH, 5):
                pass


@pytest.mark.virtual_time
async def test_an_answer_that_takes_too_long_is_not_waited_for():
    transport = InProcessTransport(Silent(), ADMIN)
    with pytest.raises(ResponseTimeout, match="within 5 seconds"):
        await transport.exchange(LIST, 5)
    with pytest.raises(ResponseTimeout):
        async with transport.open(WATCH, 5):
            pass


async def test_limits_hold_as_on_the_wire():
    async with api_server() as server:
        with pytest.raises(RequestTooLarge):
            await server.client().create(
                CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}, "data": {"k": "x" * (3 << 20)}}
            )


async def test_an_exchange_for_a_watch_gives_all_of_it():
    async with api_server() as server:
        request = HttpRequest("GET", "/api/v1/configmaps", (("watch", "true"), ("timeoutSeconds", "1")))
        answer = await server.transport().exchange(request, 10)
        assert (answer.status, answer.body) == (200, b"")
