"""Reading objects: one, or a list of them, as they are now or as they were at a version that is still kept.

A version that does not exist yet is waited for, three seconds at most: a client may have got it from another server, or
it may be a write that is not durable yet. Must not change anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onenode.apiserver.answers.answer_forms import ListMetadata
from onenode.apiserver.answers.status_answers import list_expired, not_found, token_expired, version_not_reached
from onenode.apiserver.requests.request_options import (
    NEWEST,
    ContinueToken,
    ListOptions,
    list_time,
    read_token,
    read_version,
    write_token,
)
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import RevisionExpired
from onenode.apiserver.store.versions import Key, Page, Stored
from onenode.apiserver.verbs.selection import Selection
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.foundation.clock import Clock

LONGEST_WAIT_SECONDS: Final = 3.0


class ObjectReader:
    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def get(self, kind: KindInStore, key: Key, version: str = "") -> Stored:
        await self.wait_for(read_version(version))
        stored = self._store.get(key)
        if stored is None:
            raise not_found(kind.kind, key.name)
        return stored

    async def list(self, selection: Selection, options: ListOptions) -> tuple[Sequence[Stored], ListMetadata]:
        time = list_time(options)
        if options.continue_token:
            return self._next_page(selection, options)
        await self.wait_for(time.revision)
        limit = 0 if options.version == "0" else options.limit
        return self._page(selection, limit, at=time.revision if time.exact else None)

    async def wait_for(self, revision: int) -> None:
        if revision <= self._store.revision:
            return
        try:
            async with self._clock.timeout(LONGEST_WAIT_SECONDS):
                await self._store.reached(revision)
        except TimeoutError:
            raise version_not_reached(revision, self._store.revision) from None

    def _next_page(self, selection: Selection, options: ListOptions) -> tuple[Sequence[Stored], ListMetadata]:
        token = read_token(options.continue_token)
        after = selection.kind.key(token.namespace, token.name)
        at = None if token.revision == NEWEST else min(token.revision, self._store.revision)
        try:
            return self._page(selection, options.limit, at=at, after=after)
        except RevisionExpired:
            raise token_expired(write_token(ContinueToken(NEWEST, token.namespace, token.name))) from None

    def _page(
        self, selection: Selection, limit: int, *, at: int | None, after: Key | None = None
    ) -> tuple[Sequence[Stored], ListMetadata]:
        if at is None and after is None and (key := selection.only_key) is not None:
            return self._only(selection, key)
        if selection.takes_everything:
            page = self._kept(selection, at, after, limit or None)
            return page.items, _metadata(page.revision, page.items, page.remaining, is_exact=True)
        page = self._kept(selection, at, after, None)
        taken, remaining = _selected(selection, page, limit)
        return taken, _metadata(page.revision, taken, remaining, is_exact=False)

    def _only(self, selection: Selection, key: Key) -> tuple[Sequence[Stored], ListMetadata]:
        stored = self._store.get(key)
        items = [stored] if stored is not None and selection.takes(stored) else []
        return items, ListMetadata(self._store.revision)

    def _kept(self, selection: Selection, at: int | None, after: Key | None, limit: int | None) -> Page:
        try:
            return self._store.list(selection.kind.resource, selection.namespace, after=after, limit=limit, at=at)
        except RevisionExpired:
            if after is not None:
                raise
            raise list_expired() from None


def _selected(selection: Selection, page: Page, limit: int) -> tuple[list[Stored], int]:
    """The first so many that are selected, and how many were not looked at any more."""
    taken: list[Stored] = []
    for place, stored in enumerate(page.items):
        if limit and len(taken) == limit:
            return taken, len(page.items) - place
        if selection.takes(stored):
            taken.append(stored)
    return taken, 0


def _metadata(revision: int, items: Sequence[Stored], remaining: int, *, is_exact: bool) -> ListMetadata:
    if not remaining or not items:
        return ListMetadata(revision)
    last = items[-1].key
    token = write_token(ContinueToken(revision, last.namespace, last.name))
    return ListMetadata(revision, token, remaining if is_exact else None)
