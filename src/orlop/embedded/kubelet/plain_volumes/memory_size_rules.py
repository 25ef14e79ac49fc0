"""How much a volume in memory may hold: no more than its own limit, its pod's memory, or the node's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orlop.embedded.kubelet.plain_volumes.plain_volumes_rules import PlainKind, PlainVolume
from orlop.embedded.kubelet.volumes.volume_values import Seen
from orlop.foundation.quantity import InvalidQuantity, Quantity


def most_bytes(pod: Seen, volume: PlainVolume, allocatable: Mapping[str, str]) -> int:
    limits = [_bytes(allocatable.get("memory")), _pods_memory(pod)]
    if volume.kind is PlainKind.EMPTY_DIR:
        limits.append(_bytes(volume.source.get("sizeLimit")))
    return min((limit for limit in limits if limit is not None), default=0)


def _pods_memory(pod: Seen) -> int | None:
    """None: one of its containers has no limit, so that the node's is the only one."""
    spec = pod.get("spec") or {}
    together = [_limit(each) for each in spec.get("containers") or ()]
    before = [_limit(each) for each in spec.get("initContainers") or ()]
    known = [limit for limit in (*together, *before) if limit is not None]
    if not together or len(known) < len(together) + len(before):
        return None
    return max(sum(known[: len(together)]), *known[len(together) :], 0)


def _limit(container: Mapping[str, Any]) -> int | None:
    return _bytes(((container.get("resources") or {}).get("limits") or {}).get("memory"))


def _bytes(text: Any) -> int | None:
    """None where there is no limit; zero is none either."""
    try:
        value = Quantity.parse(str(text)).value() if text is not None else 0
    except InvalidQuantity:
        return None
    return value if value > 0 else None
