"""Every step of a kubelet that somebody else sees, as a place where a journey can be held and something be done to it.

A crossing is one question to the API server, one call of a driver, one act on the disk or one start of a container. A
test runs a journey once to learn how many there are, and then once for each, held just before it happens or just after
it happened and before the kubelet learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """The so-manieth crossing, from 1 on."""

    number: int
    after: bool = False

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} step {self.number}"


@dataclass
class Crossings:
    hold_at: Place | None = None
    names: list[str] = field(default_factory=list)
    is_counting: bool = False
    held: asyncio.Event = field(default_factory=asyncio.Event)
    _go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def through(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        if not self.is_counting:
            return await act()
        self.names.append(name)
        mine = self.hold_at is not None and self.hold_at.number == len(self.names)
        if mine and self.hold_at == Place(len(self.names)):
            await self._hold()
        done = await act()
        if mine and self.hold_at is not None and self.hold_at.after:
            await self._hold()
        return done

    def go_on(self) -> None:
        self._go_on.set()

    async def _hold(self) -> None:
        self.held.set()
        await self._go_on.wait()
