"""Serves any set of CSI services on a `unix://` or `tcp://` endpoint.

grpc takes over a live socket without a word, so the socket is claimed first (under a lock file): a stale one is
replaced, one that somebody answers on is an error that names it. When it stops, grpc removes whatever stands at the
path it bound, so it is given one that leads nowhere by then; what is ours is removed with the claim.

Order, up: claim the path → listen, readable and writable for root alone → answer. Order, down: take no new call → let
what runs finish within the grace period → remove the socket → let go of the claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from orlop.csi.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from orlop.csi.grpc_transport import GrpcListener
from orlop.csi.interceptor import CallInterceptor
from orlop.foundation.structured_log import Log
from orlop.foundation.unix_socket import PassingPath, claim_socket, root_only_umask


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
    with claim_socket(Path(endpoint.path)) as claim, closing(PassingPath(claim.path)) as passing:
        listener = GrpcListener(interceptor)
        with root_only_umask():
            await listener.listen(endpoint, through=UnixEndpoint(passing.path))
        passing.end()
        claim.bound()
        log.info("listening", endpoint=str(endpoint))
        try:
            yield endpoint
        finally:
            await _stop(listener, interceptor, grace, log)


@asynccontextmanager
async def _on_tcp(
    endpoint: TcpEndpoint, interceptor: CallInterceptor, grace: float, log: Log
) -> AsyncIterator[Endpoint]:
    if not endpoint.is_loopback:
        log.warning("CSI has no authentication: whoever reaches this port can call the driver", endpoint=str(endpoint))
    listener = GrpcListener(interceptor)
    bound = TcpEndpoint(endpoint.host, await listener.listen(endpoint))
    log.info("listening", endpoint=str(bound))
    try:
        yield bound
    finally:
        await _stop(listener, interceptor, grace, log)


async def _stop(listener: GrpcListener, interceptor: CallInterceptor, grace: float, log: Log) -> None:
    log.info("stopping: no new calls are taken", grace_seconds=grace)
    # Side by side, because work whose caller has left is unknown to the listener and has the same time.
    _, unfinished = await asyncio.gather(listener.stop(grace), interceptor.drain(grace))
    for call in unfinished:
        log.warning("still running after the grace period", call=call)
