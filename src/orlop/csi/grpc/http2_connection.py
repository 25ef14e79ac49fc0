"""A server's side of one HTTP/2 connection that carries gRPC calls: bytes in, calls out; answers in, bytes out. Pure.

Order: `receive` what came, do what its events say, answer with `answer`, `send`, `finish` or `expire`, and write what
`to_send` gives. Nothing here waits, and no time passes: who needs it hands it in.

What a client can make us hold is limited, whatever it does:
- requests: the first 64 KiB of each stream; more only for messages that said how long they are, a few at a time;
- answers: what the windows of the client leave here is at most one message for each stream, and beyond a limit of all
  of them together no new call is taken;
- streams: beyond a limit new ones are refused; who resets them as fast as he makes them is let go;
- frames that ask for nothing, or only for an answer of the connection: so many in a while, unless there are calls.
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
"""Bytes of requests whose end is not here yet, of all connections together."""
MOST_GRANTED: Final = 4 * LARGEST_MESSAGE
MOST_UNSENT: Final = 4 * LARGEST_MESSAGE
CONNECTION_WINDOW: Final = 4 << 20
MOST_IDLE_FRAMES: Final = 1000
IDLE_FRAMES_SECONDS: Final = 10.0
MOST_RESETS: Final = 1000
RESETS_SECONDS: Final = 30.0
MOST_CUT: Final = MOST_STREAMS
"""Streams we ended before the client did, and on which something may still come."""

_GREETING: Final = http2_frames.settings_frame(
    [
        (Setting.MAX_CONCURRENT_STREAMS, MOST_STREAMS),
        (Setting.MAX_HEADER_LIST_SIZE, header_blocks.LARGEST_HEADER_LIST),
    ]
) + http2_frames.window_update_frame(0, CONNECTION_WINDOW - FIRST_WINDOW)


# ---- what comes ------------------------------------------------------------------------------------------------------


class CallOpened(NamedTuple):
    """A call has begun; its message may still be on its way. `within` seconds it must have its answer, if any."""

    stream: int
    within: float | None


class RequestReceived(NamedTuple):
    """The call's message is here."""

    stream: int
    path: str
    shape: Shape
    message: bytes


class CallDropped(NamedTuple):
    """Nobody waits for the answer of an opened call any more."""

    stream: int


ServerEvent: TypeAlias = CallOpened | RequestReceived | CallDropped


