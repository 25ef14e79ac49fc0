"""Serve any set of CSI services on a `unix://` or `tcp://` endpoint.

A unix socket's path is claimed first, with a lock file: a stale socket is replaced, and one on which another process
listens is an error that names it. Only our own socket is removed, while we hold the claim.

Order at start: claim the path → listen, with access for root alone → serve. Order at stop: refuse new calls → let calls
in flight finish within the grace period → remove the socket → release the claim.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from orlop.csi.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from orlop.csi.grpc.grpc_server import GrpcListener
from orlop.csi.interceptor import CallInterceptor
from orlop.foundation.structured_log import Log
from orlop.foundation.tcp_keepalive import KEEPALIVE
from orlop.foundation.unix_socket import SocketUnusable, bind_root_only, claim_socket

BACKLOG: Final = 128
EVERY_INTERFACE: Final = ("0.0.0.0", "[::]")


@asynccontextmanager
async def serving(
    endpoint: Endpoint, interceptor: CallInterceptor, *, grace: float, log: Log
) -> AsyncIterator[Endpoint]:
    """Serve while the context is open; yield the endpoint, with the real port where port 0 was requested."""
    if isinstance(endpoint, TcpEndpoint):
        async with _on_tcp(endpoint, interceptor, grace, log) as bound:
            yield bound
    else:
        async with _on_socket(endpoint, interceptor, grace, log) as bound:
            yield bound


@asynccontextmanager
async def _on_socket(
    endpoint: UnixEndpoint, interceptor: CallInterceptor, grace: float, log: Log
) -> AsyncIterator[Endpoint]:
    with claim_socket(Path(endpoint.path)) as claim:
        async with _answering(bind_root_only(claim), endpoint, interceptor, grace, log):
            yield endpoint


@asynccontextmanager
async def _on_tcp(
    endpoint: TcpEndpoint, interceptor: CallInterceptor, grace: float, log: Log
) -> AsyncIterator[Endpoint]:
    if not endpoint.is_loopback:
        log.warning(
            "CSI has no authentication: anybody who can reach this port can call the driver", endpoint=str(endpoint)
        )
    listener = await _bound(endpoint)
    KEEPALIVE.apply(listener)  # Accepted connections inherit it: a caller that lost power must not hold one for ever.
    bound = TcpEndpoint(endpoint.host, listener.getsockname()[1])
    async with _answering(listener, bound, interceptor, grace, log):
        yield bound


async def _bound(endpoint: TcpEndpoint) -> socket.socket:
    try:
        if endpoint.host in EVERY_INTERFACE and socket.has_dualstack_ipv6():
            address = ("", endpoint.port)
            return socket.create_server(address, family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        addresses = await asyncio.get_running_loop().getaddrinfo(
            endpoint.host.strip("[]"), endpoint.port, type=socket.SOCK_STREAM
        )
        family, _, _, _, name = addresses[0]
        return socket.create_server(name, family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # UnicodeError: the idna codec rejected the host's name.
        raise SocketUnusable(f"cannot listen on {endpoint}: {error}") from None


@asynccontextmanager
async def _answering(
    listener: socket.socket, endpoint: Endpoint, interceptor: CallInterceptor, grace: float, log: Log
) -> AsyncIterator[None]:
    server = GrpcListener(interceptor, log)
    await server.listen(listener)
    log.info("CSI server listening", endpoint=str(endpoint))
    try:
        yield
    finally:
        log.info("CSI server stopping", endpoint=str(endpoint), grace_seconds=grace)
        # Do both concurrently: the listener does not know of work whose caller has left, which gets the same period.
        _, unfinished = await asyncio.gather(server.stop(grace), interceptor.drain(grace))
        for call in unfinished:
            log.warning("CSI call still running after the grace period", call=call)
