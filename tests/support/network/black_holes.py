"""Connections that turn into black holes: nothing is refused, nothing is closed, nothing arrives any more.

Two kinds. `swallow_packets` drops every packet of one socket in the kernel, so that not even an acknowledgement comes:
a firewall that lost its table, a machine without power. `FreezableProxy` stands for a balancer that hangs: its kernel
goes on acknowledging, also keepalive probes, but nobody carries the bytes any further.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

SO_ATTACH_FILTER = 26
ACCEPT_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K: keep 0 bytes of the packet


def swallow_packets(connected: socket.socket) -> None:
    """Drop whatever arrives for this socket, before TCP sees it."""
    program = ctypes.create_string_buffer(ACCEPT_NOTHING, len(ACCEPT_NOTHING))
    connected.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))


@dataclass
class FreezableProxy:
    """Connections made before `freeze` carry nothing afterwards; new ones work."""

    host: str
    port: int
    address: str = ""
    connections: int = 0
    _thawed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def freeze(self) -> None:
        self._thawed.clear()
        self._thawed = asyncio.Event()
        self._thawed.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        thawed = self._thawed
        there, back = await asyncio.open_connection(self.host, self.port)
        try:
            await asyncio.gather(_pipe(reader, back, thawed), _pipe(there, writer, thawed))
        finally:
            writer.close()
            back.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, thawed: asyncio.Event) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            if not thawed.is_set():
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()
    if not thawed.is_set():
        await asyncio.Event().wait()  # not even the end of a connection gets through
    writer.close()


@asynccontextmanager
async def freezable_proxy(host: str, port: int) -> AsyncIterator[FreezableProxy]:
    proxy = FreezableProxy(host, port)
    proxy._thawed.set()
    server = await asyncio.start_server(proxy.carry, "127.0.0.1", 0)
    proxy.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
