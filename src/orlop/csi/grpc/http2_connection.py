"""The server's end of one HTTP/2 connection for gRPC: bytes in, calls out; responses in, bytes out. Pure.

Use: pass what arrived to `receive`, act on its events, answer with `send`, `finish` or `expire`, and write the bytes of
`to_send`. Nothing here waits or reads a clock: the caller passes the time.

What a client can make us hold or do is limited:
- requests: the first 64 KiB of each stream; more only for messages whose length is known, a few at a time;
- responses: at most one unsent message per stream; beyond a limit for all streams no new call is accepted;
- streams: beyond a limit new ones are refused; a client that resets them too fast is disconnected;
- frames that carry no call (pings, settings, window updates): a limited number per time, renewed by calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from orlop.csi.error_codes import CsiError, DeadlineExceeded, ResourceExhausted, Unimplemented
from orlop.csi.grpc import header_blocks, http2_frames
from orlop.csi.grpc.grpc_request_rules import GrpcRequest, MalformedRequest, read_request
from orlop.csi.grpc.http2_frames import ErrorCode, Http2FrameReader, Http2ProtocolError, Setting
from orlop.csi.grpc.http2_limits import Allowance, Budget, Grants
from orlop.csi.grpc.http2_sending import Sending
from orlop.csi.grpc.http2_stream import FIRST_WINDOW, Stream
from orlop.csi.transport import LARGEST_MESSAGE, Shape

MOST_STREAMS: Final = 1000
MOST_INCOMPLETE: Final = 64 << 20
"""Bytes of incomplete requests, of all connections together."""
MOST_GRANTED: Final = 4 * LARGEST_MESSAGE
MOST_UNSENT: Final = 4 * LARGEST_MESSAGE
CONNECTION_WINDOW: Final = 4 << 20
MOST_IDLE_FRAMES: Final = 1000
IDLE_FRAMES_SECONDS: Final = 10.0
MOST_RESETS: Final = 1000
RESETS_SECONDS: Final = 30.0
MOST_CUT: Final = MOST_STREAMS
"""Streams that we ended before the client did: frames for them may still arrive."""

_GREETING: Final = http2_frames.settings_frame(
    [
        (Setting.MAX_CONCURRENT_STREAMS, MOST_STREAMS),
        (Setting.MAX_HEADER_LIST_SIZE, header_blocks.LARGEST_HEADER_LIST),
    ]
) + http2_frames.window_update_frame(0, CONNECTION_WINDOW - FIRST_WINDOW)


# ---- what comes ------------------------------------------------------------------------------------------------------


class CallOpened(NamedTuple):
    """A call has begun; its message may not be complete. `within` is its deadline in seconds, if any."""

    stream: int
    within: float | None


class RequestReceived(NamedTuple):
    """The message of an opened call is complete."""

    stream: int
    path: str
    shape: Shape
    message: bytes


class CallDropped(NamedTuple):
    """The caller of an opened call no longer waits for a response."""

    stream: int


ServerEvent: TypeAlias = CallOpened | RequestReceived | CallDropped


class Http2Connection:
    """The state of one connection. `shape_of` returns None for a path that is not served."""

    def __init__(self, shape_of: Callable[[str], Shape | None], now: float, budget: Budget | None = None) -> None:
        self.why_over: str | None = None
        """Set once the client broke the protocol: nothing is read or sent after that."""
        self._shape_of = shape_of
        self._reader = Http2FrameReader()
        self._headers_reader = header_blocks.HeaderReader()
        self._events: list[ServerEvent] = []
        self._streams: dict[int, Stream] = {}
        self._last_stream = 0
        self._cut: dict[int, None] = {}
        self._leaving = False
        self._receive_window = CONNECTION_WINDOW
        self._budget = budget or Budget(MOST_INCOMPLETE)
        self._grants = Grants(MOST_GRANTED, self._allow)
        self._sending = Sending(_GREETING, self._on_answered)
        self._idle_frames = Allowance(MOST_IDLE_FRAMES, IDLE_FRAMES_SECONDS, now)
        self._resets = Allowance(MOST_RESETS, RESETS_SECONDS, now)
        self._now = now
        self._on: Mapping[type, Callable[[Any], None]] = {
            http2_frames.Headers: self._on_headers,
            http2_frames.Data: self._on_data,
            http2_frames.SettingsFrame: self._on_settings,
            http2_frames.WindowUpdate: self._on_window_update,
            http2_frames.Ping: self._on_ping,
            http2_frames.Reset: self._on_reset,
            http2_frames.GoAway: self._on_nothing,
            http2_frames.SettingsAck: self._on_nothing,
            http2_frames.Ignored: self._on_nothing,
        }

    @property
    def greeted(self) -> bool:
        return self._reader.greeted

    def receive(self, data: bytes, now: float) -> list[ServerEvent]:
        """Return the events in these bytes and those received before."""
        self._events, self._now = [], now
        if self.why_over is not None:
            return []
        try:
            for event in self._reader.feed(data):
                self._on[type(event)](event)
        except Http2ProtocolError as broken:
            self._sending.add(http2_frames.go_away_frame(self._last_stream, broken.code, str(broken)))
            self.why_over = str(broken)
        return self._events

    # ---- calls that come ---------------------------------------------------------------------------------------------

    def _on_headers(self, headers: http2_frames.Headers) -> None:
        fields = self._headers_reader.read(headers.block)
        stream = self._streams.get(headers.stream)
        if stream is not None:
            self._on_trailers(stream, headers)
        elif headers.stream <= self._last_stream:
            self._on_closed(headers.stream)
        elif not headers.stream % 2:
            raise Http2ProtocolError("streams of clients have odd numbers")
        else:
            self._last_stream = headers.stream
            self._open(headers, fields)

    def _open(self, headers: http2_frames.Headers, fields: header_blocks.Fields) -> None:
        if self._leaving or len(self._streams) >= MOST_STREAMS or self._sending.unsent > MOST_UNSENT:
            self._resets.spend(self._now, "calls that are refused")
            self._cut_off(headers, ErrorCode.REFUSED_STREAM)
            return
        try:
            request = read_request(fields)
        except MalformedRequest:
            self._resets.spend(self._now, "malformed calls")
            self._cut_off(headers, ErrorCode.PROTOCOL_ERROR)
            return
        if isinstance(request, GrpcRequest):
            self._begin(headers, request)
        else:
            stream = self._new_stream(headers, "", Shape.UNARY)
            self._sending.end(stream, request.begins, header_blocks.failure(request.error))

    def _begin(self, headers: http2_frames.Headers, request: GrpcRequest) -> None:
        shape = self._shape_of(request.path)
        stream = self._new_stream(headers, request.path, shape or Shape.UNARY)
        if shape is None:
            self._refuse(stream, Unimplemented(f"{request.path} is not served here"))
            return
        self._events.append(CallOpened(headers.stream, request.within))
        if headers.ends_stream:
            self._complete(stream)

    def _new_stream(self, headers: http2_frames.Headers, path: str, shape: Shape) -> Stream:
        stream = Stream(headers.stream, path, shape, self._sending.first_window)
        stream.client_ended = headers.ends_stream
        self._streams[headers.stream] = stream
        return stream

    def _cut_off(self, headers: http2_frames.Headers, code: ErrorCode) -> None:
        self._sending.add(http2_frames.reset_frame(headers.stream, code))
        if not headers.ends_stream:
            self._note_cut(headers.stream)

    def _on_trailers(self, stream: Stream, headers: http2_frames.Headers) -> None:
        """End a request by trailers, which gRPC clients do not send but HTTP/2 allows."""
        if stream.client_ended:
            self._drop(stream, ErrorCode.STREAM_CLOSED)
        elif not headers.ends_stream:
            self._drop(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            stream.client_ended = True
            self._complete(stream)

    def _on_data(self, data: http2_frames.Data) -> None:
        self._receive_window -= data.size
        if self._receive_window < 0:
            raise Http2ProtocolError("more came than the connection's window allows", ErrorCode.FLOW_CONTROL_ERROR)
        # The streams' windows limit what is held; this one is large so that not every frame needs an update.
        if self._receive_window < CONNECTION_WINDOW // 2:
            self._sending.add(http2_frames.window_update_frame(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        if not data.data:
            self._idle_frames.spend(self._now, "frames without data")
        stream = self._streams.get(data.stream)
        if stream is None:
            self._on_closed(data.stream)
        elif stream.client_ended:
            self._drop(stream, ErrorCode.STREAM_CLOSED)
        elif data.size > stream.receive_window:
            self._drop(stream, ErrorCode.FLOW_CONTROL_ERROR)
        else:
            self._take(stream, data)

    def _take(self, stream: Stream, data: http2_frames.Data) -> None:
        stream.receive_window -= data.size
        stream.client_ended = data.ends_stream
        try:
            self._hold(stream, len(data.data))
            stream.take(data.data)
        except CsiError as refused:
            self._events.append(CallDropped(stream.number))
            self._refuse(stream, refused)
            return
        if data.ends_stream:
            self._complete(stream)
            return
        if padding := data.size - len(data.data):
            self._allow(stream, padding)
        if stream.wanting and not stream.asked_for_grant:
            self._grants.request(stream)

    def _hold(self, stream: Stream, size: int) -> None:
        if not self._budget.take(size):
            raise ResourceExhausted("too many requests at the same time: retry later")
        stream.held += size

    def _release_budget(self, stream: Stream) -> None:
        self._budget.release(stream.held)
        stream.held = 0

    def _complete(self, stream: Stream) -> None:
        self._release_budget(stream)
        self._grants.release(stream)
        self._idle_frames.renew()
        try:
            self._events.append(RequestReceived(stream.number, stream.path, stream.shape, stream.message()))
        except CsiError as refused:
            self._events.append(CallDropped(stream.number))
            self._refuse(stream, refused)

    def _refuse(self, stream: Stream, error: CsiError) -> None:
        self._sending.end(stream, header_blocks.ANSWER_BEGINS, header_blocks.failure(error))

    def _allow(self, stream: Stream, size: int) -> None:
        stream.receive_window += size
        self._sending.add(http2_frames.window_update_frame(stream.number, size))

    # ---- the rest of the frames --------------------------------------------------------------------------------------

    def _on_closed(self, number: int) -> None:
        """Ignore a frame of a stream that we ended: the client sent it before it knew."""
        if number > self._last_stream:
            raise Http2ProtocolError("a stream begins with headers")
        if number not in self._cut:
            raise Http2ProtocolError("the stream is over", ErrorCode.STREAM_CLOSED)
        self._idle_frames.spend(self._now, "frames of streams that are over")

    def _on_window_update(self, update: http2_frames.WindowUpdate) -> None:
        self._idle_frames.spend(self._now, "window updates")
        if not update.stream:
            self._sending.widen(update.increment)
            return
        stream = self._streams.get(update.stream)
        if stream is None:
            self._check_existed(update.stream)
        elif not self._sending.widen_stream(stream, update.increment):
            self._drop(stream, ErrorCode.FLOW_CONTROL_ERROR)

    def _on_reset(self, reset: http2_frames.Reset) -> None:
        stream = self._streams.get(reset.stream)
        if stream is None:
            self._idle_frames.spend(self._now, "resets")
            self._check_existed(reset.stream)
            return
        self._resets.spend(self._now, "resets")
        self._events.append(CallDropped(reset.stream))
        self._forget(stream)

    def _check_existed(self, number: int) -> None:
        """Allow late window updates and resets of a stream that is over; raise if it never existed."""
        if number > self._last_stream or not number % 2:
            raise Http2ProtocolError("there is no such stream")

    def _on_settings(self, settings: http2_frames.SettingsFrame) -> None:
        self._idle_frames.spend(self._now, "settings")
        values = settings.values
        if Setting.HEADER_TABLE_SIZE in values:
            self._sending.change_table(values[Setting.HEADER_TABLE_SIZE])
        if Setting.MAX_FRAME_SIZE in values:
            self._sending.change_largest_frame(values[Setting.MAX_FRAME_SIZE])
        self._sending.add(http2_frames.SETTINGS_ACK)
        if Setting.INITIAL_WINDOW_SIZE in values:
            self._sending.change_first_window(values[Setting.INITIAL_WINDOW_SIZE], self._streams.values())

    def _on_ping(self, ping: http2_frames.Ping) -> None:
        self._idle_frames.spend(self._now, "pings")
        if not ping.ack:
            self._sending.add(http2_frames.ping_ack(ping.data))

    def _on_nothing(self, _event: http2_frames.FrameEvent) -> None:
        self._idle_frames.spend(self._now, "frames that say nothing")

    # ---- the ends of streams -----------------------------------------------------------------------------------------

    def _drop(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream on which the client broke the protocol."""
        self._resets.spend(self._now, "streams that break the protocol")
        self._events.append(CallDropped(stream.number))
        self._reset(stream, code)

    def _reset(self, stream: Stream, code: ErrorCode) -> None:
        self._sending.add(http2_frames.reset_frame(stream.number, code))
        self._note_cut(stream.number)
        self._forget(stream)

    def _on_answered(self, stream: Stream) -> None:
        if not stream.client_ended:
            self._sending.add(http2_frames.reset_frame(stream.number, ErrorCode.NO_ERROR))
            self._note_cut(stream.number)
        self._forget(stream)

    def _note_cut(self, number: int) -> None:
        self._cut[number] = None
        if len(self._cut) > MOST_CUT:
            del self._cut[next(iter(self._cut))]

    def _forget(self, stream: Stream) -> None:
        stream.is_over = True
        self._release_budget(stream)
        self._streams.pop(stream.number, None)
        self._sending.forget(stream)
        self._grants.release(stream)

    # ---- answers -----------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not self._streams

    def to_send(self) -> bytes:
        return self._sending.drain()

    def send(self, number: int, message: bytes) -> None:
        """Send one response of a call; ignored if the call is over, as in `finish` and `expire`."""
        stream = self._streams.get(number)
        if stream is not None:
            self._idle_frames.renew()
            self._sending.message(stream, message)

    def finish(self, number: int, error: CsiError | None = None) -> None:
        """End a call with its status, after everything passed to `send`."""
        stream = self._streams.get(number)
        if stream is not None:
            ends = header_blocks.ANSWER_ENDS if error is None else header_blocks.failure(error)
            self._sending.end(stream, header_blocks.ANSWER_BEGINS, ends)

    def expire(self, number: int) -> None:
        """End a call at its deadline, without what is not sent yet."""
        stream = self._streams.get(number)
        if stream is None:
            return
        if stream.to_send:  # a status cannot follow an incomplete message
            self._reset(stream, ErrorCode.CANCEL)
        else:
            self._refuse(stream, DeadlineExceeded(f"{stream.path} did not answer in time"))

    def is_sent(self, number: int) -> bool:
        """Return whether everything passed to `send` for the stream has been sent."""
        stream = self._streams.get(number)
        return stream is None or not stream.to_send

    def pause(self) -> None:
        self._sending.pause()

    def resume(self) -> None:
        self._sending.resume()

    def end(self) -> None:
        """Release everything: the connection is gone."""
        for stream in tuple(self._streams.values()):
            self._forget(stream)
        self._on = {}
        self._sending.discard()
        self._grants.end()

    def leave(self) -> None:
        """Accept no new call; those in flight continue."""
        if not self._leaving:
            self._leaving = True
            self._sending.add(http2_frames.go_away_frame(self._last_stream, ErrorCode.NO_ERROR))
