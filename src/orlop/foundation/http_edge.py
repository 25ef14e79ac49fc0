"""A small HTTP/1.1 server for daemons: health, metrics and the like, on a TCP address or a unix socket.

Routes are plain values (method, path, handler); handlers take and return plain values. It is written by hand because
aiohttp would take an eighth of a node's memory. Each connection carries one request, limited in time and size, and one
response.

This module must not log requests, nor put the text of an exception into a response: either may hold secrets.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self, TypeAlias
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
    from types import TracebackType

BACKLOG = 128
LARGEST_PORT = 65535
PLAIN_TEXT = "text/plain; charset=utf-8"
STOP_SECONDS = 5.0
LONGEST_HEAD = 16 << 10
LARGEST_BODY = 1 << 20
REQUEST_SECONDS = 10.0
"""How long a request may take to arrive, and a client to read each piece of the response."""
ANSWER_HEADERS: Final = {
    "Server": "orlop",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
}
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ \t!-~\x80-\xff]*)")


# ---- what handlers see -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRequest:
    """A request. `parameters` are the parts of the path in the route's braces; header names match in any case."""

    method: str
    path: str
    parameters: Mapping[str, str]
    query: Mapping[str, tuple[str, ...]]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeResponse:
    """A response; a body of pieces is sent as it comes, in chunks."""

    body: str | bytes | AsyncIterable[bytes] = ""
    status: int = 200
    content_type: str = PLAIN_TEXT
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


MALFORMED: Final = EdgeResponse(body="That is no request of HTTP/1.1.\n", status=400)
UNREADABLE: Final = EdgeResponse(body="The body of the request cannot be read.\n", status=400)
TOO_LARGE: Final = EdgeResponse(body="The request is too large.\n", status=413)
NOT_FOUND: Final = EdgeResponse(body="There is nothing of this name here.\n", status=404)
WENT_WRONG: Final = EdgeResponse(body="Something went wrong here; the log says what.\n", status=500)

RouteHandler: TypeAlias = "Callable[[EdgeRequest], Awaitable[EdgeResponse]]"
Route: TypeAlias = "tuple[str, str, RouteHandler]"


# ---- the server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A TCP address; an empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Parse `:8080`, `127.0.0.1:8080`, `localhost:8080` or `[::1]:8080`; port 0 lets the kernel choose."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (not bracketed and ":" in host) or not (port.isascii() and port.isdecimal()):
        raise ValueError("allowed are addresses such as :8080, 127.0.0.1:8080 and [::1]:8080")
    if int(port) > LARGEST_PORT:
        raise ValueError(f"allowed are ports from 0 to {LARGEST_PORT}")
    return ListenAddress(host[1:-1] if bracketed else host, int(port))


def _ignore(_where: str, _error: Exception) -> None:
    pass


