"""One call of a client: the request still to be sent, and the responses assembled from what arrived. Pure.

Windows are counted here; `http2_client` decides what they allow.
"""

from __future__ import annotations

import struct
from typing import Final

from orlop.csi.error_codes import Code, unanswered
from orlop.csi.transport import LARGEST_MESSAGE

STREAM_WINDOW: Final = LARGEST_MESSAGE + (64 << 10)
"""What a driver may send on a call before it gets a window update."""
_PREFIX: Final = struct.Struct(">BL")
PREFIX_BYTES: Final = _PREFIX.size


class ClientCall:
    """A call, from the request to the last response."""

    __slots__ = (
        *("_arrived", "block", "deadline", "is_answered", "number", "path", "receive_window", "refusals", "request"),
        *("send_window", "stream", "to_send", "unreported"),
    )

    def __init__(self, number: int, path: str, request: bytes, deadline: float, block: bytes) -> None:
        self.number = number
        self.path = path
        self.deadline = deadline
        """By the clock of the connection."""
        self.block = block
        """The headers with the whole timeout; empty once the call had to wait for a stream."""
        self.request = request
        self.stream = 0
        """The HTTP/2 stream; 0 while the call waits for one."""
        self.to_send = memoryview(b"")
        self.send_window = 0
        self.refusals = 0
        self.receive_window = STREAM_WINDOW
        self.unreported = 0
        """Bytes that were read, and not yet given back to the server by a window update."""
        self.is_answered = False
        """Whether the headers of the response have arrived."""
        self._arrived = b""

    def messages(self, data: bytes) -> list[bytes]:
        """Return the messages that `data` completes. Raises the error that the call fails with."""
        arrived = self._arrived + data if self._arrived else data
        found: list[bytes] = []
        at = 0
        while len(arrived) - at >= _PREFIX.size:
            begin = at + _PREFIX.size
            end = begin + _checked_length(*_PREFIX.unpack_from(arrived, at))
            if len(arrived) < end:
                break
            found.append(arrived[begin:end])
            at = end
        self._arrived = arrived[at:] if at else arrived
        return found

    @property
    def is_in_message(self) -> bool:
        return bool(self._arrived)


def _checked_length(compressed: int, length: int) -> int:
    if compressed:
        raise unanswered(Code.INTERNAL, "the driver's response is compressed, which we did not ask for")
    if length > LARGEST_MESSAGE:
        problem = f"the driver's response has {length} bytes: at most {LARGEST_MESSAGE} are allowed"
        raise unanswered(Code.RESOURCE_EXHAUSTED, problem)
    return length
