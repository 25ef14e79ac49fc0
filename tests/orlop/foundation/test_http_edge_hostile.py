"""Clients that speak HTTP badly, slowly, or not at all: they are answered or dropped, and nobody else notices."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation import http_edge
from orlop.foundation.http_edge import (
    LARGEST_BODY,
    LONGEST_HEAD,
    EdgeRequest,
    EdgeResponse,
    HttpEdge,
    ListenAddress,
    Route,
)

HERE = ListenAddress("127.0.0.1", 0)


async def echo(request: EdgeRequest) -> EdgeResponse:
    return EdgeResponse(body=request.body or request.path)


ECHO: list[Route] = [("GET", "/echo", echo), ("POST", "/echo", echo), ("GET", "/of/{one}/and/{other}", echo)]


@asynccontextmanager
async def connected(edge: HttpEdge) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = edge.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def said(edge: HttpEdge, data: bytes) -> bytes:
    async with connected(edge) as (reader, writer):
        writer.write(data)
        writer.write_eof()
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def status_of(data: bytes) -> int:
    async with HttpEdge(HERE, ECHO) as edge:
        return int((await said(edge, data)).split()[1])


@pytest.mark.parametrize(
    ("request_", "status"),
    {
        b"GET /echo HTTP/1.1\r\n\r\n": 200,
        b"GET /echo HTTP/1.0\r\nHost: x\r\n\r\n": 200,
        b"POST /echo HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody": 200,
        b"GET /of/a%2Fb/and/c HTTP/1.1\r\n\r\n": 404,
        b"PUT /echo HTTP/1.1\r\n\r\n": 405,
        b"GET  /echo HTTP/1.1\r\n\r\n": 400,
        b"GET /echo\r\n\r\n": 400,
        b"GET /echo HTTP/2\r\n\r\n": 400,
        b"GET http://x/echo HTTP/1.1\r\n\r\n": 400,
        b"GET /echo HTTP/1.1\r\nno colon\r\n\r\n": 400,
        b"GET /echo HTTP/1.1\r\nName : spaced\r\n\r\n": 400,
        b"GET /echo HTTP/1.1\r\nName: a\x00b\r\n\r\n": 400,
        b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n": 400,
        b"POST /echo HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n": 400,
        b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 400,
        b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (LARGEST_BODY + 1): 413,
        b"POST /echo HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n": 413,
    }.items(),
    ids=lambda each: each[:60] if isinstance(each, bytes) else each,
)
async def test_each_form_of_a_request_has_its_status(request_: bytes, status: int):
    assert await status_of(request_) == status


async def test_a_head_without_an_end_is_not_kept():
    async with HttpEdge(HERE, ECHO) as edge:
        answer = await said(edge, b"GET /echo HTTP/1.1\r\n" + b"X: y\r\n" * LONGEST_HEAD)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")
        assert (await said(edge, b"GET /echo HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n/echo")


async def test_a_request_that_does_not_arrive_in_time_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_edge, "REQUEST_SECONDS", 0.05)
    async with HttpEdge(HERE, ECHO) as edge, connected(edge) as (reader, writer):
        writer.write(b"GET /ec")
        assert await reader.read() == b""


async def test_who_says_nothing_does_not_hold_up_the_end():
    edge = HttpEdge(HERE, ECHO, stop_seconds=1000)
    await edge.__aenter__()
    async with connected(edge) as (reader, _), asyncio.timeout(60):
        await said(edge, b"GET /echo HTTP/1.1\r\n\r\n")  # so both are taken
        await edge.__aexit__(None, None, None)
        assert await reader.read() == b""


async def test_a_line_break_in_a_header_of_the_answer_never_reaches_the_client():
    async def split(_: EdgeRequest) -> EdgeResponse:
        return EdgeResponse(headers={"X-Folder": "a\r\nSet-Cookie: b"})

    told: list[str] = []
    edge = HttpEdge(HERE, [("GET", "/split", split)], on_error=lambda where, _: told.append(where))
    async with edge:
        answer = await said(edge, b"GET /split HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"Set-Cookie" not in answer
    assert told == ["GET /split"]


async def test_parts_of_a_path_are_given_by_their_names():
    seen: list[EdgeRequest] = []

    async def look(request: EdgeRequest) -> EdgeResponse:
        seen.append(request)
        return EdgeResponse()

    async with HttpEdge(HERE, [("GET", "/of/{one}/and/{other}", look)]) as edge:
        await said(edge, b"GET /of/a%20b/and/c?d=1 HTTP/1.1\r\n\r\n")
    assert seen[0].parameters == {"one": "a b", "other": "c"}


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"GET /echo HTTP/1.1", b"\r\n", b"Content-Length: 3"])))
def test_whatever_a_client_sends_the_next_one_is_served(pieces: list[bytes]):
    async def both() -> None:
        async with HttpEdge(HERE, ECHO) as edge:
            answer = await said(edge, b"".join(pieces))
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            assert (await said(edge, b"GET /echo HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    asyncio.run(both())


def test_health_and_metrics_are_served_without_aiohttp():
    """It is an eighth of a node's memory."""
    look = "import sys, orlop.processes.node, orlop.processes.http_wiring; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0
