"""A driver behind TCP whose connection falls silent without being closed: noticed, and another connection made."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from orlop.csi.endpoint import Endpoint, TcpEndpoint
from orlop.csi.error_codes import DeadlineExceeded, Unavailable
from orlop.csi.grpc.grpc_server import GrpcListener
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.foundation.structured_log import silent_log
from orlop.foundation.tcp_keepalive import TcpKeepalive
from support.csi.grpc_listeners import ECHO, WAIT, Handler
from support.network.black_holes import freezable_proxy, swallow_packets

IMPATIENT = TcpKeepalive(idle_seconds=1, interval_seconds=1, probes=1, unacknowledged_seconds=2.0)
NEVER = TcpKeepalive(idle_seconds=3600, interval_seconds=3600, probes=9, unacknowledged_seconds=3600.0)


@asynccontextmanager
async def driver() -> AsyncIterator[tuple[TcpEndpoint, Handler]]:
    handler = Handler()
    listener = GrpcListener(handler, silent_log())
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    await listener.listen(bound)
    try:
        yield TcpEndpoint("127.0.0.1", port), handler
    finally:
        await listener.stop(0)


@asynccontextmanager
async def connected(endpoint: Endpoint, keepalive: TcpKeepalive, probe: float = 0.5) -> AsyncIterator[GrpcConnection]:
    connection = GrpcConnection(endpoint, keepalive=keepalive, probe_seconds=probe)
    try:
        yield connection
    finally:
        await connection.close()


def swallow(connection: GrpcConnection) -> None:
    assert connection._link is not None
    assert connection._link._transport is not None
    swallow_packets(connection._link._transport.get_extra_info("socket"))


async def connections(connection: GrpcConnection, count: int) -> None:
    async with asyncio.timeout(10):
        while connection.connections < count:
            await connection._changed()


async def test_the_kernel_notices_a_driver_that_is_gone_while_nothing_is_called():
    async with driver() as (endpoint, _), connected(endpoint, IMPATIENT) as connection:
        await connection.call(ECHO, b"a", 5)
        swallow(connection)

        await connections(connection, 2)

        assert await connection.call(ECHO, b"b", 5) == b"b"


async def test_a_call_that_is_not_acknowledged_fails_long_before_its_deadline():
    async with driver() as (endpoint, _), connected(endpoint, IMPATIENT) as connection:
        await connection.call(ECHO, b"a", 5)
        swallow(connection)
        with pytest.raises(Unavailable, match="timed out"):
            await connection.call(ECHO, b"b", 50)


async def test_after_a_call_without_a_response_a_balancer_that_hangs_is_noticed():
    async with driver() as (endpoint, _), freezable_proxy(endpoint.host, endpoint.port) as proxy:
        there = TcpEndpoint("127.0.0.1", int(urlsplit(proxy.address).port or 0))
        async with connected(there, NEVER) as connection:
            await connection.call(ECHO, b"a", 5)
            proxy.freeze()
            with pytest.raises(DeadlineExceeded):
                await connection.call(ECHO, b"b", 0.2)

            await connections(connection, 2)

            assert await connection.call(ECHO, b"c", 5) == b"c"


async def test_a_driver_that_is_only_slow_keeps_its_connection_and_its_calls():
    async with driver() as (endpoint, handler), connected(endpoint, NEVER, probe=0.05) as connection:
        patient = asyncio.create_task(connection.call(WAIT, b"patient", 50))
        with pytest.raises(DeadlineExceeded):
            await connection.call(WAIT, b"a", 0.2)
        with pytest.raises(DeadlineExceeded):
            await connection.call(WAIT, b"b", 0.2)  # ends after the probe of the first would have given up
        handler.go_on.set()

        assert await patient == b"patient"
        assert connection.connections == 1
