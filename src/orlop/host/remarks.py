"""What a walk through somebody's folder has to say besides its result: what it left out or could not keep, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MOST_REMARKS: Final = 100


@dataclass(frozen=True, slots=True)
class Remark:
    """`path` is below the folder; a name that is no UTF-8 has surrogates for the odd bytes."""

    path: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path!r}: {self.sentence}"


@dataclass(slots=True)
class Remarks:
    """Keeps the first hundred and counts the rest."""

    first: list[Remark] = field(default_factory=list)
    count: int = 0

    def add(self, path: str, sentence: str) -> None:
        self.count += 1
        if len(self.first) < MOST_REMARKS:
            self.first.append(Remark(path, sentence))

    def add_error(self, path: str, what: str, error: OSError) -> None:
        self.add(path, f"{what}: {error.strerror or error}.")
