"""What a connection makes of what clients may send, and of what they must not, with every code."""

from __future__ import annotations

from itertools import pairwise
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import Code, NotFound
from orlop.csi.grpc.header_blocks import HeaderReader
from orlop.csi.grpc.http2_connection import CallOpened, Http2Connection, RequestReceived
from orlop.csi.grpc.http2_frames import ErrorCode, Http2ProtocolError
from orlop.csi.transport import LARGEST_MESSAGE, Shape
from support.csi.http2_bytes import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GREETING,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    RST,
    data,
    frame,
    headers_frame,
    message,
    padded,
    request,
    request_headers,
    reset,
    settings,
    window,
)
from support.csi.http2_talk import CALL, STREAM, Talk, opened, shape_of

# ---- calls -----------------------------------------------------------------------------------------------------------


def test_a_call_comes_out_as_its_path_its_message_and_its_time():
    talk = Talk()
    events = talk.say(request(1, CALL, b"hello", grpc_timeout="1500m"))

    assert events == [CallOpened(1, 1.5), RequestReceived(1, CALL, Shape.UNARY, b"hello")]


def test_an_answer_goes_out_as_headers_a_message_and_trailers():
    talk = Talk()
    talk.say(request(1, CALL))
    talk.connection.send(1, b"fine")
    talk.connection.finish(1)

    assert talk.heard() == [
        (HEADERS, END_HEADERS, 1, {":status": "200", "content-type": "application/grpc"}),
        (DATA, 0, 1, message(b"fine")),
        (HEADERS, END_HEADERS | END_STREAM, 1, {"grpc-status": "0"}),
    ]
    assert talk.connection.is_idle


def test_an_error_goes_out_in_one_frame_with_its_sentence_encoded():
    talk = Talk()
    talk.say(request(1, CALL))
    talk.connection.finish(1, NotFound("100 % of ü is\ngone"))

    [(kind, flags, stream, headers)] = talk.heard()
    assert (kind, flags, stream) == (HEADERS, END_HEADERS | END_STREAM, 1)
    assert headers == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "5",
        "grpc-message": "100 %25 of %C3%BC is%0Agone",
    }


@pytest.mark.parametrize("sentence", ["ü" * 10_000, "a" * 10_000, "ab" + "ü" * 10_000, "\ud800" * 9000])
def test_a_sentence_is_cut_where_clients_take_no_more(sentence: str):
    talk = Talk()
    talk.say(request(1, CALL))
    talk.connection.finish(1, NotFound(sentence))

    [(_, _, _, headers)] = talk.heard()
    assert 2000 < len(headers["grpc-message"]) <= 7168
    assert sentence.encode(errors="replace").decode().startswith(unquote(headers["grpc-message"], errors="strict"))


TIMEOUTS = {"1H": 3600, "2M": 120, "99999999S": 99999999, "5m": 0.005, "7u": 7e-6, "9n": 9e-9, "0S": 0}


@pytest.mark.parametrize("text", TIMEOUTS)
def test_a_time_is_read_in_each_of_its_units(text: str):
    [opened, _] = Talk().say(request(1, CALL, grpc_timeout=text))
    assert isinstance(opened, CallOpened)
    assert opened.within == pytest.approx(TIMEOUTS[text])


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
def test_each_spelling_of_the_type_is_taken(kind: str):
    assert len(Talk().say(request(1, CALL, content_type=kind))) == 2


cuts = st.sets(st.integers(0, 600), max_size=8)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), cuts, st.integers(0, 5))
def test_calls_are_the_same_however_they_are_cut(messages: list[bytes], places: set[int], padding: int):
    sent, numbers = GREETING, range(1, 99, 2)
    for number, each in zip(numbers, messages, strict=False):
        flags = END_STREAM | PADDED
        sent += headers_frame(number, request_headers(CALL))
        sent += frame(DATA, padded(message(each), padding), stream=number, flags=flags)
    bounds = [0, *sorted(place for place in places if place < len(sent)), len(sent)]
    connection = Http2Connection(shape_of, 0.0)
    events = [e for start, end in pairwise(bounds) for e in connection.receive(sent[start:end], 0.0)]

    asked = [event for event in events if isinstance(event, RequestReceived)]
    assert [(a.stream, a.message) for a in asked] == list(zip(numbers, messages, strict=False))


