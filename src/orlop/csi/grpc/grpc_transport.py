"""A gRPC client connection for CSI messages: a socket and deadlines around the rules of `http2_client`.

It connects at once, and reconnects for ever after a failure. During an attempt calls wait; after a failed attempt they
fail at once. No call is retried here: the caller decides that. All requests of one turn of the event loop go out in one
write. While a driver does not read, nothing is read from it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, cast

from orlop.csi.endpoint import Endpoint, TcpEndpoint
from orlop.csi.error_codes import Code, CsiError, unanswered, unsent
from orlop.csi.grpc.http2_client import CallEnded, ClientEvent, Http2Client, ResponseReceived
from orlop.foundation.tcp_keepalive import KEEPALIVE, TcpKeepalive

GREETING_SECONDS: Final = 20.0
"""From the connection to the driver's first SETTINGS frame."""
LONGEST_TIMEOUT: Final = 366 * 24 * 3600.0
"""The longest timer: not every event loop has longer ones."""
DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0)
"""Seconds to wait after each failed attempt to connect; the last one repeats."""
PROBE_SECONDS: Final = 10.0
"""How long a TCP peer may send nothing after a call expired and we sent a probe."""
CLOSED: Final = "the connection was closed"


class _Waiting:
    """One call in flight, and the task that waits for its responses."""

    __slots__ = ("answers", "error", "is_over", "wants_each", "woken")

    def __init__(self, *, wants_each: bool) -> None:
        self.wants_each = wants_each
        self.answers: deque[bytes] = deque()
        self.is_over = False
        self.error: CsiError | None = None
        self.woken: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


class _Link(asyncio.Protocol):
    """One connection to the driver, with its calls in flight."""

    def __init__(self, keepalive: TcpKeepalive, probe_seconds: float | None) -> None:
        """With `probe_seconds` None the peer is never probed."""
        self._keepalive = keepalive
        self._probe_seconds = probe_seconds
        self._probe_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self.over: asyncio.Future[str] = self._loop.create_future()
        """Resolves with the reason when no new call can be made on this connection."""
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._http2 = Http2Client(self._loop.time)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Waiting] = {}
        self._write_due = False

    @property
    def is_usable(self) -> bool:
        return not self.over.done()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def start_call(self, path: str, message: bytes, within: float, waiting: _Waiting) -> int:
        """Send a request; return the number of the call."""
        number = self._http2.start_call(path, message, within)
        self._calls[number] = waiting
        self._write_soon()
        if self._http2.is_used_up:
            self._refuse_calls("all its calls are used up")
        return number

    def cancel(self, number: int) -> None:
        """Reset a call in flight; do nothing for one that has ended."""
        if self._calls.pop(number, None) is not None:
            self._http2.cancel(number)
            self._write_soon()

    def expire(self, number: int, within: float) -> None:
        """End a call at its deadline, and probe the connection."""
        waiting = self._calls.get(number)
        if waiting is not None:
            self.cancel(number)
            waiting.error = unanswered(Code.DEADLINE_EXCEEDED, f"no response within {within:g} seconds")
            waiting.is_over = True
            waiting.wake()
            self._probe()

    def consumed(self, number: int, message: bytes) -> None:
        """Allow the driver to send more: the caller has read a streamed message."""
        self._http2.consumed(number, message)
        self._write_soon()

    def break_off(self, error: CsiError) -> None:
        """Close the connection; all calls in flight fail with `error`."""
        for waiting in self._calls.values():
            waiting.is_over, waiting.error = True, error
            waiting.wake()
        self._calls.clear()
        self._refuse_calls(str(error))
        if self._transport is not None:
            self._transport.abort()
            # A connection cancelled while it is being made is closed by uvloop in a way that `is_closing` does not
            # show, and writing to it raises. A write may be due already, so it must find no transport.
            self._transport = None

    def _probe(self) -> None:
        """Find out whether the driver is slow or unreachable: only then must the connection be closed."""
        if self._probe_seconds is None or self._probe_timer is not None:
            return
        self._http2.probe()
        self._write_soon()
        problem = f"the connection is dead: nothing came on it in {self._probe_seconds:g} seconds"
        gone = unanswered(Code.UNAVAILABLE, problem)
        self._probe_timer = self._loop.call_later(self._probe_seconds, self.break_off, gone)

    def _end_probe(self) -> None:
        if self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None

    def _act(self, events: list[ClientEvent]) -> None:
        for event in events:
            waiting = self._calls.get(event.call)
            if waiting is None:
                continue
            match event:
                case ResponseReceived(_, message):
                    waiting.answers.append(message)
                    if waiting.wants_each:
                        waiting.wake()
                case CallEnded(number, error):
                    del self._calls[number]
                    waiting.is_over, waiting.error = True, error
                    waiting.wake()

    # ---- the socket --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass
        self._keepalive.apply(transport.get_extra_info("socket"))
        self._write()

    def data_received(self, data: bytes) -> None:
        self._end_probe()
        self._act(self._http2.receive(data))
        if not self.greeted.done() and self._http2.greeted:
            self.greeted.set_result(None)
        if self._http2.why_over is not None:
            self._refuse_calls(f"the driver broke the protocol: {self._http2.why_over}")
        elif self._http2.is_leaving:
            self._refuse_calls("the driver accepts no new calls")
        self._write_soon()

    def pause_writing(self) -> None:
        self._http2.pause()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._http2.resume()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._write_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_probe()
        self._refuse_calls(f"the connection broke: {exc or 'the driver closed it'}")
        self._act(self._http2.end(self.over.result()))
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(self.over.result()))
            self.greeted.exception()  # Retrieved, or asyncio logs it: maybe nobody awaits it any more.
        if not self.lost.done():
            self.lost.set_result(None)

    def _refuse_calls(self, reason: str) -> None:
        """Accept no new call; the first reason counts."""
        if not self.over.done():
            self.over.set_result(reason)

    def _write_soon(self) -> None:
        if not self._write_due:
            self._write_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._write_due = False
        if self._transport is None or self._transport.is_closing():
            return
        if data := self._http2.to_send():
            self._transport.write(data)
        if self._http2.why_over is not None or (self.over.done() and self._http2.is_idle):
            self._transport.close()


