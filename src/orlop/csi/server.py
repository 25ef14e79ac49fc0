"""Serves any set of CSI services on a `unix://` or `tcp://` endpoint.

A socket is claimed first (under a lock file): a stale one is replaced, one that somebody answers on is an error that
names it. What is ours is removed with the claim, and nothing else.

Order, up: claim the path → listen, readable and writable for root alone → answer. Order, down: take no new call → let
what runs finish within the grace period → remove the socket → let go of the claim.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from orlop.csi.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from orlop.csi.grpc_server import GrpcListener
from orlop.csi.interceptor import CallInterceptor
from orlop.foundation.structured_log import Log
from orlop.foundation.unix_socket import SocketUnusable, bind_root_only, claim_socket

BACKLOG: Final = 128
EVERY_INTERFACE: Final = ("0.0.0.0", "[::]")


@asynccontextmanager
async def serving(
    endpoint: Endpoint, interceptor: CallInterceptor, *, grace: float, log: Log
) -> AsyncIterator[Endpoint]:
    """The endpoint answers inside this context; yields it with the port that was chosen where 0 was asked for."""
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
        log.warning("CSI has no authentication: whoever reaches this port can call the driver", endpoint=str(endpoint))
    listener = await _bound(endpoint)
    bound = TcpEndpoint(endpoint.host, listener.getsockname()[1])
    async with _answering(listener, bound, interceptor, grace, log):
        yield bound


async def _bound(endpoint: TcpEndpoint) -> socket.socket:
    try:
        if endpoint.host in EVERY_INTERFACE and socket.has_dualstack_ipv6():
            address = ("", endpoint.port)
            return socket.create_server(address, family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        found = await asyncio.get_running_loop().getaddrinfo(
            endpoint.host.strip("[]"), endpoint.port, type=socket.SOCK_STREAM
        )
        family, _, _, _, name = found[0]
        return socket.create_server(name, family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter is what idna says of a name that no host can have
        raise SocketUnusable(f"cannot listen on {endpoint}: {error}") from None


@asynccontextmanager
async def _answering(
    listener: socket.socket, endpoint: Endpoint, interceptor: CallInterceptor, grace: float, log: Log
) -> AsyncIterator[None]:
    server = GrpcListener(interceptor, log)
    await server.listen(listener)
    log.info("listening", endpoint=str(endpoint))
    try:
        yield
    finally:
        log.info("stopping: no new calls are taken", grace_seconds=grace)
        # Side by side, because work whose caller has left is unknown to the listener and has the same time.
        _, unfinished = await asyncio.gather(server.stop(grace), interceptor.drain(grace))
        for call in unfinished:
            log.warning("still running after the grace period", call=call)
