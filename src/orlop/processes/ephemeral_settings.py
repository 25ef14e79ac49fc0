"""The flags of a node that serves scratch folders: the seed's, in its spelling, and ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import flag, integer, text
from orlop.foundation.quantity import Quantity
from orlop.processes.daemon import is_folder, is_not_negative, is_some_time

_SHARE: Final = re.compile(r"[+-]?(?=\.?[0-9])[0-9]{0,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,2})?")
"""Few digits in the exponent: those of 1e999999999 would fill the memory."""


def share(value: str) -> Fraction:
    if not _SHARE.fullmatch(value):
        raise ValueError("allowed is a number from 0 to 1, such as 0.1")
    return Fraction(value)


def is_share(value: Fraction) -> str | None:
    return None if 0 <= value <= 1 else "allowed is a number from 0 to 1, such as 0.1"


def is_count(number: int) -> str | None:
    return None if 0 <= number < 2**31 else "allowed is 0 (no limit) or more"


def is_absolute(path: str) -> str | None:
    return None if Path(path).is_absolute() else "it has to begin with '/'"


def is_plain(path: str) -> str | None:
    """Targets are compared with it as text."""
    return "it must not hold '..'" if ".." in path.split("/") else is_absolute(path)


def is_absolute_or_none(path: str) -> str | None:
    return is_absolute(path) if path else None


def is_size(quantity: Quantity) -> str | None:
    return None if quantity.value() >= 0 else "allowed is 0 (no limit) or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class EphemeralSettings:
    workdir: str = flag(
        text,
        default="/var/lib/orlop/ephemeral",
        metavar="DIR",
        check=is_absolute_or_none,
        help="Where scratch folders are kept, live and in their afterlife; empty: none are served.",
    )
    kubelet_dir: str = flag(
        text,
        default="/var/lib/kubelet",
        metavar="DIR",
        check=is_plain,
        help="Kubelet's folder; volumes are published below it and nowhere else.",
    )
    max_volumes_per_node: int = flag(
        integer,
        name="maxvolumespernode",
        default="0",
        metavar="NUMBER",
        check=is_count,
        help="How many volumes this node may have at a time; 0: as many as there is room for.",
    )
    afterlifespan: Duration = flag(
        Duration.parse,
        default="12h",
        metavar="DURATION",
        aliases=("afterLifespan",),
        check=is_not_negative,
        help="How long a folder is kept after its pod has gone.",
    )
    max_afterlifespan: Duration | None = flag(
        Duration.parse,
        metavar="DURATION",
        check=is_not_negative,
        help="The longest afterlife a pod may ask for; not given: --afterlifespan.",
    )
    prune_interval: Duration = flag(
        Duration.parse,
        name="pruneinterval",
        default="5s",
        metavar="DURATION",
        check=is_some_time,
        help="How often the disk is looked at while folders are retained.",
    )
    headroom: Fraction | None = flag(
        share,
        metavar="SHARE",
        check=is_share,
        help="The share of the disk, 0 to 1, below which lifespans shrink; not given: 0.1, and 0.2 on kubelet's disk.",
    )
    default_size: Quantity = flag(
        Quantity.parse,
        default="0",
        metavar="QUANTITY",
        check=is_size,
        help="The size of a folder whose pod asks for none; 0: --max-size.",
    )
    max_size: Quantity = flag(
        Quantity.parse,
        default="0",
        metavar="QUANTITY",
        check=is_size,
        help="The largest folder a pod may ask for; 0: no limit.",
    )
    orphan_grace: Duration = flag(
        Duration.parse,
        name="orphangrace",
        default="1h",
        metavar="DURATION",
        check=is_not_negative,
        help="After how long a folder is buried whose pod kubelet has forgotten.",
    )

    admin_socket: str = flag(
        text,
        name="adminsocket",
        default="",
        metavar="PATH",
        check=is_absolute_or_none,
        help="Where `orlop afterlife` is answered; not given: /run/orlop/<driver>/admin.sock.",
    )

    def cross_check(self) -> Iterator[str]:
        folders = (("workdir", self.workdir), ("kubelet-dir", self.kubelet_dir)) if self.workdir else ()
        for name, path in folders:
            if not is_folder(Path(path)):
                yield f"--{name} cannot be {path!r}: there is no such folder; make it first, or name another."
        if self.max_size.value() and self.default_size.value() > self.max_size.value():
            yield f"--default-size cannot be {self.default_size}: --max-size allows {self.max_size}."
        longest = self.max_afterlifespan
        if longest is not None and self.afterlifespan > longest:
            yield f"--afterlifespan cannot be {self.afterlifespan}: --max-afterlifespan allows {longest}."

    @property
    def limits(self) -> AdminLimits:
        longest = self.max_afterlifespan or self.afterlifespan
        return AdminLimits(
            afterlifespan=self.afterlifespan.seconds,
            max_afterlifespan=longest.seconds,
            default_size=self.default_size.value(),
            max_size=self.max_size.value(),
        )
