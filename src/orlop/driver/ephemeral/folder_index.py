"""The folders of this node and the project numbers in use, in memory: what publishing and the afterlife know of them.

Records are stored with the folders (`host/folders/folder_records`). The index is read from there at the start; after
that, every change of a folder is followed by the same change here. Everything in it is also on disk. `retained` is
changed only by methods of the index, which make the same change in the queue of the afterlife.
"""

from __future__ import annotations

import errno
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from orlop.driver.ephemeral.afterlife.afterlife_queue import AfterlifeQueue, Queued
from orlop.driver.ephemeral.afterlife.retention_rules import Moment, RetainedFolder, age_of, buried_at_elapsed
from orlop.host.folders.folder_records import RecordedFolder, ShelfListing, Stranger
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, FolderState, Workdir
from orlop.records.ephemeral_folder import (
    Burial,
    FolderOptions,
    FolderRecord,
    burial_of,
    decode_record,
)
from orlop.records.record_format import UnreadableRecord


def live_place(volume_id: str) -> FolderPlace:
    return FolderPlace(FolderState.LIVE, volume_id)


def retained_place(burial: Burial) -> FolderPlace:
    return FolderPlace(FolderState.RETAINED, burial.folder_name)


def trash_place(burial: Burial) -> FolderPlace:
    return FolderPlace(FolderState.TRASH, burial.folder_name)


class Retained(msgspec.Struct, frozen=True, gc=False):
    """A retained folder. Its size is None until it has been measured."""

    record: FolderRecord
    burial: Burial
    buried_at_elapsed: float | None = None
    """When it was buried, in elapsed time; None: before this process started."""
    bytes_used: int | None = None

    @property
    def volume_id(self) -> str:
        return self.burial.volume_id


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """An entry of the working directory without a usable record. It is reported, and never changed."""

    place: str
    why: str


@dataclass(slots=True)
class FolderIndex:
    """All folders of this node. The methods record a change that was already made on disk."""

    started: Moment
    live: dict[str, FolderRecord] = field(default_factory=dict)
    retained: dict[str, Retained] = field(default_factory=dict)
    left_alone: list[LeftAlone] = field(default_factory=list)
    queue: AfterlifeQueue = field(default_factory=AfterlifeQueue)
    """The same folders as in `retained`."""
    _options: dict[FolderOptions, FolderOptions] = field(default_factory=dict)
    unmeasured: dict[str, None] = field(default_factory=dict)
    """The volumes of `retained` whose size is unknown, in the order in which they were added."""
    readers: Counter[str] = field(default_factory=Counter)
    """The number of readers by volume id. A folder with readers is not erased."""

    @contextmanager
    def being_read(self, volume_id: str) -> Iterator[None]:
        """Count a reader. Enter while holding the volume's key: the reaper checks for readers under that key."""
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
        """Return the project numbers of all folders that have limits. May be called from any thread."""
        # Copy to lists first: the event loop may change a dict while another thread iterates it, which would raise.
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
        """Share equal values between records, to save memory: there may be ten thousand."""
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

    def correct_from_disk(
        self, volume_id: str, record: FolderRecord | None, burial: Burial | None, elapsed: float
    ) -> None:
        """Correct the index from the folder on disk, after a change that failed. An unknown burial happened now."""
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
        """Return the retained folders as values for `retention_rules`."""
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


def start_index(workdir: Workdir, started: Moment) -> FolderIndex:
    """Read everything in the working directory; remove folders that an earlier process was creating when it died.

    Every shelf is listed only once: with thousands of folders, the listing takes most of the start-up time.
    """
    live, retained = workdir.listing(FolderState.LIVE), workdir.listing(FolderState.RETAINED)
    for state, listing in ((FolderState.LIVE, live), (FolderState.RETAINED, retained)):
        for name in listing.half_made:
            workdir.remove_half_made(FolderPlace(state, name))
    return _index_of(workdir, started, live, retained)


