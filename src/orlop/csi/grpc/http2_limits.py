"""Limits of what one client can make a connection do and hold. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from orlop.csi.grpc.http2_frames import ErrorCode, Http2ProtocolError
from orlop.csi.grpc.http2_stream import Stream


class Allowance:
    """A rate limit: `most` per `seconds`; `renew` allows as many again."""

    def __init__(self, most: int, seconds: float, now: float) -> None:
        self._most = most
        self._seconds = seconds
        self._since = now
        self._left = most

    def renew(self) -> None:
        self._left = self._most

    def spend(self, now: float, what: str) -> None:
        """Count one. Raises `Http2ProtocolError` beyond the limit."""
        if not self._left:
            if now - self._since < self._seconds:
                raise Http2ProtocolError(f"too many {what}", ErrorCode.ENHANCE_YOUR_CALM)
            self._since, self._left = now, self._most
        self._left -= 1


class Budget:
    """A limit for the bytes of incomplete requests, of all connections of a server together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, size: int) -> bool:
        """Return False, and take nothing, if `size` bytes exceed the limit."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def release(self, size: int) -> None:
        self._left += size


class Grants:
    """Window beyond a stream's first one, granted in order, for the exact length of a message.

    A grant covers the whole message, so a stream that holds one never waits for another stream: no deadlock.
    """

    def __init__(self, most: int, allow: Callable[[Stream, int], None]) -> None:
        self._left = most
        self._allow = allow
        self._waiting: deque[Stream] = deque()

    def request(self, stream: Stream) -> None:
        """Queue a stream for a grant; once per stream, when the length of its message is known."""
        stream.asked_for_grant = True
        self._waiting.append(stream)
        self._grant_waiting()

    def release(self, stream: Stream) -> None:
        """Return the grant of a stream whose message is complete, or which is over."""
        stream.asked_for_grant = True  # it must not request a grant any more
        self._left += stream.granted
        stream.granted = 0
        if self._waiting:
            self._grant_waiting()

    def end(self) -> None:
        """Grant nothing any more, and drop the reference to the connection."""
        self._waiting.clear()
        self._allow = _ignore

    def _grant_waiting(self) -> None:
        while self._waiting and (self._waiting[0].is_over or self._waiting[0].wanting <= self._left):
            stream = self._waiting.popleft()
            if not stream.is_over:
                stream.granted = stream.wanting
                self._left -= stream.granted
                self._allow(stream, stream.granted)


def _ignore(_stream: Stream, _size: int) -> None:
    """Do nothing: the connection has ended."""
