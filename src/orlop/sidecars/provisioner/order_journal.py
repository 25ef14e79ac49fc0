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
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, Conflict, Forbidden, NotFound
from orlop.kube.client import DeleteOptions, KubeClient, Selection
from orlop.kube.kinds import LEASE
from orlop.kube.lease_rules import holder_of
from orlop.kube.objects import Object, ObjectName, micro_time_text
from orlop.records.provision_journal import (
    ANNOTATION,
    DRIVER_LABEL,
    LARGEST_PAGE,
    JournalEntry,
    PageOverflow,
    UnreadablePage,
    decode_page,
    encode_page,
    split_into_pages,
)

BATCH_SECONDS: Final = 0.02
"""Between two writes: under load one write then holds many orders. The first after a pause is written at once."""
FORGET_SECONDS: Final = 0.5
MOST_ATTEMPTS: Final = 5
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")


class JournalLost(Exception):
    """Another process has taken the journal over: this one must not call the driver any more."""


@dataclass(eq=False, slots=True)
class _Page:
    number: int
    lease: Object | None = None
    """As the API server has it; None before it is created."""
    entries: dict[str, JournalEntry] = field(default_factory=dict)
    """By volume name."""
    is_changed: bool = False
    is_readable: bool = True

    def with_added(self, added: dict[str, JournalEntry]) -> str:
        """Return the annotation that holds the page's entries and these; of two for one volume the added one."""
        entries = {**self.entries, **added}
        return encode_page(tuple(entries.values())) if entries else ""


@dataclass(slots=True)
class _Change:
    """One write: the entries that a page gains, and its annotation after that."""

    page: _Page
    added: dict[str, JournalEntry]
    content: str


@dataclass(frozen=True, slots=True)
class _Recording:
    entry: JournalEntry
    written: asyncio.Future[None]


