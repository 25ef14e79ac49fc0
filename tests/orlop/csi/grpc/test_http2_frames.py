"""Frames of HTTP/2: what comes in any pieces, what must not come, and what is held meanwhile."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.grpc.http2_frames import (
    LONGEST_BLOCK,
    Data,
    ErrorCode,
    FrameEvent,
    GoAway,
    Headers,
    Http2FrameReader,
    Http2ProtocolError,
    Ignored,
    Ping,
    Reset,
    SettingsAck,
    SettingsFrame,
    WindowUpdate,
)
from support.csi.http2_bytes import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GREETING,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    WITH_PRIORITY,
    frame,
    padded,
    settings,
    window,
)


def read(*pieces: bytes) -> list[FrameEvent]:
    reader = Http2FrameReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def read_until_broken(*pieces: bytes) -> list[FrameEvent | ErrorCode]:
    reader = Http2FrameReader()
    events: list[FrameEvent | ErrorCode] = []
    try:
        for piece in pieces:
            events.extend(reader.feed(piece))
    except Http2ProtocolError as broken:
        return [*events, broken.code]
    return events


def test_every_frame_is_told_as_it_is():
    events = read(
        GREETING,
        frame(HEADERS, b"block", stream=1, flags=END_HEADERS),
        frame(HEADERS, padded(b"12345block", 7), stream=3, flags=END_HEADERS | PADDED | WITH_PRIORITY | END_STREAM),
        frame(HEADERS, b"one", stream=5, flags=END_STREAM),
        frame(CONTINUATION, b"two", stream=5),
        frame(CONTINUATION, b"three", stream=5, flags=END_HEADERS),
        frame(DATA, b"data", stream=1),
        frame(DATA, padded(b"data", 3), stream=1, flags=PADDED | END_STREAM),
        settings((4, 1 << 20), (99, 7)),
        frame(SETTINGS, flags=ACK),
        window(5),
        frame(WINDOW, b"\x80\x00\x00\x05", stream=1),
        frame(PING, b"12345678"),
        frame(PING, b"12345678", flags=ACK),
        frame(RST, b"\0\0\0\x08", stream=1),
        frame(GOAWAY, b"\0\0\0\x07\0\0\0\x02words"),
        frame(PRIORITY, b"12345", stream=1),
        frame(0xFA, b"news", stream=9),
    )

    assert events == [
        SettingsFrame({}),
        Headers(1, b"block", False),
        Headers(3, b"block", True),
        Headers(5, b"onetwothree", True),
        Data(1, b"data", 4, False),
        Data(1, b"data", 8, True),
        SettingsFrame({4: 1 << 20, 99: 7}),
        SettingsAck(),
        WindowUpdate(0, 5),
        WindowUpdate(1, 5),
        Ping(b"12345678", False),
        Ping(b"12345678", True),
        Reset(1, 8),
        GoAway(2, 7),
        Ignored(PRIORITY),
        Ignored(0xFA),
    ]


kinds = st.integers(0, 11)
frames = st.builds(
    frame, kinds, st.binary(max_size=40), stream=st.sampled_from([0, 1, 2, 3]), flags=st.integers(0, 255)
)


@given(stream=st.lists(frames, max_size=8).map(b"".join), cuts=st.sets(st.integers(0, 400)))
def test_the_same_bytes_say_the_same_in_any_pieces(stream: bytes, cuts: set[int]):
    stream = GREETING + stream
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(places)]

    assert read_until_broken(*pieces) == read_until_broken(stream)


@given(st.binary(max_size=300), st.sampled_from([b"", PREFACE, GREETING]))
def test_nonsense_is_an_event_or_a_broken_protocol(nonsense: bytes, before: bytes):
    with suppress(Http2ProtocolError):
        read(before + nonsense)


PROTOCOL, SIZE, FLOW, CALM = (
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.FRAME_SIZE_ERROR,
    ErrorCode.FLOW_CONTROL_ERROR,
    ErrorCode.ENHANCE_YOUR_CALM,
)
BROKEN = {
    "HTTP/1.1": (b"GET / HTTP/1.1\r\n", PROTOCOL),
    "its first byte": (b"G", PROTOCOL),
    "something else than settings at first": (PREFACE + frame(PING, bytes(8)), PROTOCOL),
    "an acknowledgement at first": (PREFACE + frame(SETTINGS, flags=ACK), PROTOCOL),
    "a frame that is too long, before it comes": (GREETING + frame(DATA, stream=1, claims=16_385), SIZE),
    "data of no stream": (GREETING + frame(DATA, b"x"), PROTOCOL),
    "headers of no stream": (GREETING + frame(HEADERS, b"x", flags=END_HEADERS), PROTOCOL),
    "padding without a length": (GREETING + frame(DATA, stream=1, flags=PADDED), SIZE),
    "more padding than data": (GREETING + frame(DATA, b"\x02x", stream=1, flags=PADDED), PROTOCOL),
    "more padding than headers": (GREETING + frame(HEADERS, b"\x02x", stream=1, flags=PADDED), PROTOCOL),
    "headers shorter than their priority": (GREETING + frame(HEADERS, b"x", stream=1, flags=WITH_PRIORITY), SIZE),
    "a priority of no stream": (GREETING + frame(PRIORITY, b"12345"), PROTOCOL),
    "a priority of four bytes": (GREETING + frame(PRIORITY, b"1234", stream=1), SIZE),
    "a reset of no stream": (GREETING + frame(RST, bytes(4)), PROTOCOL),
    "a reset of three bytes": (GREETING + frame(RST, bytes(3), stream=1), SIZE),
    "settings of a stream": (GREETING + frame(SETTINGS, stream=1), PROTOCOL),
    "settings of seven bytes": (GREETING + frame(SETTINGS, bytes(7)), SIZE),
    "an acknowledgement that says something": (GREETING + frame(SETTINGS, bytes(6), flags=ACK), SIZE),
    "pushing, perhaps": (GREETING + settings((2, 2)), PROTOCOL),
    "a window beyond the largest": (GREETING + settings((4, 1 << 31)), FLOW),
    "frames that are too small": (GREETING + settings((5, 16_383)), PROTOCOL),
    "frames that are too large": (GREETING + settings((5, 1 << 24)), PROTOCOL),
    "a promise": (GREETING + frame(PUSH, bytes(4), stream=1, flags=END_HEADERS), PROTOCOL),
    "a ping of a stream": (GREETING + frame(PING, bytes(8), stream=1), PROTOCOL),
    "a ping of seven bytes": (GREETING + frame(PING, bytes(7)), SIZE),
    "a farewell of a stream": (GREETING + frame(GOAWAY, bytes(8), stream=1), PROTOCOL),
    "a farewell of seven bytes": (GREETING + frame(GOAWAY, bytes(7)), SIZE),
    "a window update of three bytes": (GREETING + frame(WINDOW, bytes(3)), SIZE),
    "a window update of nothing": (GREETING + window(0), PROTOCOL),
    "a continuation of nothing": (GREETING + frame(CONTINUATION, b"x", stream=1), PROTOCOL),
    "a continuation of another stream": (
        GREETING + frame(HEADERS, b"x", stream=1) + frame(CONTINUATION, b"x", stream=3),
        PROTOCOL,
    ),
    "something between headers and their rest": (
        GREETING + frame(HEADERS, b"x", stream=1) + frame(PING, bytes(8)),
        PROTOCOL,
    ),
    "headers between headers and their rest": (
        GREETING + frame(HEADERS, b"x", stream=1) + frame(HEADERS, b"x", stream=1, flags=END_HEADERS),
        PROTOCOL,
    ),
    "headers without end": (
        GREETING + frame(HEADERS, bytes(LONGEST_BLOCK), stream=1) + frame(CONTINUATION, b"x", stream=1),
        CALM,
    ),
    "empty continuations without end": (
        GREETING + frame(HEADERS, stream=1) + frame(CONTINUATION, stream=1) * 9,
        CALM,
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_the_protocol_is_told_with_its_code(what: str):
    stream, code = BROKEN[what]

    assert read_until_broken(stream)[-1] is code


@given(st.integers(1, 16_384), st.binary(max_size=100))
def test_no_more_is_held_than_has_come(claimed: int, arrived: bytes):
    reader = Http2FrameReader()
    begun = frame(DATA, arrived[: claimed - 1], stream=1, claims=claimed)
    assert list(reader.feed(GREETING + begun)) == [SettingsFrame({})]

    assert len(reader._unread) == len(begun)
