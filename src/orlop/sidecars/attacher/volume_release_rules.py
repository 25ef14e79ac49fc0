"""When our finalizer leaves a PersistentVolume: it is being deleted, and no VolumeAttachment of ours names it. Pure.

Never before: attaching looks at the finalizer and adds it where it is missing, and a volume that is being deleted is
not attached. So the two never pass each other, in whichever order they look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orlop.kube import objects, patches
from orlop.kube.patches import JsonPatch
from orlop.sidecars.attacher.attach_rules import attacher_of
from orlop.sidecars.attacher.attacher_name_rules import finalizer_of
from orlop.sidecars.attacher.volume_source_rules import volume_name_of


def may_be_of(volume: Mapping[str, Any], driver: str) -> bool:
    """Not where it says that it is another driver's, whose finalizer may be the same: `a.b` and `a-b`."""
    spec = volume.get("spec")
    source = spec.get("csi") if isinstance(spec, Mapping) else None
    return not isinstance(source, Mapping) or source.get("driver") == driver


def release_patch(
    volume: Mapping[str, Any], attachments: Iterable[Mapping[str, Any]], finalizer: str
) -> JsonPatch | None:
    """None where the finalizer stays, or is not there. `attachments` are those that name the volume, or all.

    The finalizers of `a.b` and `a-b` are the same, as upstream's are: those of both drivers must be gone.
    """
    if not objects.is_being_deleted(volume):
        return None
    name = objects.name_of(volume).name
    if any(finalizer_of(attacher_of(one)) == finalizer and volume_name_of(one) == name for one in attachments):
        return None
    return patches.remove_finalizer(volume, finalizer)
