from __future__ import annotations

from support.host.descriptors import no_leaked_descriptors

__all__ = ["no_leaked_descriptors"]
