"""The interface between CSI and what carries its messages: an RPC's path and bytes in, bytes or a `CsiError` out.

Implementations: `grpc.grpc_server` with `grpc.grpc_transport`, and `in_process_transport`. All pass
tests/contracts/test_csi_transports.py, so no code above knows which one it has.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from enum import Enum, auto
from typing import Final, Protocol

LARGEST_MESSAGE: Final = 4 * 1024 * 1024
"""gRPC's default on both ends, and so what kubelet and every sidecar accept."""


class Shape(Enum):
    """How many responses an RPC has."""

    UNARY = auto()
    STREAMING = auto()


class CallHandler(Protocol):
    """The server's end: the transport passes each request to it."""

    def shape_of(self, path: str) -> Shape | None:
        """Return None where no such RPC is served."""

    async def answer(self, path: str, message: bytes) -> bytes:
        """Return the response, or raise a `CsiError`. Cancelling the caller does not cancel the work."""

    def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the responses, or raise a `CsiError` at any point."""


class ClientTransport(Protocol):
    """The client's end."""

    @property
    def connections(self) -> int:
        """How many connections were made so far. After a change another driver may serve the socket."""

    async def connected(self) -> None:
        """Wait until there is a connection; raise `Cancelled` after `close`."""

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        """Return the response, or raise a `CsiError`: `DeadlineExceeded` after `within` seconds."""

    def stream(self, path: str, message: bytes, within: float) -> AsyncGenerator[bytes, None]:
        """Yield the responses, or raise a `CsiError` at any point. Closing the generator cancels the call."""

    async def close(self) -> None:
        """Close the connection; calls in flight end with `Cancelled`."""
