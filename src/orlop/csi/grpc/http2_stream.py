"""One call on a server's connection: the request assembled from what arrived, and the unsent response. Pure.

Windows are counted here; `http2_connection` decides what they allow.
"""

from __future__ import annotations

import struct
from typing import Final

from orlop.csi.error_codes import Internal, ResourceExhausted
from orlop.csi.transport import LARGEST_MESSAGE, Shape

FIRST_WINDOW: Final = 65_535
"""Bytes that a client may send on a stream before it gets a window update: HTTP/2's default."""
_PREFIX: Final = struct.Struct(">BL")


def prefixed(message: bytes) -> bytes:
    """Return a message with gRPC's prefix: not compressed, and its length."""
    return _PREFIX.pack(0, len(message)) + message


class Stream:
    """The state of one HTTP/2 stream, which carries one call."""

    __slots__ = (
        *(
            "_arrived",
            "_length",
            "answer_begun",
            "asked_for_grant",
            "client_ended",
            "granted",
            "held",
            "is_over",
            "number",
        ),
        *("path", "receive_window", "send_window", "shape", "to_send", "trailers"),
    )

    def __init__(self, number: int, path: str, shape: Shape, send_window: int) -> None:
        self.number = number
        self.path = path
        self.shape = shape
        self.send_window = send_window
        self.receive_window = FIRST_WINDOW
        self.asked_for_grant = False
        self.granted = 0
        """Bytes of window granted beyond the first one."""
        self.held = 0
        """Bytes of the request that count against the budget."""
        self.is_over = False
        self.client_ended = False
        self.answer_begun = False
        self.to_send: memoryview = memoryview(b"")
        self.trailers: bytes | None = None
        """The block that ends the response, sent after all data."""
        self._arrived: bytes | bytearray = b""
        self._length: int | None = None

    # ---- the request -------------------------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Append to the request. Raises the error that refuses it."""
        if not self._arrived:
            self._arrived = data
        else:
            if isinstance(self._arrived, bytes):
                self._arrived = bytearray(self._arrived)
            self._arrived += data
        if self._length is None and len(self._arrived) >= _PREFIX.size:
            self._length = _checked_length(*_PREFIX.unpack_from(self._arrived))
        if self._length is not None and len(self._arrived) > _PREFIX.size + self._length:
            raise Internal("more than one message was sent; the RPC takes one")

    @property
    def wanting(self) -> int:
        """Return how many bytes of window the client lacks for its message, once the length is known."""
        if self._length is None:
            return 0
        return max(0, _PREFIX.size + self._length - len(self._arrived) - self.receive_window)

    def message(self) -> bytes:
        """Return the complete request, and release its buffer."""
        if self._length is None or len(self._arrived) < _PREFIX.size + self._length:
            raise Internal("the call ended before its message was complete")
        with memoryview(self._arrived) as arrived:
            message = bytes(arrived[_PREFIX.size :])
        self._arrived = b""
        return message

    # ---- the response ------------------------------------------------------------------------------------------------

    def add_to_send(self, data: bytes) -> None:
        self.to_send = memoryview(bytes(self.to_send) + data if self.to_send else data)


def _checked_length(compressed: int, length: int) -> int:
    if compressed:
        raise Internal("the message is compressed, but grpc-encoding is missing")
    if length > LARGEST_MESSAGE:
        raise ResourceExhausted(f"a request of {length} bytes: at most {LARGEST_MESSAGE} are allowed")
    return length
