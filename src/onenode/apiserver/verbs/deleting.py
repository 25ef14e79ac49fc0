"""Taking objects away: one, or all that are selected.

Order of effects: in the store's turn, upon the newest version, preconditions are looked at first; then the object is
marked or goes, and then it is answered. Of a collection each object is a write of its own, many under way at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.admission.write_attributes import Admit, admit_all
from onenode.apiserver.answers.status_answers import (
    Refusal,
    about,
    forbidden,
    not_found,
    precondition_failed,
    success,
)
from onenode.apiserver.requests.request_options import DeletionOptions
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import Key, Put, Remove, Stored, Unchanged
from onenode.apiserver.verbs.deletion_rules import ANSWERED_WITH_OBJECT, RemoveObject, deletion
from onenode.apiserver.verbs.guarded_writes import GuardedDecision, carry_out
from onenode.apiserver.verbs.namespace_gate import NEVER_DELETED, NamespaceGate
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.kinds import NAMESPACE

Object = dict[str, Any]

AT_ONCE: Final = 500
NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class Deleted:
    """The object as it is or was, and the Status that is shown in its place, if one is."""

    stored: Stored
    status: Object | None = None


def _always() -> None:
    """Whatever has happened meanwhile."""


class Deleter:
    def __init__(self, store: ObjectStore, runtime: Runtime, gate: NamespaceGate) -> None:
        self._store = store
        self._runtime = runtime
        self._gate = gate

    async def delete(
        self,
        kind: KindInStore,
        key: Key,
        options: DeletionOptions,
        still_meant: Callable[[], None] = _always,
        admit: Admit = admit_all,
    ) -> Deleted:
        """`still_meant` is called in the store's turn, and raises if the object shall stay after all."""
        if kind.kind is NAMESPACE and key.name in NEVER_DELETED:
            raise forbidden(NAMESPACE, key.name, "this namespace may not be deleted")
        gone: list[Object] = []

        def decide(newest: Stored | None, revision: int) -> GuardedDecision:
            still_meant()
            if newest is None:
                raise not_found(kind.kind, key.name)
            old = kind.object(newest)
            _check_preconditions(kind, old, options)
            admit(None, old)
            return self._verdict(kind, old, options, revision, gone)

        write = carry_out(self._store, key, decide, dry_run=options.dry_run)
        gate = None if options.dry_run else self._gate.of(kind.kind)
        stored = await (write if gate is None else gate.closing(key.name, write))
        silent = gone and kind.kind.resource not in ANSWERED_WITH_OBJECT
        return Deleted(stored, _status(kind, gone[0]) if silent else None)

    def _verdict(
        self, kind: KindInStore, old: Object, options: DeletionOptions, revision: int, gone: list[Object]
    ) -> GuardedDecision:
        decided = deletion(old, options, self._runtime.clock.now())
        encoded = kind.encoded(decided.object, revision)
        if not options.dry_run and (gate := self._gate.of(kind.kind)) is not None:
            gate.close(old["metadata"]["name"])
        if isinstance(decided, RemoveObject):
            gone.append(decided.object)
            return GuardedDecision(Remove(encoded))
        return GuardedDecision(Unchanged()) if decided.object == old else GuardedDecision(Put(encoded))

    async def delete_all(
        self,
        kind: KindInStore,
        items: Sequence[Stored],
        options: DeletionOptions,
        still_meant: Callable[[], None] = _always,
        admit: Admit = admit_all,
    ) -> None:
        """What somebody else took away meanwhile is as well gone."""
        for start in range(0, len(items), AT_ONCE):
            async with TaskGroup() as group:
                for key in (stored.key for stored in items[start : start + AT_ONCE]):
                    deletion = self._delete_if_there(kind, key, options, still_meant, admit)
                    group.start(deletion, name=f"deletion of {key}")

    async def _delete_if_there(
        self, kind: KindInStore, key: Key, options: DeletionOptions, still_meant: Callable[[], None], admit: Admit
    ) -> None:
        try:
            await self.delete(kind, key, options, still_meant, admit)
        except Refusal as refusal:
            if refusal.code != NOT_FOUND:
                raise


def _status(kind: KindInStore, gone: Object) -> Object:
    metadata = gone["metadata"]
    return success(about(kind.kind, metadata["name"], uid=metadata.get("uid", "")))


def _check_preconditions(kind: KindInStore, old: Object, options: DeletionOptions) -> None:
    metadata = old["metadata"]
    name = metadata["name"]
    if options.uid is not None and options.uid != metadata.get("uid"):
        why = f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata.get('uid')})"
        more = "The object might have been deleted and then recreated"
        raise precondition_failed(kind.kind, name, f"{why}. {more}")
    if options.version is not None and options.version != metadata.get("resourceVersion"):
        found = metadata.get("resourceVersion")
        why = (
            f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion in record"
        )
        raise precondition_failed(kind.kind, name, f"{why} ({found}). The object might have been modified")
