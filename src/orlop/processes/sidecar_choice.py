"""What is asked to run beside a driver that is not ours. Light: it is read before anything is imported for it."""

from __future__ import annotations

from enum import Enum


class Sidecars(Enum):
    """The words are the flag's."""

    AUTO = "auto"
    ATTACHER = "attacher"
    NONE = "none"


def parse_sidecars(value: str) -> Sidecars:
    try:
        return Sidecars(value)
    except ValueError:
        raise ValueError(f"allowed are {', '.join(one.value for one in Sidecars)}") from None
