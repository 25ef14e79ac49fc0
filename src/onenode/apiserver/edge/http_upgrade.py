"""An answer that gives the connection to another protocol: bytes both ways, between a client and the server behind.

Bytes are copied as they come and no faster than they are taken; what they mean is not known here. The end of one
direction is passed on, and the end of the far side is the end of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from orlop.foundation.task_group import TaskGroup
from orlop.kube.http.http_messages import HttpResponse, HttpStream

ONE_READ: Final = 64 << 10
SWITCHING: Final = 101


@dataclass(frozen=True, slots=True)
class HttpUpgrade:
    """`headers` are those of the answer 101; the streams lead to the far side, and are to be closed."""

    headers: Mapping[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def status(self) -> int:
        return SWITCHING

    def close(self) -> None:
        self.writer.transport.abort()


ServerAnswer = HttpResponse | HttpStream | HttpUpgrade


class NearEnd(Protocol):
    """The client's connection."""

    async def read(self) -> bytes:
        """What has come; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Returns when it may go on."""


async def joined(near: NearEnd, far: HttpUpgrade) -> None:
    """Returns when the far side has ended and all of it was passed on. Cancelled when the near side is gone."""
    async with TaskGroup() as tasks:
        onwards = tasks.start(_onwards(near, far.writer), name="from a client, upgraded")
        while data := await far.reader.read(ONE_READ):
            await near.write(data)
        onwards.cancel()


async def _onwards(near: NearEnd, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # of the far side: what it still says is read beside this
        while data := await near.read():
            writer.write(data)
            await writer.drain()
        writer.write_eof()
