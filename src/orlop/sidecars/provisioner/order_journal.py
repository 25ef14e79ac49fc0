"""Keep the provisioner's open orders durable: entries in the annotations of Leases, written in batches.

An order is recorded before the driver is called for it and forgotten when its outcome is known, so that a successor can
finish what a provisioner left when it died. `records/provision_journal` has the format of a page; a page is a Lease.

Every write is a PUT with the resourceVersion last read: upstream's role may not patch Leases, and a former leader that
still writes is refused. `open` takes every page over, before anything is read from it. From then on the former owner's
next write fails with `JournalLost`, and since it records an order before each call, it calls the driver no more. A page
can also be created, which no resourceVersion guards: after that, the first page is written once more as a proof that it
is still ours, and only then the order counts as recorded.

Entries never move between pages, so no crash between two writes can lose one. Many orders are recorded with one write.
Forgetting is not urgent: an entry left over costs its reader one look at the PersistentVolume.

Without rights on Leases the journal is volatile: logged once, and the provisioner works as upstream's does.
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
    JournalEntry,
    PageOverflow,
    UnreadablePage,
    decode_page,
    encode_page,
    split_into_pages,
)
from orlop.sidecars.provisioner.journal_leases import JournalLeases, JournalLost

BATCH_SECONDS: Final = 0.02
"""Between two writes: under load one write then holds many orders. The first after a pause is written at once."""
FORGET_SECONDS: Final = 0.5
OPEN_RETRY_SECONDS: Final = 1.0


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
    """The first page was written after this one was created; see the module's docstring."""

    def with_added(self, added: dict[str, JournalEntry]) -> str:
        """Return the annotation that holds the page's entries and these; of two for one volume the added one."""
        entries = {**self.entries, **added}
        return encode_page(tuple(entries.values())) if entries else ""


@dataclass(frozen=True, slots=True)
class _Change:
    """One write, and the entries that its page gains."""

    page: _Page
    added: dict[str, JournalEntry]