parts = st.one_of(
    st.builds(frame, st.integers(0, 10), st.binary(max_size=30), stream=st.integers(0, 5), flags=st.integers(0, 47)),
    st.builds(request, st.sampled_from([1, 3, 5]), st.sampled_from([CALL, STREAM, "/x"]), st.binary(max_size=9)),
    st.builds(headers_frame, st.sampled_from([1, 3, 5]), st.just(request_headers(CALL))),
    st.builds(data, st.sampled_from([1, 3, 5]), st.binary(max_size=9), ends=st.booleans()),
    st.builds(window, st.integers(1, 2**31 - 1), st.sampled_from([0, 1, 3])),
    st.builds(settings, st.tuples(st.integers(1, 6), st.integers(0, 2**32 - 1))),
    st.builds(reset, st.sampled_from([1, 3, 5])),
)


@given(st.lists(parts, max_size=12))
def test_whatever_comes_ends_in_events_or_in_one_farewell(pieces: list[bytes]):
    talk = Talk()
    opened: set[int] = set()
    for piece in pieces:
        for event in talk.say(piece):
            if isinstance(event, CallOpened):
                opened.add(event.stream)
            assert event.stream in opened
            if isinstance(event, RequestReceived):
                talk.connection.send(event.stream, b"x" * 100)
                talk.connection.finish(event.stream)
    farewells = [kind for kind, *_ in talk.heard() if kind == GOAWAY]

    assert len(farewells) == talk.is_over
    assert talk.connection._sending.unsent >= 0


@given(st.binary(max_size=60))
def test_headers_of_any_bytes_are_read_or_end_the_connection(block: bytes):
    talk = Talk()
    talk.say(frame(HEADERS, block, stream=1, flags=END_HEADERS | END_STREAM))

    assert talk.code()[0] in {"connection", "stream", "nothing"}


def test_headers_that_repeat_themselves_are_read_from_the_table():
    talk, encoder = Talk(), hpack.Encoder()
    for number in range(1, 41, 2):
        block = encoder.encode(request_headers(CALL, ("grpc-timeout", f"{number}S")))
        talk.say(frame(HEADERS, block, stream=number, flags=END_HEADERS))
        talk.say(data(number, message(b"x"), ends=True))

    assert [e.within for e in talk.events if isinstance(e, CallOpened)] == list(range(1, 41, 2))
    assert [e.stream for e in talk.events if isinstance(e, RequestReceived)] == list(range(1, 41, 2))