def read_index(workdir: Workdir, started: Moment) -> FolderIndex:
    """Read everything in the working directory and change nothing."""
    return _index_of(workdir, started, workdir.listing(FolderState.LIVE), workdir.listing(FolderState.RETAINED))


def find_folder(workdir: Workdir, volume_id: str, known: Burial | None) -> tuple[FolderRecord | None, Burial | None]:
    """Find a volume's folder on disk: its record, and its burial if it is retained. (None, None) if it is neither."""
    # A change that failed may have taken effect without being durable. The caller acknowledges what we return, so make
    # it durable first.
    workdir.synchronise()
    live = read_record(workdir, live_place(volume_id))
    if live is not None:
        return live, None
    for burial in _possible_burials(workdir, volume_id, known):
        record = read_record(workdir, retained_place(burial))
        if record is not None:
            return record, burial
    return None, None


def _possible_burials(workdir: Workdir, volume_id: str, known: Burial | None) -> Iterator[Burial]:
    if known is not None:
        yield known
    burials = [burial_of(folder.name) for folder in workdir.listing(FolderState.RETAINED).folders]
    yield from (burial for burial in burials if burial is not None and burial.volume_id == volume_id)


def read_record(workdir: Workdir, place: FolderPlace) -> FolderRecord | None:
    """Return the record of a folder; None if the folder or its record is missing, or the record cannot be decoded."""
    try:
        return decode_record(workdir.read_record(place))
    except UnreadableRecord:
        return None
    except HostError as error:
        if error.errno not in {errno.ENOENT, errno.ENODATA}:
            raise
        return None


def _index_of(workdir: Workdir, started: Moment, live: ShelfListing, retained: ShelfListing) -> FolderIndex:
    index = FolderIndex(started)
    for folder in live.folders:
        _read_live(index, folder)
    for folder in retained.folders:
        _read_retained(index, folder)
    index.left_alone += [
        LeftAlone(name, "this driver does not use an entry of this name") for name in workdir.strangers()
    ]
    index.left_alone += [_stranger(FolderState.LIVE, stranger) for stranger in live.strangers]
    index.left_alone += [_stranger(FolderState.RETAINED, stranger) for stranger in retained.strangers]
    return index


def _read_live(index: FolderIndex, folder: RecordedFolder) -> None:
    record = _record_in(index, FolderState.LIVE, folder)
    if record is not None and record.volume_id == folder.name:
        index.live[folder.name] = record
    elif record is not None:
        why = f"its record belongs to the volume {record.volume_id}"
        index.left_alone.append(LeftAlone(f"{FolderState.LIVE.value}/{folder.name}", why))


def _read_retained(index: FolderIndex, folder: RecordedFolder) -> None:
    record = _record_in(index, FolderState.RETAINED, folder)
    if record is None:
        return
    burial = burial_of(folder.name)
    if burial is None or burial.volume_id != record.volume_id:
        why = "its name does not contain the time of its burial"
        index.left_alone.append(LeftAlone(f"{FolderState.RETAINED.value}/{folder.name}", why))
    elif burial.volume_id in index.live or burial.volume_id in index.retained:
        why = f"there is another folder of the volume {burial.volume_id}"
        index.left_alone.append(LeftAlone(f"{FolderState.RETAINED.value}/{folder.name}", why))
    else:
        index.retain(Retained(record, replace(burial, volume_id=record.volume_id)))


def _record_in(index: FolderIndex, state: FolderState, folder: RecordedFolder) -> FolderRecord | None:
    try:
        return decode_record(folder.record)
    except UnreadableRecord as error:
        index.left_alone.append(LeftAlone(f"{state.value}/{folder.name}", f"its record cannot be read: {error}"))
        return None


def _stranger(state: FolderState, stranger: Stranger) -> LeftAlone:
    return LeftAlone(f"{state.value}/{stranger.name}", stranger.why)
