"""What the attach/detach controller knows of VolumeAttachments: a book of them, and what it remembers besides them.

Only VolumeAttachments count that have the name that Kubernetes gives them and name a PersistentVolume, as all of its
own do: others are somebody's own. One whose PersistentVolume is gone is known by what it was before, or by what its
Node says; else by its own name, as a volume of which nothing else is known. Nothing here waits or calls anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onenode.controllers.attachable_volumes_rules import ApiObject, Attachable, attachable
from onenode.kubelet.volumes.volume_values import UniqueName, attachment_name, driver_and_handle
from orlop.kube import objects
from orlop.kube.objects import ObjectName

OUR_NAMES: Final = re.compile(r"csi-[0-9a-f]{64}")


def is_of_unknown_volume(name: UniqueName) -> bool:
    """Whether a volume goes by the name of its VolumeAttachment."""
    return OUR_NAMES.fullmatch(name) is not None


def node_of(attachment: ApiObject) -> str:
    return str((attachment.get("spec") or {}).get("nodeName") or "")


def volume_of(attachment: ApiObject) -> str:
    """The name of its PersistentVolume; empty where it names none."""
    source = (attachment.get("spec") or {}).get("source") or {}
    return str(source.get("persistentVolumeName") or "")


class KnownAttachments:
    """`volumes_of` returns the names of the volumes that a Node has in its status."""

    def __init__(
        self, volume: Callable[[ObjectName], ApiObject | None], volumes_of: Callable[[str], Iterable[UniqueName]]
    ) -> None:
        self._volume = volume
        self._volumes_of = volumes_of
        self._places: dict[str, tuple[UniqueName, str]] = {}
        self._of: dict[UniqueName, dict[str, ObjectName]] = {}
        self._on: dict[str, set[UniqueName]] = {}

    def look_at(self, name: ObjectName, attachment: ApiObject | None) -> frozenset[UniqueName]:
        """Gives the volumes that it is of, and was of."""
        before = self._places.get(name.name)
        now = None if attachment is None else self._place(attachment, before)
        if before != now:
            if before is not None:
                self._take_out(name, *before)
            if now is not None:
                self._put_in(name, *now)
        return frozenset(place[0] for place in (before, now) if place is not None)

    def of(self, volume: UniqueName) -> Mapping[str, ObjectName]:
        """By node."""
        return self._of.get(volume, {})

    def on(self, node: str) -> frozenset[UniqueName]:
        return frozenset(self._on.get(node, ()))

    def names(self) -> tuple[UniqueName, ...]:
        return tuple(self._of)

    # ---- one attachment ------------------------------------------------------------------------------------------

    def _place(self, attachment: ApiObject, before: tuple[UniqueName, str] | None) -> tuple[UniqueName, str] | None:
        name, node, named = objects.name(attachment), node_of(attachment), volume_of(attachment)
        if not named:
            return None
        volume = self._volume(ObjectName(None, named))
        found = attachable(volume) if volume is not None else None
        if found is not None:
            return (found.name, node) if _name_for(found, node) == name else None
        if before is not None and before[1] == node:
            return before
        if OUR_NAMES.fullmatch(name) is None:
            return None
        return self._reported_by_its_node(name, node) or name, node

    def _reported_by_its_node(self, name: str, node: str) -> UniqueName | None:
        for unique_name in self._volumes_of(node):
            parts = driver_and_handle(unique_name)
            if parts is not None and attachment_name(parts[1], parts[0], node) == name:
                return unique_name
        return None

    # ---- the book ------------------------------------------------------------------------------------------------

    def _take_out(self, name: ObjectName, volume: UniqueName, node: str) -> None:
        del self._places[name.name]
        del self._of[volume][node]
        if not self._of[volume]:
            del self._of[volume]
        self._on[node].discard(volume)
        if not self._on[node]:
            del self._on[node]

    def _put_in(self, name: ObjectName, volume: UniqueName, node: str) -> None:
        self._places[name.name] = volume, node
        self._of.setdefault(volume, {})[node] = name
        self._on.setdefault(node, set()).add(volume)


def _name_for(volume: Attachable, node: str) -> str:
    return attachment_name(volume.handle, volume.driver, node)


# ---- what is remembered besides the objects --------------------------------------------------------------------------

# What the attach/detach controller remembers of a volume on a node besides the objects: since when, and what was
# reported.
#
# A restart forgets it: then each wait begins again, and a failure is reported once more.


@dataclass(slots=True)
class AttachmentHistory:
    unneeded_since: float | None = None
    awaited_since: float | None = None
    detaching_since: float | None = None
    taken: str = ""
    """The uid of the VolumeAttachment that we have deleted."""
    reported: dict[str, str] = field(default_factory=dict)
    """By the uid of a pod: the last event that was recorded for it."""
    detach_failure: tuple[str, str] | None = None
    """The occasion and the error that were logged last."""

    def seconds_unneeded(self, now: float, *, is_needed: bool) -> float:
        if is_needed:
            self.unneeded_since = None
            return 0.0
        self.unneeded_since = now if self.unneeded_since is None else self.unneeded_since
        return now - self.unneeded_since

    def seconds_awaited(self, now: float, *, is_awaited: bool) -> float:
        if not is_awaited:
            self.awaited_since = None
            return 0.0
        self.awaited_since = now if self.awaited_since is None else self.awaited_since
        return now - self.awaited_since

    def seconds_detaching(self, now: float, *, is_detaching: bool) -> float:
        if not is_detaching:
            self.detaching_since = None
            return 0.0
        self.detaching_since = now if self.detaching_since is None else self.detaching_since
        return now - self.detaching_since

    def is_news(self, pod_uid: str, what: str) -> bool:
        """Return whether this differs from the last event of the pod, and remember it."""
        is_new = self.reported.get(pod_uid) != what
        self.reported[pod_uid] = what
        return is_new


class AttachmentMemory:
    def __init__(self) -> None:
        self._all: dict[UniqueName, dict[str, AttachmentHistory]] = {}

    def of(self, volume: UniqueName, node: str) -> AttachmentHistory:
        return self._all.setdefault(volume, {}).setdefault(node, AttachmentHistory())

    def nodes_of(self, volume: UniqueName) -> frozenset[str]:
        return frozenset(self._all.get(volume, ()))

    def forget(self, volume: UniqueName, node: str) -> None:
        nodes = self._all.get(volume, {})
        nodes.pop(node, None)
        if not nodes:
            self._all.pop(volume, None)
