"""The listener of the API server over real sockets, in front of a door that a test scripts, and raw clients."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from onenode.apiserver.access.certificates import ensure_certificates
from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.edge.http_listener import ListenerSettings, Opening, listening, server_tls
from onenode.apiserver.edge.server_connection import Manners
from orlop.foundation.clock import Clock, SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Level, LogEntry, collecting_log
from orlop.foundation.unix_socket import bind_root_only, claim_socket
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream

SILENCE = 30.0
Answer = Callable[[HttpRequest, User], Awaitable[HttpResponse | HttpStream]]


async def echo(request: HttpRequest, user: User) -> HttpResponse | HttpStream:
    seen = {"method": request.method, "path": request.path, "query": request.query, "user": user.name}
    seen |= {"headers": dict(request.headers), "body": len(request.body)}
    return HttpResponse(200, {"content-type": "application/json"}, json.dumps(seen).encode())


@dataclass
class ScriptedDoor:
    """Lets everybody in who is local or names a user; answers as the test says."""

    reply: Answer = echo
    seen: list[HttpRequest] = field(default_factory=list)

    def admit(self, head: HttpRequest, *, local: bool) -> User | HttpResponse:
        self.seen.append(head)
        if local:
            return User("admin")
        name = head.headers.get("authorization", "")
        return User(name) if name else HttpResponse(401, {}, b"{}")

    async def answer(self, request: HttpRequest, user: User) -> HttpResponse | HttpStream:
        return await self.reply(request, user)


@dataclass
class Edge:
    """What runs, and what a client needs to connect."""

    socket_path: Path
    port: int
    client_tls: ssl.SSLContext
    logged: list[LogEntry]
    metrics: Metrics
    openings: list[Opening]

    def connections(self) -> int:
        return sum(len(opening.connections) for opening in self.openings)

    def rendered(self) -> str:
        return self.metrics.render()[0].decode()


@asynccontextmanager
async def edge(
    folder: Path,
    door: Any,
    *,
    silence: float = SILENCE,
    idle: float = 120.0,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Edge]:
    """Serve; by `clock` the server measures silence, and the event loop how long a TLS handshake may take."""
    files = ensure_certificates(folder, SystemClock().now())
    tcp = socket.create_server(("127.0.0.1", 0))
    logged: list[LogEntry] = []
    metrics = Metrics("test", of_process=False)
    with claim_socket(folder / "api.sock") as claim:
        unix = bind_root_only(claim)
        tls = server_tls(str(files.server_certificate), str(files.server_key))
        openings = [Opening(tcp, tls), Opening(unix, None)]
        chosen = ListenerSettings(manners=Manners(silence_seconds=silence, idle_seconds=idle), **settings)
        client_tls = ssl.create_default_context(cafile=str(files.ca_certificate))
        running = Edge(claim.path, tcp.getsockname()[1], client_tls, logged, metrics, openings)
        log = collecting_log(logged, Level.INFO)
        runtime = Runtime(clock=clock or SystemClock(), random=Random(1), log=log, metrics=metrics)
        async with listening(openings, door, runtime, chosen):
            yield running


@dataclass
class RawClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = text.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        return int(status.split()[1]), {name.lower(): value for name, value in headers.items()}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        return status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def chunk(self) -> bytes:
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def closed(self) -> bool:
        """Returns when the other side has closed."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except (ConnectionError, ssl.SSLError):
            return True
        return True

    async def get(self, target: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
        await self.send(request("GET", target, *headers))
        return await self.answer()

    def close(self) -> None:
        self.writer.transport.abort()


def request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *headers, *length]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def local_client(running: Edge) -> AsyncIterator[RawClient]:
    client = RawClient(*await asyncio.open_unix_connection(str(running.socket_path)))
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def tls_client(running: Edge) -> AsyncIterator[RawClient]:
    client = RawClient(*await asyncio.open_connection("127.0.0.1", running.port, ssl=running.client_tls))
    try:
        yield client
    finally:
        client.close()
