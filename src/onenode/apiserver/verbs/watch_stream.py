"""A watch as a stream of lines: what is there, what changes, and how far one has seen.

It begins with the state (if the client names no version), or behind a version that is still kept. One that is not kept,
or does not come within three seconds (the server may have begun anew, with lower numbers), is answered with an ERROR
event: the client begins again. It ends without an error: after its time, when the server stops, or when its reader is
so slow that the store cut it off. Closing the generator ends the watch. Must not change anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from onenode.apiserver.answers.answer_forms import Form
from onenode.apiserver.answers.status_answers import Refusal, watch_expired
from onenode.apiserver.requests.request_options import ListOptions, read_version
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import RevisionExpired, StoreClosed, TooSlow
from onenode.apiserver.store.versions import Change, DecodedObjects, Stored
from onenode.apiserver.store.watches import Watch
from onenode.apiserver.verbs.reading import ObjectReader
from onenode.apiserver.verbs.selection import Selection
from onenode.apiserver.verbs.watch_lines import ADDED, WatchEvent, WatchLines, bookmark_line, error_line, event_of
from orlop.foundation.clock import Clock, Deadline
from orlop.foundation.runtime import Runtime


class Alarm:
    """Wakes a watch at its times, so that a stream waits for changes alone, without a time limit around every wait.

    `rung` are the times that have come; the caller that handled them removes them.
    """

    def __init__(self, clock: Clock, watch: Watch, times: Iterable[float]) -> None:
        self.rung: list[float] = []
        self._clock = clock
        self._watch = watch
        self._times = times
        self._task: asyncio.Task[None] | None = None

    async def _ring(self) -> None:
        for instant in self._times:
            await self._clock.sleep_until(instant)
            self.rung.append(instant)
            self._watch.nudge()

    def __enter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._ring(), name="alarm of a watch")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()


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


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """`given_up` says whether the reader was too slow, also while a piece is still on its way to him."""

    pieces: AsyncGenerator[bytes, None]
    given_up: Callable[[], bool]


class WatchStreams:
    """`decoded` and the lines are shared by all watches, so that each change is looked into and encoded once."""

    def __init__(self, store: ObjectStore, runtime: Runtime, reader: ObjectReader) -> None:
        self._store = store
        self._runtime = runtime
        self._reader = reader
        self._decoded = DecodedObjects()
        self._lines = WatchLines()

    def open(self, request: WatchRequest) -> OpenWatch:
        read_version(request.options.version)
        seconds = request.options.timeout_seconds or self._runtime.random.uniform(SHORTEST_SECONDS, LONGEST_SECONDS)
        begun: list[Watch] = []
        pieces = self._stream(request, self._runtime.clock.deadline(max(0.0, seconds)), begun)
        return OpenWatch(pieces, lambda: any(watch.was_cut for watch in begun))

    async def _stream(self, request: WatchRequest, end: Deadline, begun: list[Watch]) -> AsyncGenerator[bytes, None]:
        beginning = await self._begin(request, end)
        if not isinstance(beginning, _Beginning):
            if beginning is not None:
                yield beginning
            return
        teller = _Teller(request, self._lines, self._decoded, beginning.revision)
        alarm = Alarm(self._runtime.clock, beginning.watch, _times(self._runtime.clock.elapsed(), end, request.options))
        begun.append(beginning.watch)
        with beginning.watch as watch, alarm:
            for piece in teller.state(beginning.state, beginning.revision):
                yield piece
            while (changes := await _news(watch, alarm)) is not None:
                for piece in teller.changes(changes):
                    yield piece
                if end.instant in alarm.rung or (seen := _seen_until(watch)) is None:
                    return
                if alarm.rung:
                    alarm.rung.clear()
                    yield teller.bookmark(seen)

    async def _begin(self, request: WatchRequest, end: Deadline) -> _Beginning | bytes | None:
        """Where the watch begins, or the only line it has, or nothing if it ends before."""
        try:
            state, revision = await self._state(request, end)
            selection = request.selection
            # A version that does not exist yet is no error: its watch begins now and shows what comes after it.
            kept = min(revision, self._store.revision)
            watch = self._store.watch(selection.kind.resource, selection.namespace, after=kept)
            return _Beginning(watch, state, revision)
        except RevisionExpired as expired:
            return error_line(watch_expired(expired.asked, expired.oldest))
        except Refusal as refusal:
            return error_line(refusal)
        except (StoreClosed, TimeoutError):
            return None

    async def _state(self, request: WatchRequest, end: Deadline) -> tuple[Sequence[Stored] | None, int]:
        """What is there, if that is asked for, and the revision behind which changes follow."""
        version = read_version(request.options.version)
        if request.wants_state:
            async with self._runtime.clock.timeout(end.remaining()):
                await self._reader.wait_for(version)
            items, metadata = await self._reader.list(request.selection, ListOptions())
            return items, metadata.revision
        return None, version or self._store.revision


@dataclass(frozen=True, slots=True)
class _Beginning:
    watch: Watch
    state: Sequence[Stored] | None
    revision: int


async def _news(watch: Watch, alarm: Alarm) -> list[Change] | None:
    """What there is to read; it is not waited for while the alarm is to be seen to."""
    try:
        return watch.take() if alarm.rung else await watch.news()
    except TooSlow:
        return None


def _seen_until(watch: Watch) -> int | None:
    try:
        return watch.seen_until
    except TooSlow:
        return None


def _times(now: float, end: Deadline, options: ListOptions) -> Iterator[float]:
    """When bookmarks are due, if they are wanted, and then the end."""
    last = end.instant - LAST_BOOKMARK_SECONDS
    if options.bookmarks and now < last:
        count = int((last - now) // BOOKMARK_SECONDS)
        regular = (now + BOOKMARK_SECONDS * number for number in range(1, count + 1))
        yield from (instant for instant in regular if instant < last)
        yield last
    yield end.instant


class _Teller:
    """The lines of one watch, in order."""

    def __init__(self, request: WatchRequest, lines: WatchLines, decoded: DecodedObjects, after: int) -> None:
        self._after = after
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
            yield b"".join(self._line(WatchEvent(ADDED, stored)) for stored in some)
        if self._request.options.bookmarks:
            yield bookmark_line(self._kind, self._request.form, revision, initial_end=True)

    def changes(self, changes: Sequence[Change]) -> Iterator[bytes]:
        if changes and changes[0].revision <= self._after:
            changes = [change for change in changes if change.revision > self._after]
        for start in range(0, len(changes), EVENTS_PER_PIECE):
            some = changes[start : start + EVENTS_PER_PIECE]
            events = (event_of(change, self._request.selection, self._decoded) for change in some)
            if lines := [self._line(event) for event in events if event is not None]:
                yield lines[0] if len(lines) == 1 else b"".join(lines)

    def bookmark(self, revision: int) -> bytes:
        return bookmark_line(self._kind, self._request.form, max(revision, self._after))

    def _line(self, event: WatchEvent) -> bytes:
        first, self._first = self._first, False
        return self._lines.of(self._kind, self._request.form, event, first=first)
