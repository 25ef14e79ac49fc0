"""One question to a kubelet over its socket: the head of the answer, and its body in pieces or the connection itself.

Every question has a connection of its own, which ends with the answer. The caller must close it. A kubelet that is not
there, or does not begin to answer in time, raises `KubeletUnreachable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Self

from orlop.foundation.clock import Clock
from orlop.foundation.http_exchange import (
    LONGEST_HEAD,
    AnswerHead,
    NotHttp,
    RequestHead,
    body_pieces,
    read_answer,
    request_bytes,
)

ANSWER_SECONDS: Final = 30.0
MOST_TOLD_OF_AN_ERROR: Final = 64 << 10
FULL_SECONDS: Final = 0.02


class KubeletUnreachable(Exception):
    """The end of a sentence that begins with the kubelet."""


@dataclass(frozen=True, slots=True)
class KubeletAnswer:
    head: AnswerHead
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def status(self) -> int:
        return self.head.status

    def body(self) -> KubeletBody:
        return KubeletBody(self)

    async def text(self) -> str:
        """The beginning of the body, for people; the connection is closed."""
        pieces, size = [], 0
        body = self.body()
        try:
            async for piece in body:
                pieces.append(piece)
                size += len(piece)
                if size > MOST_TOLD_OF_AN_ERROR:
                    break
        except NotHttp:
            pieces.append(b" ...")
        finally:
            await body.aclose()
        return b"".join(pieces)[:MOST_TOLD_OF_AN_ERROR].decode(errors="replace")

    def close(self) -> None:
        self.writer.transport.abort()


class KubeletBody:
    """The body in pieces; closing it, also before the first of them, closes the connection."""

    def __init__(self, answer: KubeletAnswer) -> None:
        self._answer = answer
        self._pieces: AsyncIterator[bytes] = body_pieces(answer.head, answer.reader)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        self._answer.close()


async def ask_kubelet(socket: str, request: RequestHead, clock: Clock) -> KubeletAnswer:
    try:
        async with clock.timeout(ANSWER_SECONDS):
            reader, writer = await _connected(socket, clock)
            return await _asked(request, reader, writer)
    except TimeoutError:
        raise KubeletUnreachable(f"does not answer within {ANSWER_SECONDS:g} seconds") from None
    except NotHttp as error:
        raise KubeletUnreachable(f"gives no proper answer: {error}") from None
    except OSError as error:
        raise KubeletUnreachable(f"cannot be connected to: {(error.strerror or str(error)).lower()}") from None


async def _connected(socket: str, clock: Clock) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_unix_connection(socket, limit=LONGEST_HEAD)
        except BlockingIOError:  # so many connect at once that it has not come to all of them yet
            await clock.sleep(FULL_SECONDS)


async def _asked(request: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> KubeletAnswer:
    try:
        writer.write(request_bytes(request))
        await writer.drain()
        return KubeletAnswer(await read_answer(reader), reader, writer)
    except BaseException:
        writer.transport.abort()
        raise
