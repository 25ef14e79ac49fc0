"""The outgoing frames of one HTTP/2 connection: in order, data only as the client's windows allow. Pure.

Data waits on its stream while the stream's window, the connection's window or the socket is full. Streams that wait for
the connection take turns, one frame each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from orlop.csi.grpc import header_blocks, http2_frames
from orlop.csi.grpc.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_FRAME,
    LARGEST_WINDOW,
    ErrorCode,
    Http2ProtocolError,
)
from orlop.csi.grpc.http2_stream import FIRST_WINDOW, Stream, prefixed

_END_BOTH: Final = END_HEADERS | END_STREAM


class Sending:
    """`on_end` is called with each stream whose response was sent completely."""

    def __init__(self, greeting: bytes, on_end: Callable[[Stream], None]) -> None:
        self.first_window = FIRST_WINDOW
        """The initial window of every new stream."""
        self.unsent = 0
        """Bytes of responses that wait for the client's windows."""
        self._out: list[bytes | memoryview] = [greeting]
        self._on_end = on_end
        self._window = FIRST_WINDOW
        self._largest_frame = LARGEST_FRAME
        self._table_bytes = header_blocks.TABLE_BYTES
        self._must_give_up_table = False
        self._paused = False
        self._taking_turns: dict[int, Stream] = {}

    def drain(self) -> bytes:
        """Return everything that may be written now, once."""
        out, self._out = self._out, []
        return b"".join(out)

    def add(self, frame: bytes) -> None:
        self._out.append(frame)

    # ---- responses ---------------------------------------------------------------------------------------------------

    def message(self, stream: Stream, message: bytes) -> None:
        """Queue a message, after the response headers if it is the first."""
        data = prefixed(message)
        if not stream.answer_begun:
            stream.answer_begun = True
            self._headers(stream, header_blocks.ANSWER_BEGINS, END_HEADERS)
        stream.add_to_send(data)
        self.unsent += len(data)
        self._send(stream)

    def end(self, stream: Stream, begins: bytes, ends: bytes) -> None:
        """End a stream with the trailers `ends`; the headers `begins` go first if nothing was sent yet."""
        stream.trailers = ends if stream.answer_begun else begins + ends
        if not stream.to_send:
            self._end(stream)

    def forget(self, stream: Stream) -> None:
        """Drop the unsent data of a stream."""
        self.unsent -= len(stream.to_send)
        stream.to_send = memoryview(b"")
        self._taking_turns.pop(stream.number, None)

    def _headers(self, stream: Stream, block: bytes, flags: int) -> None:
        if self._must_give_up_table:
            block, self._must_give_up_table = header_blocks.TABLE_GIVEN_UP + block, False
        self._out.append(http2_frames.header(HEADERS, flags, stream.number, len(block)) + block)

    def _send(self, stream: Stream) -> None:
        while stream.to_send and self._has_room(stream):
            self._send_frame(stream)
        if not stream.to_send:
            self._end(stream)
        elif stream.send_window > 0:
            self._taking_turns[stream.number] = stream

    def _has_room(self, stream: Stream) -> bool:
        return self._window > 0 and stream.send_window > 0 and not self._paused

    def _send_frame(self, stream: Stream) -> None:
        size = min(len(stream.to_send), stream.send_window, self._window, self._largest_frame)
        self._out.append(http2_frames.header(DATA, 0, stream.number, size))
        self._out.append(stream.to_send[:size])
        stream.to_send = stream.to_send[size:]
        stream.send_window -= size
        self._window -= size
        self.unsent -= size

    def _end(self, stream: Stream) -> None:
        if stream.trailers is not None:
            self._headers(stream, stream.trailers, _END_BOTH)
            self._on_end(stream)

    def discard(self) -> None:
        """Send nothing any more, and drop the reference to the connection."""
        self._out.clear()
        self._taking_turns.clear()
        self._on_end = _ignore

    # ---- windows -----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Send no data, whatever the windows allow: the socket is full."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._send_in_turns()

    def widen(self, increment: int) -> None:
        """Widen the window of the connection, and send what it allows."""
        self._window += increment
        if self._window > LARGEST_WINDOW:
            raise Http2ProtocolError("the connection's window is too large", ErrorCode.FLOW_CONTROL_ERROR)
        self._send_in_turns()

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """Widen the window of a stream; return False if it exceeds HTTP/2's limit."""
        stream.send_window += increment
        if stream.send_window > LARGEST_WINDOW:
            return False
        if stream.to_send:
            self._send(stream)
        return True

    def change_first_window(self, size: int, streams: Iterable[Stream]) -> None:
        """Change the initial window, also of open streams, whose windows may become negative."""
        difference, self.first_window = size - self.first_window, size
        for stream in tuple(streams):
            if not self.widen_stream(stream, difference):
                raise Http2ProtocolError("a stream's window is too large", ErrorCode.FLOW_CONTROL_ERROR)

    def change_largest_frame(self, size: int) -> None:
        self._largest_frame = size

    def change_table(self, size: int) -> None:
        """Plan the size update that a peer with a smaller table must get; our table is always empty."""
        if size < self._table_bytes:
            self._table_bytes, self._must_give_up_table = 0, True

    def _send_in_turns(self) -> None:
        while self._taking_turns and self._window > 0 and not self._paused:
            stream = self._taking_turns.pop(next(iter(self._taking_turns)))
            if stream.send_window <= 0:
                continue  # a window update of the stream queues it again
            self._send_frame(stream)
            if stream.to_send:
                self._taking_turns[stream.number] = stream
            else:
                self._end(stream)


def _ignore(_stream: Stream) -> None:
    """Do nothing: the connection has ended."""
