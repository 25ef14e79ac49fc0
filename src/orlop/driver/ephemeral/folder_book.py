"""Every folder that is known, in memory: what is live, what is retained, and why something is left alone.

Read from the working directory once, at the start; from then on whoever changed a folder notes it here. Nothing else is
remembered: what is not on disk is not in the book after a restart. `retained` is changed by the book alone, which keeps
the queue of the afterlife beside it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from orlop.driver.ephemeral.afterlife_queue import AfterlifeQueue, Queued
from orlop.driver.ephemeral.afterlife_rules import Moment, RetainedFolder, age_of, buried_at_elapsed
from orlop.host.folder_records import RecordedFolder, ShelfListing, Stranger
from orlop.host.node_host import FolderPlace, FolderState, Workdir
from orlop.records.ephemeral_folder import (
    Burial,
    FolderOptions,
    FolderRecord,
    UnreadableRecord,
    burial_of,
    decode_record,
)


class Retained(msgspec.Struct, frozen=True, gc=False):
    """A folder in its afterlife. Its size is None until it has been measured."""

    record: FolderRecord
    burial: Burial
    buried_at_elapsed: float | None = None
    """None: before this process started."""
    bytes_used: int | None = None

    @property
    def volume_id(self) -> str:
        return self.burial.volume_id


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """What is in the working directory and in no record: reported, never touched."""

    place: str
    why: str


@dataclass(slots=True)
class FolderBook:
    started: Moment
    live: dict[str, FolderRecord] = field(default_factory=dict)
    retained: dict[str, Retained] = field(default_factory=dict)
    left_alone: list[LeftAlone] = field(default_factory=list)
    queue: AfterlifeQueue = field(default_factory=AfterlifeQueue)
    """The same folders as in `retained`."""
    _options: dict[FolderOptions, FolderOptions] = field(default_factory=dict)
    unmeasured: dict[str, None] = field(default_factory=dict)
    """Of `retained`, those whose size is not known; in the order they came."""
    readers: Counter[str] = field(default_factory=Counter)
    """By volume id: how many read its folder right now. Nothing of it is erased meanwhile."""

    @contextmanager
    def being_read(self, volume_id: str) -> Iterator[None]:
        """Begun by who holds the volume's key, so that whoever erases under that key sees it."""
        self.readers[volume_id] += 1
        try:
            yield
        finally:
            self.readers[volume_id] -= 1
            if not self.readers[volume_id]:
                del self.readers[volume_id]

    def record_of(self, volume_id: str) -> FolderRecord | None:
        if volume_id in self.live:
            return self.live[volume_id]
        return self.retained[volume_id].record if volume_id in self.retained else None

    def burial_of(self, volume_id: str) -> Burial | None:
        return self.retained[volume_id].burial if volume_id in self.retained else None

    def projects(self) -> set[int]:
        """The numbers of all folders that have limits; may be asked by any thread."""
        live, retained = list(self.live.values()), list(self.retained.values())
        return {record.project for record in (*live, *(each.record for each in retained)) if record.project}

    def lives(self, record: FolderRecord) -> None:
        self.was_discarded(record.volume_id)
        self.live[record.volume_id] = record

    def was_buried(self, burial: Burial, elapsed: float) -> None:
        record = self.live.pop(burial.volume_id)
        if burial.lifespan_seconds > 0:
            self.retain(Retained(record, burial, buried_at_elapsed=elapsed))

    def retain(self, retained: Retained) -> None:
        retained = replace(retained, record=self._small(retained.record))
        self.retained[retained.volume_id] = retained
        if retained.bytes_used is None:
            self.unmeasured[retained.volume_id] = None
        self.queue.put(
            Queued(
                name=retained.volume_id,
                namespace=retained.record.owner.namespace,
                buried_at=self._buried_at(retained),
                lifespan=retained.burial.lifespan_seconds,
                bytes_used=retained.bytes_used,
            )
        )

    def _small(self, record: FolderRecord) -> FolderRecord:
        """Ten thousand are kept: what most of them have in common only once."""
        namespace, account = sys.intern(record.owner.namespace), sys.intern(record.owner.service_account)
        owner = replace(record.owner, namespace=namespace, service_account=account)
        options = self._options.setdefault(record.options, record.options)
        return replace(record, owner=owner, options=options, volume_name=sys.intern(record.volume_name))

    def _buried_at(self, retained: Retained) -> float:
        if retained.buried_at_elapsed is not None:
            return retained.buried_at_elapsed
        return buried_at_elapsed(retained.burial.buried_at, self.started)

    def was_discarded(self, volume_id: str) -> None:
        self.retained.pop(volume_id, None)
        self.unmeasured.pop(volume_id, None)
        self.queue.remove(volume_id)

    def was_found(self, volume_id: str, record: FolderRecord | None, burial: Burial | None, elapsed: float) -> None:
        """What a look at the machine showed, after a change whose end is not known; a burial we do not know is new."""
        if record is not None and burial is None:
            self.lives(record)
            return
        self.live.pop(volume_id, None)
        if record is None or burial is None:
            self.was_discarded(volume_id)
        elif self.burial_of(volume_id) == burial:
            self.retain(replace(self.retained[volume_id], record=record))
        else:
            self.retain(Retained(record, burial, buried_at_elapsed=elapsed))

    def was_kept(self, burial: Burial) -> None:
        self.retain(replace(self.retained[burial.volume_id], burial=burial))

    def was_measured(self, volume_id: str, bytes_used: int) -> None:
        if volume_id in self.retained:
            self.retained[volume_id] = replace(self.retained[volume_id], bytes_used=bytes_used)
            self.unmeasured.pop(volume_id, None)
            self.queue.measured(volume_id, bytes_used)

    def age(self, retained: Retained, now: Moment) -> float:
        return age_of(retained.burial.buried_at, self.started, now, retained.buried_at_elapsed)

    def in_afterlife(self, now: Moment) -> list[RetainedFolder]:
        """As the rule sees them."""
        return [
            RetainedFolder(
                name=volume_id,
                namespace=retained.record.owner.namespace,
                age=self.age(retained, now),
                lifespan=retained.burial.lifespan_seconds,
                bytes_used=retained.bytes_used,
            )
            for volume_id, retained in self.retained.items()
        ]


