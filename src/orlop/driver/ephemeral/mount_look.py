"""Which folders something has mounted, asked by many at once and read as seldom as possible.

Reading every mount namespace takes milliseconds. A caller must not be told what was true before it asked; so each gets
the answer of a reading that begins after its question, and all who ask while one is under way share the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from orlop.host.node_host import FolderPlace

Read = Callable[[], Awaitable[frozenset[FolderPlace]]]


class MountLook:
    def __init__(self, read: Read) -> None:
        self._read = read
        self._under_way: asyncio.Task[frozenset[FolderPlace]] | None = None
        self._next: asyncio.Task[frozenset[FolderPlace]] | None = None

    async def mounted(self) -> frozenset[FolderPlace]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_after(self._under_way))
        # One who leaves must not take the answer from the others.
        return await asyncio.shield(self._next)

    async def _read_after(self, other: asyncio.Task[frozenset[FolderPlace]] | None) -> frozenset[FolderPlace]:
        if other is not None:
            await asyncio.wait([other])
        self._under_way, self._next = self._next, None
        return await self._read()
