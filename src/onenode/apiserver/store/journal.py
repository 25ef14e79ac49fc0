"""The seam between the store and what keeps its changes beyond the life of the process.

A journal is given one batch at a time and answers with a future: done when the batch is durable, failed when nothing
of it is. It must not see, order or change what is inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onenode.apiserver.store.versions import FIRST_REVISION, Change, Key, Stored


@dataclass(frozen=True, slots=True)
class Batch:
    """What is made durable together, or not at all."""

    changes: Sequence[Change]
    garbage: Sequence[int]
    """Revisions of versions that nobody can ask for any more."""
    oldest: int
    """The revision that watches can begin from, once the garbage is gone."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """What a journal still knew of the life before this one."""

    revision: int = FIRST_REVISION
    oldest: int = FIRST_REVISION
    objects: Mapping[Key, Stored] = field(default_factory=dict)
    changes: Sequence[Change] = ()
    """Every one behind `oldest`."""


class Journal(Protocol):
    @property
    def is_short_of_room(self) -> bool:
        """Whether room is worth more now than old versions that are only kept for watches."""

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        """Called only when the one before has ended."""

    async def close(self) -> None:
        """Nothing is committed afterwards."""


class NoJournal:
    """For stores that end with their process: every batch is as durable as it will ever be."""

    is_short_of_room = False

    def commit(self, _batch: Batch) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def close(self) -> None:
        pass
