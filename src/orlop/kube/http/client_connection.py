"""One connection to an API server: one request at a time, each after the response to the one before.

It never sends a request twice, and never on a connection that the kernel knows to be closed. Unexpected data from the
server closes it.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final, cast

from orlop.foundation.tcp_keepalive import TcpKeepalive
from orlop.kube.http.http_response_parser import AnswerParser, InvalidResponse, ResponseHead

LARGE_BODY: Final = 2**19
"""A larger body is written in pieces, so that other tasks run in between."""
MOST_HELD: Final = 2**18
"""Bytes of a streamed response that are buffered; while its reader has as many unread, the server must wait."""


class NeverSent(ConnectionError):
    """Nothing of the request was sent."""


class HttpConnection(asyncio.Protocol):
    def __init__(self, generation: int, when_lost: Callable[[HttpConnection], None], keepalive: TcpKeepalive) -> None:
        """`when_lost` is called once, after the socket is closed."""
        self._keepalive = keepalive
        self.generation = generation
        self.is_lost = False
        self._when_lost = when_lost
        self._loop = asyncio.get_running_loop()
        self._parser: AnswerParser | None = AnswerParser()  # Some servers send an error before any request.
        self._is_new = True
        self._broken: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wants_all = False
        self._paused_writing = self._paused_reading = False
        self._sent_all = True
        self._poll = select.poll()

    # ---- for its user --------------------------------------------------------------------------------------------

    def is_live(self) -> bool:
        """Return whether the server has not closed it, also where the event loop does not know that yet.

        On an idle connection, readable data is either the end of the stream or the server's reason for it.
        """
        return self._broken is None and not self._transport.is_closing() and not self._poll.poll(0)

    async def send(self, head: bytes, body: bytes) -> None:
        if self._broken is not None or self._transport.is_closing():
            raise NeverSent("it was closed before anything was sent")
        if self._parser is None or not self._is_new:
            self._parser = AnswerParser()
        self._parser.is_bodiless = head.startswith(b"HEAD ")
        self._is_new, self._wants_all = False, True
        if len(body) <= LARGE_BODY:
            self._transport.write(head + body if body else head)
            return
        self._sent_all = False
        self._transport.write(head)
        for start in range(0, len(body), LARGE_BODY):
            self._transport.write(body[start : start + LARGE_BODY])
            while self._paused_writing and not self._is_ended():
                await self._wait()
            if self._is_ended():
                return
        self._sent_all = True

    def _is_ended(self) -> bool:
        """Return whether sending is pointless: it broke, or the server responded before reading all."""
        return self._broken is not None or self._asked().is_over

    async def whole_answer(self) -> tuple[ResponseHead, bytes]:
        parser = self._asked()
        while not parser.is_over:
            await self._more()
        assert parser.head is not None  # noqa: S101 - it is over
        return parser.head, parser.take_body()

    async def answer_head(self) -> ResponseHead:
        parser = self._asked()
        self._wants_all = False
        while parser.head is None:
            await self._more()
        return parser.head

    async def piece(self) -> bytes:
        """Return what has arrived of the body; empty at its end."""
        parser = self._asked()
        while not parser.held and not parser.is_over:
            self._let_read()
            await self._more()
        return parser.take_body()

    def is_reusable(self) -> bool:
        """Return whether the response is complete and another request may be sent."""
        parser = self._parser
        if parser is None or parser.head is None:
            return parser is None
        is_clean = parser.is_over and not parser.is_surplus and parser.head.keeps_connection
        return is_clean and self._sent_all and self._broken is None and not self._transport.is_closing()

    def fell_silent(self) -> bool:
        """Return whether a response was due and did not come, as far as anybody waited for it.

        Not where the server closed the connection or answered all: then it was there.
        """
        if self._broken is not None:
            return isinstance(self._broken, TimeoutError)
        return self._parser is not None and not self._parser.is_over

    def be_idle(self) -> None:
        self._parser = None
        self._let_read()

    def break_off(self, error: Exception) -> None:
        """Close the connection; the task that waits for a response gets `error`."""
        if self._broken is None:
            self._broken = error
        self._transport.abort()
        self._wake()

    def abort(self) -> None:
        """Close at once: a TLS shutdown would wait for the server's."""
        self._transport.abort()

    def _asked(self) -> AnswerParser:
        if self._parser is None:
            raise ValueError("no request was sent on this connection, so there is no response")
        return self._parser

    # ---- waiting -------------------------------------------------------------------------------------------------

    async def _more(self) -> None:
        if self._broken is not None:
            raise self._broken
        await self._wait()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _let_read(self) -> None:
        if self._paused_reading and not self._transport.is_closing():
            self._paused_reading = False
            self._transport.resume_reading()

    # ---- for the event loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        connected = transport.get_extra_info("socket")
        self._poll.register(connected.fileno(), select.POLLIN)
        self._keepalive.apply(connected)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self.break_off(InvalidResponse("the server sent data without a request"))
            return
        try:
            parser.feed(data)
        except InvalidResponse as error:
            self.break_off(error)
            return
        if parser.is_over or not self._wants_all:
            self._wake()
        if parser.held > MOST_HELD and not self._wants_all and not self._paused_reading:
            self._paused_reading = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._broken is None:
            self._broken = exc or InvalidResponse("the server closed it")
            self._end_answer()
        self._wake()
        self._when_lost(self)

    def _end_answer(self) -> None:
        if self._parser is not None and not self._parser.is_over:
            try:
                self._parser.end()
            except InvalidResponse as error:
                self._broken = self._broken if isinstance(self._broken, OSError) and self._broken.errno else error

    def pause_writing(self) -> None:
        self._paused_writing = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        self._wake()
