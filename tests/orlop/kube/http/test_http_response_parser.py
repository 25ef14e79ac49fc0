"""Answers of HTTP/1.1 in whatever pieces they come, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.http.http_response_parser import LONGEST_CHUNK_LINE, LONGEST_HEAD, AnswerParser, InvalidResponse

FIXED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Odd:  a b \r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;odd=1\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"


def read(data: bytes, *, ended: bool = False) -> AnswerParser:
    parser = AnswerParser()
    parser.feed(data)
    if ended:
        parser.end()
    return parser


def test_an_answer_has_a_status_headers_in_lower_case_and_a_body():
    parser = read(FIXED)

    assert parser.is_over
    assert parser.head is not None
    assert (parser.head.status, parser.head.headers) == (200, {"content-length": "5", "x-odd": "a b"})
    assert parser.head.keeps_connection
    assert parser.take_body() == b"hello"


def test_the_chunks_of_a_body_are_put_together_without_what_is_around_them():
    parser = read(CHUNKED)

    assert parser.is_over
    assert not parser.is_surplus
    assert parser.take_body() == b"hello"


@given(st.sampled_from([FIXED, CHUNKED]), st.lists(st.integers(1, 100)))
def test_pieces_of_any_size_make_the_same_answer(data: bytes, cuts: list[int]):
    parser, body = AnswerParser(), b""
    for cut in [*cuts, len(data)]:
        parser.feed(data[:cut])
        body += parser.take_body()
        data = data[cut:]
        if not data:
            break

    assert parser.is_over
    assert not parser.is_surplus
    assert body == b"hello"


@given(st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED[:50], FIXED[:60]]))
def test_any_bytes_are_an_answer_or_are_refused(data: bytes, begin: bytes):
    parser = AnswerParser()
    try:
        parser.feed(begin)
        parser.feed(data)
        parser.end()
    except InvalidResponse:
        return
    assert parser.is_over


def test_a_body_is_handed_out_as_it_comes_and_once():
    parser = read(CHUNKED[:-30])

    assert (parser.held, parser.take_body(), parser.take_body(), parser.held) == (3, b"hel", b"", 0)
    assert not parser.is_over


def test_a_body_without_a_length_ends_with_the_connection():
    parser = read(b"HTTP/1.1 200 OK\r\n\r\nhello", ended=True)

    assert parser.is_over
    assert parser.take_body() == b"hello"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_some_answers_have_no_body(status: bytes):
    assert read(b"HTTP/1.1 " + status + b"\r\n\r\n").is_over


def test_the_answer_to_a_head_says_how_long_a_body_would_be_and_has_none():
    parser = AnswerParser()
    parser.is_bodiless = True
    parser.feed(FIXED[:-5])

    assert parser.is_over
    assert parser.take_body() == b""


def test_an_answer_that_only_announces_another_is_passed_over():
    parser = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + FIXED)

    assert parser.head is not None
    assert parser.head.status == 200


def test_what_comes_after_an_answer_is_surplus():
    for data in (FIXED + b"x", CHUNKED + b"x"):
        parser = read(data)
        assert parser.is_surplus
        assert parser.take_body() == b"hello"


KEEPING = [
    (b"HTTP/1.1 204 x", b"", True),
    (b"HTTP/1.1 204 x", b"Connection: Close\r\n", False),
    (b"HTTP/1.0 204 x", b"", False),
    (b"HTTP/1.0 204 x", b"Connection: keep-alive\r\n", True),
    (b"HTTP/1.1 204 x", b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", False),
]


@pytest.mark.parametrize(("first", "headers", "keeps"), KEEPING)
def test_a_connection_is_kept_unless_the_answer_says_otherwise(first: bytes, headers: bytes, *, keeps: bool):
    head = read(first + b"\r\n" + headers + b"\r\n").head

    assert head is not None
    assert head.keeps_connection is keeps


NO_ANSWERS = {
    "another protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
    "a later HTTP": b"HTTP/2.0 200 OK\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "a header that goes on": b"HTTP/1.1 200 OK\r\na: b\r\n c: d\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a length below nothing": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    "an encoding that nobody asked for": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "a protocol that nobody asked for": b"HTTP/1.1 101 Switching\r\n\r\n",
    "a chunk without a size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a chunk longer than it said": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (LONGEST_HEAD // 6),
    "a line without an end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * (LONGEST_CHUNK_LINE + 1),
}


@pytest.mark.parametrize("data", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_what_is_no_answer_is_refused(data: bytes):
    with pytest.raises(InvalidResponse):
        read(data)


@pytest.mark.parametrize("length", [0, 10, len(FIXED) - 1])
def test_an_answer_that_was_cut_off_is_none(length: int):
    with pytest.raises(InvalidResponse, match="before the response was complete"):
        read(FIXED[:length], ended=True)
