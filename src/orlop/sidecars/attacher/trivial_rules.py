"""Decide the next step for a VolumeAttachment whose driver cannot attach. Pure.

Kubernetes creates VolumeAttachments whether or not the driver implements ControllerPublishVolume, and pods wait for
`status.attached`. Without that capability there is nothing to call: mark the object attached, add no finalizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from orlop.kube import objects, patches
from orlop.kube.patches import JsonPatch
from orlop.sidecars.attacher.attach_rules import MARKED_ANNOTATION, Nothing, attached_patch, is_attached


@dataclass(frozen=True, slots=True)
class ReleaseFinalizer:
    """Remove our finalizer, added while the driver could still attach, from an object that is being deleted."""

    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class AnnotateMarked:
    """Record on an object with our finalizer that the driver did not attach it, before it is marked attached."""

    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class MarkAttached:
    patch: JsonPatch


TrivialStep: TypeAlias = Nothing | ReleaseFinalizer | AnnotateMarked | MarkAttached


def next_trivial_step(attachment: Mapping[str, Any], finalizer: str) -> TrivialStep:
    """Return the next step. `Nothing` carries the reason, for the log and for `orlop explain`."""
    if objects.is_being_deleted(attachment):
        patch = patches.remove_finalizer(attachment, finalizer)
        return Nothing("being deleted; has no finalizer of ours") if patch is None else ReleaseFinalizer(patch)
    # Attached objects keep a finalizer left from real mode: the driver may get its capability back (a rollout
    # with a wrong flag), and only the finalizer makes Kubernetes wait for the detach.
    if is_attached(attachment):
        return Nothing("already attached")
    # An attach that had begun and not succeeded has our finalizer too. With it, `attached` means that the driver has
    # published the volume; the annotation keeps an attacher in real mode from believing so.
    if objects.has_finalizer(attachment, finalizer):
        annotate = patches.set_annotation(attachment, MARKED_ANNOTATION, "true")
        if annotate is not None:
            return AnnotateMarked(annotate)
    return MarkAttached(attached_patch(attachment, metadata={}))
