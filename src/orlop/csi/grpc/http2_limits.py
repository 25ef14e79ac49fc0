"""Limits of what one client can make a connection do and hold. Pure: the time is handed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from orlop.csi.grpc.http2_frames import ErrorCode, Http2ProtocolError
from orlop.csi.grpc.http2_stream import Stream


class Allowance:
    """So many in a while; `renew` where there is reason for more."""

    def __init__(self, most: int, seconds: float, now: float) -> None:
        self._most = most
        self._seconds = seconds
        self._since = now
        self._left = most

    def renew(self) -> None:
        self._left = self._most

    def spend(self, now: float, what: str) -> None:
        if not self._left:
            if now - self._since < self._seconds:
                raise Http2ProtocolError(f"too many {what}", ErrorCode.ENHANCE_YOUR_CALM)
            self._since, self._left = now, self._most
        self._left -= 1


class Budget:
    """Bytes of requests that are not complete yet, of all connections of a server together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, size: int) -> bool:
        """False where there is no room for so much more."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


class Grants:
    """Room for requests beyond a stream's first window: given in order, for exactly what a message said it has.

    A stream that got room can send its whole message, so no stream waits for another one that waits.
    """

    def __init__(self, most: int, allow: Callable[[Stream, int], None]) -> None:
        self._left = most
        self._allow = allow
        self._waiting: deque[Stream] = deque()

    def ask(self, stream: Stream) -> None:
        """Once for each stream, when the length of its message is known."""
        stream.asked_for_grant = True
        self._waiting.append(stream)
        self._give()

    def give_back(self, stream: Stream) -> None:
        """Its message is here, or it is over."""
        stream.asked_for_grant = True  # nothing more is due to it
        self._left += stream.granted
        stream.granted = 0
        if self._waiting:
            self._give()

    def end(self) -> None:
        """Nobody is given anything any more; who gave it is let go of."""
        self._waiting.clear()
        self._allow = _to_nobody

    def _give(self) -> None:
        while self._waiting and (self._waiting[0].is_over or self._waiting[0].wanting <= self._left):
            stream = self._waiting.popleft()
            if not stream.is_over:
                stream.granted = stream.wanting
                self._left -= stream.granted
                self._allow(stream, stream.granted)


def _to_nobody(_stream: Stream, _size: int) -> None:
    """What the end of a connection leaves."""