class Http2Connection:
    """`shape_of` says which paths are served."""

    def __init__(self, shape_of: Callable[[str], Shape | None], now: float, budget: Budget | None = None) -> None:
        self.why_over: str | None = None
        """The sentence, once the client broke the protocol: nothing is heard or said after it."""
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
            self._ask(stream)

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
        """Of a request: nobody sends them, and they end it."""
        if stream.client_ended:
            self._drop(stream, ErrorCode.STREAM_CLOSED)
        elif not headers.ends_stream:
            self._drop(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            stream.client_ended = True
            self._ask(stream)

    def _on_data(self, data: http2_frames.Data) -> None:
        self._receive_window -= data.size
        if self._receive_window < 0:
            raise Http2ProtocolError("more came than the connection's window allows", ErrorCode.FLOW_CONTROL_ERROR)
        # What is held is limited by the streams' windows: this one only saves us from answering each frame.
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
            self._ask(stream)
            return
        if padding := data.size - len(data.data):
            self._allow(stream, padding)
        if stream.wanting and not stream.asked_for_grant:
            self._grants.ask(stream)

    def _hold(self, stream: Stream, size: int) -> None:
        if not self._budget.take(size):
            raise ResourceExhausted("too many requests at the same time: retry later")
        stream.held += size

    def _let_go(self, stream: Stream) -> None:
        self._budget.give_back(stream.held)
        stream.held = 0

    def _ask(self, stream: Stream) -> None:
        self._let_go(stream)
        self._grants.give_back(stream)
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
        """Something came on a stream that is over: what was sent before our end of it arrived is passed over."""
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
            self._must_have_been(update.stream)
        elif not self._sending.widen_stream(stream, update.increment):
            self._drop(stream, ErrorCode.FLOW_CONTROL_ERROR)

    def _on_reset(self, reset: http2_frames.Reset) -> None:
        stream = self._streams.get(reset.stream)
        if stream is None:
            self._idle_frames.spend(self._now, "resets")
            self._must_have_been(reset.stream)
            return
        self._resets.spend(self._now, "resets")
        self._events.append(CallDropped(reset.stream))
        self._forget(stream)

    def _must_have_been(self, number: int) -> None:
        """Updates and resets of a stream that is over are late, and mean nothing."""
        if number > self._last_stream or not number % 2:
            raise Http2ProtocolError("there is no such stream")

    def _on_settings(self, settings: http2_frames.SettingsFrame) -> None:
        self._idle_frames.spend(self._now, "settings")
        values = settings.values
        if Setting.HEADER_TABLE_SIZE in values:
            self._sending.change_table(values[Setting.HEADER_TABLE_SIZE])
        if Setting.MAX_FRAME_SIZE in values:
            self._sending.change_largest_frame(values[Setting.MAX_FRAME_SIZE])
        self._sending.add(http2_frames.SETTINGS_TAKEN)
        if Setting.INITIAL_WINDOW_SIZE in values:
            self._sending.change_first_window(values[Setting.INITIAL_WINDOW_SIZE], self._streams.values())

    def _on_ping(self, ping: http2_frames.Ping) -> None:
        self._idle_frames.spend(self._now, "pings")
        if not ping.ack:
            self._sending.add(http2_frames.ping_answer(ping.data))

    def _on_nothing(self, _event: http2_frames.FrameEvent) -> None:
        self._idle_frames.spend(self._now, "frames that say nothing")

    # ---- the ends of streams -----------------------------------------------------------------------------------------

    def _drop(self, stream: Stream, code: ErrorCode) -> None:
        """We end it, because of what the client did on it."""
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
        self._let_go(stream)
        self._streams.pop(stream.number, None)
        self._sending.forget(stream)
        self._grants.give_back(stream)

    # ---- answers -----------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not self._streams

    def to_send(self) -> bytes:
        return self._sending.taken()

    def send(self, number: int, message: bytes) -> None:
        """One of the answers of a call; of a call that is over it is dropped, as all of these are."""
        stream = self._streams.get(number)
        if stream is not None:
            self._idle_frames.renew()
            self._sending.message(stream, message)

    def finish(self, number: int, error: CsiError | None = None) -> None:
        """After all that was sent."""
        stream = self._streams.get(number)
        if stream is not None:
            ends = header_blocks.ANSWER_ENDS if error is None else header_blocks.failure(error)
            self._sending.end(stream, header_blocks.ANSWER_BEGINS, ends)

    def expire(self, number: int) -> None:
        """The caller's time is up: what is not sent yet is not sent."""
        stream = self._streams.get(number)
        if stream is None:
            return
        if stream.to_send:  # the message cannot be ended in its middle
            self._reset(stream, ErrorCode.CANCEL)
        else:
            self._refuse(stream, DeadlineExceeded(f"{stream.path} did not answer in time"))

    def is_sent(self, number: int) -> bool:
        """Whether all that was given for the stream has gone out."""
        stream = self._streams.get(number)
        return stream is None or not stream.to_send

    def pause(self) -> None:
        self._sending.pause()

    def resume(self) -> None:
        self._sending.resume()

    def end(self) -> None:
        """The connection is gone: nothing of it is held any more, here or by what it was given."""
        for stream in tuple(self._streams.values()):
            self._forget(stream)
        self._on = {}
        self._sending.give_up()
        self._grants.end()

    def leave(self) -> None:
        """No new call is taken; those under way go on."""
        if not self._leaving:
            self._leaving = True
            self._sending.add(http2_frames.go_away_frame(self._last_stream, ErrorCode.NO_ERROR))