def start_book(workdir: Workdir, started: Moment) -> FolderBook:
    """Everything in the working directory, without what a process that died was making when it did: that is removed.

    Every shelf is listed once: with many thousands of folders that is what a start takes.
    """
    live, retained = workdir.listing(FolderState.LIVE), workdir.listing(FolderState.RETAINED)
    for state, listing in ((FolderState.LIVE, live), (FolderState.RETAINED, retained)):
        for name in listing.half_made:
            workdir.remove_half_made(FolderPlace(state, name))
    return _book_of(workdir, started, live, retained)


def read_book(workdir: Workdir, started: Moment) -> FolderBook:
    """The same, with nothing changed."""
    return _book_of(workdir, started, workdir.listing(FolderState.LIVE), workdir.listing(FolderState.RETAINED))


def _book_of(workdir: Workdir, started: Moment, live: ShelfListing, retained: ShelfListing) -> FolderBook:
    book = FolderBook(started)
    for folder in live.folders:
        _read_live(book, folder)
    for folder in retained.folders:
        _read_retained(book, folder)
    book.left_alone += [
        LeftAlone(name, "it is none of the working directory's folders") for name in workdir.strangers()
    ]
    book.left_alone += [_stranger(FolderState.LIVE, stranger) for stranger in live.strangers]
    book.left_alone += [_stranger(FolderState.RETAINED, stranger) for stranger in retained.strangers]
    return book


def _read_live(book: FolderBook, folder: RecordedFolder) -> None:
    record = _record_in(book, FolderState.LIVE, folder)
    if record is not None and record.volume_id == folder.name:
        book.live[folder.name] = record
    elif record is not None:
        why = f"its record belongs to the volume {record.volume_id}"
        book.left_alone.append(LeftAlone(f"{FolderState.LIVE.value}/{folder.name}", why))


def _read_retained(book: FolderBook, folder: RecordedFolder) -> None:
    record = _record_in(book, FolderState.RETAINED, folder)
    if record is None:
        return
    burial = burial_of(folder.name)
    if burial is None or burial.volume_id != record.volume_id:
        why = "its name does not say when it was buried"
        book.left_alone.append(LeftAlone(f"{FolderState.RETAINED.value}/{folder.name}", why))
    elif burial.volume_id in book.live or burial.volume_id in book.retained:
        why = f"there is another folder of the volume {burial.volume_id}"
        book.left_alone.append(LeftAlone(f"{FolderState.RETAINED.value}/{folder.name}", why))
    else:
        book.retain(Retained(record, replace(burial, volume_id=record.volume_id)))


def _record_in(book: FolderBook, state: FolderState, folder: RecordedFolder) -> FolderRecord | None:
    try:
        return decode_record(folder.record)
    except UnreadableRecord as error:
        book.left_alone.append(LeftAlone(f"{state.value}/{folder.name}", f"its record cannot be read: {error}"))
        return None


def _stranger(state: FolderState, stranger: Stranger) -> LeftAlone:
    return LeftAlone(f"{state.value}/{stranger.name}", stranger.why)
