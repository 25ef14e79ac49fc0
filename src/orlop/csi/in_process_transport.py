"""Call services without a socket, for simulations on virtual time and tests with many connections.

Messages are still serialised and parsed, and sizes and deadlines are still enforced, so nothing works here that would
fail on the wire. `cut()` and `mend()` simulate a driver that goes away and comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from orlop.csi.error_codes import Cancelled, Code, ResourceExhausted, Unimplemented, unanswered, unsent
from orlop.csi.transport import LARGEST_MESSAGE, CallHandler, Shape

Received = TypeVar("Received", bound=bytes | None)


class InProcessConnection:
    """A client's connection to a handler in this process."""

    def __init__(self, handler: CallHandler) -> None:
        self._handler = handler
        self._connections = 1
        self._whole = asyncio.Event()
        self._whole.set()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closed = False

    @property
    def connections(self) -> int:
        return self._connections

    async def connected(self) -> None:
        await self._whole.wait()
        if self._closed:
            raise Cancelled("the connection was closed")

    def cut(self) -> None:
        """Break the connection: calls in flight fail with `Unavailable`, as does every call until `mend`."""
        self._whole.clear()
        self._drop_calls()

    def mend(self, handler: CallHandler | None = None) -> None:
        """Connect again, to the same handler or to one that replaced it."""
        self._handler = handler or self._handler
        self._connections += 1
        self._whole.set()

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        self._check(path, message, Shape.UNARY)
        deadline = asyncio.get_running_loop().time() + within
        return await self._received(self._handler.answer(path, message), deadline, path)

    async def stream(self, path: str, message: bytes, within: float) -> AsyncGenerator[bytes, None]:
        self._check(path, message, Shape.STREAMING)
        deadline = asyncio.get_running_loop().time() + within
        async with aclosing(self._handler.answers(path, message)) as answers:
            while True:
                answer = await self._received(anext(answers, None), deadline, path)
                if answer is None:
                    return
                yield answer

    async def _received(self, awaited: Awaitable[Received], deadline: float, path: str) -> Received:
        """Return what the handler returns, unless the deadline, the connection or the caller ends the wait before."""
        waiting = asyncio.ensure_future(awaited)
        self._waiting.add(waiting)
        try:
            async with asyncio.timeout_at(deadline):
                return _within_limit(await waiting)
        except TimeoutError:
            raise unanswered(Code.DEADLINE_EXCEEDED, f"no response from {path} before the deadline") from None
        except asyncio.CancelledError:
            self._why_dropped(waiting)
            raise
        finally:
            self._waiting.discard(waiting)

    async def close(self) -> None:
        self._closed = True
        self._drop_calls()
        self._whole.set()  # Wake everybody who waits for a connection; they see that it is closed.

    def _check(self, path: str, message: bytes, shape: Shape) -> None:
        if self._closed:
            raise unsent(Code.CANCELLED, "the connection was closed")
        if not self._whole.is_set():
            raise unsent(Code.UNAVAILABLE, "the driver is away: the connection is cut")
        if self._handler.shape_of(path) is not shape:
            raise Unimplemented(f"{path} is not served here")
        if len(message) > LARGEST_MESSAGE:
            raise ResourceExhausted(f"a request of {len(message)} bytes: at most {LARGEST_MESSAGE} are allowed")

    def _drop_calls(self) -> None:
        for waiting in self._waiting:
            waiting.cancel()

    def _why_dropped(self, waiting: asyncio.Future[Any]) -> None:
        """Raise why the connection dropped the call; return if the caller cancelled it."""
        caller = asyncio.current_task()
        if not waiting.cancelled() or (caller is not None and caller.cancelling()):
            return
        if self._closed:
            raise unanswered(Code.CANCELLED, "the connection was closed") from None
        raise unanswered(Code.UNAVAILABLE, "the connection broke while the call was in flight") from None


def _within_limit(answer: Received) -> Received:
    if answer is not None and len(answer) > LARGEST_MESSAGE:
        problem = f"a response of {len(answer)} bytes: at most {LARGEST_MESSAGE} are allowed"
        raise unanswered(Code.RESOURCE_EXHAUSTED, problem)
    return answer
