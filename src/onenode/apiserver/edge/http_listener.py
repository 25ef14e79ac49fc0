"""Where clients of the API server connect: TLS on loopback, and a unix socket that only root can connect to.

Order: a connection is accepted → beyond the most there may be it is closed at once, before anything is spent on it →
TLS is spoken, within the time that silence is allowed → `server_connection` handles its requests. Stopping: nobody
new is let in → streams end → requests under way have a while → what is left is cut.

Each opening counts its own connections, so that clients of the network cannot keep root from the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiohttp import web

from onenode.apiserver.edge.request_metrics import RequestMetrics
from onenode.apiserver.edge.server_connection import Connection, Door, Manners, RequestLoop
from orlop.foundation.http_edge import ListenAddress
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import SocketUnusable

# aiohttp would write what clients sent into the standard library's log.
SILENT_LOGGER: Final = logging.Logger("silent", logging.CRITICAL + 1)  # noqa: LOG001 - it shall not be found by name

BACKLOG: Final = 1024
MOST_CONNECTIONS: Final = 2000
# Besides connections: the database, sockets, standard streams, and what libraries keep open.
OTHER_FILES: Final = 100
STOP_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 2.0
# When the kernel has no more files or memory: others may give some back meanwhile.
BREATHER_SECONDS: Final = 0.1
LOOKS_PER_SILENCE: Final = 10
LOOK_SECONDS: Final = 1.0
"""A watcher that was given up is cut this soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    most_connections: int = MOST_CONNECTIONS
    stop_seconds: float = STOP_SECONDS
    manners: Manners = field(default_factory=Manners)


class Opening:
    """A bound socket and who comes through it; `tls` is None on a unix socket, which means root."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.listener = listener
        self.tls = tls
        self.connections: set[Connection] = set()

    @property
    def local(self) -> bool:
        return self.tls is None

    @property
    def name(self) -> str:
        return "unix" if self.local else "tls"


def server_tls(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate, key)
    return context


def bind_tcp(address: ListenAddress) -> socket.socket:
    """Raise SocketUnusable, with what to do about it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SocketUnusable(f"The address {address} is in use: give another one with --listen.") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SocketUnusable(f"The address {address} cannot be listened on: {reason}.") from None


def allow_connections(most: int, log: Log) -> None:
    """Raise this process's limit of open files; each connection may open one more, to a kubelet."""
    wanted = 2 * most + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        log.warning("open-file limit too low for the connections allowed", limit=hard, wanted=wanted)


@contextlib.asynccontextmanager
async def listening(
    openings: Sequence[Opening], door: Door, runtime: Runtime, settings: ListenerSettings | None = None
) -> AsyncIterator[None]:
    """Serves while it is entered; the sockets are closed at the end."""
    async with TaskGroup() as tasks:
        listener = HttpListener(openings, door, tasks, runtime, settings or ListenerSettings())
        try:
            listener.start()
            yield
        finally:
            await listener.stop()


class HttpListener:
    def __init__(
        self, openings: Sequence[Opening], door: Door, tasks: TaskGroup, runtime: Runtime, settings: ListenerSettings
    ) -> None:
        self._openings = openings
        self._clock = runtime.clock
        self._log = runtime.log
        self._settings = settings
        metrics = RequestMetrics(runtime.metrics)
        self._requests = RequestLoop(door, settings.manners, runtime.clock, runtime.log, metrics)
        self._refused = runtime.metrics.counter(
            "apiserver_connections_refused_total", "Connections closed because there were too many.", ("listener",)
        )
        runtime.metrics.gauge_from("apiserver_connections", "Connections that are open.", self._counted, ("listener",))
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()
        self._servers: list[web.Server] = []

    def start(self) -> None:
        for opening in self._openings:
            opening.listener.setblocking(False)
            opening.listener.listen(BACKLOG)
            server = web.Server(partial(self._requests.handle, local=opening.local))
            self._servers.append(server)
            self._start(self._accept(opening, server), f"accept {opening.name}")
        self._start(self._cut_who_does_not_read(), "cut who does not read")

    async def stop(self) -> None:
        for task in tuple(self._running):
            task.cancel()
        for opening in self._openings:
            opening.listener.close()
            for connection in tuple(opening.connections):
                connection.end_stream()
        for server in self._servers:
            server.pre_shutdown()
        await asyncio.gather(*(server.shutdown(self._settings.stop_seconds) for server in self._servers))
        for opening in self._openings:
            for connection in tuple(opening.connections):
                connection.abort()  # closing it would wait for a client that does not read

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.start(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _counted(self) -> dict[tuple[str, ...], float]:
        return {(opening.name,): len(opening.connections) for opening in self._openings}

    # ---- letting in --------------------------------------------------------------------------------------------------

    async def _accept(self, opening: Opening, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(opening.listener)
            except OSError as error:
                self._log.warning("cannot accept connections", listener=opening.name, error=error)
                await self._clock.sleep(BREATHER_SECONDS)
                continue
            if len(opening.connections) >= self._settings.most_connections:
                self._refused.inc(opening.name)
                accepted.close()
            else:
                connection = self._connection(opening, server)
                self._start(self._begin(opening, connection, accepted), "begin a connection")

    def _connection(self, opening: Opening, server: web.Server) -> Connection:
        manners = self._settings.manners
        connection = Connection(
            server,
            self._clock,
            opening.connections.discard,
            logger=SILENT_LOGGER,
            access_log=None,
            # From the first moment on, and again after each answer, until all headers of a request are here.
            keepalive_timeout=manners.silence_seconds,
            lingering_time=LINGER_SECONDS,
            max_line_size=manners.longest_line,
            max_field_size=manners.longest_line,
            max_headers=manners.most_headers,
            auto_decompress=False,
        )
        opening.connections.add(connection)
        return connection

    async def _begin(self, opening: Opening, connection: Connection, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        silence = self._settings.manners.silence_seconds if opening.tls else None
        try:
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=opening.tls, ssl_handshake_timeout=silence
            )
        except OSError as error:  # TLS that fails or never ends is among them
            opening.connections.discard(connection)
            self._log.debug("a connection did not begin", listener=opening.name, error=error)
        except BaseException:
            opening.connections.discard(connection)
            raise

    # ---- who does not read -------------------------------------------------------------------------------------------

    async def _cut_who_does_not_read(self) -> None:
        silence = self._settings.manners.silence_seconds
        while True:
            await self._clock.sleep(min(silence / LOOKS_PER_SILENCE, LOOK_SECONDS))
            for opening in self._openings:
                for connection in tuple(opening.connections):
                    if connection.does_not_read(silence):
                        self._log.debug("a client does not read: cut", listener=opening.name)
                        connection.abort()
