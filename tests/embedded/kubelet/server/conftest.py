from __future__ import annotations

from support.descriptors import no_leaked_descriptors

__all__ = ["no_leaked_descriptors"]