# ---- calls that are refused ------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[bytes, Code, str]] = {
    "a path nobody serves": (request(1, "/x.Y/Z"), Code.UNIMPLEMENTED, "/x.Y/Z is not served here"),
    "gzip": (request(1, CALL, grpc_encoding="gzip"), Code.UNIMPLEMENTED, "decompressed"),
    "a time that is none": (request(1, CALL, grpc_timeout="soon"), Code.INTERNAL, "grpc-timeout"),
    "a time of nine digits": (request(1, CALL, grpc_timeout="123456789S"), Code.INTERNAL, "grpc-timeout"),
    "another method": (request(1, CALL, method="GET"), Code.INTERNAL, "POST"),
    "another type": (request(1, CALL, content_type="application/json"), Code.INVALID_ARGUMENT, "application/grpc"),
    "a type that only begins so": (request(1, CALL, content_type="application/grpcx"), Code.INVALID_ARGUMENT, "grpc"),
    "no message": (headers_frame(1, request_headers(CALL), ends=True), Code.INTERNAL, "complete"),
    "half a message": (
        headers_frame(1, request_headers(CALL)) + data(1, message(b"x", claims=2), ends=True),
        Code.INTERNAL,
        "complete",
    ),
    "two messages": (
        headers_frame(1, request_headers(CALL)) + data(1, message(b"x") * 2, ends=True),
        Code.INTERNAL,
        "more than one",
    ),
    "a message that is marked as compressed": (
        headers_frame(1, request_headers(CALL)) + data(1, message(b"x", flag=1), ends=True),
        Code.INTERNAL,
        "compressed",
    ),
    "a message that is too large, before it comes": (
        headers_frame(1, request_headers(CALL)) + data(1, message(b"", claims=LARGEST_MESSAGE + 1)),
        Code.RESOURCE_EXHAUSTED,
        f"at most {LARGEST_MESSAGE}",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_call_that_is_refused_is_told_why_and_the_connection_goes_on(what: str):
    sent, code, sentence = REFUSED[what]
    talk = Talk()
    talk.say(sent)
    told, words = talk.status()

    assert told is code
    assert sentence in words
    assert talk.connection.is_idle
    assert not [event for event in talk.events if isinstance(event, RequestReceived)]
    talk.say(request(3, CALL))
    assert talk.events[-1] == RequestReceived(3, CALL, Shape.UNARY, b"")


def test_who_compresses_is_told_what_is_taken():
    talk = Talk()
    talk.say(request(1, CALL, grpc_encoding="gzip"))

    assert talk.heard()[0][3]["grpc-accept-encoding"] == "identity"


@pytest.mark.parametrize(("changed", "status"), [({"method": "GET"}, "405"), ({"content_type": "text/html"}, "415")])
def test_what_is_no_call_has_a_status_of_http(changed: dict[str, str], status: str):
    talk = Talk()
    talk.say(request(1, CALL, **changed))

    assert talk.heard()[0][3][":status"] == status


def test_the_rest_of_a_call_that_was_refused_is_passed_over():
    talk = Talk()
    talk.say(headers_frame(1, request_headers("/x.Y/Z")))
    heard = talk.heard()
    assert [(kind, stream) for kind, _, stream, _ in heard] == [(HEADERS, 1), (RST, 1)]
    assert heard[1][3] == bytes(4)  # NO_ERROR: the answer counts
    talk.say(data(1, message(b"late")), window(9, 1), reset(1), headers_frame(1, [("x", "y")], ends=True))

    assert talk.code() == ("nothing", 0)


# ---- what breaks the protocol ----------------------------------------------------------------------------------------


def without(*names: str) -> bytes:
    return headers_frame(1, [pair for pair in request_headers(CALL) if pair[0] not in names], ends=True)


def with_field(name: str, value: str = "x") -> bytes:
    return headers_frame(1, request_headers(CALL, (name, value)), ends=True)


TABLE = hpack.Encoder().encode([("x", "y" * 4000)])
P, F, C, X, M, Q, S, R = (
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.FLOW_CONTROL_ERROR,
    ErrorCode.STREAM_CLOSED,
    ErrorCode.COMPRESSION_ERROR,
    ErrorCode.ENHANCE_YOUR_CALM,
    ErrorCode.FRAME_SIZE_ERROR,
    ErrorCode.NO_ERROR,
    ErrorCode.REFUSED_STREAM,
)
ENDS_CONNECTION: dict[str, tuple[bytes, ErrorCode]] = {
    "a frame that is too long": (frame(DATA, stream=1, claims=1 << 20), Q),
    "an even stream": (request(2, CALL), P),
    "data before headers": (data(1, b"x"), P),
    "a window of a stream that is not yet": (window(1, 1), P),
    "a reset of a stream that is not yet": (reset(1), P),
    "a window of a stream of ours": (request(3, CALL) + window(1, 2), P),
    "a stream behind the last one": (opened(3) + opened(1), C),
    "a call again after it ended": (request(1, CALL) + reset(1) + request(1, CALL), C),
    "data after a reset": (opened() + reset(1) + data(1, b"x"), C),
    "headers that are none": (frame(HEADERS, b"\xff\xff\xff\xff\xff\xff", stream=1, flags=END_HEADERS), X),
    "an entry that is not in the table": (frame(HEADERS, b"\xbe", stream=1, flags=END_HEADERS), X),
    "a table that is too large": (frame(HEADERS, b"\x3f\xe2\x1f", stream=1, flags=END_HEADERS), X),
    "a table that changes within headers": (frame(HEADERS, b"\x83\x20", stream=1, flags=END_HEADERS), X),
    "few bytes that say much": (frame(HEADERS, TABLE + b"\xbe" * 5, stream=1, flags=END_HEADERS), M),
    "one byte for all of it": (
        frame(HEADERS, TABLE, stream=1, flags=END_HEADERS) + frame(HEADERS, b"\xbe" * 5, stream=3, flags=END_HEADERS),
        M,
    ),
    "a window of the connection beyond the largest": (window((1 << 31) - 1), F),
    "windows of streams beyond the largest, by settings": (opened() + window(1 << 30, 1) + settings((4, 1 << 30)), F),
    "pings without end": (frame(PING, bytes(8)) * 1001, M),
    "settings without end": (settings() * 1001, M),
    "window updates without end": (window(1) * 1001, M),
    "priorities without end": (frame(PRIORITY, bytes(5), stream=1) * 1001, M),
    "frames of no known kind without end": (frame(99) * 1001, M),
    "data without data": (opened() + data(1, b"") * 1001, M),
    "a continuation flood": (frame(HEADERS, stream=1) + frame(CONTINUATION, stream=1) * 20, M),
}


@pytest.mark.parametrize("what", ENDS_CONNECTION)
def test_what_breaks_the_connection_ends_it_with_its_code(what: str):
    sent, code = ENDS_CONNECTION[what]
    talk = Talk()
    talk.say(sent)
    farewells = [payload for kind, _, _, payload in talk.heard() if kind == GOAWAY]

    assert talk.is_over
    assert [int.from_bytes(payload[4:8], "big") for payload in farewells] == [code]
    assert talk.say(request(99, CALL)) == []


ENDS_STREAM: dict[str, tuple[bytes, ErrorCode]] = {
    "no path": (without(":path"), P),
    "no method": (without(":method"), P),
    "no scheme": (without(":scheme"), P),
    "an empty path": (headers_frame(1, request_headers(""), ends=True), P),
    "two paths": (headers_frame(1, [(":path", "/x"), *request_headers(CALL)], ends=True), P),
    "a path behind the others": (headers_frame(1, [("te", "trailers"), *request_headers(CALL)], ends=True), P),
    "a colon nobody knows": (headers_frame(1, [(":status", "200"), *request_headers(CALL)], ends=True), P),
    "capitals": (with_field("X-Large"), P),
    "a header without a name": (with_field(""), P),
    "a line break": (with_field("x", "a\r\nb"), P),
    "a zero": (with_field("x", "a\0b"), P),
    "a header of connections": (with_field("connection", "close"), P),
    "other trailers": (headers_frame(1, request_headers(CALL, te="gzip"), ends=True), P),
    "headers in the middle": (opened() + headers_frame(1, [("x", "y")]), P),
    "headers after the end": (request(1, CALL) + headers_frame(1, [("x", "y")], ends=True), C),
    "data after the end": (request(1, CALL) + data(1, b"x"), C),
    "more than the message said": (
        opened() + data(1, message(bytes(16_000), claims=100_000)) + data(1, bytes(16_384)) * 6,
        F,
    ),
    "a window beyond the largest": (opened() + window((1 << 31) - 1, 1), F),
}


@pytest.mark.parametrize("what", ENDS_STREAM)
def test_what_breaks_a_stream_resets_it_with_its_code_and_no_other(what: str):
    sent, code = ENDS_STREAM[what]
    talk = Talk()
    talk.say(sent)

    assert talk.code() == ("stream", code)
    assert talk.connection.is_idle
    assert len(talk.say(request(3, CALL))) == 2


names = st.sampled_from(["grpc-timeout", "x", "user-agent", ":path", "te"])
values = st.one_of(st.sampled_from(["", "1S", "trailers"]), st.text("abc09%ü", max_size=200))


@given(st.lists(st.lists(st.tuples(names, values, st.booleans()), max_size=8), max_size=6), st.integers(0, 1))
def test_headers_are_read_as_the_library_reads_them(blocks: list[list[tuple[str, str, bool]]], huffman: int):
    encoder, theirs, ours = hpack.Encoder(), hpack.Decoder(), HeaderReader()
    for headers in blocks:
        block = encoder.encode(headers, huffman=bool(huffman))
        assert list(ours.read(block)) == [tuple(field) for field in theirs.decode(block, raw=True)]

    assert ours._decoder.header_table.dynamic_entries == theirs.header_table.dynamic_entries


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_blocks_of_any_bytes_are_read_as_the_library_reads_them(blocks: list[bytes]):
    theirs, ours = hpack.Decoder(), HeaderReader()
    for block in blocks:
        try:
            expected = [tuple(field) for field in theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            with pytest.raises(Http2ProtocolError):
                ours.read(block)
            return
        assert list(ours.read(block)) == expected
