"""What a CSI driver may be called: the interface's own rule. Pure.

Names become parts of paths and of labels, so that nothing is done with one that breaks the rule.
"""

from __future__ import annotations

import re
from typing import Final

_DRIVER_NAME: Final = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9.]{0,61}[a-zA-Z0-9])?")


def fault_of_driver_name(name: str) -> str | None:
    """None for a good one."""
    if _DRIVER_NAME.fullmatch(name):
        return None
    return "allowed are up to 63 letters, digits, '-' and '.', with a letter or digit at both ends"
