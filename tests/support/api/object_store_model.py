"""The object store as a plain model: a dict, a list of everything that ever happened, and no concurrency.

Several operations that begin in one turn of the loop are answered as if they came one after the other; `fails` says
that no commit of theirs succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from onenode.apiserver.store.journal import Batch, Journal
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import NoSuchObject, ObjectExists, RevisionConflict, WriteFailed
from onenode.apiserver.store.versions import FIRST_REVISION, Change, ChangeKind, Key, Put, Remove, Stored
from support.api.object_stores import changed, encoded, made, unchanged


@dataclass(frozen=True)
class Operation:
    """`verb` is one of create, update, keep, delete, finish (an update that ends as a deletion), put."""

    verb: str
    key: Key
    expected: int | None
    value: int

    def start(self, store: ObjectStore) -> Coroutine[Any, Any, Stored]:
        match self.verb:
            case "create":
                return store.create(self.key, made(self.value))
            case "update":
                return store.update(self.key, self.expected, changed(self.value))
            case "keep":
                return store.update(self.key, self.expected, unchanged)
            case "delete":
                return store.delete(self.key, self.expected, lambda _, revision: encoded(revision, self.value))
            case "finish":
                return store.update(self.key, self.expected, lambda _, revision: Remove(encoded(revision, self.value)))
            case _:
                return store.write(self.key, lambda _, revision: Put(encoded(revision, self.value)))

    def refusal(self, newest: Stored | None) -> type[Exception] | None:
        if self.verb == "put":
            return None
        if self.verb == "create":
            return None if newest is None else ObjectExists
        if newest is None:
            return NoSuchObject
        return RevisionConflict if self.expected not in {None, newest.revision} else None


Outcome = Stored | type[Exception]


@dataclass
class Model:
    objects: dict[Key, Stored] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    states: dict[int, dict[Key, Stored]] = field(default_factory=lambda: {FIRST_REVISION: {}})
    revision: int = FIRST_REVISION
    last_given: int = FIRST_REVISION

    def apply(self, operations: Sequence[Operation], *, fails: bool) -> list[Outcome]:
        newest = dict(self.objects)
        changes: list[Change] = []
        outcomes: list[Outcome] = []
        for operation in operations:
            built_upon_a_write = any(change.key == operation.key for change in changes)
            outcome, change = self._one(operation, newest)
            if change is not None:
                changes.append(change)
            doomed = fails and (change is not None or built_upon_a_write)
            outcomes.append(WriteFailed if doomed else outcome)
        if not fails:
            self._commit(changes)
        return outcomes

    def _one(self, operation: Operation, newest: dict[Key, Stored]) -> tuple[Outcome, Change | None]:
        before = newest.get(operation.key)
        refusal = operation.refusal(before)
        if refusal is not None:
            return refusal, None
        if operation.verb == "keep" and before is not None:
            return before, None
        self.last_given += 1
        after = Stored(operation.key, self.last_given, encoded(self.last_given, operation.value))
        if operation.verb in {"delete", "finish"}:
            del newest[operation.key]
            return after, Change(ChangeKind.DELETED, after, before)
        newest[operation.key] = after
        return after, Change(ChangeKind.UPDATED if before else ChangeKind.CREATED, after, before)

    def _commit(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.objects.pop(change.key, None)
            if change.kind is not ChangeKind.DELETED:
                self.objects[change.key] = change.after
            self.history.append(change)
            self.revision = change.revision
            self.states[self.revision] = dict(self.objects)

    def restart(self) -> None:
        """Numbers of failed writes were shown to nobody."""
        self.last_given = self.revision

    def state_at(self, revision: int) -> dict[Key, Stored]:
        return self.states[max(known for known in self.states if known <= revision)]

    def listed(self, resource: str, namespace: str | None, at: int) -> list[Stored]:
        state = self.state_at(at)
        return [state[key] for key in sorted(state) if matches(key, resource, namespace)]

    def changes(self, resource: str, namespace: str | None, after: int) -> list[Change]:
        return [c for c in self.history if c.revision > after and matches(c.key, resource, namespace)]


def matches(key: Key, resource: str, namespace: str | None) -> bool:
    return key.resource == resource and namespace in {None, key.namespace}


@dataclass
class FailingJournal:
    """Hands everything on, or fails everything."""

    journal: Journal
    fails: bool = False

    is_short_of_room = False

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        if not self.fails:
            return self.journal.commit(batch)
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(OSError("disk I/O error"))
        return failed

    async def close(self) -> None:
        await self.journal.close()
