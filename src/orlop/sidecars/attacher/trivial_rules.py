"""What comes next for one VolumeAttachment of a driver that has nothing to attach. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from orlop.kube import objects, patches
from orlop.kube.patches import JsonPatch
from orlop.sidecars.attacher.attach_rules import Nothing, attached_patch, is_attached


@dataclass(frozen=True, slots=True)
class LetGo:
    """Our finalizer, from a time when the driver did attach: there is nobody any more who could be asked to detach."""

    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class MarkAttached:
    patch: JsonPatch


TrivialStep: TypeAlias = Nothing | LetGo | MarkAttached


def next_trivial_step(attachment: Mapping[str, Any], finalizer: str) -> TrivialStep:
    if (patch := patches.remove_finalizer(attachment, finalizer)) is not None:
        return LetGo(patch)
    if objects.is_being_deleted(attachment):
        return Nothing("it is being deleted, and nothing was attached")
    if is_attached(attachment):
        return Nothing("it is told to be attached")
    return MarkAttached(attached_patch(attachment, {}))
