"""Serves CSI's bytes over gRPC: connections, tasks and deadlines around the rules of `http2_connection`. No grpc here.

Each call is a task. A caller that cancels, whose time is up or whose connection breaks ends that task, which only
waits: the work goes on by itself (see `interceptor`). All that is answered in one turn of the loop goes out in one
write. A client that does not read is not read from.

Order, down: no new connection → tell each client that no new call is taken → wait for the calls under way → cut.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, cast

from orlop.csi.error_codes import CsiError, Internal
from orlop.csi.grpc.http2_connection import MOST_INCOMPLETE, CallDropped, CallOpened, Http2Connection, RequestReceived
from orlop.csi.grpc.http2_limits import Budget
from orlop.csi.transport import CallHandler, Shape
from orlop.foundation.structured_log import Log

MOST_CONNECTIONS: Final = 1000
GREETING_SECONDS: Final = 10.0
"""From connecting to the first settings."""
REQUEST_SECONDS: Final = 20.0
"""From a call's headers to the end of its request."""
LAST_SECONDS: Final = 5.0
"""For a client to read the last frames, and for cancelled services to end."""
LONGEST_TIMER: Final = 366 * 24 * 3600.0
"""Who waits for longer waits for ever: not every loop can count so far."""
UNWRITTEN_BYTES: Final = 256 << 10
"""When the socket has left so much, nothing more is read."""
UNEXPECTED: Final = Internal("the driver failed while it handled the call; see its log")


@dataclass(slots=True)
class _OpenCall:
    """One that was opened. `sent` is waited for by who has more answers."""

    timer: asyncio.TimerHandle | None
    arriving: asyncio.TimerHandle | None = None
    """While its request is not complete."""
    task: asyncio.Task[None] | None = None
    sent: asyncio.Future[None] | None = None