class HttpEdge:
    """Serve routes while the context is open. A socket that is passed in must be bound, and is closed at the end.

    Leaving lets requests in flight finish, for at most `stop_seconds`. `on_error` is called with each exception of a
    handler; the client only learns that there was one.
    """

    def __init__(
        self,
        listen: ListenAddress | socket.socket,
        routes: Iterable[Route],
        *,
        on_error: Callable[[str, Exception], None] = _ignore,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._listen = listen
        self._routes = [(method, _pattern(path), handler) for method, path, handler in routes]
        self._on_error = on_error
        self._stop_seconds = stop_seconds
        self._listener: socket.socket | None = None
        self._address = ""
        self._server: asyncio.Server | None = None
        self._arriving: set[asyncio.Task[None]] = set()
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The address it listens on: `host:port` with the real port, or the path of the socket."""
        if self._listener is None:
            raise RuntimeError("The HTTP edge has no address before it is entered.")
        return self._address

    async def __aenter__(self) -> Self:
        listener = self._listen if isinstance(self._listen, socket.socket) else await _bound_socket(self._listen)
        listener.setblocking(False)
        self._listener, self._address = listener, _address_of(listener)
        try:
            self._server = await asyncio.start_server(
                self._connected, sock=listener, limit=LONGEST_HEAD, backlog=BACKLOG
            )
        except BaseException:
            listener.close()
            raise
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        assert self._server is not None  # noqa: S101 - it was entered
        assert self._listener is not None  # noqa: S101 - as above
        self._server.close()
        await _ended(self._arriving, 0)  # Requests that have not arrived completely are dropped.
        await _ended(self._under_way, self._stop_seconds)
        self._listener.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)
        task.add_done_callback(self._under_way.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that is gone or too slow gets no response, and nothing is logged.
        with suppress(OSError, EOFError):
            try:
                request = await _request_from(reader)
                task = asyncio.current_task()
                assert task is not None  # noqa: S101 - this is one
                self._arriving.discard(task)
                self._under_way.add(task)
                await self._answer(request, writer)
                await _close(writer)
            finally:
                writer.transport.abort()  # No effect after a close; otherwise unsent data is dropped.

    async def _answer(self, request: EdgeRequest | EdgeResponse, writer: asyncio.StreamWriter) -> None:
        if isinstance(request, EdgeResponse):
            await _send(writer, _encoded(request))
            return
        where = f"{request.method} {request.path}"
        try:
            response = await self._handled(request)
            head_and_body = _encoded(response, without_body=request.method == "HEAD")
        except Exception as error:  # noqa: BLE001 - the edge of the process: reported to the log, not to the client
            self._on_error(where, error)
            response, head_and_body = WENT_WRONG, _encoded(WENT_WRONG)
        await _send(writer, head_and_body)
        if isinstance(response.body, AsyncIterable) and request.method != "HEAD":
            await _send_pieces(writer, self._watched(response.body, where))

    async def _handled(self, request: EdgeRequest) -> EdgeResponse:
        matches = [(method, match, each) for method, at, each in self._routes if (match := at.fullmatch(request.path))]
        requested = "GET" if request.method == "HEAD" else request.method
        for method, match, handler in matches:
            if method == requested:
                return await handler(replace(request, parameters=match.groupdict()))
        allowed = ", ".join(sorted({method for method, _, _ in matches}))
        if not matches:
            return NOT_FOUND
        return EdgeResponse(body=f"Allowed here: {allowed}.\n", status=405, headers={"Allow": allowed})

    async def _watched(self, pieces: AsyncIterable[bytes], where: str) -> AsyncIterator[bytes]:
        try:
            async for piece in pieces:
                yield piece
        except Exception as error:
            self._on_error(where, error)
            raise EOFError from error


async def _ended(tasks: set[asyncio.Task[None]], seconds: float) -> None:
    if tasks:
        await asyncio.wait({*tasks}, timeout=seconds)
    for task in {*tasks}:
        task.cancel()
    if tasks:
        await asyncio.wait({*tasks})


def _address_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name if isinstance(name, str) else str(ListenAddress(name[0], name[1]))


async def _bound_socket(address: ListenAddress) -> socket.socket:
    try:
        if address.host:
            loop = asyncio.get_running_loop()
            addresses = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            family, _, _, _, name = addresses[0]
            return socket.create_server(name[:2], family=family, backlog=BACKLOG)
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", address.port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(f"The address {address} cannot be listened on: {error.strerror or error}.") from error
    except UnicodeError as error:  # The idna codec rejected the host's name.
        raise OSError(f"The address {address} cannot be listened on: it names no host.") from error


# ---- HTTP/1.1 --------------------------------------------------------------------------------------------------------


class _Headers(Mapping[str, str]):
    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._values = {name.lower(): value.strip() for name, value in pairs}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", path)
    return re.compile("".join(f"(?P<{part}>[^/]+)" if odd % 2 else re.escape(part) for odd, part in enumerate(parts)))


async def _request_from(reader: asyncio.StreamReader) -> EdgeRequest | EdgeResponse:
    """Return the request, or the response to one that is not valid."""
    async with asyncio.timeout(REQUEST_SECONDS):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return TOO_LARGE
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        line, fields = _REQUEST_LINE.fullmatch(first), [_HEADER.fullmatch(each) for each in lines]
        if line is None or None in fields:
            return MALFORMED
        headers = _Headers((each[1], each[2]) for each in fields if each is not None)
        body = await _body_from(reader, headers)
    if isinstance(body, EdgeResponse):
        return body
    path, _, query = line[2].partition("?")
    return EdgeRequest(
        method=line[1],
        path=unquote(path),
        parameters={},
        query={name: tuple(values) for name, values in parse_qs(query, keep_blank_values=True).items()},
        headers=headers,
        body=body,
    )


async def _body_from(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes | EdgeResponse:
    length = headers.get("Content-Length", "0")
    if "Transfer-Encoding" in headers or not (length.isascii() and length.isdecimal()):
        return UNREADABLE
    if len(length) > len(str(LARGEST_BODY)) or int(length) > LARGEST_BODY:
        return TOO_LARGE
    body = await reader.readexactly(int(length))
    return UNREADABLE if "Content-Encoding" in headers else body


def _encoded(response: EdgeResponse, *, without_body: bool = False) -> bytes:
    body = response.body.encode() if isinstance(response.body, str) else response.body
    size = {"Content-Length": str(len(body))} if isinstance(body, bytes) else {"Transfer-Encoding": "chunked"}
    headers = {**ANSWER_HEADERS, "Content-Type": response.content_type, **response.headers, **size}
    status = HTTPStatus(response.status)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("A header of the answer holds a line break.")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head + body if isinstance(body, bytes) and not without_body else head


async def _close(writer: asyncio.StreamWriter) -> None:
    """Wait until all that was written is sent."""
    writer.close()
    async with asyncio.timeout(REQUEST_SECONDS):
        await writer.wait_closed()


async def _send_pieces(writer: asyncio.StreamWriter, pieces: AsyncIterable[bytes]) -> None:
    """Send the pieces as chunks. If they fail, the last chunk is missing, so no client takes a part for the whole."""
    async for piece in pieces:
        if piece:
            await _send(writer, b"%x\r\n%b\r\n" % (len(piece), piece))
    await _send(writer, b"0\r\n\r\n")


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(REQUEST_SECONDS):
        await writer.drain()
