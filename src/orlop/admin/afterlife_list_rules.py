"""Select and order the folders of a list, and shorten their ids. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Final

from orlop.records.afterlife_report import FolderRow

SHORTEST_ID: Final = 12


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter for folders. None matches everything. `pod` may contain `*` and `?`; ages are in seconds."""

    namespace: str | None = None
    pod: str | None = None
    older_than: float | None = None
    younger_than: float | None = None

    def includes(self, row: FolderRow) -> bool:
        return (
            self.namespace in {None, row.namespace}
            and (self.pod is None or fnmatchcase(row.pod, self.pod))
            and (self.older_than is None or row.age_seconds > self.older_than)
            and (self.younger_than is None or row.age_seconds < self.younger_than)
        )


ORDERS: Final[Mapping[str, Callable[[FolderRow], Any]]] = {
    "deleted": lambda row: row.age_seconds,
    "erased": lambda row: row.erased_in_seconds,
    "size": lambda row: -1 if row.bytes_used is None else row.bytes_used,
    "pod": lambda row: (row.pod, row.namespace),
    "namespace": lambda row: (row.namespace, row.pod),
    "volume": lambda row: row.volume_id,
}
LARGEST_FIRST: Final = frozenset({"size"})


def chosen(rows: Iterable[FolderRow], wanted: Wanted, order: str, *, reverse: bool = False) -> list[FolderRow]:
    """Return the matching rows in order: the last deleted, next erased or largest first; ties by the volume's id."""
    by_id = sorted((row for row in rows if wanted.includes(row)), key=lambda row: row.volume_id)
    return sorted(by_id, key=ORDERS[order], reverse=reverse ^ (order in LARGEST_FIRST))


def short_ids(ids: Iterable[str], least: int = SHORTEST_ID) -> dict[str, str]:
    """Return for each id its shortest unique prefix, of at least `least` characters."""
    ordered = sorted(set(ids))
    shared = [_shared_beginning(left, right) for left, right in pairwise(ordered)]
    around = zip([0, *shared], [*shared, 0], strict=True)
    return {
        each: each[: max(least, before + 1, after + 1)] for each, (before, after) in zip(ordered, around, strict=False)
    }


def _shared_beginning(left: str, right: str) -> int:
    """Return the length of the longest common prefix."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