class GrpcListener:
    """Serves a handler on a bound socket, which is closed at the end. Whose it may be is the caller's question."""

    def __init__(self, handler: CallHandler, log: Log) -> None:
        self.handler = handler
        self.log = log
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections: dict[_Connection, None] = {}
        """The longest silent first."""
        self.budget = Budget(MOST_INCOMPLETE)
        self.is_stopping = False
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Begins to answer."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, loop), sock=listener)

    async def stop(self, grace: float) -> None:
        """Takes no new call; those under way have so many seconds before their callers are let go."""
        self.is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.leave()
        await self._ended(grace)
        for connection in tuple(self.connections):
            connection.abort()
        await self._ended(None)
        if self.tasks:  # they were asked to end; who does not is not waited for
            await asyncio.wait(self.tasks, timeout=LAST_SECONDS)

    def heard_of(self, connection: _Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.connections[connection] = None

    def has_room(self) -> bool:
        """Made, where there is none, by ending the one that has been silent the longest and waits for nothing."""
        if len(self.connections) < MOST_CONNECTIONS:
            return True
        silent = next((one for one in self.connections if one.is_idle), None)
        if silent is not None:
            silent.abort()
        return silent is not None

    async def _ended(self, seconds: float | None) -> None:
        if self.connections:
            await asyncio.wait([connection.ended for connection in self.connections], timeout=seconds)


class _Connection(asyncio.Protocol):
    def __init__(self, listener: GrpcListener, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self._listener = listener
        self._handler = listener.handler
        self._loop = loop
        self._http2 = Http2Connection(self._handler.shape_of, loop.time(), listener.budget)
        self._transport: asyncio.Transport
        self._calls: dict[int, _OpenCall] = {}
        self._patience: asyncio.TimerHandle | None = None
        self._write_due = False
        self._leaving = False

    # ---- the socket --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio's
        # One may have been accepted in the turn in which we stopped listening.
        is_welcome = not self._listener.is_stopping and self._listener.has_room()
        self._listener.connections[self] = None
        if not is_welcome:
            transport.abort()
            return
        transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        _notice_dead_peers(transport)
        self._patience = self._loop.call_later(GREETING_SECONDS, transport.abort)
        self._write()

    @property
    def is_idle(self) -> bool:
        return self._http2.is_idle

    def data_received(self, data: bytes) -> None:
        self._listener.heard_of(self)
        for event in self._http2.receive(data, self._loop.time()):
            if isinstance(event, CallOpened):
                self._open(event)
            elif isinstance(event, RequestReceived):
                self._ask(event)
            else:
                self._drop(event)
        if self._patience is not None and self._http2.greeted:
            self._patience.cancel()
            self._patience = None
        self._write_soon()

    def pause_writing(self) -> None:
        self._http2.pause()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._http2.resume()
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._write_soon()

    def connection_lost(self, _error: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        for number in tuple(self._calls):
            self._drop(CallDropped(number))
        self._http2.end()
        self._listener.connections.pop(self, None)
        if not self.ended.done():
            self.ended.set_result(None)

    def _write_soon(self) -> None:
        if not self._write_due:
            self._write_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._write_due = False
        if self._transport.is_closing():
            return
        if data := self._http2.to_send():
            self._transport.write(data)
        if self._http2.why_over is not None:
            self._listener.log.info("connection closed: the client broke the protocol", why=self._http2.why_over)
            self._close()
        elif self._leaving and self._http2.is_idle:
            self._close()
        else:
            self._wake_who_waits()

    def _close(self) -> None:
        """When what was written is gone, or nobody reads it."""
        self._transport.close()
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self._loop.call_later(LAST_SECONDS, self._transport.abort)

    def leave(self) -> None:
        self._leaving = True
        self._http2.leave()
        self._write()

    def abort(self) -> None:
        self._transport.abort()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _open(self, opened: CallOpened) -> None:
        timer = None
        if opened.within is not None and opened.within < LONGEST_TIMER:
            timer = self._loop.call_later(opened.within, self._expire, opened.stream)
        arriving = self._loop.call_later(REQUEST_SECONDS, self._expire, opened.stream)
        self._calls[opened.stream] = _OpenCall(timer, arriving)

    def _ask(self, asked: RequestReceived) -> None:
        task = self._loop.create_task(self._serve(asked))
        call = self._calls[asked.stream]
        call.task = task
        if call.arriving is not None:
            call.arriving.cancel()
        self._listener.tasks.add(task)
        task.add_done_callback(self._listener.tasks.discard)

    def _drop(self, dropped: CallDropped) -> None:
        call = self._calls.pop(dropped.stream, None)
        if call is None:
            return
        for timer in (call.timer, call.arriving):
            if timer is not None:
                timer.cancel()
        if call.task is not None:
            call.task.cancel()

    def _expire(self, number: int) -> None:
        self._http2.expire(number)
        self._drop(CallDropped(number))
        self._write_soon()

    async def _serve(self, asked: RequestReceived) -> None:
        """Serve the call and send its response and status."""
        error: CsiError | None = None
        try:
            if asked.shape is Shape.UNARY:
                self._http2.send(asked.stream, await self._handler.answer(asked.path, asked.message))
            else:
                await self._send_answers(asked)
        except CsiError as failed:
            error = failed
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # Its message may hold secrets, so it is not sent to the caller.
            if _is_cancelled():
                raise
            error = UNEXPECTED
        self._finish(asked.stream, error)

    def _finish(self, number: int, error: CsiError | None) -> None:
        call = self._calls.pop(number, None)
        if call is not None and call.timer is not None:
            call.timer.cancel()
        self._http2.finish(number, error)
        self._write_soon()

    async def _send_answers(self, asked: RequestReceived) -> None:
        async with aclosing(self._handler.answers(asked.path, asked.message)) as answers:
            async for answer in answers:
                self._http2.send(asked.stream, answer)
                self._write_soon()
                await self._until_sent(asked.stream)

    async def _until_sent(self, number: int) -> None:
        if not self._http2.is_sent(number):
            self._calls[number].sent = sent = self._loop.create_future()
            await sent

    def _wake_who_waits(self) -> None:
        for number, call in self._calls.items():
            if call.sent is not None and not call.sent.done() and self._http2.is_sent(number):
                call.sent.set_result(None)


def _is_cancelled() -> bool:
    """Whether this task was asked to end; else it is something it waited for that was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _notice_dead_peers(transport: asyncio.Transport) -> None:
    """A machine that went away does not say so."""
    peer: socket.socket | None = transport.get_extra_info("socket")
    if peer is not None and peer.family in {socket.AF_INET, socket.AF_INET6}:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
