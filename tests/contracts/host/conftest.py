from __future__ import annotations

from support.kernel_rooms import room

__all__ = ["room"]