class GrpcConnection:
    """A client's connection to one endpoint, connected again whenever it breaks."""

    def __init__(
        self, endpoint: Endpoint, *, keepalive: TcpKeepalive = KEEPALIVE, probe_seconds: float = PROBE_SECONDS
    ) -> None:
        self._endpoint = endpoint
        self._keepalive = keepalive
        # A unix socket reports a peer that is gone, so a silent driver there is only slow: no probes.
        self._probe_seconds = probe_seconds if isinstance(endpoint, TcpEndpoint) else None
        self._loop = asyncio.get_running_loop()
        self._link: _Link | None = None
        self._links: set[_Link] = set()
        self._why_not: str | None = None
        """Why the last attempt to connect failed; None if it did not."""
        self._connections = 0
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._keeping = self._loop.create_task(self._keep_connected(), name=f"connection to {endpoint}")

    @property
    def connections(self) -> int:
        return self._connections

    async def connected(self) -> None:
        while self._usable() is None:
            await self._changed()

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        link, within = await self._connected_within(within)
        waiting = _Waiting(wants_each=False)
        number = link.start_call(path, message, within, waiting)
        timer = self._loop.call_later(min(within, LONGEST_TIMEOUT), link.expire, number, within)
        try:
            await self._over(waiting)
        finally:
            timer.cancel()
            link.cancel(number)
        if waiting.error is not None:
            raise waiting.error
        if len(waiting.answers) != 1:
            problem = "more than one response" if waiting.answers else "no response"
            raise unanswered(Code.INTERNAL, f"the driver returned OK for {path} and {problem}")
        return waiting.answers[0]

    async def stream(self, path: str, message: bytes, within: float) -> AsyncGenerator[bytes, None]:
        link, within = await self._connected_within(within)
        waiting = _Waiting(wants_each=True)
        number = link.start_call(path, message, within, waiting)
        timer = self._loop.call_later(min(within, LONGEST_TIMEOUT), link.expire, number, within)
        try:
            while waiting.answers or not waiting.is_over:
                if waiting.answers:
                    answer = waiting.answers.popleft()
                    link.consumed(number, answer)
                    yield answer
                else:
                    await self._woken(waiting)
            if waiting.error is not None:
                raise waiting.error
        finally:
            timer.cancel()
            link.cancel(number)  # if the reader left early: else the driver would continue until the deadline

    async def close(self) -> None:
        self._closed = True
        self._keeping.cancel()
        try:
            # `wait` does not raise the task's CancelledError, so one that arrives here is our own and is not lost.
            await asyncio.wait([self._keeping])
        finally:
            links = tuple(self._links)
            for link in links:
                link.break_off(unanswered(Code.CANCELLED, CLOSED))
            self._notify_waiters()
            if links:
                await asyncio.wait([link.lost for link in links])

    # ---- waiting -----------------------------------------------------------------------------------------------------

    async def _over(self, waiting: _Waiting) -> None:
        while not waiting.is_over:
            await self._woken(waiting)

    async def _woken(self, waiting: _Waiting) -> None:
        waiting.woken = self._loop.create_future()
        await waiting.woken

    async def _changed(self) -> None:
        """Wait until a connection was made, an attempt failed, or this was closed."""
        change = self._loop.create_future()
        self._waiting.add(change)
        try:
            await change
        finally:
            self._waiting.discard(change)

    def _notify_waiters(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)

    def _usable(self) -> _Link | None:
        """Return the connection if it accepts calls. Raises `Cancelled` once closed."""
        if self._closed:
            raise unsent(Code.CANCELLED, CLOSED)
        return self._link if self._link is not None and self._link.is_usable else None

    async def _connected_within(self, within: float) -> tuple[_Link, float]:
        """Return a connection, and the time that is left. Raises `Unavailable` if the last attempt failed."""
        if (usable := self._usable()) is not None:
            return usable, within
        deadline = self._loop.time() + within
        try:
            async with asyncio.timeout(min(within, LONGEST_TIMEOUT)):
                while (link := self._usable()) is None:
                    if self._why_not is not None:
                        raise unsent(Code.UNAVAILABLE, f"{self._endpoint} cannot be reached: {self._why_not}")
                    await self._changed()
                return link, deadline - self._loop.time()
        except TimeoutError:
            problem = f"{self._endpoint} could not be reached within {within:g} seconds"
            raise unsent(Code.DEADLINE_EXCEEDED, problem) from None

    # ---- connecting --------------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        """Connect, wait until the connection ends, and start again."""
        failures = 0
        while True:
            try:
                link = await self._connect()
            except (OSError, ValueError) as error:
                failures += 1
                self._why_not = str(error) or type(error).__name__
                self._notify_waiters()
                await self._pause(DELAYS[min(failures, len(DELAYS)) - 1])
                continue
            failures, self._why_not = 0, None
            self._link = link
            self._connections += 1
            self._notify_waiters()
            await asyncio.wait([link.over])
            self._link = None

    async def _connect(self) -> _Link:
        """Return a connection whose peer has sent its HTTP/2 settings."""
        link = _Link(self._keepalive, self._probe_seconds)
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                if isinstance(self._endpoint, TcpEndpoint):
                    await self._loop.create_connection(lambda: link, self._endpoint.host, self._endpoint.port)
                else:
                    await self._loop.create_unix_connection(lambda: link, self._endpoint.path)
                self._links.add(link)
                link.lost.add_done_callback(lambda _: self._links.discard(link))
                await link.greeted
        except BaseException:
            link.break_off(unsent(Code.UNAVAILABLE, "the driver sent no HTTP/2 settings"))
            raise
        return link

    async def _pause(self, seconds: float) -> None:
        woken = self._loop.create_future()
        timer = self._loop.call_later(seconds, woken.set_result, None)
        try:
            await woken
        finally:
            timer.cancel()
