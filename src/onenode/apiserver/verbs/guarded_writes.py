"""One write, decided upon the newest version of its object, for good or as a dry run.

A decision is made once, in the store's own turn, so nothing can change between looking and deciding. A dry run decides
the same and writes nothing. The answer shows what was written, unless the decision says what to show instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import Key, Put, Remove, Stored, Unchanged, WriteDecision
from onenode.apiserver.verbs.stored_objects import NO_REVISION


@dataclass(frozen=True, slots=True)
class GuardedDecision:
    """`shown` is what the client gets to see where that is not what is written."""

    decision: WriteDecision
    shown: bytes | None = None


Decide = Callable[[Stored | None, int], GuardedDecision]


async def carry_out(store: ObjectStore, key: Key, decide: Decide, *, dry_run: bool = False) -> Stored:
    if dry_run:
        return _tried(key, store.get(key), decide)
    verdict: GuardedDecision | None = None

    def decide_once(newest: Stored | None, revision: int) -> WriteDecision:
        nonlocal verdict
        verdict = decide(newest, revision)
        return verdict.decision

    written = await store.write(key, decide_once)
    return written if verdict is None or verdict.shown is None else Stored(key, NO_REVISION, verdict.shown)


def _tried(key: Key, newest: Stored | None, decide: Decide) -> Stored:
    """An object that is there keeps its version; one that would be made has none."""
    verdict = decide(newest, newest.revision if newest else NO_REVISION)
    match verdict.decision:
        case Put(json) | Remove(json):
            return Stored(key, NO_REVISION, verdict.shown or json)
        case Unchanged():
            if newest is None:
                raise RuntimeError(f"a decision leaves {key} unchanged, which is not there")
            return newest
