"""The client's side of WebSocket for tests: frames as they should be, and as they should not."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass, field
from typing import Any

from support.api.api_edge import RawClient

BINARY, TEXT, CONTINUATION, CLOSE, PING, PONG = 2, 1, 0, 8, 9, 10
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""Both are RFC 6455's own example."""


def frame(
    data: bytes,
    opcode: int = BINARY,
    *,
    fin: bool = True,
    mask: bytes | None = b"mask",
    first: int = 0,
    claims: int = -1,
) -> bytes:
    """`first` are bits of the first byte that should not be there; `claims` is a length that is not the data's."""
    length = len(data) if claims < 0 else claims
    bit = 0x80 if mask else 0
    if length < 126:
        head = struct.pack(">BB", (0x80 if fin else 0) | first | opcode, bit | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", (0x80 if fin else 0) | first | opcode, bit | 126, length)
    else:
        head = struct.pack(">BBQ", (0x80 if fin else 0) | first | opcode, bit | 127, length)
    if mask is None:
        return head + data
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))


def handshake(*protocols: str) -> list[str]:
    return [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {KEY}",
        *(f"Sec-WebSocket-Protocol: {protocol}" for protocol in protocols),
    ]


@dataclass
class Heard:
    """All that a server said, by channel, until it closed."""

    channels: dict[int, bytes] = field(default_factory=dict)
    pongs: list[bytes] = field(default_factory=list)
    close_code: int | None = None
    close_reason: str = ""

    @property
    def status(self) -> dict[str, Any]:
        return json.loads(self.channels[3])

    @property
    def code(self) -> int:
        if self.status["status"] == "Success":
            return 0
        return int(self.status["details"]["causes"][0]["message"])


class WebSocketClient(RawClient):
    async def frame(self) -> tuple[int, bytes] | None:
        """The opcode and what it carries; None where the server is gone."""
        try:
            first, second = await self.reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        assert first & 0xF0 == 0x80, "a server here fragments nothing"
        assert not second & 0x80, "a server masks nothing"
        length = second
        if second == 126:
            (length,) = struct.unpack(">H", await self.reader.readexactly(2))
        elif second == 127:
            (length,) = struct.unpack(">Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(length)

    async def say(self, channel: int, data: bytes) -> None:
        await self.send(frame(bytes([channel]) + data))

    async def to_the_end(self) -> Heard:
        heard = Heard()
        while (got := await self.frame()) is not None:
            opcode, data = got
            if opcode == PONG:
                heard.pongs.append(data)
            elif opcode == CLOSE:
                heard.close_code, heard.close_reason = int.from_bytes(data[:2], "big"), data[2:].decode()
                self.close()
                break
            else:
                heard.channels[data[0]] = heard.channels.get(data[0], b"") + data[1:]
        return heard

    def close(self) -> None:
        self.writer.transport.abort()
