"""A gRPC server for CSI messages: connections, tasks and deadlines around the rules of `http2_connection`.

Each call is a task. A caller that cancels, reaches its deadline or loses its connection ends that task, which only
waits: the work itself continues (see `interceptor`). All responses of one turn of the event loop go out in one write.
While a client does not read, nothing is read from it.

Order of a shutdown: accept no new connection → send GOAWAY to every client → wait for calls in flight → close.
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
"""From the connection to the client's first SETTINGS frame."""
REQUEST_SECONDS: Final = 20.0
"""From a call's headers to the end of its request."""
LAST_SECONDS: Final = 5.0
"""For a client to read the last frames, and for cancelled tasks to end."""
LONGEST_TIMER: Final = 366 * 24 * 3600.0
"""A longer deadline counts as none: not every event loop has timers that long."""
UNWRITTEN_BYTES: Final = 256 << 10
"""With more than this in the socket's write buffer, nothing is read from the client."""
UNEXPECTED: Final = Internal("the driver failed while it handled the call; see its log")


@dataclass(slots=True)
class _OpenCall:
    """State of one open call. `sent` resolves when the last streamed message is flushed."""

    timer: asyncio.TimerHandle | None
    arriving: asyncio.TimerHandle | None = None
    """Ends the call if its request is not complete in time."""
    task: asyncio.Task[None] | None = None
    sent: asyncio.Future[None] | None = None


class GrpcListener:
    """Serve a handler on a bound socket, and close it at the end. The caller decides who may connect."""

    def __init__(self, handler: CallHandler, log: Log) -> None:
        self.handler = handler
        self.log = log
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections: dict[_Connection, None] = {}
        """In the order of their last frame, oldest first."""
        self.budget = Budget(MOST_INCOMPLETE)
        self.is_stopping = False
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Start to accept connections."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, loop), sock=listener)

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait `grace` seconds for those in flight, then close all connections."""
        self.is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.leave()
        await self._ended(grace)
        for connection in tuple(self.connections):
            connection.abort()
        await self._ended(None)
        if self.tasks:  # cancelled with their connections; one that ignores it must not block the shutdown
            await asyncio.wait(self.tasks, timeout=LAST_SECONDS)

    def mark_active(self, connection: _Connection) -> None:
        """Move a connection that sent something to the end of the order."""
        if connection in self.connections:
            del self.connections[connection]
            self.connections[connection] = None

    def has_room(self) -> bool:
        """Return whether one more connection is allowed. At the limit, close the one that was idle the longest."""
        if len(self.connections) < MOST_CONNECTIONS:
            return True
        silent = next((connection for connection in self.connections if connection.is_idle), None)
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
        self._timer: asyncio.TimerHandle | None = None
        self._write_due = False
        self._leaving = False

    # ---- the socket --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass
        # A connection may have been accepted in the same turn of the loop in which `stop` was called.
        is_allowed = not self._listener.is_stopping and self._listener.has_room()
        self._listener.connections[self] = None
        if not is_allowed:
            transport.abort()
            return
        transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        _notice_dead_peers(transport)
        self._timer = self._loop.call_later(GREETING_SECONDS, transport.abort)
        self._write()

    @property
    def is_idle(self) -> bool:
        return self._http2.is_idle

    def data_received(self, data: bytes) -> None:
        self._listener.mark_active(self)
        for event in self._http2.receive(data, self._loop.time()):
            if isinstance(event, CallOpened):
                self._open(event)
            elif isinstance(event, RequestReceived):
                self._start_serving(event)
            else:
                self._drop(event)
        if self._timer is not None and self._http2.greeted:
            self._timer.cancel()
            self._timer = None
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
        if self._timer is not None:
            self._timer.cancel()
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
            self._wake_waiters()

    def _close(self) -> None:
        """Close after everything was written, or after LAST_SECONDS if the client does not read."""
        self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LAST_SECONDS, self._transport.abort)

    def leave(self) -> None:
        """Send GOAWAY, and close once the calls in flight are answered."""
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

    def _start_serving(self, received: RequestReceived) -> None:
        task = self._loop.create_task(self._serve(received))
        call = self._calls[received.stream]
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

    async def _serve(self, received: RequestReceived) -> None:
        """Serve the call and send its response and status."""
        error: CsiError | None = None
        try:
            if received.shape is Shape.UNARY:
                self._http2.send(received.stream, await self._handler.answer(received.path, received.message))
            else:
                await self._send_answers(received)
        except CsiError as failed:
            error = failed
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # Its message may hold secrets, so it is not sent to the caller.
            if _is_cancelled():
                raise
            error = UNEXPECTED
        self._finish(received.stream, error)

    def _finish(self, number: int, error: CsiError | None) -> None:
        call = self._calls.pop(number, None)
        if call is not None and call.timer is not None:
            call.timer.cancel()
        self._http2.finish(number, error)
        self._write_soon()

    async def _send_answers(self, received: RequestReceived) -> None:
        async with aclosing(self._handler.answers(received.path, received.message)) as answers:
            async for answer in answers:
                self._http2.send(received.stream, answer)
                self._write_soon()
                await self._until_sent(received.stream)

    async def _until_sent(self, number: int) -> None:
        if not self._http2.is_sent(number):
            self._calls[number].sent = sent = self._loop.create_future()
            await sent

    def _wake_waiters(self) -> None:
        for number, call in self._calls.items():
            if call.sent is not None and not call.sent.done() and self._http2.is_sent(number):
                call.sent.set_result(None)


def _is_cancelled() -> bool:
    """Return whether this task was cancelled; if not, something that it awaited was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _notice_dead_peers(transport: asyncio.Transport) -> None:
    """Enable TCP keepalive: a peer whose machine disappeared closes nothing."""
    peer: socket.socket | None = transport.get_extra_info("socket")
    if peer is not None and peer.family in {socket.AF_INET, socket.AF_INET6}:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
