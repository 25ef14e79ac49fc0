"""The seam between CSI and what carries its messages: paths and bytes go over it, bytes and `CsiError`s come back.

`grpc_server` with `grpc_transport`, and `in_process`, are its implementations; all pass
tests/contracts/test_csi_transports.py.
Nothing above this seam knows which one it has.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from enum import Enum, auto
from typing import Final, Protocol

LARGEST_MESSAGE: Final = 4 * 1024 * 1024
"""gRPC's default on both ends, and so what kubelet and every sidecar accept."""


class Shape(Enum):
    """What comes back for one request."""

    ONE_ANSWER = auto()
    MANY_ANSWERS = auto()


class CallHandler(Protocol):
    """The server's side of the seam: whoever carries the bytes hands them over here."""

    def shape_of(self, path: str) -> Shape | None:
        """None where no such method is served."""

    async def answer(self, path: str, message: bytes) -> bytes:
        """The answer's bytes, or a `CsiError`. Cancelling the waiting does not end the work."""

    def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        """The answers' bytes one by one, or a `CsiError` at any point."""


class ClientTransport(Protocol):
    """The client's side of the seam."""

    @property
    def connections(self) -> int:
        """How many connections were made so far: after a change the driver may be another one."""

    async def connected(self) -> None:
        """Returns when there is a connection, however long that takes; `Cancelled` once it is closed."""

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        """The answer's bytes, or a `CsiError`: `DeadlineExceeded` when it took longer than so many seconds."""

    def stream(self, path: str, message: bytes, within: float) -> AsyncGenerator[bytes, None]:
        """The answers' bytes one by one, or a `CsiError` at any point. Closing it tells the driver so."""

    async def close(self) -> None:
        """Ends the connection; a call under way ends with `Cancelled`."""
