"""A watch as a stream of lines: what is there, what changes, and how far one has seen.

It begins with the state (for whoever names no version), or behind a version that is still kept; one that is not kept is
told so by an ERROR event, and begins anew. It ends without an error: after its time, when the server stops, or when its
reader is so slow that the store cut it off. Whoever closes the generator ends the watch. Must not change anything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orlop.embedded.apiserver.answer_forms import Form
from orlop.embedded.apiserver.object_store.decoded_objects import DecodedObjects
from orlop.embedded.apiserver.object_store.errors import Expired, StoreClosed, TooSlow
from orlop.embedded.apiserver.object_store.versions import Change, Stored
from orlop.embedded.apiserver.object_store.watches import Watch
from orlop.embedded.apiserver.reading import Reader
from orlop.embedded.apiserver.request_options import ListOptions, read_version
from orlop.embedded.apiserver.selection import Selection
from orlop.embedded.apiserver.server_tools import ServerTools
from orlop.embedded.apiserver.status_answers import Refusal, watch_expired
from orlop.embedded.apiserver.watch_lines import ADDED, Event, WatchLines, bookmark_line, error_line, event_of
from orlop.foundation.clock import Deadline

SHORTEST_SECONDS: Final = 1800.0
LONGEST_SECONDS: Final = 3600.0
BOOKMARK_SECONDS: Final = 60.0
LAST_BOOKMARK_SECONDS: Final = 2.0
"""Before the end of a watch, so that the next begins close to where this one ended."""
EVENTS_PER_PIECE: Final = 100


@dataclass(frozen=True, slots=True)
class WatchRequest:
    selection: Selection
    options: ListOptions
    form: Form

    @property
    def wants_state(self) -> bool:
        """Whether what is there comes first: asked for, or implied by naming no version."""
        if self.options.send_initial is not None:
            return self.options.send_initial
        return self.options.version in {"", "0"}


class WatchStreams:
    """`decoded` and the lines are shared by all watches, so that each change is looked into and encoded once."""

    def __init__(self, tools: ServerTools, reader: Reader) -> None:
        self._tools = tools
        self._reader = reader
        self._decoded = DecodedObjects()
        self._lines = WatchLines()

    def open(self, request: WatchRequest) -> AsyncGenerator[bytes, None]:
        read_version(request.options.version)
        seconds = request.options.timeout_seconds or self._tools.random.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
        return self._stream(request, self._tools.clock.deadline(max(0.0, seconds)))

    async def _stream(self, request: WatchRequest, end: Deadline) -> AsyncGenerator[bytes, None]:
        try:
            state, revision = await self._beginning(request, end)
            watch = self._tools.store.watch(
                request.selection.kind.resource, request.selection.namespace, after=revision
            )
        except Expired as expired:
            yield error_line(watch_expired(expired.asked, expired.oldest))
            return
        except Refusal as refusal:
            yield error_line(refusal)
            return
        except (StoreClosed, TimeoutError):
            return
        with watch:
            teller = _Teller(request, self._lines, self._decoded)
            for piece in teller.state(state, revision):
                yield piece
            async for piece in self._live(request, watch, teller, end):
                yield piece

    async def _beginning(self, request: WatchRequest, end: Deadline) -> tuple[Sequence[Stored] | None, int]:
        """What is there, if that is asked for, and the revision behind which changes follow."""
        version = read_version(request.options.version)
        if request.wants_state:
            await self._reader.wait_for(version)
            items, metadata = await self._reader.list(request.selection, ListOptions())
            return items, metadata.revision
        if version > self._tools.store.revision:
            async with self._tools.clock.timeout(end.remaining()):
                await self._tools.store.reached(version)
        return None, version or self._tools.store.revision

    async def _live(
        self, request: WatchRequest, watch: Watch, teller: _Teller, end: Deadline
    ) -> AsyncGenerator[bytes, None]:
        bookmark = self._next_bookmark(end)
        while True:
            wait = min(end.remaining(), bookmark.remaining()) if request.options.bookmarks else end.remaining()
            changes = await self._next(watch, wait)
            if changes is None:
                return
            for piece in teller.changes(changes):
                yield piece
            if end.passed():
                return
            if request.options.bookmarks and bookmark.passed():
                try:
                    yield teller.bookmark(watch.seen_until)
                except TooSlow:
                    return
                bookmark = self._next_bookmark(end)

    async def _next(self, watch: Watch, seconds: float) -> list[Change] | None:
        """What there is to read, as soon as there is anything; nothing after so many seconds; None at the end."""
        if ready := watch.take():
            return ready
        try:
            async with self._tools.clock.timeout(seconds):
                change = await anext(watch, None)
        except TimeoutError:
            return []
        except TooSlow:
            return None
        return None if change is None else [change, *watch.take()]

    def _next_bookmark(self, end: Deadline) -> Deadline:
        clock = self._tools.clock
        last = end.instant - LAST_BOOKMARK_SECONDS
        now = clock.elapsed()
        return Deadline(clock, min(now + BOOKMARK_SECONDS, last) if now < last else end.instant + BOOKMARK_SECONDS)


class _Teller:
    """The lines of one watch, in order."""

    def __init__(self, request: WatchRequest, lines: WatchLines, decoded: DecodedObjects) -> None:
        self._request = request
        self._kind = request.selection.kind
        self._lines = lines
        self._decoded = decoded
        self._first = True

    def state(self, items: Sequence[Stored] | None, revision: int) -> Iterator[bytes]:
        if items is None:
            return
        for start in range(0, len(items), EVENTS_PER_PIECE):
            some = items[start : start + EVENTS_PER_PIECE]
            yield b"".join(self._line(Event(ADDED, stored)) for stored in some)
        if self._request.options.bookmarks:
            yield bookmark_line(self._kind, self._request.form, revision, initial_end=True)

    def changes(self, changes: Sequence[Change]) -> Iterator[bytes]:
        for start in range(0, len(changes), EVENTS_PER_PIECE):
            some = changes[start : start + EVENTS_PER_PIECE]
            events = (event_of(change, self._request.selection, self._decoded) for change in some)
            if lines := [self._line(event) for event in events if event is not None]:
                yield lines[0] if len(lines) == 1 else b"".join(lines)

    def bookmark(self, revision: int) -> bytes:
        return bookmark_line(self._kind, self._request.form, revision)

    def _line(self, event: Event) -> bytes:
        first, self._first = self._first, False
        return self._lines.of(self._kind, self._request.form, event, first=first)
