"""Where clients of the API server connect: TLS on loopback, and a unix socket that only root can connect to.

Order: a connection is accepted → beyond the most there may be, the longest idle one is closed for it; where none is
idle, the new one is closed at once, before anything is spent on it → TLS is spoken, within the time that silence is
allowed → `server_connection` handles its requests. Stopping: nobody new is let in → streams end → requests under way
have a while → what is left is cut.

A client may send a POST while the server closes its connection, and would lose it. So from nine tenths of the most on
each answer says that it is the last one on its connection, and only one that has been idle for some seconds, and of
which the kernel holds no byte, is closed without a word.

Each opening counts its own connections, so that clients of the network cannot keep root from the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Final

from aiohttp import web

from onenode.apiserver.edge.accepted_connection import Connection
from onenode.apiserver.edge.request_metrics import RequestMetrics
from onenode.apiserver.edge.server_connection import Door, Manners, RequestLoop
from orlop.foundation.http_edge import ListenAddress
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import SocketUnusable

# aiohttp would write what clients sent into the standard library's log.
SILENT_LOGGER: Final = logging.Logger("silent", logging.CRITICAL + 1)  # noqa: LOG001 - it shall not be found by name

BACKLOG: Final = 1024
MOST_CONNECTIONS: Final = 2000
# From here on answers are the last ones on their connections.
NEARLY_MOST: Final = 0.9
# A client that paused for less is likely to send its next request right now.
QUIET_SECONDS: Final = 5.0
# Idle connections that are being closed for new ones: their clients may take LINGER_SECONDS to close their end.
MOST_CLOSING: Final = 50
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
    quiet_seconds: float = QUIET_SECONDS
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
        self._closed_idle = runtime.metrics.counter(
            "apiserver_idle_connections_closed_total", "Idle connections closed for new ones.", ("listener",)
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
        self._start(self._cut_the_slow(), "cut slow clients")

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
            if self._has_room(opening):
                connection = self._connection(opening, server)
                self._start(self._begin(opening, connection, accepted), "begin a connection")
            else:
                self._refused.inc(opening.name)
                accepted.close()

    def _has_room(self, opening: Opening) -> bool:
        """Return whether one more connection may begin; close the longest idle one where there would be too many."""
        most = self._settings.most_connections
        if len(opening.connections) < most:
            return True
        if len(opening.connections) >= most + MOST_CLOSING or not (idle := self._longest_idle(opening)):
            return False
        self._closed_idle.inc(opening.name)
        idle.force_close()
        return True

    def _longest_idle(self, opening: Opening) -> Connection | None:
        settings = self._settings
        newest = asyncio.get_running_loop().time() + settings.manners.idle_seconds - settings.quiet_seconds
        idle = [(until, each) for each in opening.connections if (until := each.idle_until()) and until <= newest]
        # A client writes while this task runs: what its kernel took is in ours at once, since both are on one machine.
        return next((each for _, each in sorted(idle, key=itemgetter(0)) if not each.has_unread_bytes()), None)

    def _connection(self, opening: Opening, server: web.Server) -> Connection:
        manners = self._settings.manners
        nearly_most = math.ceil(self._settings.most_connections * NEARLY_MOST)
        connection = Connection(
            server,
            self._clock,
            opening.connections.discard,
            lambda: len(opening.connections) > nearly_most,
            logger=SILENT_LOGGER,
            access_log=None,
            # From the first moment on, and again after each answer.
            keepalive_timeout=manners.idle_seconds,
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
                lambda: connection,
                accepted,
                ssl=opening.tls,
                ssl_handshake_timeout=silence,
                ssl_shutdown_timeout=LINGER_SECONDS if opening.tls else None,
            )
        except OSError as error:  # TLS that fails or never ends is among them
            opening.connections.discard(connection)
            self._log.debug("a connection did not begin", listener=opening.name, error=error)
        except BaseException:
            opening.connections.discard(connection)
            raise

    # ---- who sends or reads too slowly -------------------------------------------------------------------------------

    async def _cut_the_slow(self) -> None:
        silence = self._settings.manners.silence_seconds
        while True:
            await self._clock.sleep(min(silence / LOOKS_PER_SILENCE, LOOK_SECONDS))
            for opening in self._openings:
                for connection in tuple(opening.connections):
                    if connection.does_not_read(silence):
                        self._log.debug("a client does not read: cut", listener=opening.name)
                        connection.abort()
                    elif connection.headers_are_late(silence):
                        connection.force_close()
