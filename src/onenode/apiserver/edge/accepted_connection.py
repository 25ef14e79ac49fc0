"""An accepted connection: aiohttp's, with bounds on idling and reading, and streams that end with their reader.

It knows no request's meaning; `server_connection.RequestLoop` handles those, `http_listener` closes what is too slow.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import StreamReader, web

from onenode.apiserver.edge import edge_answers
from orlop.foundation.clock import Clock
from orlop.kube.http.http_messages import HttpResponse

SLICE: Final = 64 << 10
# In lower case, as those of answers are: what an answer says itself takes their place.
ANSWER_HEADERS: Final = {"server": "orlop", "cache-control": "no-cache, private"}


class Connection(web.RequestHandler):
    """aiohttp's, and what it does not do: noticing who does not read, and ending streams when their reader is gone."""

    __slots__ = (
        "_clock",
        "_last_body",
        "_lost",
        "_made_on",
        "blocked_since",
        "given_up",
        "headers_since",
        "last",
        "patient",
        "stopped",
        "stream",
    )

    def __init__(
        self,
        server: web.Server,
        clock: Clock,
        lost: Callable[[Connection], None],
        last: Callable[[], bool],
        **settings: Any,
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **settings)
        self._clock = clock
        self._lost = lost
        self._last_body: StreamReader | None = None
        self.last = last
        """Whether the next answer is the last one on this connection."""
        self.headers_since: float | None = None
        """When the first bytes of a request came whose headers are not complete."""
        self.blocked_since: float | None = None
        self.stream: asyncio.Task[Any] | None = None
        self.given_up: Callable[[], bool] | None = None
        self.patient = False
        self.stopped = False
        self._made_on: asyncio.Transport | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.blocked_since = self._clock.elapsed()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.blocked_since = None

    def does_not_read(self, longest: float) -> bool:
        """For so many seconds; or already for so long that the stream it was sent has given it up."""
        if self.blocked_since is None or self.patient:
            return False
        return self.blocked_since <= self._clock.elapsed() - longest or bool(self.given_up and self.given_up())

    def data_received(self, data: bytes) -> None:
        between_requests = self._last_body is None or self._last_body.is_eof()
        parsed = self._request_count
        super().data_received(data)
        if self._request_count > parsed:
            self.headers_since, self._last_body = None, self._messages[-1][1]
        elif between_requests and self.headers_since is None:
            self.headers_since = self._clock.elapsed()

    def headers_are_late(self, longest: float) -> bool:
        since = self.headers_since
        return since is not None and since <= self._clock.elapsed() - longest and self._waits_for_request()

    def idle_until(self) -> float | None:
        """Return when the connection would be closed as idle; None while a request has begun, or before TLS."""
        return self._next_keepalive_close_time if self._waits_for_request() and self.headers_since is None else None

    def has_unread_bytes(self) -> bool:
        """Return whether the kernel holds bytes of a request that the event loop has not read yet."""
        if self.transport is None:
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))

    def _waits_for_request(self) -> bool:
        if self.transport is None or self._force_close:
            return False
        # The first bytes may come before aiohttp's task waits for them.
        return not self._waiter.done() if self._waiter else self._request_count == 0

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._lost(self)
        if self.stream is not None:
            self.stream.cancel()

    def end_stream(self) -> None:
        """The client reads a proper end, as after any watch."""
        self.stopped = True
        if self.stream is not None:
            self.stream.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._made_on = cast("asyncio.Transport", transport)

    def take_over(self) -> UpgradedConnection:
        """From now on its bytes are another protocol's."""
        if self.transport is None:
            raise ConnectionResetError("the client is gone")
        upgraded = UpgradedConnection(self, self.transport)
        self.set_parser(cast("Any", upgraded))
        return upgraded

    async def drained(self) -> None:
        await self._drain_helper()

    def abort(self) -> None:
        """Also when it is closing already and waits for a client that does not read."""
        if self._made_on is not None:
            self._made_on.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002 - aiohttp's signature
        message: str | None = None,
    ) -> web.StreamResponse:
        """Only for what is no HTTP: whatever a request itself does wrong is answered by `RequestLoop`."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        why = (message or "").partition("\n")[0].rstrip(": ")
        answer = edge_answers.malformed(why) if status < edge_answers.WENT_WRONG.status else edge_answers.WENT_WRONG
        response = response_of(answer)
        response.force_close()
        return response


class UpgradedConnection:
    """The client's bytes behind an answer 101, and the way back. To aiohttp it is a parser of payloads."""

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self._bytes = asyncio.StreamReader(limit=SLICE)
        self._bytes.set_transport(transport)  # so that it is paused while nobody reads

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._bytes.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self._bytes.feed_eof()

    async def read(self) -> bytes:
        return await self._bytes.read(SLICE)

    async def write(self, data: bytes) -> None:
        self._transport.write(data)
        await self._connection.drained()


def response_of(answer: HttpResponse) -> web.Response:
    return web.Response(status=answer.status, headers={**ANSWER_HEADERS, **answer.headers}, body=answer.body)
