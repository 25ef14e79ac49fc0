"""The attacher's finalizer: its name, when it leaves a PersistentVolume, and whether a driver needs an attacher. Pure.

The name is upstream's, so that either attacher can take over the objects of the other.

The finalizer is removed from a PersistentVolume only if the volume is being deleted and no VolumeAttachment names it.
Attaching adds a missing finalizer, and refuses a volume that is being deleted. So adding and removing cannot both
happen to one volume, in whichever order the two read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from orlop.csi.driver_name import sanitized_driver_name
from orlop.kube import objects, patches
from orlop.kube.patches import JsonPatch
from orlop.sidecars.attacher.attach_rules import attacher_of
from orlop.sidecars.attacher.volume_source_rules import volume_name_of

ApiObject: TypeAlias = Mapping[str, Any]


def finalizer_of(driver: str) -> str:
    """Return the finalizer on VolumeAttachments and PersistentVolumes of the driver."""
    return f"external-attacher/{sanitized_driver_name(driver)}"


def volume_release_patch(volume: ApiObject, attachments: Iterable[ApiObject], finalizer: str) -> JsonPatch | None:
    """Return the patch that removes the finalizer; None if it must stay, or is not there.

    `attachments` are those that name the volume, or all.
    """
    if not objects.is_being_deleted(volume):
        return None
    name = objects.name_of(volume).name
    # A VolumeAttachment that is being deleted counts too: the driver has not detached it yet, and detaching needs the
    # volume's handle. The finalizers of the drivers `a.b` and `a-b` are the same, so those of both must be gone.
    if any(finalizer_of(attacher_of(each)) == finalizer and volume_name_of(each) == name for each in attachments):
        return None
    return patches.remove_finalizer(volume, finalizer)


def needs_attacher(
    driver: str, csi_driver: ApiObject | None, volumes: Iterable[ApiObject], attachments: Iterable[ApiObject]
) -> bool:
    """Return whether an attacher must run beside the driver, from the objects alone.

    It must if a VolumeAttachment of the driver exists, or can be created: the driver has a PersistentVolume, and no
    CSIDriver has `attachRequired: false`. It also must if a volume waits for the removal of the finalizer.
    """
    if any(attacher_of(attachment) == driver for attachment in attachments):
        return True
    is_required = ((csi_driver or {}).get("spec") or {}).get("attachRequired") is not False
    finalizer = finalizer_of(driver)
    return any(
        objects.has_finalizer(volume, finalizer) or (is_required and _driver_of(volume) == driver) for volume in volumes
    )


def _driver_of(volume: ApiObject) -> str:
    spec = volume.get("spec")
    source = spec.get("csi") if isinstance(spec, Mapping) else None
    return str(source.get("driver") or "") if isinstance(source, Mapping) else ""
