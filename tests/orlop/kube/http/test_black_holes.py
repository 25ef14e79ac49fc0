"""Connections that fall silent without being closed: noticed in time, and never used again.

The limits are short here. tests/orlop/processes/test_attacher_black_hole.py shows the default ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.foundation.tcp_keepalive import TcpKeepalive
from orlop.kube.api_errors import ConnectionBroken, ResponseTimeout
from orlop.kube.cache.informer import Watched, WatchLimits
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.config.cluster_access import ClusterAccess, FixedCredentials
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from support.api.kube_model import ModelServer, over_http
from support.network.black_holes import freezable_proxy, swallow_packets
from support.processes.http_servers import serving

CLOCK = SystemClock()
PV = PERSISTENT_VOLUME
GET = HttpRequest("GET", "/")
IMPATIENT = TcpKeepalive(idle_seconds=1, interval_seconds=1, probes=1, unacknowledged_seconds=2.0)
NEVER = TcpKeepalive(idle_seconds=3600, interval_seconds=3600, probes=9, unacknowledged_seconds=3600.0)


def swallow(transport: HttpTransport) -> int:
    """All connections there are now, in use or idle."""
    connections = tuple(transport._pool._open)
    for connection in connections:
        swallow_packets(connection._transport.get_extra_info("socket"))
    return len(connections)


@asynccontextmanager
async def transport_to(address: str, keepalive: TcpKeepalive) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(ClusterAccess(address, FixedCredentials()), keepalive=keepalive)
    try:
        yield transport
    finally:
        await transport.close()


async def endless(request: web.BaseRequest) -> web.StreamResponse:
    """A watch on which nothing happens."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


async def quick(_: web.BaseRequest) -> web.Response:
    return web.Response(body=b"ok")


async def test_the_kernel_notices_that_nobody_acknowledges_anything_on_an_idle_watch():
    async with (
        serving(endless) as server,
        transport_to(server.address, IMPATIENT) as transport,
        transport.open(GET, 5) as stream,
    ):
        swallow(transport)
        with pytest.raises(ConnectionBroken, match="timed out"):
            await anext(aiter(stream.pieces))


async def test_the_kernel_notices_that_a_request_is_not_acknowledged_long_before_its_answer_is_due():
    async with serving(quick) as server, transport_to(server.address, IMPATIENT) as transport:
        await transport.exchange(GET, 5)
        swallow(transport)
        with pytest.raises(ConnectionBroken, match="timed out"):
            await transport.exchange(GET, 50)


async def test_after_a_request_without_an_answer_no_older_connection_is_used_again():
    async with serving(quick) as server, transport_to(server.address, NEVER) as transport:
        await asyncio.gather(*(transport.exchange(GET, 5) for _ in range(4)))
        assert swallow(transport) > 1
        with pytest.raises(ResponseTimeout):
            await transport.exchange(GET, 0.2)

        assert (await transport.exchange(GET, 5)).body == b"ok"


async def test_after_a_watch_that_was_abandoned_in_silence_no_older_connection_is_used_again():
    async with serving(endless_or_quick) as server, transport_to(server.address, NEVER) as transport:
        await asyncio.gather(*(transport.exchange(GET, 5) for _ in range(3)))
        async with transport.open(HttpRequest("GET", "/watch"), 5):
            assert swallow(transport) > 1

        assert (await transport.exchange(GET, 5)).body == b"ok"


async def endless_or_quick(request: web.BaseRequest) -> web.StreamResponse:
    return await (endless(request) if request.path == "/watch" else quick(request))


async def test_a_watch_that_was_read_to_its_end_costs_no_connection():
    async with serving(quick) as server, transport_to(server.address, NEVER) as transport:
        for _ in range(3):
            async with transport.open(GET, 5) as stream:
                assert [piece async for piece in stream.pieces] == [b"ok"]
    assert len(server.connections) == 1


# ---- an informer over them -------------------------------------------------------------------------------------------

BlackHole = Callable[[], Any]


@asynccontextmanager
async def packets_vanish(address: str, stack: AsyncExitStack) -> AsyncIterator[tuple[HttpTransport, BlackHole]]:
    transport = await stack.enter_async_context(transport_to(address, IMPATIENT))
    yield transport, lambda: swallow(transport)


@asynccontextmanager
async def balancer_hangs(address: str, stack: AsyncExitStack) -> AsyncIterator[tuple[HttpTransport, BlackHole]]:
    there = urlsplit(address)
    proxy = await stack.enter_async_context(freezable_proxy(str(there.hostname), int(there.port or 0)))
    transport = await stack.enter_async_context(transport_to(proxy.address, IMPATIENT))
    yield transport, proxy.freeze


@pytest.mark.parametrize("kind", [packets_vanish, balancer_hangs])
async def test_a_change_is_seen_soon_after_all_connections_turned_into_black_holes(kind: Any):
    server, limits = ModelServer(), WatchLimits(shortest=1, longest=1, grace=1.0)
    server.put(PV, "a")
    async with AsyncExitStack() as stack:
        address = (await stack.enter_async_context(serving(lambda request: over_http(server, request)))).address
        transport, turn_black = await stack.enter_async_context(kind(address, stack))
        client = KubeClient(transport, clock=CLOCK, random=Random(1), log=silent_log())
        informers = Informers(client, clock=CLOCK, random=Random(1), log=silent_log(), limits=limits)
        await stack.enter_async_context(informers)
        informer = await stack.enter_async_context(informers.using(Watched(PV)))
        await informer.wait_synced()
        await asyncio.gather(*(client.list(PV) for _ in range(4)))  # leaves idle connections, which turn as well
        seen = asyncio.Event()
        informer.add_listener(lambda name: seen.set() if name == ObjectName(None, "b") else None)
        turn_black()

        server.put(PV, "b")
        async with asyncio.timeout(10):
            await seen.wait()
