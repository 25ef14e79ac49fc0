"""The client's end of one HTTP/2 connection for gRPC: calls in, bytes out; bytes in, responses out. Pure.

Use: `start_call`, write the bytes of `to_send`, pass what arrived to `receive`, act on its events. A call has one
request and one or more responses. Calls beyond the server's stream limit wait here. A stream that the server refused
(it may have closed one later than we did) waits again. That is not a retry: the server has not processed it (RFC 9113,
8.7).

What a driver can make us hold is limited: for each call its window, one message of the largest size, which is widened
again as responses are `consumed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from orlop.csi.error_codes import Code, CsiError, Delivery, error_of, unanswered, unsent
from orlop.csi.grpc import grpc_answer_rules, header_blocks, http2_frames
from orlop.csi.grpc.http2_call import PREFIX_BYTES, STREAM_WINDOW, ClientCall
from orlop.csi.grpc.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_FRAME,
    LARGEST_WINDOW,
    ErrorCode,
    Http2FrameReader,
    Http2ProtocolError,
    Setting,
)
from orlop.csi.grpc.http2_stream import FIRST_WINDOW, prefixed
from orlop.csi.transport import LARGEST_MESSAGE

CONNECTION_WINDOW: Final = 4 * LARGEST_MESSAGE
LAST_STREAM: Final = LARGEST_WINDOW
MOST_REFUSALS: Final = 10
_GREETING: Final = (
    http2_frames.PREFACE
    + http2_frames.settings_frame(
        [
            (Setting.ENABLE_PUSH, 0),
            (Setting.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (Setting.MAX_HEADER_LIST_SIZE, header_blocks.LARGEST_HEADER_LIST),
        ]
    )
    + http2_frames.window_update_frame(0, CONNECTION_WINDOW - FIRST_WINDOW)
)


class ResponseReceived(NamedTuple):
    call: int
    message: bytes


class CallEnded(NamedTuple):
    """The call is over; `error` is None if it succeeded."""

    call: int
    error: CsiError | None


ClientEvent: TypeAlias = ResponseReceived | CallEnded


class Http2Client:
    """The state of one connection."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        """`now` returns the time by which calls that wait for a stream lose theirs."""
        self._now = now
        self.why_over: str | None = None
        """Set once the server broke the protocol: nothing is read or sent after that."""
        self.is_leaving = False
        """Whether the server accepts no new call (GOAWAY)."""
        self._reader = Http2FrameReader(expects_preface=False)
        self._headers_reader = header_blocks.HeaderReader()
        self._calls: dict[int, ClientCall] = {}
        """All calls, by number."""
        self._open_calls: dict[int, ClientCall] = {}
        """Those that have a stream, by stream."""
        self._waiting: dict[int, ClientCall] = {}
        self._made = 0
        self._next_stream = 1
        self._most = LARGEST_WINDOW
        self._out: deque[bytes | memoryview] = deque([_GREETING])
        self._events: list[ClientEvent] = []
        self._first_window = self._window = FIRST_WINDOW
        self._receive_window = CONNECTION_WINDOW
        self._largest_frame = LARGEST_FRAME
        self._taking_turns: dict[int, ClientCall] = {}
        self._paused = self._must_give_up_table = False
        self._on: Mapping[type, Callable[[Any], None]] = {
            http2_frames.Headers: self._on_headers,
            http2_frames.Data: self._on_data,
            http2_frames.SettingsFrame: self._on_settings,
            http2_frames.WindowUpdate: self._on_window_update,
            http2_frames.Ping: self._on_ping,
            http2_frames.Reset: self._on_reset,
            http2_frames.GoAway: self._on_go_away,
        }

    @property
    def greeted(self) -> bool:
        return self._reader.greeted

    @property
    def is_idle(self) -> bool:
        return not self._calls

    @property
    def is_used_up(self) -> bool:
        """Return whether half of the stream numbers are used: none can be used twice on one connection."""
        return self._next_stream > LAST_STREAM // 2

    # ---- calls -------------------------------------------------------------------------------------------------------

    def start_call(self, path: str, message: bytes, within: float) -> int:
        """Queue a call; return its number."""
        self._made += 1
        block = header_blocks.request_block(path, within)
        call = ClientCall(self._made, path, prefixed(message), self._now() + within, block)
        self._calls[call.number] = self._waiting[call.number] = call
        self._open_more()
        if not call.stream:
            call.block = b""
        return call.number

    def cancel(self, number: int) -> None:
        """Reset a call whose caller gave up."""
        if (call := self._calls.get(number)) is not None:
            self._reset(call, ErrorCode.CANCEL)

    def consumed(self, number: int, message: bytes) -> None:
        """Widen the window of a streaming call by a response that its caller has read."""
        if (call := self._calls.get(number)) is not None:
            self._allow(call, PREFIX_BYTES + len(message))

    def probe(self) -> None:
        """Make the server send something, whatever its calls are busy with: settings must be acknowledged at once.

        A PING would do the same, but gRPC servers count pings and close connections of clients that send many.
        """
        self._out.append(http2_frames.settings_frame([]))

    def to_send(self) -> bytes:
        """Return the bytes to write, once."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def pause(self) -> None:
        """Send no data, whatever the windows allow: the socket is full."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._send_in_turns()

    def end(self, sentence: str) -> list[ClientEvent]:
        """End all calls: the connection is gone. Those that had a stream may have taken effect."""
        ended = [
            (number, Delivery.UNANSWERED if call.stream else Delivery.UNSENT) for number, call in self._calls.items()
        ]
        for held in (self._calls, self._open_calls, self._waiting, self._taking_turns):
            held.clear()
        return [CallEnded(number, error_of(Code.UNAVAILABLE, sentence, delivery)) for number, delivery in ended]

    def _open(self, call: ClientCall) -> None:
        call.stream = self._next_stream
        self._next_stream += 2
        self._open_calls[call.stream] = call
        call.to_send, call.send_window = memoryview(call.request), self._first_window
        # A call that waited has less time left: the driver must not work on it after the caller's deadline.
        block = call.block or header_blocks.request_block(call.path, call.deadline - self._now())
        if self._must_give_up_table:
            block, self._must_give_up_table = header_blocks.TABLE_GIVEN_UP + block, False
        self._out.append(http2_frames.header(HEADERS, END_HEADERS, call.stream, len(block)) + block)
        self._send(call)

    def _send(self, call: ClientCall) -> None:
        while call.to_send and self._window > 0 and call.send_window > 0 and not self._paused:
            self._send_frame(call)
        if call.to_send and call.send_window > 0:
            self._taking_turns[call.number] = call

    def _send_frame(self, call: ClientCall) -> None:
        size = min(len(call.to_send), call.send_window, self._window, self._largest_frame)
        flags = END_STREAM if size == len(call.to_send) else 0
        self._out.append(http2_frames.header(DATA, flags, call.stream, size))
        self._out.append(call.to_send[:size])
        call.to_send = call.to_send[size:]
        call.send_window -= size
        self._window -= size

    def _send_in_turns(self) -> None:
        """Send waiting data, one frame of each call in turn."""
        while self._taking_turns and self._window > 0 and not self._paused:
            call = self._taking_turns.pop(next(iter(self._taking_turns)))
            if call.send_window > 0:  # else an update of its own window brings it back
                self._send_frame(call)
                if call.to_send:
                    self._taking_turns[call.number] = call

    # ---- what comes --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[ClientEvent]:
        """Return the events in these bytes and those received before."""
        self._events = []
        if self.why_over is not None:
            return []
        try:
            for event in self._reader.feed(data):
                if (act := self._on.get(type(event))) is not None:
                    act(event)
        except Http2ProtocolError as broken:
            self._out.append(http2_frames.go_away_frame(0, broken.code, str(broken)))
            self.why_over = str(broken)
        return self._events

    def _on_headers(self, headers: http2_frames.Headers) -> None:
        fields = self._headers_reader.read(headers.block)
        call = self._open_call(headers.stream)
        if call is None:
            return
        if headers.ends_stream:
            self._end(call, self._final_error(call, fields))
        elif call.is_answered:
            self._break(call, unanswered(Code.INTERNAL, "the driver's response has headers in its middle"))
        elif not grpc_answer_rules.announces_another(fields):
            call.is_answered = True
            if (error := grpc_answer_rules.refused_by(fields)) is not None:
                self._break(call, error)

    def _final_error(self, call: ClientCall, fields: header_blocks.Fields) -> CsiError | None:
        if not call.is_answered and b"grpc-status" not in dict(fields):
            return grpc_answer_rules.refused_by(fields) or grpc_answer_rules.ended_by(fields)
        error = grpc_answer_rules.ended_by(fields)
        if error is None and call.is_in_message:
            return unanswered(Code.INTERNAL, "the driver's response ended in the middle of a message")
        return error

    def _on_data(self, data: http2_frames.Data) -> None:
        self._receive_window -= data.size
        if self._receive_window < 0:
            raise Http2ProtocolError("more came than the connection's window allows", ErrorCode.FLOW_CONTROL_ERROR)
        if self._receive_window < CONNECTION_WINDOW // 2:
            self._out.append(http2_frames.window_update_frame(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        call = self._open_call(data.stream)
        if call is not None:
            self._take(call, data)

    def _take(self, call: ClientCall, data: http2_frames.Data) -> None:
        call.receive_window -= data.size
        if call.receive_window < 0:
            raise Http2ProtocolError("more came than the call's window allows", ErrorCode.FLOW_CONTROL_ERROR)
        if not call.is_answered:
            self._break(call, unanswered(Code.INTERNAL, "the driver's response begins without headers"))
            return
        try:
            self._events += [ResponseReceived(call.number, message) for message in call.messages(data.data)]
        except CsiError as error:
            self._break(call, error)
            return
        if data.ends_stream:
            self._end(call, unanswered(Code.INTERNAL, "the driver ended the call without a status"))
        elif padding := data.size - len(data.data):
            self._allow(call, padding)

    def _open_call(self, stream: int) -> ClientCall | None:
        """Return the call of a stream; None if we ended it, which the server may not know yet."""
        call = self._open_calls.get(stream)
        if call is None and (stream >= self._next_stream or not stream % 2):
            raise Http2ProtocolError("there is no such call")
        return call

    def _allow(self, call: ClientCall, size: int) -> None:
        call.unreported += size
        if call.unreported > STREAM_WINDOW // 2:
            self._out.append(http2_frames.window_update_frame(call.stream, call.unreported))
            call.receive_window += call.unreported
            call.unreported = 0

    # ---- the rest of the frames --------------------------------------------------------------------------------------

    def _on_settings(self, settings: http2_frames.SettingsFrame) -> None:
        values = settings.values
        self._must_give_up_table |= values.get(Setting.HEADER_TABLE_SIZE, LARGEST_WINDOW) < header_blocks.TABLE_BYTES
        self._largest_frame = values.get(Setting.MAX_FRAME_SIZE, self._largest_frame)
        self._out.append(http2_frames.SETTINGS_ACK)
        first_window = values.get(Setting.INITIAL_WINDOW_SIZE, self._first_window)
        difference, self._first_window = first_window - self._first_window, first_window
        for call in tuple(self._open_calls.values()) if difference else ():
            self._widen(call, difference)
        self._most = values.get(Setting.MAX_CONCURRENT_STREAMS, self._most)
        self._open_more()

    def _on_window_update(self, update: http2_frames.WindowUpdate) -> None:
        if update.stream:
            if (call := self._open_call(update.stream)) is not None:
                self._widen(call, update.increment)
            return
        self._window += update.increment
        if self._window > LARGEST_WINDOW:
            raise Http2ProtocolError("the connection's window is too large", ErrorCode.FLOW_CONTROL_ERROR)
        self._send_in_turns()

    def _widen(self, call: ClientCall, increment: int) -> None:
        call.send_window += increment
        if call.send_window > LARGEST_WINDOW:
            raise Http2ProtocolError("a call's window is too large", ErrorCode.FLOW_CONTROL_ERROR)
        self._send(call)

    def _on_ping(self, ping: http2_frames.Ping) -> None:
        if not ping.ack:
            self._out.append(http2_frames.ping_ack(ping.data))

    def _on_reset(self, reset: http2_frames.Reset) -> None:
        call = self._open_call(reset.stream)
        if call is None:
            return
        if reset.code == ErrorCode.REFUSED_STREAM and call.refusals < MOST_REFUSALS and not self.is_leaving:
            self._requeue(call)
            return
        self._forget(call)
        self._events.append(CallEnded(call.number, grpc_answer_rules.reset_by(reset.code)))

    def _requeue(self, call: ClientCall) -> None:
        """Wait for a stream again, after the server refused one; until another call ends, if there is one."""
        call.refusals += 1
        call.block = b""
        self._close(call)
        call.is_answered = False
        self._waiting[call.number] = call
        if not self._open_calls:
            self._open_more()

    def _on_go_away(self, leaving: http2_frames.GoAway) -> None:
        """End the calls that the server has not seen; it still answers the others."""
        self.is_leaving = True
        unseen = [call for call in self._calls.values() if not 0 < call.stream <= leaving.last_stream]
        for call in unseen:
            self._waiting.pop(call.number, None)
        for call in unseen:
            self._forget(call)
            error = unsent(Code.UNAVAILABLE, "the driver is shutting down and accepts no new calls")
            self._events.append(CallEnded(call.number, error))

    # ---- the ends of calls -------------------------------------------------------------------------------------------

    def _end(self, call: ClientCall, error: CsiError | None) -> None:
        """End a call whose response is complete; reset it if the server did not read the whole request."""
        self._events.append(CallEnded(call.number, error))
        if call.to_send:
            self._reset(call, ErrorCode.CANCEL)
        else:
            self._forget(call)

    def _break(self, call: ClientCall, error: CsiError) -> None:
        self._events.append(CallEnded(call.number, error))
        self._reset(call, ErrorCode.CANCEL)

    def _reset(self, call: ClientCall, code: ErrorCode) -> None:
        if call.stream:
            self._out.append(http2_frames.reset_frame(call.stream, code))
        self._forget(call)

    def _forget(self, call: ClientCall) -> None:
        self._calls.pop(call.number, None)
        self._waiting.pop(call.number, None)
        self._close(call)
        self._open_more()

    def _close(self, call: ClientCall) -> None:
        self._open_calls.pop(call.stream, None)
        self._taking_turns.pop(call.number, None)
        call.stream = 0

    def _open_more(self) -> None:
        while self._waiting and len(self._open_calls) < self._most and not self.is_leaving:
            self._open(self._waiting.pop(next(iter(self._waiting))))