class OrderJournal:
    def __init__(
        self, kube: KubeClient, namespace: str, driver: str, *, runtime: Runtime, may_act: Callable[[], None]
    ) -> None:
        """`may_act` raises if this process has lost its lease."""
        self._kube = kube
        self._namespace = namespace
        self._driver = driver
        self._clock = runtime.clock
        self._log = runtime.log
        self._may_act = may_act
        self._identity = f"{driver}_{runtime.random.getrandbits(64):016x}"
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
        try:
            await self._take_over()
        except Forbidden as error:
            self._is_volatile = True
            self._log.warning(
                "journal of orders cannot be kept: a volume may be leaked if this process is killed; allow it to get, "
                "list, create, update and delete Leases",
                namespace=self._namespace,
                error=error,
            )
        return [entry for page in self._pages for entry in page.entries.values()]

    def entry(self, volume_name: str) -> JournalEntry | None:
        """Return the durable entry of a volume."""
        page = self._page_of.get(volume_name)
        return None if page is None else page.entries.get(volume_name)

    async def _take_over(self) -> None:
        # The first page before the list: from here on a former owner cannot add a page that this list misses.
        first = await self._owned(0, None)
        leases = await self._kube.list(LEASE, Selection(self._namespace, labels=f"{DRIVER_LABEL}={self._driver}"))
        numbers = {number: lease for lease in leases.items if (number := self._number_of(lease)) is not None and number}
        self._pages = [first]
        for number in sorted(numbers):
            self._pages.append(await self._owned(number, numbers[number]))
        for page in self._pages:
            self._read(page)

    async def _owned(self, number: int, lease: Object | None) -> _Page:
        """Return the page after a write of ours; create it if it does not exist."""
        for _ in range(MOST_ATTEMPTS):
            self._may_act()
            try:
                if lease is None:
                    lease = await self._kube.get(LEASE, self._name(number))
                return _Page(number, await self._kube.replace(LEASE, self._written(lease, None)))
            except NotFound:
                try:
                    return _Page(number, await self._kube.create(LEASE, self._new_lease(number, None)))
                except AlreadyExists:
                    lease = None
            except Conflict:
                # The former owner is still writing: what it recorded meanwhile must be read.
                lease = None
        raise JournalLost(f"another process writes to the journal {self._name(number)} all the time")

    def _read(self, page: _Page) -> None:
        text = objects.annotations(page.lease or {}).get(ANNOTATION, "")
        try:
            entries = decode_page(text) if text else ()
        except UnreadablePage as error:
            # Kept as it is: it may be of a newer version, which will be back after a rollback.
            page.is_readable = False
            self._log.error(
                "page of the journal cannot be read; kept as it is", page=str(self._name(page.number)), error=error
            )
            return
        for entry in entries:
            page.entries[entry.order.volume_name] = entry
            self._page_of[entry.order.volume_name] = page

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
                content = page.with_added({**own, **fresh})
                if len(content) <= LARGEST_PAGE:
                    changes.append(_Change(page, {**own, **fresh}, content))
                    fresh = {}
                    continue
            if own or page.is_changed:
                changes.append(_Change(page, own, page.with_added(own)))
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
            pages = [_Page(number + 1 + index) for index in range(len(chunks))]
            return [_Change(page, chunk, page.with_added(chunk)) for page, chunk in zip(pages, entries, strict=True)]
        return []

    async def _write_page(self, change: _Change) -> None:
        page = change.page
        if page.number and not change.content:
            await self._delete_page(page)
            return
        is_new = page.lease is None
        # Before the write: what is forgotten while it is under way has to be written again.
        page.is_changed = False
        try:
            page.lease = await self._put(page, change.content)
            if is_new and page.number:
                # The proof that the journal is still ours; see the module's docstring.
                first = self._pages[0]
                first.lease = await self._put(first, first.with_added({}))
        except BaseException:
            page.is_changed = True
            raise
        if is_new and page.number:
            self._pages.append(page)
        for name, entry in change.added.items():
            page.entries[name] = entry
            self._page_of[name] = page

    async def _put(self, page: _Page, content: str) -> Object:
        for _ in range(MOST_ATTEMPTS):
            self._may_act()
            try:
                if page.lease is None:
                    return await self._kube.create(LEASE, self._new_lease(page.number, content))
                return await self._kube.replace(LEASE, self._written(page.lease, content))
            except NotFound:
                page.lease = None
            except (Conflict, AlreadyExists):
                # Our own write may have landed though its response was lost: then the page still names us.
                page.lease = await self._kube.get(LEASE, self._name(page.number))
                if holder_of(page.lease) != self._identity:
                    raise JournalLost(
                        f"the journal {self._name(page.number)} belongs to {holder_of(page.lease)} now: another "
                        f"provisioner of {self._driver} runs. With several replicas, use --leader-election"
                    ) from None
        raise JournalLost(f"the journal {self._name(page.number)} is changed by somebody else all the time")

    async def _delete_page(self, page: _Page) -> None:
        """Delete a further page that has become empty."""
        self._may_act()
        lease = page.lease or {}
        options = DeleteOptions(uid=objects.uid(lease), version=objects.resource_version(lease))
        try:
            await self._kube.delete(LEASE, self._name(page.number), options)
        except NotFound:
            pass
        except Conflict:
            page.lease = await self._put(page, "")
        self._pages.remove(page)

    # ---- Leases --------------------------------------------------------------------------------------------------

    def _name(self, number: int) -> ObjectName:
        # Names of drivers may differ in case or in a dot alone, which names of objects do not allow or not show.
        digest = hashlib.sha256(self._driver.encode()).hexdigest()[:8]
        readable = _NOT_IN_NAMES.sub("-", self._driver.lower())
        suffix = f"-{number}" if number else ""
        return ObjectName(self._namespace, f"orlop-provisioner-journal-{readable}-{digest}{suffix}")

    def _number_of(self, lease: Object) -> int | None:
        first = self._name(0).name
        name = objects.name(lease)
        if name == first:
            return 0
        suffix = name.removeprefix(f"{first}-")
        return int(suffix) if suffix != name and suffix.isascii() and suffix.isdigit() else None

    def _new_lease(self, number: int, content: str | None) -> Object:
        name = self._name(number)
        metadata: Object = {"namespace": name.namespace, "name": name.name, "labels": {DRIVER_LABEL: self._driver}}
        return self._written({"metadata": metadata}, content)

    def _written(self, lease: Object, content: str | None) -> Object:
        """Return the Lease as we write it: with us as its holder; `content` None keeps the entries."""
        metadata = dict(lease["metadata"])
        if content is not None:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION: content}
        spec = {
            **(lease.get("spec") or {}),
            "holderIdentity": self._identity,
            "renewTime": micro_time_text(self._clock.now()),
        }
        return {**lease, "metadata": metadata, "spec": spec}


def _succeed(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)


def _fail(written: asyncio.Future[None], error: Exception) -> None:
    if not written.done():
        written.set_exception(error)
        written.exception()  # Retrieved here: the caller may have been cancelled.
