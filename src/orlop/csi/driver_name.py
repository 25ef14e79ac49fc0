"""The names that CSI allows for drivers, and how they become parts of other names. Pure.

A driver's name becomes part of paths, labels and finalizers: a component does nothing with a name that is not allowed.
"""

from __future__ import annotations

import re
from typing import Final

_NOT_IN_OBJECT_NAMES: Final = re.compile(r"[^a-zA-Z0-9-]")
_DRIVER_NAME: Final = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9.]{0,61}[a-zA-Z0-9])?")


def driver_name_problem(name: str) -> str | None:
    """Return what is wrong with the name; None if nothing is."""
    if _DRIVER_NAME.fullmatch(name):
        return None
    return "allowed are up to 63 letters, digits, '-' and '.', with a letter or digit at both ends"


def sanitized_driver_name(name: str) -> str:
    """Return the name as upstream's sidecars write it in finalizers and in the names of leases.

    Two drivers may share it: `a.b` and `a-b`.
    """
    sanitized = _NOT_IN_OBJECT_NAMES.sub("-", name)
    # Neither a finalizer nor a lease may end with a dash.
    return f"{sanitized}X" if sanitized.endswith("-") else sanitized