@dataclass(frozen=True, slots=True)
class _Recording:
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
        self._is_volatile = False
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()
        self._last_write = float("-inf")

    # ---- reading -------------------------------------------------------------------------------------------------

    async def open(self) -> list[JournalEntry]:
        """Take the journal over and return its entries."""
        while not self._is_volatile:
            try:
                await self._take_over()
                break
            except Forbidden as error:
                self._is_volatile = True
                advice = "allow get, list, create, update and delete of Leases"
                message = "journal of orders cannot be kept; a volume may be leaked if this process is killed"
                self._log.warning(message, advice=advice, error=error)
            except ApiError as error:
                self._log.warning("journal of orders cannot be opened; retried", error=error)
                await self._clock.sleep(OPEN_RETRY_SECONDS)
        return [entry for page in self._pages for entry in page.entries.values()]

    def entry(self, volume_name: str) -> JournalEntry | None:
        """Return the durable entry of a volume."""
        page = self._page_of.get(volume_name)
        return None if page is None else page.entries.get(volume_name)

    async def _take_over(self) -> None:
        # The first page before the list: from here on a former owner cannot add a page that this list misses.
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
            # Kept as it is: it may be of a newer version, which will be back after a rollback.
            page.is_readable = False
            self._log.error("page of the journal cannot be read; kept as it is", page=page.number, error=error)
            return
        for entry in entries:
            self._adopt(page, entry)

    def _adopt(self, page: _Page, entry: JournalEntry) -> None:
        name = entry.order.volume_name
        former = self._page_of.get(name)
        # A page whose creation failed for its writer may hold an entry that was then recorded in another page.
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
        """Return when the entry is durable. Raises `JournalLost`, `PageOverflow` or `ApiError`."""
        if self._is_volatile:
            return
        name = entry.order.volume_name
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending[name] = _Recording(entry, written)
        self._wanted.set()
        self._urgent.set()
        # The write is shared: a caller that is cancelled must not cancel it for the others.
        await asyncio.shield(written)

    def forget(self, volume_name: str) -> None:
        """Remove the entry with a later write."""
        page = self._page_of.pop(volume_name, None)
        if page is not None:
            del page.entries[volume_name]
            page.is_changed = True
            self._wanted.set()

    async def run(self) -> None:
        """Write what is recorded and forgotten. Raises `JournalLost`."""
        while True:
            await self._wanted.wait()
            if not self._pending:
                await self._wait_for_more(FORGET_SECONDS)
            await self._wait_for_batch()
            await self._write_batch()

    async def flush(self) -> None:
        """Write what is left to be forgotten; for a shutdown. `run` must have ended."""
        if any(page.is_changed for page in self._pages):
            await self._write_batch()

    async def _wait_for_more(self, seconds: float) -> None:
        try:
            async with self._clock.timeout(seconds):
                await self._urgent.wait()
        except TimeoutError:
            return

    async def _wait_for_batch(self) -> None:
        rest = self._last_write + BATCH_SECONDS - self._clock.elapsed()
        if rest > 0:
            await self._clock.sleep(rest)

    async def _write_batch(self) -> None:
        self._wanted.clear()
        self._urgent.clear()
        batch, self._pending = self._pending, {}
        try:
            await self._write(batch)
        except Exception as error:
            for recording in batch.values():
                _fail(recording.written, error)
            if isinstance(error, JournalLost):
                raise
            # The entries that were to be forgotten are still to be written.
            self._wanted.set()
            self._log.warning("journal of orders cannot be written", error=error)
            await self._clock.sleep(FORGET_SECONDS)
        finally:
            self._last_write = self._clock.elapsed()

    async def _write(self, batch: dict[str, _Recording]) -> None:
        for change in self._changes(batch):
            await self._write_page(change)
            for name in change.added:
                _succeed(batch[name].written)

    def _changes(self, batch: dict[str, _Recording]) -> list[_Change]:
        """Return the writes of a batch: a known entry goes to its own page, new ones go to the first with room."""
        added: dict[int, dict[str, JournalEntry]] = {page.number: {} for page in self._pages}
        fresh: dict[str, JournalEntry] = {}
        for name, recording in batch.items():
            known = self._page_of.get(name)
            (added[known.number] if known is not None else fresh)[name] = recording.entry
        changes = []
        for page in self._pages:
            own = added[page.number]
            if page.is_readable and fresh:
                everything = {**own, **fresh}
                if len(page.with_added(everything)) <= LARGEST_PAGE:
                    changes.append(_Change(page, everything))
                    fresh = {}
                    continue
            if own or page.is_changed:
                changes.append(_Change(page, own))
        return [*changes, *self._further_pages(fresh, batch)]

    def _further_pages(self, fresh: dict[str, JournalEntry], batch: dict[str, _Recording]) -> list[_Change]:
        while fresh:
            try:
                chunks = split_into_pages(tuple(fresh.values()))
            except PageOverflow as error:
                # Only the one that is too large fails; the others are split again without it.
                largest = max(fresh, key=lambda name: len(encode_page((fresh[name],))))
                _fail(batch[largest].written, error)
                del fresh[largest]
                continue
            number = max(page.number for page in self._pages)
            entries = [{entry.order.volume_name: entry for entry in chunk} for chunk in chunks]
            return [_Change(_Page(number + 1 + index), chunk) for index, chunk in enumerate(entries)]
        return []

    async def _write_page(self, change: _Change) -> None:
        page = change.page
        # Encoded here and not with the batch: an entry may have been forgotten while the pages before were written.
        content = page.with_added(change.added)
        if page.number and not content:
            await self._delete_page(page)
            return
        # Before the write: it may be created though we get no response. And what is forgotten while the write is under
        # way has to be written again.
        if page not in self._pages:
            self._pages.append(page)
        page.is_changed = False
        try:
            written = await self._leases.put(page.number, page.lease, content)
            if page.number and objects.uid(written) != objects.uid(page.lease or {}):
                # Created, or created again: a successor may have deleted it, empty.
                page.is_proven = False
            page.lease = written
            if not page.is_proven:
                first = self._pages[0]
                kept = first.with_added({}) if first.is_readable else None
                first.lease = await self._leases.put(0, first.lease, kept)
                page.is_proven = True
        except BaseException:
            page.is_changed = True
            raise
        for name, entry in change.added.items():
            page.entries[name] = entry
            self._page_of[name] = page

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
        written.exception()  # Retrieved here: the caller may have been cancelled.
