"""Read CSIStorageCapacity objects: the largest volume that fits, on which nodes, and which drivers use them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.kube.label_requirements import InvalidSelector
from orlop.kube.selectors import LabelSelector

Object = Mapping[str, Any]


def publishes_capacity(csi_driver: Object | None) -> bool:
    """Return whether the scheduler checks a driver's capacity; without a CSIDriver object it does not."""
    return bool(((csi_driver or {}).get("spec") or {}).get("storageCapacity"))


def class_of(capacity: Object) -> str:
    return str(capacity.get("storageClassName") or "")


def volume_size_limit(capacity: Object) -> Quantity | None:
    """Return the size of the largest volume that fits; None if the object has no size, and then no volume fits."""
    # The driver's own limit is more precise than its total free space, which may be fragmented.
    key = "maximumVolumeSize" if capacity.get("maximumVolumeSize") is not None else "capacity"
    return _quantity(capacity, key)


def free_space(capacity: Object) -> Quantity | None:
    return _quantity(capacity, "capacity")


def node_selector(capacity: Object) -> LabelSelector | None:
    """Return which nodes can use this capacity; None for no node. An empty topology is every node."""
    topology = capacity.get("nodeTopology")
    try:
        return LabelSelector.of_object(topology) if isinstance(topology, Mapping) else None
    except InvalidSelector:
        return None


def _quantity(capacity: Object, key: str) -> Quantity | None:
    text = capacity.get(key)
    try:
        return Quantity.parse(str(text)) if text is not None else None
    except InvalidQuantity:
        return None
