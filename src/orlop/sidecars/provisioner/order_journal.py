"""Keep the provisioner's open orders durable: entries in the annotations of Leases, written in batches.

An order is recorded before the driver is called for it and forgotten when its outcome is known, so that the next
process can finish or undo what a provisioner left when it was killed. A page is one Lease (`journal_leases`);
`records/provision_journal` has the format of its entries.

Only one process may own the journal (fencing). Every write is a PUT with the resourceVersion last read. `open` writes
itself into every page as the holder before it reads the entries. From then on the next write of the former owner fails
with `JournalLost`, and since it records an order before each call, it makes no further call to the driver. Creating a
page is not guarded by a resourceVersion. So after a creation the first page is written too, to prove that we still own
the journal, and only then does the order count as recorded.

An entry stays in its page. Written again, it may be larger, and so may the whole page, whose compression depends on all
entries: a page with little room takes no new entries. An entry that outgrows its page is first written into another one
and then removed; of two entries for one volume the later counts. Many orders are recorded with one write.
Forgetting is not urgent: for a leftover entry, the next process only finds that the PersistentVolume exists.

Without permission to write Leases there is no journal, as with upstream: this is logged once, and a volume may be
leaked if the process is killed. If the permission is removed later, callers of `record` go on likewise, and what they
recorded is written when the permission is back. Any other refusal, such as that of an exhausted ResourceQuota, is an
error like others: until the journal can be written, the driver is not called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import ApiError, Forbidden
from orlop.kube.client import KubeClient
from orlop.kube.objects import Object
from orlop.records.provision_journal import (
    ANNOTATION,
    LARGEST_PAGE,
    ROOMY_PAGE,
    JournalEntry,
    PageOverflow,
    UnreadablePage,
    decode_page,
    encode_page,
    split_into_pages,
)
from orlop.sidecars.provisioner.journal_leases import JournalLeases, JournalLost, lacks_right

BATCH_SECONDS: Final = 0.02
"""Least time between two writes: under load one write then holds many orders. After a pause it is written at once."""
FORGET_SECONDS: Final = 0.5
"""How long a write that only removes entries may wait for others, and the delay after a write that failed."""
OPEN_RETRY_SECONDS: Final = 1.0
FORBIDDEN_RETRY_SECONDS: Final = 60.0
"""How long to wait for the next order to record while the API server forbids writes."""
ADVICE: Final = "allow get, list, create, update and delete of Leases"
NOT_KEPT: Final = "journal cannot be kept; a volume may be leaked if this process is killed"


@dataclass(eq=False, slots=True)
class _Page:
    number: int
    lease: Object | None = None
    """As the API server has it; None before it is created."""
    entries: dict[str, JournalEntry] = field(default_factory=dict)
    """By volume name."""
    is_changed: bool = False
    is_readable: bool = True
    is_proven: bool = True
    """The first page was written since this one was created; see the module's docstring."""

    def with_added(self, added: dict[str, JournalEntry]) -> str:
        """Return the annotation with the page's entries and `added`, which replaces entries of the same volume."""
        entries = {**self.entries, **added}
        return encode_page(tuple(entries.values())) if entries else ""


@dataclass(frozen=True, slots=True)
class _Change:
    """One write, and the entries that its page gains."""

    page: _Page
    added: dict[str, JournalEntry]


@dataclass(frozen=True, slots=True)
class _Recording:
    """An entry to be written; `written` resolves when it is durable, or with the error."""

    entry: JournalEntry
    written: asyncio.Future[None]


class OrderJournal:
    def __init__(
        self, kube: KubeClient, namespace: str, driver: str, *, runtime: Runtime, may_act: Callable[[], None]
    ) -> None:
        """`may_act` raises if this process has lost its lease."""
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log
        identity = f"{driver}_{runtime.random.getrandbits(64):016x}"
        self._leases = JournalLeases(kube, namespace, driver, identity, clock=runtime.clock, may_act=may_act)
        self._pages: list[_Page] = []
        self._page_of: dict[str, _Page] = {}
        self._pending: dict[str, _Recording] = {}
        self._being_written: dict[str, _Recording] = {}
        self._forgotten: set[str] = set()
        """Entries that were forgotten while they were being written."""
        self._is_volatile = False
        """Writes were forbidden when the journal was opened."""
        self._is_forbidden = False
        """The last write was forbidden."""
        self._has_changes = asyncio.Event()
        """Set if an entry must be recorded or removed."""
        self._has_recordings = asyncio.Event()
        """Set if a caller of `record` waits, so that the next write is soon."""
        self._last_write = float("-inf")

    # ---- reading -------------------------------------------------------------------------------------------------

    async def open(self) -> list[JournalEntry]:
        """Take the journal over and return its entries."""
        while not self._is_volatile:
            try:
                await self._take_over()
                break
            except ApiError as error:
                if isinstance(error, Forbidden) and lacks_right(error):
                    self._is_volatile = True
                    self._log.warning(NOT_KEPT, advice=ADVICE, error=error)
                    break
                self._log.warning("journal cannot be opened; retrying", error=error)
                await self._clock.sleep(OPEN_RETRY_SECONDS)
        return [entry for page in self._pages for entry in page.entries.values()]

    def entry(self, volume_name: str) -> JournalEntry | None:
        """Return the durable entry of a volume."""
        page = self._page_of.get(volume_name)
        return None if page is None else page.entries.get(volume_name)

    async def _take_over(self) -> None:
        # Take the first page over before listing the others: a former owner has to write it after it creates a page, so
        # an order in a page that this list misses never counts as recorded.
        self._pages = [_Page(0, await self._leases.take_over(0, None))]
        for number, lease in sorted((await self._leases.further_pages()).items()):
            self._pages.append(_Page(number, await self._leases.take_over(number, lease)))
        for page in self._pages:
            self._read(page)

    def _read(self, page: _Page) -> None:
        text = objects.annotations(page.lease or {}).get(ANNOTATION, "")
        try:
            entries = decode_page(text) if text else ()
        except UnreadablePage as error:
            # Never overwritten: a newer version of Orlop may have written it, and can read it after the next upgrade.
            page.is_readable = False
            self._log.error("journal page cannot be read; kept unchanged", page=page.number, error=error)
            return
        for entry in entries:
            self._adopt(page, entry)

    def _adopt(self, page: _Page, entry: JournalEntry) -> None:
        """Add an entry that was read. Of two for one volume, keep the newer and remove the other from its page."""
        name = entry.order.volume_name
        former = self._page_of.get(name)
        # Two entries: the creation of a page failed for its writer but took effect, and the writer then recorded the
        # entry in another page.
        if former is not None:
            _, newer = sorted((former.entries[name], entry), key=lambda each: (each.deadline, each.is_being_deleted))
            outdated = former if newer is entry else page
            former.entries.pop(name)
            outdated.is_changed = True
            page, entry = (page if newer is entry else former), newer
        page.entries[name] = entry
        self._page_of[name] = page

    # ---- writing -------------------------------------------------------------------------------------------------

    async def record(self, entry: JournalEntry) -> None:
        """Record an entry; return when it is durable. Raises `JournalLost`, `PageOverflow` or `ApiError`."""
        if self._is_volatile:
            return
        name = entry.order.volume_name
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending[name] = _Recording(entry, written)
        self._has_changes.set()
        self._has_recordings.set()
        # The write is shared by a batch: a caller that is cancelled must not cancel it for the others.
        await asyncio.shield(written)

    def forget(self, volume_name: str) -> None:
        """Remove an entry with a later write. It may be lost: a leftover entry does no harm."""
        if (pending := self._pending.get(volume_name)) is not None and pending.written.done():
            # It could not be written for lack of permission.
            del self._pending[volume_name]
        if volume_name in self._being_written:
            self._forgotten.add(volume_name)
        page = self._page_of.pop(volume_name, None)
        if page is not None:
            del page.entries[volume_name]
            page.is_changed = True
            self._has_changes.set()

    async def run(self) -> None:
        """Write recorded and forgotten entries in batches, until cancelled. Raises `JournalLost`."""
        while True:
            await self._has_changes.wait()
            if not self._has_recordings.is_set():
                await self._wait_for_recording(FORBIDDEN_RETRY_SECONDS if self._is_forbidden else FORGET_SECONDS)
            await self._wait_for_batch()
            await self._write_batch()

    async def flush(self) -> None:
        """Remove forgotten entries that `run` has not written yet; for a shutdown. `run` must have ended."""
        if any(page.is_changed for page in self._pages):
            await self._write_batch()

    async def _wait_for_recording(self, seconds: float) -> None:
        try:
            async with self._clock.timeout(seconds):
                await self._has_recordings.wait()
        except TimeoutError:
            return

    async def _wait_for_batch(self) -> None:
        seconds = self._last_write + BATCH_SECONDS - self._clock.elapsed()
        if seconds > 0:
            await self._clock.sleep(seconds)

    async def _write_batch(self) -> None:
        # Clear the events before taking the batch: an entry that is added during the write must cause another write.
        self._has_changes.clear()
        self._has_recordings.clear()
        batch, self._pending = self._pending, {}
        self._being_written = batch
        try:
            await self._write(batch)
            self._set_forbidden(None)
        except Exception as error:
            if isinstance(error, Forbidden) and lacks_right(error):
                self._go_on_without(error, batch)
                return
            for recording in batch.values():
                _fail(recording.written, error)
            if isinstance(error, JournalLost):
                raise
            # Callers of `record` retry by themselves; for forgotten entries `run` has to.
            self._has_changes.set()
            self._log.warning("journal cannot be written", error=error)
            await self._clock.sleep(FORGET_SECONDS)
        finally:
            self._last_write = self._clock.elapsed()
            self._being_written = {}
            forgotten, self._forgotten = self._forgotten, set()
            for name in forgotten:
                self.forget(name)

    def _go_on_without(self, error: Forbidden, batch: dict[str, _Recording]) -> None:
        """Let callers go on without a journal; their entries are written with a later batch."""
        self._set_forbidden(error)
        for recording in batch.values():
            _succeed(recording.written)
        self._pending = {**self._unwritten(batch), **self._pending}
        self._has_changes.set()

    def _set_forbidden(self, error: Forbidden | None) -> None:
        """Log once that permission to write was removed, and once that it is back."""
        if error is not None and not self._is_forbidden:
            self._log.warning(NOT_KEPT, advice=ADVICE, error=error)
        elif error is None and self._is_forbidden:
            self._log.info("journal can be written again")
        self._is_forbidden = error is not None

    def _unwritten(self, batch: dict[str, _Recording]) -> dict[str, _Recording]:
        """Return the recordings of a batch that no page has: pages before the one that failed were written."""
        return {name: each for name, each in batch.items() if self.entry(name) != each.entry}

    async def _write(self, batch: dict[str, _Recording]) -> None:
        for change in self._changes(batch):
            await self._write_page(change)
            # Each page resolves its own entries: if a later page fails, these are durable all the same.
            for name in change.added:
                _succeed(batch[name].written)

    def _changes(self, batch: dict[str, _Recording]) -> list[_Change]:
        """Return the writes of a batch: an entry stays in its page; others go to the first page with room for all."""
        added: dict[int, dict[str, JournalEntry]] = {page.number: {} for page in self._pages}
        fresh: dict[str, JournalEntry] = {}
        for name, recording in batch.items():
            page_of_entry = self._page_of.get(name)
            (added[page_of_entry.number] if page_of_entry is not None else fresh)[name] = recording.entry
        for page in self._pages:
            own = added[page.number]
            if own and len(page.with_added(own)) > LARGEST_PAGE:
                fresh.update(own)
                own.clear()
        changes = []
        for page in self._pages:
            own = added[page.number]
            # New entries go together into one page, which is encoded to learn its compressed size.
            if page.is_readable and fresh:
                own_and_fresh = {**own, **fresh}
                if len(page.with_added(own_and_fresh)) <= ROOMY_PAGE:
                    changes.append(_Change(page, own_and_fresh))
                    fresh = {}
                    continue
            if own or page.is_changed:
                changes.append(_Change(page, own))
        return [*changes, *self._further_pages(fresh, batch)]

    def _further_pages(self, fresh: dict[str, JournalEntry], batch: dict[str, _Recording]) -> list[_Change]:
        chunks: list[tuple[JournalEntry, ...]] = []
        while fresh:
            try:
                chunks += split_into_pages(tuple(fresh.values()), ROOMY_PAGE)
                break
            except PageOverflow as error:
                # Take out the largest, and split the others again without it. It gets a page of its own if it fits.
                largest = fresh.pop(max(fresh, key=lambda name: len(encode_page((fresh[name],)))))
                if len(encode_page((largest,))) <= LARGEST_PAGE:
                    chunks.append((largest,))
                else:
                    _fail(batch[largest.order.volume_name].written, error)
        number = max(page.number for page in self._pages)
        entries = [{entry.order.volume_name: entry for entry in chunk} for chunk in chunks]
        return [_Change(_Page(number + 1 + index), chunk) for index, chunk in enumerate(entries)]

    async def _write_page(self, change: _Change) -> None:
        page = change.page
        # Encode now, not when the batch was planned: entries may have been forgotten while earlier pages were written.
        content = page.with_added(change.added)
        if page.number and not content:
            await self._delete_page(page)
            return
        # Do both before the write. The page may be created although the response is lost, so it must be in the list.
        # And an entry that is forgotten during the write sets `is_changed`, which must not be reset afterwards.
        if page not in self._pages:
            self._pages.append(page)
        page.is_changed = False
        try:
            written = await self._leases.put(page.number, page.lease, content)
            if page.number and objects.uid(written) != objects.uid(page.lease or {}):
                # The page was created, perhaps for the second time: a process that takes over deletes empty pages. A
                # create has no resourceVersion to guard it, so another process may own the journal by now.
                page.is_proven = False
            page.lease = written
            if not page.is_proven:
                first = self._pages[0]
                # This write fails if another process took the journal over: only after it the new page is ours.
                content_of_first = first.with_added({}) if first.is_readable else None
                first.lease = await self._leases.put(0, first.lease, content_of_first)
                page.is_proven = True
        except BaseException:
            page.is_changed = True
            raise
        # Only after the write: `entry` must return nothing that is not durable.
        for name, entry in change.added.items():
            self._leave_former_page(name, page)
            page.entries[name] = entry
            self._page_of[name] = page

    def _leave_former_page(self, name: str, page: _Page) -> None:
        """Remove an entry from the page that it has outgrown, now that `page` has it: a crash must not lose it."""
        former = self._page_of.get(name)
        if former is not None and former is not page:
            del former.entries[name]
            former.is_changed = True
            self._has_changes.set()

    async def _delete_page(self, page: _Page) -> None:
        """Delete a further page that has become empty."""
        await self._leases.delete(page.number, page.lease)
        self._pages.remove(page)


def _succeed(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)


def _fail(written: asyncio.Future[None], error: Exception) -> None:
    if not written.done():
        written.set_exception(error)
        # Mark the exception as retrieved: asyncio would log an error if the caller was cancelled and never reads it.
        written.exception()
