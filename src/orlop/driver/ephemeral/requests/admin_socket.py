"""The socket on which people ask a node about its folders: one question for each connection, answered by a handler.

Order: the folder of the socket is made, for root alone → the path is claimed → connections are taken. Of each: who it
is (root, or one sentence and the end) → its question, within seconds → the answers, each taken by the client within a
minute → the end. A client that vanishes ends its own conversation and nothing else; what the handler holds for it, it
gives up then. Leaving the block ends all of them.
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
    LONGEST_QUESTION,
    MESSAGE,
    Answer,
    Question,
    Refused,
    Unreadable,
    Why,
    decode_question,
    encode_answer,
)

ROOT: Final = 0
ONLY_ROOT_ENTERS: Final = 0o700
MOST_AT_ONCE: Final = 64
QUESTION_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
AFTER_AN_ERROR_SECONDS: Final = 1.0
LONGEST_SENTENCE: Final = 4000


class RequestRefused(Exception):
    def __init__(self, why: Why, sentence: str) -> None:
        super().__init__(sentence)
        self.why: Why = why

    @classmethod
    def gone(cls, volume_id: str) -> Self:
        """The folder was retained when the request came, and is not now."""
        return cls("not-found", f"The folder of {volume_id} is no longer retained: it was published again, or erased.")


def in_bounds(sentence: str) -> str:
    """Shorten a sentence in its middle: it may quote a path, and a tenant can make paths of any length."""
    half = LONGEST_SENTENCE // 2
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:half]} … {sentence[-half:]}"


class Conversation:
    """One request and its connection. The descriptors that came with it are closed at its end."""

    def __init__(self, question: Question, frame: Frame, peer: Peer, frames: AsyncFrames, clock: Clock) -> None:
        self.question = question
        self.peer = peer
        self.descriptors = frame.descriptors
        self.when_client_goes: Callable[[], object] | None = None
        """What is done then instead of cancelling the handler, which may want to say a last word."""
        self._frames = frames
        self._clock = clock

    async def answer(self, answer: Answer, descriptors: tuple[int, ...] = ()) -> None:
        async with self._clock.timeout(ANSWER_SECONDS):
            await self._frames.send(MESSAGE, encode_answer(answer), descriptors)

    async def send_bytes(self, piece: bytes) -> None:
        async with self._clock.timeout(ANSWER_SECONDS):
            await self._frames.send(BYTES, piece)


class AdminRequestHandler(Protocol):
    """Answers a question to its end. What it raises ends the conversation alone."""

    def __call__(self, conversation: Conversation, /) -> Awaitable[None]: ...


@asynccontextmanager
async def admin_socket(
    path: str, handler: AdminRequestHandler, *, clock: Clock, log: Log, allowed_user: int = ROOT
) -> AsyncIterator[None]:
    """Serves while it is entered; SocketInUse or SocketUnusable say what stands against it."""
    _make_folder(Path(path).parent)
    with claim_socket(Path(path)) as claim, bind_root_only(claim) as listener:
        listener.setblocking(False)
        async with TaskGroup() as tasks:
            server = _Server(listener, handler, tasks, clock=clock, log=log, allowed_user=allowed_user)
            accepting = tasks.start(server.run(), name="admin socket")
            try:
                yield
            finally:
                accepting.cancel()
                server.end_conversations()


def _make_folder(folder: Path) -> None:
    """With what is missing above it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            each.mkdir(mode=ONLY_ROOT_ENTERS, exist_ok=True)
    except OSError as error:
        raise SocketUnusable(f"The folder {folder} of the admin socket cannot be made: {error.strerror}.") from error


class _Server:
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
        self._conversations: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # no descriptors left, most likely: the clients wait in the backlog
                self._log.warning("admin socket: accept failed", error=error)
                await self._clock.sleep(AFTER_AN_ERROR_SECONDS)
                continue
            task = self._tasks.start(self._serve(connection), name="admin conversation")
            self._conversations.add(task)
            task.add_done_callback(self._conversations.discard)

    def end_conversations(self) -> None:
        for task in self._conversations:
            task.cancel()

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                await self._converse(AsyncFrames(connection), peer_of(connection))
            except (ConnectionEnded, ConnectionError, TimeoutError) as error:
                self._log.debug("admin request ended early", error=error)
            except Exception as error:  # noqa: BLE001 - whatever one client brings about is not the others' concern
                self._log.error("admin request failed", error=error)

    async def _converse(self, frames: AsyncFrames, peer: Peer) -> None:
        if refusal := self._objection_to(peer):
            await self._refuse(frames, refusal)
            return
        async with self._clock.timeout(QUESTION_SECONDS):
            frame = await frames.receive(LONGEST_QUESTION)
        try:
            conversation = Conversation(decode_question(frame.body), frame, peer, frames, self._clock)
            await self._answered_or_gone(conversation, frames)
        except Unreadable as error:
            await self._refuse(frames, str(error))
        finally:
            for descriptor in frame.descriptors:
                os.close(descriptor)

    async def _answered_or_gone(self, conversation: Conversation, frames: AsyncFrames) -> None:
        async with TaskGroup() as tasks:
            answering = tasks.start(_awaited(self._handler(conversation)), name="answer")

            async def watch() -> None:
                await frames.until_it_ends()
                if conversation.when_client_goes is not None:
                    conversation.when_client_goes()
                else:
                    answering.cancel()

            watching = tasks.start(watch(), name="watch the client")
            try:
                await asyncio.wait([answering])
            finally:
                watching.cancel()
                answering.cancel()  # of effect only if we were cancelled ourselves

    def _objection_to(self, peer: Peer) -> str | None:
        if peer.user != self._allowed_user:
            return f"The user {peer.user} may not ask this node: only root may."
        if len(self._conversations) > MOST_AT_ONCE:
            return f"This node answers {MOST_AT_ONCE} questions at a time already. Ask again later."
        return None

    async def _refuse(self, frames: AsyncFrames, sentence: str) -> None:
        async with self._clock.timeout(ANSWER_SECONDS):
            await frames.send(MESSAGE, encode_answer(Refused("refused", sentence)))


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable
