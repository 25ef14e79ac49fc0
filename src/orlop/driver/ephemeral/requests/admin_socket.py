"""The admin socket of a node: one request per connection, answered by a handler.

Order: create the socket's folder, for root alone → claim the path → accept connections. For each connection: check the
peer (any user but root gets a refusal) → read the request, within seconds → send the responses, each of which the
client must receive within a minute → close. A client that disconnects ends its own request and no other; the handler
then releases what it holds for that request. Leaving the block ends all requests.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol, Self

from orlop.foundation.clock import Clock
from orlop.foundation.message_socket import AsyncFrames, ConnectionEnded, Frame, Peer, peer_of
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import SocketUnusable, bind_root_only, claim_socket
from orlop.records.afterlife_report import (
    BYTES,
    LONGEST_REQUEST,
    MESSAGE,
    AfterlifeRequest,
    AfterlifeResponse,
    MalformedMessage,
    RefusalResponse,
    Why,
    decode_request,
    encode_response,
)

ROOT: Final = 0
ONLY_ROOT_ENTERS: Final = 0o700
MOST_AT_ONCE: Final = 64
REQUEST_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
AFTER_AN_ERROR_SECONDS: Final = 1.0
LONGEST_SENTENCE: Final = 4000


class RequestRefused(Exception):
    def __init__(self, why: Why, sentence: str) -> None:
        super().__init__(sentence)
        self.why: Why = why

    @classmethod
    def gone(cls, volume_id: str) -> Self:
        """Return the refusal for a folder that was retained when the request came, and is not now."""
        return cls("not-found", f"The folder of {volume_id} is no longer retained: it was published again, or erased.")


def in_bounds(sentence: str) -> str:
    """Shorten a sentence in its middle: it may quote a path, and a tenant can create paths of any length."""
    half = LONGEST_SENTENCE // 2
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:half]} … {sentence[-half:]}"


class AdminClient:
    """A connected client with its one request. The server closes the descriptors that came with the request."""

    def __init__(self, request: AfterlifeRequest, frame: Frame, peer: Peer, frames: AsyncFrames, clock: Clock) -> None:
        self.request = request
        self.peer = peer
        self.descriptors = frame.descriptors
        self.when_client_goes: Callable[[], object] | None = None
        """Called when the client disconnects, instead of cancelling the handler, which may need to finish its work."""
        self._frames = frames
        self._clock = clock

    async def answer(self, answer: AfterlifeResponse, descriptors: tuple[int, ...] = ()) -> None:
        async with self._clock.timeout(ANSWER_SECONDS):
            await self._frames.send(MESSAGE, encode_response(answer), descriptors)

    async def send_bytes(self, piece: bytes) -> None:
        async with self._clock.timeout(ANSWER_SECONDS):
            await self._frames.send(BYTES, piece)


class AdminRequestHandler(Protocol):
    """Answers one request completely. An exception ends this request alone."""

    def __call__(self, client: AdminClient, /) -> Awaitable[None]: ...


@asynccontextmanager
async def admin_socket(
    path: str, handler: AdminRequestHandler, *, clock: Clock, log: Log, allowed_user: int = ROOT
) -> AsyncIterator[None]:
    """Serve requests until the block is left. Raises SocketInUse or SocketUnusable."""
    _make_folder(Path(path).parent)
    with claim_socket(Path(path)) as claim, bind_root_only(claim) as listener:
        listener.setblocking(False)
        async with TaskGroup() as tasks:
            server = _AdminServer(listener, handler, tasks, clock=clock, log=log, allowed_user=allowed_user)
            accepting = tasks.start(server.run(), name="admin socket")
            try:
                yield
            finally:
                accepting.cancel()
                server.close_connections()


def _make_folder(folder: Path) -> None:
    """Create the folder and its missing parents, for root alone."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            each.mkdir(mode=ONLY_ROOT_ENTERS, exist_ok=True)
    except OSError as error:
        raise SocketUnusable(f"The folder {folder} of the admin socket cannot be made: {error.strerror}.") from error


class _AdminServer:
    def __init__(
        self,
        listener: socket.socket,
        handler: AdminRequestHandler,
        tasks: TaskGroup,
        *,
        clock: Clock,
        log: Log,
        allowed_user: int,
    ) -> None:
        self._listener = listener
        self._handler = handler
        self._allowed_user = allowed_user
        self._clock = clock
        self._log = log
        self._tasks = tasks
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # no descriptors left, most likely: the clients wait in the backlog
                self._log.warning("admin socket: accept failed", error=error)
                await self._clock.sleep(AFTER_AN_ERROR_SECONDS)
                continue
            task = self._tasks.start(self._serve(connection), name="admin request")
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    def close_connections(self) -> None:
        for task in self._connections:
            task.cancel()

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                await self._handle(AsyncFrames(connection), peer_of(connection))
            except (ConnectionEnded, ConnectionError, TimeoutError) as error:
                self._log.debug("admin request ended early", error=error)
            except Exception as error:  # noqa: BLE001 - an error in one request must not end the others
                self._log.error("admin request failed", error=error)

    async def _handle(self, frames: AsyncFrames, peer: Peer) -> None:
        if refusal := self._objection_to(peer):
            await self._refuse(frames, refusal)
            return
        async with self._clock.timeout(REQUEST_SECONDS):
            frame = await frames.receive(LONGEST_REQUEST)
        try:
            client = AdminClient(decode_request(frame.body), frame, peer, frames, self._clock)
            await self._answered_or_gone(client, frames)
        except MalformedMessage as error:
            await self._refuse(frames, str(error))
        finally:
            for descriptor in frame.descriptors:
                os.close(descriptor)

    async def _answered_or_gone(self, client: AdminClient, frames: AsyncFrames) -> None:
        async with TaskGroup() as tasks:
            answering = tasks.start(_awaited(self._handler(client)), name="answer")

            async def watch() -> None:
                await frames.until_it_ends()
                if client.when_client_goes is not None:
                    client.when_client_goes()
                else:
                    answering.cancel()

            watching = tasks.start(watch(), name="watch the client")
            try:
                await asyncio.wait([answering])
            finally:
                watching.cancel()
                answering.cancel()  # has an effect only if this task was cancelled itself

    def _objection_to(self, peer: Peer) -> str | None:
        if peer.user != self._allowed_user:
            return f"The user {peer.user} may not send requests to this node: run the command as root."
        if len(self._connections) > MOST_AT_ONCE:
            return f"This node is already serving {MOST_AT_ONCE} requests, which is its limit. Try again later."
        return None

    async def _refuse(self, frames: AsyncFrames, sentence: str) -> None:
        async with self._clock.timeout(ANSWER_SECONDS):
            await frames.send(MESSAGE, encode_response(RefusalResponse("refused", sentence)))


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable
