"""CSI's bytes over gRPC, from the caller's end: a connection around the rules of `http2_client`. No grpc here.

Made at once, made again for ever after it broke. While it cannot be made calls fail at once; while it is being made
they wait. Nothing is repeated here: whether a call may be is for the caller to decide. All that is asked in one turn of
the loop goes out in one write. A driver that does not read is not read from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, cast

from orlop.csi.endpoint import Endpoint, TcpEndpoint
from orlop.csi.error_codes import Cancelled, CsiError, DeadlineExceeded, Internal, Unavailable
from orlop.csi.grpc.http2_client import CallEnded, ClientEvent, Http2Client, ResponseReceived
from orlop.foundation.tcp_keepalive import KEEPALIVE, TcpKeepalive

GREETING_SECONDS: Final = 20.0
"""From connecting to the first settings."""
LONGEST_TIMEOUT: Final = 366 * 24 * 3600.0
"""Who waits for longer waits this long: not every loop can count further."""
DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0)
"""Before it is tried again to connect, after so many failures; the last of them from then on."""
PROBE_SECONDS: Final = 10.0
"""How long a TCP peer may send nothing at all after a call expired and we asked for a sign of life."""
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
    """One connection."""

    def __init__(self, keepalive: TcpKeepalive, probe_seconds: float | None) -> None:
        """Without `probe_seconds` the peer is never probed."""
        self._keepalive = keepalive
        self._probe_seconds = probe_seconds
        self._probe_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self.over: asyncio.Future[str] = self._loop.create_future()
        """Done with the reason when no new call can be made on it."""
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._http2 = Http2Client()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Waiting] = {}
        self._write_due = False

    @property
    def is_usable(self) -> bool:
        return not self.over.done()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def ask(self, path: str, message: bytes, within: float, waiting: _Waiting) -> int:
        number = self._http2.ask(path, message, within)
        self._calls[number] = waiting
        self._write_soon()
        if self._http2.is_used_up:
            self._be_over("all its calls are used up")
        return number

    def cancel(self, number: int) -> None:
        if self._calls.pop(number, None) is not None:
            self._http2.cancel(number)
            self._write_soon()

    def expire(self, number: int, within: float) -> None:
        waiting = self._calls.get(number)
        if waiting is not None:
            self.cancel(number)
            waiting.is_over, waiting.error = True, DeadlineExceeded(f"no response within {within:g} seconds")
            waiting.wake()
            self._probe()

    def taken(self, number: int, message: bytes) -> None:
        self._http2.taken(number, message)
        self._write_soon()

    def break_off(self, error: CsiError) -> None:
        """Calls under way end with this."""
        for waiting in self._calls.values():
            waiting.is_over, waiting.error = True, error
            waiting.wake()
        self._calls.clear()
        self._be_over(str(error))
        if self._transport is not None:
            self._transport.abort()
            # A connection cancelled while it is being made is closed by uvloop in a way that `is_closing` does not
            # show, and writing to it raises. A write may be due already, so it must find no transport.
            self._transport = None

    def _probe(self) -> None:
        """Find out whether the driver is slow or the path to it is gone: only then must the connection be given up."""
        if self._probe_seconds is None or self._probe_timer is not None:
            return
        self._http2.probe()
        self._write_soon()
        gone = Unavailable(f"the connection is dead: nothing came on it in {self._probe_seconds:g} seconds")
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
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio's
        self._keepalive.apply(transport.get_extra_info("socket"))
        self._write()

    def data_received(self, data: bytes) -> None:
        self._end_probe()
        self._act(self._http2.receive(data))
        if not self.greeted.done() and self._http2.greeted:
            self.greeted.set_result(None)
        if self._http2.why_over is not None:
            self._be_over(f"the driver broke the protocol: {self._http2.why_over}")
        elif self._http2.is_leaving:
            self._be_over("the driver accepts no new calls")
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
        self._be_over(f"the connection broke: {exc or 'the driver closed it'}")
        self._act(self._http2.end(self.over.result()))
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(self.over.result()))
            self.greeted.exception()  # Retrieved here, because nobody may wait for it any more.
        if not self.lost.done():
            self.lost.set_result(None)

    def _be_over(self, reason: str) -> None:
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
    """A client's connection to one endpoint."""

    def __init__(
        self, endpoint: Endpoint, *, keepalive: TcpKeepalive = KEEPALIVE, probe_seconds: float = PROBE_SECONDS
    ) -> None:
        self._endpoint = endpoint
        self._keepalive = keepalive
        # Between the ends of a unix socket nothing can vanish, so a silent driver there is slow, and no more.
        self._probe_seconds = probe_seconds if isinstance(endpoint, TcpEndpoint) else None
        self._loop = asyncio.get_running_loop()
        self._link: _Link | None = None
        self._links: set[_Link] = set()
        self._why_not: str | None = None
        """Why there is no connection, when the last attempt failed."""
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
        link = self._usable() or await self._connected_within(within)
        waiting = _Waiting(wants_each=False)
        number = link.ask(path, message, within, waiting)
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
            raise Internal(f"the driver returned OK for {path} and {problem}")
        return waiting.answers[0]

    async def stream(self, path: str, message: bytes, within: float) -> AsyncGenerator[bytes, None]:
        link = self._usable() or await self._connected_within(within)
        waiting = _Waiting(wants_each=True)
        number = link.ask(path, message, within, waiting)
        timer = self._loop.call_later(min(within, LONGEST_TIMEOUT), link.expire, number, within)
        try:
            while waiting.answers or not waiting.is_over:
                if waiting.answers:
                    answer = waiting.answers.popleft()
                    link.taken(number, answer)
                    yield answer
                else:
                    await self._woken(waiting)
            if waiting.error is not None:
                raise waiting.error
        finally:
            timer.cancel()
            link.cancel(number)  # of effect where the reader has left: the driver would go on until the deadline

    async def close(self) -> None:
        self._closed = True
        self._keeping.cancel()
        try:
            await asyncio.wait([self._keeping])  # which raises nothing of it, so that our own cancellation is not lost
        finally:
            links = tuple(self._links)
            for link in links:
                link.break_off(Cancelled(CLOSED))
            self._tell()
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
        change = self._loop.create_future()
        self._waiting.add(change)
        try:
            await change
        finally:
            self._waiting.discard(change)

    def _tell(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)

    def _usable(self) -> _Link | None:
        if self._closed:
            raise Cancelled(CLOSED)
        return self._link if self._link is not None and self._link.is_usable else None

    async def _connected_within(self, within: float) -> _Link:
        """Waits while it is being made; does not where it could not be."""
        try:
            async with asyncio.timeout(min(within, LONGEST_TIMEOUT)):
                while (link := self._usable()) is None:
                    if self._why_not is not None:
                        raise Unavailable(f"{self._endpoint} cannot be reached: {self._why_not}")
                    await self._changed()
                return link
        except TimeoutError:
            raise DeadlineExceeded(f"{self._endpoint} could not be reached within {within:g} seconds") from None

    # ---- connecting --------------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            try:
                link = await self._connect()
            except (OSError, ValueError) as error:
                failures += 1
                self._why_not = str(error) or type(error).__name__
                self._tell()
                await self._pause(DELAYS[min(failures, len(DELAYS)) - 1])
                continue
            failures, self._why_not = 0, None
            self._link = link
            self._connections += 1
            self._tell()
            await asyncio.wait([link.over])
            self._link = None

    async def _connect(self) -> _Link:
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
            link.break_off(Unavailable("the driver sent no HTTP/2 settings"))
            raise
        return link

    async def _pause(self, seconds: float) -> None:
        woken = self._loop.create_future()
        timer = self._loop.call_later(seconds, woken.set_result, None)
        try:
            await woken
        finally:
            timer.cancel()
