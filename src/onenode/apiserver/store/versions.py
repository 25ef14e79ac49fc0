"""The values the object store deals in: keys, versions of objects, changes, and what a writer may decide.

An object is JSON in bytes, serialised once and never looked into here. It is not kept parsed: as Python values the same
object takes four times the memory. Its bytes hold its own `metadata.resourceVersion`, which is the revision of the
write that made them; so the function that makes the bytes gets the revision first.

Pure: nothing here waits, writes or knows where things are kept.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

# What the empty store shows: clients take a resourceVersion of 0 for "any".
FIRST_REVISION: Final = 1


class Key(NamedTuple):
    """Keys sort as lists show them: by namespace, then by name."""

    resource: str
    """Such as `pods` or `volumeattachments.storage.k8s.io`."""
    namespace: str
    """Empty for what is in no namespace."""
    name: str

    def __str__(self) -> str:
        return f"{self.resource} {self.namespace}/{self.name}" if self.namespace else f"{self.resource} {self.name}"


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object."""

    key: Key
    revision: int
    json: bytes


# A deletion mark, a condition, a finalizer less: updates that a deletion needs.
SMALL_GROWTH: Final = 1024
EVENTS: Final = "events"


class ChangeKind(enum.Enum):
    CREATED = 0
    UPDATED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class Change:
    """One write. All who watch share this one object."""

    kind: ChangeKind
    after: Stored
    """Of a deletion: the object as it was last, with the revision of the deletion."""
    before: Stored | None

    @property
    def takes_room(self) -> bool:
        """Return whether the change is refused on a full disk: all but deletions and small updates, and all events."""
        if self.kind is ChangeKind.DELETED:
            return False
        grows = self.before is None or len(self.after.json) > len(self.before.json) + SMALL_GROWTH
        return grows or self.key.resource == EVENTS

    @property
    def key(self) -> Key:
        return self.after.key

    @property
    def revision(self) -> int:
        return self.after.revision

    @property
    def size(self) -> int:
        return len(self.after.json) + (len(self.before.json) if self.before else 0)

    def result(self) -> Stored | None:
        """What is there afterwards."""
        return None if self.kind is ChangeKind.DELETED else self.after


# ---- what a writer decides, seeing the newest version ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Put:
    json: bytes


@dataclass(frozen=True, slots=True)
class Remove:
    tombstone: bytes
    """The object as those who watch shall see it last."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """No write: the revision stays, and nobody who watches hears of it."""


WriteDecision: TypeAlias = Put | Remove | Unchanged


# ---- what a reader gets ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects, in the order of their keys, all as they were at one revision."""

    revision: int
    items: Sequence[Stored]
    remaining: int
    """How many more there are behind the last of these."""


# ---- bounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """At most so many, and at most so many bytes together."""

    count: int
    bytes: int

    def hold(self, count: int, size: int) -> bool:
        return count <= self.count and size <= self.bytes


@dataclass(frozen=True, slots=True)
class Limits:
    history: SizeLimits = SizeLimits(count=10_000, bytes=16 << 20)
    """Changes kept for watches and for later pages of lists, in memory and on disk."""
    unread: SizeLimits = SizeLimits(count=1_000, bytes=16 << 20)
    """What may lie unread before one watch; those already kept when it began do not count."""
    writes_per_commit: int = 1_000


DEFAULT_LIMITS: Final = Limits()


# ---- objects as Python values ----------------------------------------------------------------------------------------

# Objects as Python values, for those who look inside.
#
# The last few are remembered, so that a hundred watches with selectors decode a change once and not a hundred times.
# A revision names one version for ever, so what is remembered is never stale. The values are shared: nobody may
# change them. A caller that builds a new version decodes its own copy with `fresh`.


JSON: Final = msgspec.json.Decoder(dict[str, Any])


def fresh(stored: Stored) -> dict[str, Any]:
    return JSON.decode(stored.json)


class DecodedObjects:
    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._values: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def of(self, stored: Stored) -> Mapping[str, Any]:
        if stored.revision in self._values:
            self._values.move_to_end(stored.revision)
            return self._values[stored.revision]
        value = self._values[stored.revision] = fresh(stored)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value
