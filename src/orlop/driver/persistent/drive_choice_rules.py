"""Choose the drive of a new volume: steps 2 to 5 and 7 of the nine steps in docs/drives.md. Pure.

    2  a drive that lists the volume already is returned, even if it fails a test
    3  a drive that fails a test is out; of the others, the first preferred topology with a drive forms the group,
       and drives that match only a requisite topology come last
    4  within the group, those with the most free bytes
    5  among equals, the greatest hash of volume and drive: a repeated request gets the same drive
    7  no drive: the error names how many drives failed which test

The answer does not depend on the order in which drives are listed. Free bytes are the capacity less all allocations of
the list, never a counter. A drive is in one list of several thousand, so each test is a comparison of what
`DriveFacts` holds already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Final

from orlop.driver.persistent.volume_request_rules import (
    Segments,
    SizeRange,
    WantedStorage,
    WantedTopology,
    WantedVolume,
    matches,
)
from orlop.foundation.quantity import Quantity
from orlop.records.api_record import MOST_VOLUMES
from orlop.records.drive import Allocation, Backing, FileSystem, Tier
from orlop.records.drive_record import DriveState
from orlop.records.volume import FileSystemOrNone
from orlop.records.volume_context import TOPOLOGY_NODE

MIB: Final = 1 << 20
BLOCK: Final = 4096
"""Sizes are whole MiB, or whole blocks where the request's limit leaves no room for that."""
SMALLEST_XFS: Final = 300 * MIB
"""mkfs.xfs makes no smaller file system."""
SMALLEST_EXT4: Final = 16 * MIB
DEFAULT_BYTES: Final = 1 << 30
"""Size of a volume whose request names none."""
_IMAGINABLE: Final[tuple[FileSystem, ...]] = ("xfs", "ext4")
ANY_CAPACITY: Final = 2**63
"""Assumed for a drive whose node has not reported its capacity yet."""


DriveLabels = tuple[tuple[str, str], ...]
"""The labels of a Drive object, sorted, so that equal labels are equal keys."""


class DriveTest(Enum):
    """The tests of step 3, in their order; the value completes "of M drives, 1 …" and "of M drives, N …".

    Free space comes last, so that those counted there are the drives where freeing space would help.
    """

    READY = "is not Ready", "are not Ready"
    CORDONED = "is cordoned", "are cordoned"
    REMOVING = "is being removed", "are being removed"
    LIST = (
        f"holds {MOST_VOLUMES} volumes, the most that a drive can list",
        f"hold {MOST_VOLUMES} volumes, the most that a drive can list",
    )
    FORM = ("cannot hold the backing and file system asked for",) * 2
    TIER = "is of another tier", "are of another tier"
    SELECTOR = "does not match the drive selector", "do not match the drive selector"
    CLAIM_ID = "holds a volume of the same volume-claim-id", "hold a volume of the same volume-claim-id"
    TOPOLOGY = "is on a node that the request does not allow", "are on nodes that the request does not allow"
    CAPACITY = "has too little free space", "have too little free space"


