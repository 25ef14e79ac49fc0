"""Object stores for tests: small objects, both modes behind one contract, and a journal that commits when told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.journal import Batch, JournalState
from onenode.apiserver.store.store import ObjectStore, memory_store
from onenode.apiserver.store.versions import (
    DEFAULT_LIMITS,
    Change,
    Key,
    Limits,
    Put,
    SizeLimits,
    Stored,
    Unchanged,
    WriteDecision,
)
from onenode.apiserver.store.watches import Watch

OpenStore = Callable[..., AbstractAsyncContextManager[ObjectStore]]

PODS = "pods"
VOLUMES = "persistentvolumes"


def pod(name: str, namespace: str = "default") -> Key:
    return Key(PODS, namespace, name)


def volume(name: str) -> Key:
    return Key(VOLUMES, "", name)


# ---- objects: their own revision, and a value ------------------------------------------------------------------------


def encoded(revision: int, value: object) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": str(revision)}, "value": value}).encode()


def made(value: object) -> Callable[[int], bytes]:
    return lambda revision: encoded(revision, value)


def changed(value: object) -> Callable[[Stored, int], WriteDecision]:
    return lambda _current, revision: Put(encoded(revision, value))


def unchanged(_current: Stored, _revision: int) -> WriteDecision:
    return Unchanged()


def tombstone(current: Stored, revision: int) -> bytes:
    return encoded(revision, value_of(current))


def value_of(stored: Stored) -> Any:
    return json.loads(stored.json)["value"]


def written_revision(stored: Stored) -> int:
    return int(json.loads(stored.json)["metadata"]["resourceVersion"])


def values(stored: Sequence[Stored]) -> dict[str, Any]:
    return {each.key.name: value_of(each) for each in stored}


def told(changes: Sequence[Change]) -> list[tuple[str, str, int]]:
    return [(change.kind.name, change.key.name, change.revision) for change in changes]


# ---- opening ---------------------------------------------------------------------------------------------------------


def memory_opener(_folder: Path) -> OpenStore:
    return memory_store


def durable_opener(folder: Path) -> OpenStore:
    return lambda limits=DEFAULT_LIMITS: durable_store(folder, limits)


def history_of(count: int, size: int = 1 << 30) -> Limits:
    return Limits(history=SizeLimits(count, size))


def unread_of(count: int, size: int = 1 << 30) -> Limits:
    return Limits(unread=SizeLimits(count, size))


async def turns(count: int = 5) -> None:
    """Lets everybody else run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def read(watch: Watch, count: int) -> list[Change]:
    return [await anext(watch) for _ in range(count)]


def raw_state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith("objects.db")}


# ---- a journal that commits when told to -----------------------------------------------------------------------------


@dataclass
class HeldJournal:
    """Keeps every batch waiting until the test lets it succeed or fail."""

    batches: list[Batch] = field(default_factory=list)
    running: asyncio.Future[None] | None = None
    is_short_of_room: bool = False

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        assert self.running is None or self.running.done(), "two commits at once"
        self.batches.append(batch)
        self.running = asyncio.get_running_loop().create_future()
        return self.running

    async def close(self) -> None:
        pass

    @property
    def held(self) -> list[tuple[str, str, int]]:
        return told(self.batches[-1].changes) if self.running and not self.running.done() else []

    async def succeed(self) -> None:
        await turns()
        assert self.running is not None
        self.running.set_result(None)
        await turns()

    async def fail(self, reason: str = "no space left") -> None:
        await turns()
        assert self.running is not None
        self.running.set_exception(OSError(reason))
        await turns()


def held_store(limits: Limits = DEFAULT_LIMITS) -> tuple[ObjectStore, HeldJournal]:
    journal = HeldJournal()
    return ObjectStore(journal, JournalState(), limits), journal


@contextmanager
def started(*coroutines: Any) -> Iterator[list[asyncio.Task[Any]]]:
    """Tasks that run beside the test and are over when it leaves."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
