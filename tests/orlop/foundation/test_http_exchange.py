"""Heads and bodies of HTTP over streams: both ends agree, and what is no HTTP is refused."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.http_exchange import (
    LAST_CHUNK,
    LONGEST_HEAD,
    AnswerHead,
    NotHttp,
    RequestHead,
    answer_bytes,
    body_pieces,
    chunk,
    read_answer,
    read_request,
    request_bytes,
)


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LONGEST_HEAD)
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def body(head: AnswerHead, data: bytes) -> bytes:
    return b"".join([piece async for piece in body_pieces(head, fed(data))])


async def test_heads_are_read_as_they_were_written():
    request = RequestHead("GET", "/a?b=c", {"host": "x", "upgrade": "websocket"})
    answer = AnswerHead(404, {"content-length": "3"})

    assert await read_request(fed(request_bytes(request))) == request
    assert await read_answer(fed(answer_bytes(answer))) == answer
    assert answer_bytes(AnswerHead(599, {})).startswith(b"HTTP/1.1 599 \r\n")


async def test_a_header_that_comes_twice_is_one_with_both_values():
    head = await read_request(fed(b"GET / HTTP/1.1\r\nA: 1\r\na: 2\r\n\r\n"))

    assert head is not None
    assert head.headers == {"a": "1, 2"}


async def test_nobody_who_says_nothing_has_asked():
    assert await read_request(fed(b"")) is None


@pytest.mark.parametrize(
    "data",
    [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nA", b"GET x HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n",
     b"GET / HTTP/1.1\r\nA : x\r\n\r\n", b"GET /" + b"x" * LONGEST_HEAD],
)  # fmt: skip
async def test_what_is_no_request_is_refused(data: bytes):
    with pytest.raises(NotHttp):
        await read_request(fed(data))


@pytest.mark.parametrize("data", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 x\r\n\r\n"])
async def test_what_is_no_answer_is_refused(data: bytes):
    with pytest.raises(NotHttp):
        await read_answer(fed(data))


@given(pieces=st.lists(st.binary(min_size=1, max_size=300), max_size=6))
def test_chunks_come_out_as_they_went_in(pieces: list[bytes]):
    sent = b"".join(map(chunk, pieces)) + LAST_CHUNK

    assert asyncio.run(body(AnswerHead(200, {"transfer-encoding": "chunked"}), sent)) == b"".join(pieces)


async def test_a_body_has_its_length_or_goes_on_to_the_end():
    assert await body(AnswerHead(200, {"content-length": "3"}), b"abcdef") == b"abc"
    assert await body(AnswerHead(200, {}), b"abcdef") == b"abcdef"


@pytest.mark.parametrize(
    ("headers", "data"),
    [
        ({"content-length": "5"}, b"abc"),
        ({"content-length": "x"}, b"abc"),
        ({"content-length": "-1"}, b"abc"),
        ({"transfer-encoding": "chunked"}, b"3\r\nab"),
        ({"transfer-encoding": "chunked"}, b"3\r\nabc\r\n"),
        ({"transfer-encoding": "chunked"}, b"zz\r\nabc\r\n"),
        ({"transfer-encoding": "chunked"}, b"-3\r\nabc\r\n"),
    ],
)
async def test_a_body_that_breaks_off_is_not_taken_for_the_whole(headers: dict[str, str], data: bytes):
    with pytest.raises(NotHttp):
        await body(AnswerHead(200, headers), data)


def test_a_head_cannot_be_made_to_hold_another():
    with pytest.raises(ValueError, match="end of a line"):
        request_bytes(RequestHead("GET", "/x\r\nevil: y", {}))
