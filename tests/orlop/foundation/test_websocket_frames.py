"""Frames of WebSocket: what clients send in any pieces, what they must not send, and what they are sent."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.websocket_frames import (
    Close,
    Opcode,
    Piece,
    Ping,
    Pong,
    WebSocketFrameReader,
    WebSocketProtocolError,
    accept_for,
    close_frame,
    header,
    pong_frame,
)
from support.kubelet.websocket_clients import ACCEPT, CLOSE, CONTINUATION, KEY, PING, PONG, TEXT, frame


def messages_of(events: list) -> list[bytes]:
    messages: list[bytes] = []
    for event in events:
        if isinstance(event, Piece):
            if event.begins:
                messages.append(b"")
            messages[-1] += event.data
    return messages


fragments = st.lists(st.binary(max_size=300), min_size=1, max_size=4)


@given(messages=st.lists(fragments, max_size=5), pings=st.binary(max_size=125), cuts=st.sets(st.integers(0, 3000)))
def test_messages_are_the_same_however_they_are_fragmented_and_cut(
    messages: list[list[bytes]], pings: bytes, cuts: set[int]
):
    stream = b""
    for parts in messages:
        for place, part in enumerate(parts):
            last = place == len(parts) - 1
            stream += frame(part, CONTINUATION if place else 2, fin=last, mask=bytes([place, 2, 3, 4]))
            stream += frame(pings, PING)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    reader = WebSocketFrameReader()
    events = [event for start, end in pairwise(places) for event in reader.feed(stream[start:end])]

    assert messages_of(events) == [b"".join(parts) for parts in messages]
    assert [event.data for event in events if isinstance(event, Ping)] == [pings] * sum(map(len, messages))
    assert sum(event.ends for event in events if isinstance(event, Piece)) == len(messages)


@given(st.binary(max_size=200))
def test_nonsense_is_an_event_or_a_broken_protocol(data: bytes):
    with suppress(WebSocketProtocolError):
        WebSocketFrameReader().feed(data)


def test_a_length_that_is_claimed_is_not_waited_for_nor_reserved():
    reader = WebSocketFrameReader()
    events = reader.feed(frame(b"abc", claims=2**62))

    assert events == [Piece(b"abc", begins=True, ends=False)]
    assert reader.feed(b"") == []


BROKEN = {
    "unmasked": (frame(b"x", mask=None), 1002),
    "text": (frame(b"x", TEXT), 1003),
    "an opcode nobody knows": (frame(b"x", 3), 1002),
    "a control opcode nobody knows": (frame(b"x", 11), 1002),
    "an extension": (frame(b"x", first=0x40), 1002),
    "a ping that is too long": (frame(b"x" * 126, PING), 1002),
    "a ping in fragments": (frame(b"x", PING, fin=False), 1002),
    "a close of one byte": (frame(b"x", CLOSE), 1002),
    "a continuation of nothing": (frame(b"x", CONTINUATION), 1002),
    "a message inside of another": (frame(b"x", fin=False) + frame(b"y"), 1002),
    "a length of 64 bits": (frame(b"", claims=2**63), 1002),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_the_protocol_is_told_with_its_code(what: str):
    data, code = BROKEN[what]
    with pytest.raises(WebSocketProtocolError) as caught:
        WebSocketFrameReader().feed(data)

    assert caught.value.code == code


def test_nothing_is_heard_after_a_close():
    reader = WebSocketFrameReader()

    assert reader.feed(frame(b"\x03\xe8bye", CLOSE) + frame(b"late")) == [Close(1000)]
    assert reader.feed(frame(b"later")) == []
    assert WebSocketFrameReader().feed(frame(b"", CLOSE)) == [Close(1005)]


def test_pongs_are_told():
    assert WebSocketFrameReader().feed(frame(b"p", PONG)) == [Pong(b"p")]


@pytest.mark.parametrize(("length", "size"), [(0, 2), (125, 2), (126, 4), (65535, 4), (65536, 10)])
def test_a_header_is_as_short_as_its_length_allows(length: int, size: int):
    assert len(header(Opcode.BINARY, length)) == size


def test_a_reason_is_cut_where_a_control_frame_ends_and_stays_text():
    sent = close_frame(1002, "ü" * 100)

    assert sent[:4] == b"\x88\x7c\x03\xea"
    assert sent[4:].decode() == "ü" * 61
    assert pong_frame(b"a") == b"\x8a\x01a"


def test_a_key_is_accepted_as_the_standard_says():
    assert accept_for(KEY) == ACCEPT
    assert [accept_for(key) for key in ("", "x", "eA==", "ü")] == [None] * 4
