"""Decide whether a node can attach the volumes of one more pod, and whether it has their drivers. Pure.

kube-scheduler's NodeVolumeLimits: for each driver with a limit in the CSINode, the distinct volumes of the node's pods,
the VolumeAttachments of the node beyond those, and the new volumes must not exceed the limit.

- A claim that is not bound yet counts as one volume of its class's provisioner; without a class it does not count.
- Inline volumes do not count, nor volumes without a CSI source, nor drivers without a limit.
- A volume that is still attached from a pod that is gone counts twice for its next pod, as in Kubernetes: once for its
  VolumeAttachment and once as new. A node with a limit of one takes the next pod after the detach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from orlop.binding import class_rules
from orlop.kube import objects

LIMIT_EXCEEDED: Final = "node(s) exceed max volume count"

ApiObject = Mapping[str, Any]
CountedVolume: TypeAlias = tuple[str, str]
"""A volume: its driver, and its handle or the claim it will be provisioned for."""


@dataclass(frozen=True, slots=True)
class NodeDrivers:
    """The drivers that a CSINode names, and how many volumes each can attach there."""

    names: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)


def drivers_of(csi_node: ApiObject | None) -> NodeDrivers:
    drivers = ((csi_node or {}).get("spec") or {}).get("drivers") or ()
    counts = {one.get("name", ""): (one.get("allocatable") or {}).get("count") for one in drivers}
    limits = {name: count for name, count in counts.items() if isinstance(count, int)}
    return NodeDrivers(frozenset(counts), limits)


def volume_of(volume: ApiObject | None) -> CountedVolume | None:
    """Return the driver and handle of a PersistentVolume; None if it has no CSI source."""
    source = ((volume or {}).get("spec") or {}).get("csi") or {}
    driver, handle = source.get("driver"), source.get("volumeHandle")
    return (driver, handle) if driver and handle else None


def volume_of_claim(
    claim: ApiObject, volume: ApiObject | None, storage_class: ApiObject | None
) -> CountedVolume | None:
    """Return the volume that a claim has or will have; None if it does not count."""
    if volume is not None:
        return volume_of(volume)
    if storage_class is None or not class_rules.provisioner(storage_class):
        return None
    # No handle has this form, so the volume that will be provisioned is counted beside the others.
    return class_rules.provisioner(storage_class), f"claim {objects.name_of(claim)} {objects.uid(claim)}"


def why_not_attached(
    new: Iterable[CountedVolume],
    of_pods: Collection[CountedVolume],
    attached: Collection[CountedVolume],
    drivers: NodeDrivers,
) -> tuple[str, ...]:
    """Return the reason against a node; `of_pods` and `attached` are the node's pods' and VolumeAttachments'."""
    coming = Counter(driver for driver, _ in (one for one in set(new) if one not in of_pods))
    if not any(driver in drivers.limits for driver in coming):
        return ()
    present = Counter(driver for driver, _ in {*of_pods, *attached})
    for driver, count in coming.items():
        if driver in drivers.limits and present[driver] + count > drivers.limits[driver]:
            return (LIMIT_EXCEEDED,)
    return ()


def why_no_driver(wanted: Iterable[str], csi_drivers: Mapping[str, ApiObject], drivers: NodeDrivers) -> tuple[str, ...]:
    """Return the reason against a node that lacks a driver whose CSIDriver forbids pods on such nodes."""
    for driver in sorted(set(wanted)):
        spec = (csi_drivers.get(driver) or {}).get("spec") or {}
        if spec.get("preventPodSchedulingIfMissing") and driver not in drivers.names:
            return (f"{driver} CSI driver is not installed on the node",)
    return ()
