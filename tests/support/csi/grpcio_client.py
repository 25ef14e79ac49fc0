"""Calls of our server by somebody else's client: grpcio. It passes the same contract suite as our own.

Sends `:authority: localhost`, as kubelet and the Go sidecars do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote_from_bytes

import grpc
import grpc.aio

from orlop.csi.endpoint import Endpoint, TcpEndpoint
from orlop.csi.error_codes import Cancelled, Code, CsiError, Internal, Unavailable, error_of
from orlop.csi.transport import LARGEST_MESSAGE

CLIENT_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # whether a call may be repeated is for the caller to decide
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.use_local_subchannel_pool", 1),
)
LONGEST_TIMEOUT: Final = 366 * 24 * 3600.0
"""Beyond 2^63 nanoseconds from 1970 grpc has every deadline in the past."""


BROKEN_STREAM: Final = "Stream removed"


def _target(endpoint: Endpoint) -> str:
    if isinstance(endpoint, TcpEndpoint):
        return f"{endpoint.host}:{endpoint.port}"
    # grpc reads an address as a URI: of a bare path it would bind or call another than the one that is meant.
    return f"unix:{quote_from_bytes(os.fsencode(endpoint.path))}"


class GrpcioConnection:
    """A client's connection to one endpoint: made when first needed, made again for ever after it broke."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._channel = grpc.aio.insecure_channel(_target(endpoint), options=CLIENT_OPTIONS)
        self._calls: dict[str, Any] = {}
        self._connections = 0
        self._watch = asyncio.get_running_loop().create_task(self._count_connections(), name=f"watch {endpoint}")

    @property
    def connections(self) -> int:
        return self._connections

    async def _count_connections(self) -> None:
        state = self._channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.SHUTDOWN:
            if state is grpc.ChannelConnectivity.READY:
                self._connections += 1
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)

    async def connected(self) -> None:
        try:
            await self._channel.channel_ready()
        except grpc.aio.UsageError as error:
            raise Cancelled(f"the connection was closed: {error}") from None

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        method = self._calls.get(path)
        if method is None:
            method = self._calls[path] = self._channel.unary_unary(path)
        with _told_as_csi_errors():
            answer: bytes | None = await method(message, timeout=min(within, LONGEST_TIMEOUT))
        if answer is None:
            raise Internal(f"the driver returned OK for {path} and no response")
        return answer

    async def stream(self, path: str, message: bytes, within: float) -> AsyncGenerator[bytes, None]:
        call: Any = None
        try:
            with _told_as_csi_errors():
                method: Any = self._channel.unary_stream(path)
                call = method(message, timeout=min(within, LONGEST_TIMEOUT))
                async for answer in call:
                    yield answer
        finally:
            if call is not None:
                call.cancel()  # of effect where the reader has left: the driver would go on until the deadline

    async def close(self) -> None:
        self._watch.cancel()
        try:
            await asyncio.wait([self._watch])  # which raises nothing of it, so that our own cancellation is not lost
        finally:
            await self._channel.close()


@contextmanager
def _told_as_csi_errors() -> Iterator[None]:
    """What gRPC raises, in the terms of the seam."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _error_of_status(error) from None
    except grpc.aio.UsageError as error:
        raise Cancelled(f"the connection was closed: {error}") from None
    except asyncio.CancelledError:
        _raise_unless_caller_cancelled(Cancelled("the connection was closed"))
        raise


def _raise_unless_caller_cancelled(error: CsiError) -> None:
    """Grpc tells a closed channel and a cancelled caller with the same exception; asyncio knows which it was."""
    caller = asyncio.current_task()
    if caller is None or not caller.cancelling():
        raise error from None


def _error_of_status(error: grpc.aio.AioRpcError) -> CsiError:
    details = error.details() or error.code().name
    # The transport's own words for a connection that broke: the driver gave no code, and may still be at work.
    if error.code() is grpc.StatusCode.UNKNOWN and details.startswith(BROKEN_STREAM):
        return Unavailable(f"the connection broke: {details}")
    return error_of(Code(error.code().value[0]), details)
