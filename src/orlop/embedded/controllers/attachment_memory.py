"""What the attach/detach controller remembers of a volume on a node besides the objects: since when, and what was told.

A restart forgets it: then what is waited for is waited for anew, and a failure is told once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orlop.embedded.kubelet.volumes.volume_values import UniqueName


@dataclass(slots=True)
class Remembered:
    unneeded_since: float | None = None
    awaited_since: float | None = None
    taken: str = ""
    """The uid of the VolumeAttachment that we have deleted."""
    told: dict[str, str] = field(default_factory=dict)
    """By the uid of a pod: what it was last told."""
    complaint: str = ""

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

    def is_news(self, pod_uid: str, what: str) -> bool:
        """Noted as told."""
        is_new = self.told.get(pod_uid) != what
        self.told[pod_uid] = what
        return is_new


class AttachmentMemory:
    def __init__(self) -> None:
        self._all: dict[UniqueName, dict[str, Remembered]] = {}

    def of(self, volume: UniqueName, node: str) -> Remembered:
        return self._all.setdefault(volume, {}).setdefault(node, Remembered())

    def nodes_of(self, volume: UniqueName) -> frozenset[str]:
        return frozenset(self._all.get(volume, ()))

    def forget(self, volume: UniqueName, node: str) -> None:
        nodes = self._all.get(volume, {})
        nodes.pop(node, None)
        if not nodes:
            self._all.pop(volume, None)
