"""Whether a driver needs an attacher beside it, from the objects that are there. Pure.

It does when a VolumeAttachment of it can be made: it has a PersistentVolume, and no CSIDriver says that attaching is
not required. It does as well when one is there, or when a volume waits for our finalizer to be taken off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from orlop.kube import objects
from orlop.sidecars.attacher.attach_rules import attacher_of
from orlop.sidecars.attacher.attacher_name_rules import finalizer_of

Json: TypeAlias = Mapping[str, Any]


def needs_attacher(driver: str, csi_driver: Json | None, volumes: Iterable[Json], attachments: Iterable[Json]) -> bool:
    if any(attacher_of(attachment) == driver for attachment in attachments):
        return True
    is_required = ((csi_driver or {}).get("spec") or {}).get("attachRequired") is not False
    finalizer = finalizer_of(driver)
    return any(
        objects.has_finalizer(volume, finalizer) or (is_required and _driver_of(volume) == driver) for volume in volumes
    )


def _driver_of(volume: Json) -> str:
    spec = volume.get("spec")
    source = spec.get("csi") if isinstance(spec, Mapping) else None
    return str(source.get("driver") or "") if isinstance(source, Mapping) else ""
