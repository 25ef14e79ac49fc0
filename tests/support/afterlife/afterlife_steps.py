"""The steps of which a history of a node is made, as values; `shown` gives them as Python reads them."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass

from orlop.testing.kill_points import KillMoment


@dataclass(frozen=True)
class Publish:
    volume: int
    target: int


@dataclass(frozen=True)
class Unpublish:
    volume: int
    target: int


@dataclass(frozen=True)
class Together:
    asked: tuple[Publish | Unpublish, ...]


@dataclass(frozen=True)
class Write:
    volume: int
    blocks: int


@dataclass(frozen=True)
class ComeAndGo:
    """A pod's whole life: published at these targets, written to, unpublished from all of them."""

    volume: int
    targets: tuple[int, ...]
    blocks: int


@dataclass(frozen=True)
class ForcePodAway:
    volume: int


@dataclass(frozen=True)
class MountElsewhere:
    volume: int


@dataclass(frozen=True)
class LetGo:
    """Of one of the mounts elsewhere."""

    number: int


@dataclass(frozen=True)
class Fill:
    """What others have of the disk, in thousandths."""

    blocks: int
    inodes: int = 0


@dataclass(frozen=True)
class Pass:
    seconds: float


@dataclass(frozen=True)
class JumpWall:
    seconds: float


@dataclass(frozen=True)
class Fail:
    function: str
    number: int = errno.EIO
    times: int = 1
    moment: KillMoment = KillMoment.BEFORE


@dataclass(frozen=True)
class FailPurges:
    volume: int
    times: int


@dataclass(frozen=True)
class Use:
    """A target cannot be unmounted until it is used no more."""

    volume: int
    target: int
    ends: bool = False


@dataclass(frozen=True)
class Restart:
    pass


@dataclass(frozen=True)
class Reboot:
    pass


@dataclass(frozen=True)
class KillSoon:
    """At so many effects from now; `at_start`: of the next process, from its very beginning."""

    effects: int
    moment: KillMoment
    at_start: bool = False


Step = (
    Publish
    | Unpublish
    | Together
    | Write
    | ComeAndGo
    | ForcePodAway
    | MountElsewhere
    | LetGo
    | Fill
    | Pass
    | JumpWall
    | Fail
    | FailPurges
    | Use
    | Restart
    | Reboot
    | KillSoon
)


def shown(steps: Sequence[Step]) -> str:
    return re.sub(r"<(KillMoment\.\w+): [^>]*>", r"\1", repr(list(steps)))