@dataclass(frozen=True, slots=True)
class Offer:
    """What kinds of volumes a drive can hold; many drives share one."""

    file_system: FileSystem | None
    backings: tuple[Backing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveFacts:
    """A drive, as far as the choice and a reservation need it."""

    name: str
    uid: str = ""
    version: str = ""
    generation: int = 0
    node_name: str
    state: DriveState | None = DriveState.READY
    restored: bool = True
    """All volumes on the disk are in `allocations`."""
    tier: Tier = "default"
    labels: DriveLabels = ()
    unschedulable: bool = False
    removing: bool = False
    """It is being removed, or its object is being deleted."""
    released: bool = False
    """It was removed, and its node has released it: its object can be deleted."""
    capacity: int = 0
    free: int = 0
    """Capacity less the sum of the allocations; below 0 if they are more than the drive has."""
    allocations: Mapping[str, Allocation] = field(default_factory=dict)
    claim_ids: frozenset[str] = frozenset()
    offer: Offer = Offer(None, ())
    finalizers: tuple[str, ...] | None = None
    """None: the object has no list of them."""
    unrecorded: tuple[Allocation, ...] = ()
    """Volumes that the node found on a drive whose allocations are not restored yet."""
    unrecorded_names: frozenset[str] = frozenset()
    """Volumes with data on the drive that no Volume object describes: adoption makes their objects."""
    closed: DriveTest | None = field(init=False, compare=False)
    """Why the drive takes no volume at all: the tests that no request changes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "closed", _why_closed(self))

    @property
    def segments(self) -> Segments:
        return {TOPOLOGY_NODE: self.node_name}


def _why_closed(drive: DriveFacts) -> DriveTest | None:
    if drive.state is not DriveState.READY or not drive.restored:
        return DriveTest.READY
    if drive.unschedulable:
        return DriveTest.CORDONED
    if drive.removing:
        return DriveTest.REMOVING
    return DriveTest.LIST if len(drive.allocations) >= MOST_VOLUMES else None


@dataclass(frozen=True, slots=True)
class DrivePlacement:
    """What the volume will be on a drive with some offer."""

    backing: Backing
    file_system: FileSystemOrNone
    bytes: int


@dataclass(frozen=True, slots=True)
class HeldByDrive:
    """The drive lists the volume already."""

    drive: DriveFacts
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Chosen:
    drive: DriveFacts
    placement: DrivePlacement


@dataclass(frozen=True, slots=True)
class NoDrive:
    """No drive can take the volume now: RESOURCE_EXHAUSTED."""

    why: str


@dataclass(frozen=True, slots=True)
class NoSuchSize:
    """No drive that exists could ever take the volume: OUT_OF_RANGE."""

    why: str


DriveChoice = HeldByDrive | Chosen | NoDrive | NoSuchSize


def choose_drive(wanted: WantedVolume, drives: Sequence[DriveFacts]) -> DriveChoice:
    """Return the drive for a volume, or why there is none."""
    tests, volume_id = _Tests(wanted), wanted.volume_id
    best: list[DriveFacts] = []
    failed: list[DriveTest] = []
    best_group = tests.last_group
    # Less than any drive has: allocations that were forged can add up to more than 64 bits.
    best_free: float = -math.inf
    for drive in drives:
        if volume_id in drive.allocations:
            return HeldByDrive(drive, drive.allocations[volume_id])
        free, group = drive.free, tests.group(drive)
        # Test only drives that could be the best: testing all of several thousand would take too long.
        if group > best_group or (group == best_group and free < best_free):
            continue
        if (test := tests.failed(drive)) is not None:
            failed.append(test)
        elif group < best_group or free > best_free:
            best, best_group, best_free = [drive], group, free
        else:
            best.append(drive)
    if not best:
        return _no_drive(wanted, drives, failed)
    drive = max(best, key=lambda each: tie_break(volume_id, each.name)) if len(best) > 1 else best[0]
    placement = tests.placement(drive)
    assert placement is not None  # noqa: S101 - it passed the test of its form
    return Chosen(drive, placement)


def failed_tests(wanted: WantedVolume, drives: Iterable[DriveFacts]) -> list[DriveTest | None]:
    """Return the first test that each drive fails for this volume; None for one that could take it."""
    tests = _Tests(wanted)
    return [tests.failed(drive) for drive in drives]


def tie_break(volume_id: str, drive: str) -> bytes:
    return blake2b(f"{volume_id}/{drive}".encode(), digest_size=16).digest()


class _Tests:
    """The tests of one request, with what is the same for all drives computed once."""

    def __init__(self, wanted: WantedVolume) -> None:
        storage, topology = wanted.storage, wanted.topology
        self._storage, self._size = storage, wanted.size
        self._tier, self._claim_id = storage.tier, storage.volume_claim_id
        self._selector = storage.selector
        self._matching: dict[DriveLabels, bool] = {}
        self._by_offer: dict[int, tuple[Offer, int]] = {}
        self._groups, self._nodes = _groups(topology)
        self.last_group = len(topology.preferred)

    def group(self, drive: DriveFacts) -> int:
        return self._groups.get(drive.node_name, self.last_group) if self._groups else self.last_group

    def failed(self, drive: DriveFacts) -> DriveTest | None:  # noqa: PLR0911 - one line for each test
        """Return the first test that a drive fails."""
        if drive.closed is not None:
            return drive.closed
        needed = self._needed(drive.offer)
        if not needed:
            return DriveTest.FORM
        if self._tier is not None and drive.tier != self._tier:
            return DriveTest.TIER
        if self._selector and not self._matches(drive.labels):
            return DriveTest.SELECTOR
        if self._claim_id and self._claim_id in drive.claim_ids:
            return DriveTest.CLAIM_ID
        if self._nodes is not None and drive.node_name not in self._nodes:
            return DriveTest.TOPOLOGY
        return DriveTest.CAPACITY if drive.free < needed else None

    def _matches(self, labels: DriveLabels) -> bool:
        known = self._matching.get(labels)
        if known is None:
            known = self._matching[labels] = self._selector.matches(dict(labels))
        return known

    def placement(self, drive: DriveFacts) -> DrivePlacement | None:
        return placement_on(self._storage, self._size, drive.offer)

    def _needed(self, offer: Offer) -> int:
        """Return the bytes that the volume takes of a drive with this offer; 0 if it cannot be there."""
        # By identity: hashing an offer costs more than all other tests together. The offer is kept, so that no other
        # object gets its identity.
        known = self._by_offer.get(id(offer))
        if known is None:
            placement = placement_on(self._storage, self._size, offer)
            known = self._by_offer[id(offer)] = (offer, placement.bytes if placement is not None else 0)
        return known[1]


def _groups(topology: WantedTopology) -> tuple[dict[str, int], frozenset[str] | None]:
    """Return the group of each preferred node, and the nodes that are allowed (None: all)."""
    allowed = None if not topology.requisite else frozenset(filter(None, map(_node_of, topology.requisite)))
    if any(not term for term in topology.requisite):
        allowed = None
    groups: dict[str, int] = {}
    for place, term in enumerate(topology.preferred):
        if (node := _node_of(term)) is not None:
            groups.setdefault(node, place)
    return groups, allowed


def _node_of(term: Segments) -> str | None:
    """Return the one node that a topology means; None if it has keys that no drive has."""
    node = term.get(TOPOLOGY_NODE)
    return node if node is not None and matches(term, {TOPOLOGY_NODE: node}) else None


# ---- what the volume will be -----------------------------------------------------------------------------------------


def placement_on(storage: WantedStorage, size: SizeRange, offer: Offer) -> DrivePlacement | None:
    """Return what a volume will be on a drive with this offer; None if it cannot be there."""
    if _may_be_directory(storage, offer) and (whole := volume_bytes(size)):
        return DrivePlacement("directory", offer.file_system or "", whole)
    if "image" not in offer.backings or storage.backing == "directory":
        return None
    if storage.volume_mode == "Block":
        return _image("", size, 0)
    if storage.file_system != "ext4" and (storage.file_system or volume_bytes(size) >= SMALLEST_XFS):
        return _image("xfs", size, SMALLEST_XFS)
    return _image("ext4", size, SMALLEST_EXT4)


def _may_be_directory(storage: WantedStorage, offer: Offer) -> bool:
    """Return whether a volume can be a directory: the quota is enforced, and the file system is the drive's own."""
    return (
        storage.volume_mode == "Filesystem"
        and storage.backing != "image"
        and "directory" in offer.backings
        and storage.file_system in {"", offer.file_system}
    )


def _image(file_system: FileSystemOrNone, size: SizeRange, least: int) -> DrivePlacement | None:
    whole = volume_bytes(size, least)
    return DrivePlacement("image", file_system, whole) if whole else None


def volume_bytes(size: SizeRange, least: int = 0) -> int:
    """Return the size of a volume of at least `least` bytes within a range; 0 if there is none."""
    requested = size.required or (min(DEFAULT_BYTES, size.limit) if size.limit else DEFAULT_BYTES)
    if not size.required:
        requested -= requested % BLOCK
    needed = max(requested, least, BLOCK)
    for unit in (MIB, BLOCK):
        whole = -(-needed // unit) * unit
        if whole < ANY_CAPACITY and (not size.limit or whole <= size.limit):
            return whole
    return 0


# ---- no drive --------------------------------------------------------------------------------------------------------


def _no_drive(wanted: WantedVolume, drives: Sequence[DriveFacts], failed: Sequence[DriveTest]) -> NoDrive | NoSuchSize:
    """Return the error. Without a best drive, every drive has failed a test: `failed` is in the order of `drives`."""
    # Any drive that could be added counts: the request may fit none of those that are there, and another one later.
    offers = (Offer(each, ("directory", "image")) for each in _IMAGINABLE)
    forms = [form.bytes for each in offers if (form := placement_on(wanted.storage, wanted.size, each)) is not None]
    if not forms:
        return NoSuchSize(f"no volume of this kind can have {_range_text(wanted.size)}")
    least = min(forms)
    size = Quantity.of(least)
    largest = max((drive.capacity or ANY_CAPACITY for drive in drives), default=ANY_CAPACITY)
    if least > largest:
        return NoSuchSize(f"{size} is more than any drive has: the largest has {Quantity.of(largest)}")
    if not drives:
        return NoDrive("there are no drives: make one with `orlop drives init` or `orlop drives add-folder`")
    small = [drive.free for drive, test in zip(drives, failed, strict=True) if test is DriveTest.CAPACITY]
    numbers = [(test, sum(1 for each in failed if each is test)) for test in _distinct(failed)]
    counts = (f"{number} {_sentence(test, number, small)}" for test, number in numbers)
    all_drives = f"{len(drives)} {'drive' if len(drives) == 1 else 'drives'}"
    return NoDrive(f"no drive can take {size}: of {all_drives}, {', '.join(counts)}")


def _distinct(failed: Sequence[DriveTest]) -> list[DriveTest]:
    """Return the tests that occur, in their order. Members of an enum are slow to hash."""
    distinct: list[DriveTest] = []
    while failed:
        first = failed[0]
        distinct.append(first)
        failed = [test for test in failed if test is not first]
    return [test for test in DriveTest if any(test is each for each in distinct)]


def _sentence(test: DriveTest, number: int, free: Sequence[int]) -> str:
    sentence: str = test.value[number > 1]
    return f"{sentence} (the most is {Quantity.of(max(0, *free))})" if test is DriveTest.CAPACITY else sentence


def _range_text(size: SizeRange) -> str:
    return f"{size.required} to {size.limit} bytes" if size.limit else f"{size.required} bytes"


# ---- what could be created -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes that volumes of one kind can have: all drives together, and one volume at most."""

    available: int
    largest: int


def capacity_of(storage: WantedStorage, topology: WantedTopology, drives: Iterable[DriveFacts]) -> Capacity:
    """Return what is free for volumes of a kind, on drives that would take one."""
    tests = _Tests(WantedVolume(name="", volume_id="", storage=storage, size=SizeRange(BLOCK), topology=topology))
    free = [drive.free for drive in drives if tests.failed(drive) is None]
    return Capacity(sum(free), max(free, default=0))
