from __future__ import annotations

from support.host.kernel_rooms import room

__all__ = ["room"]
