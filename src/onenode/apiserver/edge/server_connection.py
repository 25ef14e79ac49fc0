"""One client's connection: requests in, answers and streams out, with bounds on what it may hold and for how long.

Headers and body of a request have to arrive, and a response has to be read, within some seconds each; a connection may
be idle longer between two requests. The order for each request: headers → authentication (`admit`, which refuses an
unknown client before a byte of the body is read) → body → response. If the client vanishes, the work of its request is
finished, but a stream is closed.

Must not know the meaning of a request; must not send the text of an exception to a client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.answers.status_answers import LARGEST_BODY
from onenode.apiserver.edge import edge_answers
from onenode.apiserver.edge.accepted_connection import ANSWER_HEADERS, SLICE, Connection, response_of
from onenode.apiserver.edge.http_upgrade import HttpUpgrade, ServerAnswer, joined
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Level, Log
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream

if TYPE_CHECKING:
    from onenode.apiserver.edge.request_metrics import RequestMetrics

DEBUG: Final = Level.DEBUG
# A header that may come several times, with values that hold commas: they are joined by what no value can hold.
SEVERAL: Final = "impersonate-"
BETWEEN: Final = "\n"

# Go's clients close a connection that was idle for 90 seconds. A server that closes it first may do so while a POST is
# on its way, and Go does not repeat a POST: the write is lost with EOF.
IDLE_SECONDS: Final = 120.0


class Door(Protocol):
    """What stands behind the connections."""

    def admit(self, head: HttpRequest, *, local: bool) -> User | HttpResponse:
        """Who asks, or the answer that needs no more; `local` is the socket that only root can connect to."""

    async def answer(self, request: HttpRequest, user: User) -> ServerAnswer: ...


@dataclass(frozen=True, slots=True)
class Manners:
    """What is granted to one connection."""

    silence_seconds: float = 30.0
    idle_seconds: float = IDLE_SECONDS
    largest_body: int = LARGEST_BODY
    longest_line: int = 64 << 10
    most_headers: int = 256


class BodyRefused(Exception):
    """The body of a request will not be read, or not to its end."""

    def __init__(self, answer: HttpResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


class RequestLoop:
    """Handles each request of each connection; `handler` is what aiohttp calls."""

    def __init__(self, door: Door, manners: Manners, clock: Clock, log: Log, metrics: RequestMetrics) -> None:
        self._door = door
        self._manners = manners
        self._clock = clock
        self._log = log
        self._metrics = metrics

    async def handle(self, incoming: web.BaseRequest, *, local: bool) -> web.StreamResponse:
        began = self._clock.elapsed()
        head = _head(incoming)
        answer = await self._answer(incoming, head, local=local)
        self._tell(head, answer.status, began)
        if isinstance(answer, HttpResponse):
            self._metrics.ended(head, answer.status, self._clock.elapsed() - began)
            return await self._send(incoming, answer)
        self._metrics.began(head, answer.status)
        if isinstance(answer, HttpUpgrade):
            return await self._send_upgrade(incoming, answer)
        return await self._send_stream(incoming, answer)

    def _tell(self, head: HttpRequest, status: int, began: float) -> None:
        if self._log.enabled(DEBUG):
            seconds = round(self._clock.elapsed() - began, 6)
            agent = head.headers.get("user-agent", "")
            self._log.debug("answered", method=head.method, path=head.path, status=status, seconds=seconds, agent=agent)

    async def _answer(self, incoming: web.BaseRequest, head: HttpRequest, *, local: bool) -> ServerAnswer:
        try:
            user = self._door.admit(head, local=local)
            if isinstance(user, HttpResponse):
                return user
            request = replace(head, body=await self._body(incoming)) if incoming.body_exists else head
            return await self._door.answer(request, user)
        except BodyRefused as refusal:
            return refusal.answer
        except Exception as error:  # noqa: BLE001 - the edge of the process: logged, and not sent to the client
            self._log.exception("request failed", error, method=head.method, path=head.path)
            return edge_answers.WENT_WRONG

    async def _body(self, incoming: web.BaseRequest) -> bytes:
        if "Content-Encoding" in incoming.headers:
            raise BodyRefused(edge_answers.ENCODED)
        if (incoming.content_length or 0) > self._manners.largest_body:
            raise BodyRefused(edge_answers.TOO_LARGE)
        if incoming.headers.get("Expect", "").lower() == "100-continue":
            await incoming.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            incoming.writer.output_size = 0
        body = bytearray()
        try:
            async with contextlib.AsyncExitStack() as stack:
                if not incoming.content.is_eof():  # nearly always all of it is here by now
                    await stack.enter_async_context(self._clock.timeout(self._manners.silence_seconds))
                while piece := await incoming.content.readany():
                    body += piece
                    self._refuse_large(body)
        except TimeoutError:
            raise BodyRefused(edge_answers.TOO_SLOW) from None
        except (web.RequestPayloadError, ConnectionError):  # the client went in the middle of it
            raise BodyRefused(edge_answers.malformed("its body cannot be read")) from None
        return bytes(body)

    def _refuse_large(self, body: bytearray) -> None:
        if len(body) > self._manners.largest_body:
            raise BodyRefused(edge_answers.TOO_LARGE)

    # ---- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, incoming: web.BaseRequest, answer: HttpResponse) -> web.StreamResponse:
        response = response_of(answer)
        if cast("Connection", incoming.protocol).last():
            response.force_close()  # the client knows, and sends no more here
        if incoming.body_exists and not incoming.content.is_eof():
            response.force_close()  # what follows is the rest of a body and no request
        if len(answer.body) <= SLICE or incoming.method == "HEAD":
            return response
        sliced = web.StreamResponse(status=answer.status, headers=response.headers)
        sliced.content_length = len(answer.body)
        await sliced.prepare(incoming)
        await _write_sliced(sliced, answer.body)
        return sliced

    async def _send_stream(self, incoming: web.BaseRequest, stream: HttpStream) -> web.StreamResponse:
        connection = cast("Connection", incoming.protocol)
        response = web.StreamResponse(status=stream.status, headers={**ANSWER_HEADERS, **stream.headers})
        connection.given_up, connection.patient = stream.given_up, stream.patient
        try:
            await self._streamed(incoming, response, partial(_copy, stream, response))
        finally:
            connection.given_up, connection.patient = None, False
            await _close(stream)
        return response

    async def _send_upgrade(self, incoming: web.BaseRequest, upgrade: HttpUpgrade) -> web.StreamResponse:
        connection = cast("Connection", incoming.protocol)
        response = web.StreamResponse(status=upgrade.status, headers=upgrade.headers)
        response.force_close()
        connection.patient = True

        async def join() -> None:
            await joined(connection.take_over(), upgrade)

        try:
            await self._streamed(incoming, response, join)
        finally:
            upgrade.close()
        return response

    async def _streamed(
        self, incoming: web.BaseRequest, response: web.StreamResponse, send: Callable[[], Awaitable[None]]
    ) -> None:
        connection = cast("Connection", incoming.protocol)
        task = connection.stream = asyncio.current_task()
        try:
            await response.prepare(incoming)
            if not connection.stopped and incoming.method != "HEAD":
                await send()
        except asyncio.CancelledError:
            # Ours is the end of the stream; any other is the end of the reader, or of the process.
            if not connection.stopped or connection.transport is None or task is None or task.uncancel():
                raise
        except ConnectionError:
            raise
        except Exception as error:
            self._log.exception("a stream broke off", error, method=incoming.method, path=incoming.path)
            connection.abort()  # so that nobody takes the part for the whole
            raise ConnectionError("the stream broke off") from error
        finally:
            connection.stream = None


async def _copy(stream: HttpStream, response: web.StreamResponse) -> None:
    async for piece in stream.pieces:
        if len(piece) <= SLICE:
            await response.write(piece)
        else:
            await _write_sliced(response, piece)


async def _write_sliced(response: web.StreamResponse, body: bytes) -> None:
    """Write a body in slices, without a copy. A slow reader takes slices; one that has stopped takes none."""
    view = memoryview(body)
    for start in range(0, len(view), SLICE):
        await response.write(view[start : start + SLICE])


async def _close(stream: HttpStream) -> None:
    close = getattr(stream.pieces, "aclose", None)
    if close is not None:
        await close()


def _head(incoming: web.BaseRequest) -> HttpRequest:
    """As it came: nothing is unquoted or tidied up before somebody has looked at it."""
    target = incoming.raw_path
    if not target.startswith("/"):  # the absolute form, for proxies
        parts = urlsplit(target)
        target = f"{parts.path or '/'}?{parts.query}"
    path, _, query = target.partition("?")
    pairs = tuple(parse_qsl(query, keep_blank_values=True)) if query else ()
    return HttpRequest(incoming.method, path, pairs, _headers(incoming.headers))


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in given.items():
        key = name.lower()
        if not value.isascii():
            value = _text(value)  # noqa: PLW2901 - the same value, read anew
        if key in headers:
            between = BETWEEN if key.startswith(SEVERAL) else ", "
            value = f"{headers[key]}{between}{value}"  # noqa: PLW2901 - it goes on
        headers[key] = value
    return headers


def _text(value: str) -> str:
    """Bytes that are no UTF-8 become U+FFFD, as in bodies: nothing could be answered with them as they are."""
    return value.encode(errors="surrogateescape").decode(errors="replace")
