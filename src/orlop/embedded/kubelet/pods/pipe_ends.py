"""Our ends of pipes on an event loop, by their descriptors alone.

Event loops have transports for pipes, but not all of them agree on who closes the descriptor: one that was closed twice
may have been somebody else's the second time. Here it is whoever made the pipe, after the last read or write.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

ONE_READ: Final = 64 << 10


async def read_pipe(descriptor: int) -> bytes:
    """The next piece; empty at the end. The descriptor must not block."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, ONE_READ)
        except BlockingIOError:
            await _until(descriptor, loop.add_reader, loop.remove_reader)


async def write_pipe(descriptor: int, data: bytes) -> None:
    """All of it, as fast as it is read; `BrokenPipeError` where nobody reads any more."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            await _until(descriptor, loop.add_writer, loop.remove_writer)


async def _until(descriptor: int, begin: Callable[[int, Callable[[], None]], Any], end: Callable[[int], Any]) -> None:
    ready = asyncio.get_running_loop().create_future()

    def tell() -> None:
        end(descriptor)
        if not ready.done():
            ready.set_result(None)

    begin(descriptor, tell)
    try:
        await ready
    finally:
        end(descriptor)
