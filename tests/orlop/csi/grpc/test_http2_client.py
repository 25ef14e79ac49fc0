"""A client's side of a connection: against our server's side in memory, and against what no server should send."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import (
    Cancelled,
    Code,
    CsiError,
    Delivery,
    Internal,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
    Unknown,
)
from orlop.csi.grpc.header_blocks import timeout_text
from orlop.csi.grpc.http2_call import STREAM_WINDOW
from orlop.csi.grpc.http2_client import CONNECTION_WINDOW, CallEnded, Http2Client, ResponseReceived
from orlop.csi.grpc.http2_connection import Http2Connection, RequestReceived
from orlop.csi.transport import LARGEST_MESSAGE, Shape
from support.csi.http2_bytes import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    Answers,
    data,
    frame,
    headers_frame,
    message,
    reset,
    settings,
    window,
)

PATH = "/t.T/Echo"
BEGINS = ((":status", "200"), ("content-type", "application/grpc"))
WELL = (("grpc-status", "0"),)


def greeted() -> Http2Client:
    client = Http2Client()
    client.receive(settings())
    client.to_send()
    return client


def wire(call: int) -> int:
    """The stream of a call, where all before it have had one."""
    return 2 * call - 1


def answer(stream: int, *payloads: bytes, ends: Iterable[tuple[str, str]] = WELL) -> bytes:
    bodies = b"".join(data(stream, message(payload)) for payload in payloads)
    return headers_frame(stream, BEGINS) + bodies + headers_frame(stream, ends, ends=True)


def sent(client: Http2Client) -> list[tuple[int, int, int, object]]:
    return list(Answers().read(client.to_send()))


def timeouts(client: Http2Client) -> list[object]:
    """The timeouts of the calls that are sent now."""
    return [
        fields["grpc-timeout"] for kind, _, _, fields in sent(client) if kind == HEADERS and isinstance(fields, dict)
    ]


def error_of_call(client: Http2Client, received: bytes) -> CsiError:
    """What the only call ends with."""
    ends = [event for event in client.receive(received) if isinstance(event, CallEnded)]
    assert len(ends) == 1
    assert ends[0].error is not None
    return ends[0].error


# ---- with our server's side ------------------------------------------------------------------------------------------


class Pair:
    """Both sides, and what the server makes of calls: an echo."""

    def __init__(self) -> None:
        self.client = Http2Client()
        self.server = Http2Connection(lambda path: Shape.STREAMING if path == PATH else None, 0.0)
        self.answers: dict[int, list[bytes]] = {}
        self.ended: dict[int, CsiError | None] = {}

    def talk(self, piece: int = 1 << 20) -> None:
        """Until neither has anything to say."""
        while True:
            up, down = self.client.to_send(), self.server.to_send()
            if not up and not down:
                return
            for asked in (
                each for start in range(0, len(up), piece) for each in self._serve(up[start : start + piece])
            ):
                self.server.send(asked.stream, asked.message)
                self.server.finish(asked.stream, None)
            for start in range(0, len(down), piece):
                self._hear(down[start : start + piece])

    def _serve(self, data: bytes) -> list[RequestReceived]:
        return [event for event in self.server.receive(data, 0.0) if isinstance(event, RequestReceived)]

    def _hear(self, data: bytes) -> None:
        for event in self.client.receive(data):
            match event:
                case ResponseReceived(call, payload):
                    self.answers.setdefault(call, []).append(payload)
                    self.client.consumed(call, payload)
                case CallEnded(call, error):
                    self.ended[call] = error


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 500))
def test_every_call_has_its_own_answer_in_whatever_pieces_it_comes(payloads: list[bytes], piece: int):
    pair = Pair()
    calls = {pair.client.start_call(PATH, payload, 5.0): payload for payload in payloads}
    pair.talk(piece)

    assert pair.answers == {call: [payload] for call, payload in calls.items()}
    assert pair.ended == dict.fromkeys(calls)
    assert pair.client.is_idle


def test_messages_of_the_largest_size_go_both_ways():
    pair = Pair()
    calls = [pair.client.start_call(PATH, bytes([number]) * LARGEST_MESSAGE, 5.0) for number in range(3)]
    pair.talk()

    assert {call: [len(each) for each in pair.answers[call]] for call in calls} == {
        call: [LARGEST_MESSAGE] for call in calls
    }


def test_an_unknown_path_is_unimplemented():
    pair = Pair()
    call = pair.client.start_call("/t.T/Nothing", b"", 5.0)
    pair.talk()

    assert isinstance(pair.ended[call], Unimplemented)


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_a_connection_begins_as_http2_begins():
    first = Http2Client().to_send()

    assert first.startswith(PREFACE)
    assert next(Answers().read(first[len(PREFACE) :]))[0] == SETTINGS


def test_a_call_says_what_grpc_says():
    client = greeted()
    client.start_call(PATH, b"payload", 15.0)
    (_, _, _, headers), (kind, flags, stream, payload) = sent(client)

    assert headers == {
        ":method": "POST",
        ":scheme": "http",
        ":authority": "localhost",
        ":path": PATH,
        "content-type": "application/grpc",
        "te": "trailers",
        "user-agent": "orlop",
        "grpc-timeout": "15000000u",
    }
    assert (kind, flags, stream, payload) == (DATA, END_STREAM, 1, message(b"payload"))


TIMES = [
    (0.0, b"1u"),
    (0.05, b"50000u"),
    (99.0, b"99000000u"),
    (100.0, b"100000m"),
    (1e6, b"1000000S"),
    (9.2e9, b"2555555H"),
]


@pytest.mark.parametrize(("seconds", "text"), [*TIMES, (1e30, b"99999999H"), (float("inf"), b"99999999H")])
def test_a_time_has_at_most_eight_digits(seconds: float, text: bytes):
    assert timeout_text(seconds) == text


def test_a_request_goes_as_far_as_the_windows_let_it():
    client = greeted()
    client.receive(settings((4, 10)))
    client.start_call(PATH, b"x" * 25, 5.0)

    def data_sent() -> list[tuple[int, int]]:
        return [(flags, len(payload)) for kind, flags, _, payload in sent(client) if kind == DATA]  # type: ignore[arg-type]

    assert data_sent() == [(0, 10)]
    client.receive(window(15, stream=1))
    assert data_sent() == [(0, 15)]
    client.receive(settings((4, 100)))
    assert data_sent() == [(END_STREAM, 5)]


def test_nothing_goes_out_while_the_socket_is_full():
    client = greeted()
    client.pause()
    client.start_call(PATH, b"x", 5.0)
    assert [kind for kind, *_ in sent(client)] == [HEADERS]
    client.resume()
    assert [kind for kind, *_ in sent(client)] == [DATA]


def test_calls_beyond_what_the_server_takes_at_a_time_wait_for_their_turn():
    client = greeted()
    client.receive(settings((3, 2)))
    calls = [client.start_call(PATH, b"", 5.0) for _ in range(4)]
    assert [stream for kind, _, stream, _ in sent(client) if kind == HEADERS] == [1, 3]
    client.cancel(calls[2])
    client.receive(answer(1, b""))
    assert [stream for kind, _, stream, _ in sent(client) if kind == HEADERS] == [5]
    assert client.receive(answer(5, b"x")) == [ResponseReceived(calls[3], b"x"), CallEnded(calls[3], None)]


def test_a_call_that_the_server_refused_to_begin_has_another_turn_when_one_has_ended():
    client = greeted()
    first, second = client.start_call(PATH, b"1", 5.0), client.start_call(PATH, b"2", 5.0)
    client.to_send()
    assert client.receive(reset(3, 7)) == []
    assert sent(client) == []
    assert client.receive(answer(1, b"x")) == [ResponseReceived(first, b"x"), CallEnded(first, None)]
    assert [(stream, payload) for kind, _, stream, payload in sent(client) if kind == DATA] == [(5, message(b"2"))]
    assert client.receive(answer(5, b"y")) == [ResponseReceived(second, b"y"), CallEnded(second, None)]


def test_a_call_that_is_refused_again_and_again_is_unavailable():
    client = greeted()
    call = client.start_call(PATH, b"", 5.0)
    events = [event for stream in range(1, 100, 2) for event in client.receive(reset(stream, 7))]

    assert [(event.call, type(event.error)) for event in events if isinstance(event, CallEnded)] == [
        (call, Unavailable)
    ]


def test_a_call_that_is_cancelled_is_broken_off_and_what_still_comes_of_it_is_passed_over():
    client = greeted()
    call = client.start_call(PATH, b"", 5.0)
    client.to_send()
    client.cancel(call)

    assert [(kind, payload) for kind, _, _, payload in sent(client)] == [(RST, (8).to_bytes(4, "big"))]
    assert client.receive(answer(call, b"late")) == []
    assert client.why_over is None
    assert client.is_idle


def test_a_server_that_wants_no_table_is_told_that_there_is_none():
    client = greeted()
    client.receive(settings((1, 0)))
    client.to_send()
    client.start_call(PATH, b"", 5.0)
    assert client.to_send()[9:10] == b"\x20"
    client.start_call(PATH, b"", 5.0)
    assert client.to_send()[9:10] != b"\x20"


def test_pings_are_answered_and_settings_taken():
    client = greeted()
    client.receive(frame(PING, b"12345678") + frame(PING, b"87654321", flags=ACK) + settings((4, 70_000)))

    assert [(kind, flags, payload) for kind, flags, _, payload in sent(client)] == [
        (PING, ACK, b"12345678"),
        (SETTINGS, ACK, b""),
    ]


def test_a_call_that_waited_for_a_stream_tells_the_server_the_time_that_is_left():
    now = 100.0
    client = Http2Client(lambda: now)
    client.receive(settings((3, 1)))
    client.to_send()
    client.start_call(PATH, b"", 15.0)
    client.start_call(PATH, b"", 15.0)
    assert timeouts(client) == ["15000000u"]
    now = 104.0
    client.receive(answer(1, b"x"))
    assert timeouts(client) == ["11000000u"]


def test_a_call_that_was_refused_tells_the_server_the_time_that_is_left_when_it_comes_again():
    now = 100.0
    client = Http2Client(lambda: now)
    client.receive(settings())
    client.to_send()
    client.start_call(PATH, b"", 15.0)
    assert timeouts(client) == ["15000000u"]
    now = 104.0
    client.receive(reset(1, 7))
    assert timeouts(client) == ["11000000u"]


# ---- how calls end ---------------------------------------------------------------------------------------------------

BAD_ENDS: dict[str, tuple[bytes, type[CsiError], str]] = {
    "an error": (answer(1, ends=(("grpc-status", "5"), ("grpc-message", "no v%C3%BC"))), NotFound, "no vü"),
    "an error and nothing else": (headers_frame(1, (*BEGINS, ("grpc-status", "5")), ends=True), NotFound, "NOT_FOUND"),
    "an error after an answer": (answer(1, b"x", ends=(("grpc-status", "13"),)), Internal, "INTERNAL"),
    "a code that no number can be": (answer(1, ends=(("grpc-status", "9" * 5000),)), Unknown, "UNKNOWN"),
    "a code nobody knows": (answer(1, ends=(("grpc-status", "99"),)), Unknown, "UNKNOWN"),
    "no code": (answer(1, ends=()), Unknown, "without a status"),
    "no trailers": (headers_frame(1, BEGINS) + data(1, message(b""), ends=True), Internal, "without a status"),
    "in the middle of a message": (
        headers_frame(1, BEGINS) + data(1, b"\0\0\0\0\5ab") + headers_frame(1, WELL, ends=True),
        Internal,
        "middle of a message",
    ),
    "HTTP's not found": (headers_frame(1, ((":status", "404"),), ends=True), Unimplemented, "404"),
    "HTTP's unavailable": (headers_frame(1, ((":status", "503"),)), Unavailable, "503"),
    "a web page": (
        headers_frame(1, ((":status", "200"), ("content-type", "text/html"))),
        Unknown,
        "does not speak gRPC",
    ),
    "compressed": (headers_frame(1, (*BEGINS, ("grpc-encoding", "gzip"))), Internal, "compressed"),
    "marked as compressed": (headers_frame(1, BEGINS) + data(1, b"\1\0\0\0\0"), Internal, "compressed"),
    "too long": (
        headers_frame(1, BEGINS) + data(1, message(b"", claims=LARGEST_MESSAGE + 1)),
        ResourceExhausted,
        str(LARGEST_MESSAGE),
    ),
    "data before headers": (data(1, message(b"")), Internal, "without headers"),
    "headers twice": (headers_frame(1, BEGINS) + headers_frame(1, BEGINS), Internal, "in its middle"),
    "cancelled": (reset(1, 8), Cancelled, "reset the call"),
    "calm": (reset(1, 11), ResourceExhausted, "reset the call"),
    "reset": (reset(1, 2), Internal, "reset the call"),
    "reset by a code nobody knows": (reset(1, 77), Internal, "77"),
    "unseen by one who goes": (frame(GOAWAY, bytes(8)), Unavailable, "accepts no new calls"),
}
RETURNED = (
    *("an error", "an error and nothing else", "an error after an answer"),
    *("a code that no number can be", "a code nobody knows"),
)
UNSENT = ("unseen by one who goes",)
"""All others are made by the client, though the driver may have done what it was called for."""


@pytest.mark.parametrize(("received", "kind", "words"), BAD_ENDS.values(), ids=BAD_ENDS.keys())
def test_a_call_that_ends_badly_has_the_error_for_it(received: bytes, kind: type[CsiError], words: str):
    client = greeted()
    client.start_call(PATH, b"", 5.0)
    error = error_of_call(client, received)

    assert type(error) is kind
    assert words in error.message
    assert client.is_idle
    assert client.why_over is None


@pytest.mark.parametrize("end", BAD_ENDS)
def test_only_a_status_of_the_driver_counts_as_returned_by_it(end: str):
    client = greeted()
    client.start_call(PATH, b"", 5.0)
    delivery = Delivery.RETURNED if end in RETURNED else Delivery.UNSENT if end in UNSENT else Delivery.UNANSWERED

    assert error_of_call(client, BAD_ENDS[end][0]).delivery is delivery


def test_a_broken_connection_leaves_open_what_became_of_calls_with_a_stream_alone():
    client = greeted()
    client.receive(settings((3, 1)))
    client.start_call(PATH, b"", 5.0)
    client.start_call(PATH, b"", 5.0)
    errors = [event.error for event in client.end("broken") if isinstance(event, CallEnded)]

    assert [error.delivery for error in errors if error is not None] == [Delivery.UNANSWERED, Delivery.UNSENT]


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_each_code_is_the_error_of_its_name(code: Code):
    client = greeted()
    client.start_call(PATH, b"", 5.0)

    assert error_of_call(client, answer(1, ends=(("grpc-status", str(int(code))),))).code is code


def test_headers_that_only_announce_others_are_passed_over():
    client = greeted()
    client.start_call(PATH, b"", 5.0)

    assert client.receive(headers_frame(1, ((":status", "103"),)) + answer(1, b"x")) == [
        ResponseReceived(1, b"x"),
        CallEnded(1, None),
    ]


def test_a_server_that_goes_answers_what_it_has_seen_and_nothing_else():
    client = greeted()
    calls = [client.start_call(PATH, b"", 5.0) for _ in range(3)]
    events = client.receive(frame(GOAWAY, wire(calls[1]).to_bytes(4, "big") + bytes(4)))

    assert [event.call for event in events] == [calls[2]]
    assert client.is_leaving
    assert client.receive(answer(wire(calls[0]), b"x")) == [ResponseReceived(calls[0], b"x"), CallEnded(calls[0], None)]
    assert not client.is_idle


def test_a_server_that_ended_a_call_before_it_read_all_is_sent_no_more_of_it():
    client = greeted()
    client.start_call(PATH, b"x" * 100_000, 5.0)
    client.to_send()
    assert error_of_call(client, answer(1, ends=(("grpc-status", "8"),))).code is Code.RESOURCE_EXHAUSTED
    assert [kind for kind, *_ in sent(client)] == [RST]
    client.receive(window(1 << 20))
    assert sent(client) == []


def test_a_connection_that_is_gone_ends_all_calls_also_those_that_waited():
    client = greeted()
    client.receive(settings((3, 1)))
    calls = [client.start_call(PATH, b"", 5.0) for _ in range(2)]
    ended = client.end("it broke")

    assert [(event.call, type(event.error)) for event in ended if isinstance(event, CallEnded)] == [
        (call, Unavailable) for call in calls
    ]


# ---- windows of ours -------------------------------------------------------------------------------------------------


def test_a_stream_of_answers_is_allowed_more_as_they_are_taken_and_not_before():
    client = greeted()
    call = client.start_call(PATH, b"", 5.0)
    client.receive(headers_frame(call, BEGINS))
    client.to_send()
    payload = message(bytes(16_000))
    for _ in range(STREAM_WINDOW // 2 // len(payload) + 1):
        client.receive(data(call, payload))
    assert [stream for kind, _, stream, _ in sent(client) if kind == WINDOW] == []
    for _ in range(STREAM_WINDOW // 2 // len(payload) + 1):
        client.consumed(call, bytes(16_000))
    assert [stream for kind, _, stream, _ in sent(client) if kind == WINDOW] == [call]


def test_the_connection_is_allowed_more_before_its_window_is_used_up():
    client = greeted()
    calls = [client.start_call(PATH, b"", 5.0) for _ in range(4)]
    client.to_send()
    received = 0
    for call in calls:
        client.receive(headers_frame(wire(call), BEGINS))
        for _ in range(LARGEST_MESSAGE // 16_384):
            client.receive(data(wire(call), message(bytes(16_379))))
            received += 16_384

    grown = [payload for kind, _, stream, payload in sent(client) if kind == WINDOW and not stream]
    assert received <= CONNECTION_WINDOW
    assert grown


# ---- what no server sends --------------------------------------------------------------------------------------------

BREACHES = {
    "no HTTP/2": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no settings first": frame(PING, b"12345678"),
    "a call that was never made": settings() + answer(3),
    "a call of its own": settings() + headers_frame(2, BEGINS),
    "a promise": settings() + frame(PUSH, bytes(4), stream=1),
    "a frame too long": settings() + frame(DATA, b"", stream=1, claims=1 << 20),
    "a window too large": settings() + window((1 << 31) - 1),
    "a call's window too large": settings() + window((1 << 31) - 1, stream=1),
    "headers that cannot be read": settings() + frame(HEADERS, b"\xff\xff\xff\xff\xff", stream=1, flags=0x4),
}


@pytest.mark.parametrize("received", BREACHES.values(), ids=BREACHES.keys())
def test_who_breaks_the_protocol_is_told_so_and_not_heard_again(received: bytes):
    client = Http2Client()
    client.start_call(PATH, b"", 5.0)
    client.to_send()
    client.receive(received)

    assert client.why_over
    assert [kind for kind, *_ in sent(client)][-1] == GOAWAY
    assert client.receive(answer(1, b"x")) == []


@given(st.binary(max_size=400), st.sampled_from([b"", settings(), settings() + headers_frame(1, BEGINS)]))
def test_any_bytes_end_the_connection_or_mean_something_and_nothing_else(received: bytes, before: bytes):
    client = Http2Client()
    client.start_call(PATH, b"payload", 5.0)
    for piece in (before, received, answer(1, b"x")):
        client.receive(piece)
        client.to_send()
