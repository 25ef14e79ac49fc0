"""The seam from pods to their volumes, and the settings of the node.

A pod waits for its volumes, and lets them go when nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from onenode.kubelet.pods.container_rules import Names, SubPathWish, VolumeSources


class VolumesNotReady(Exception):
    """In kubelet's words. `is_reported`: an event is recorded for it, as for any failure but a plain timeout."""

    def __init__(self, message: str, *, is_reported: bool = True) -> None:
        super().__init__(message)
        self.is_reported = is_reported


class SubPathNotReady(Exception):
    """The sentence is for the log: the pod learns nothing about the targets of a tenant's links."""


class PodVolumes(Protocol):
    def all_known(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Once, before any of them is begun: all pods of this node there are. What nobody of them has may go."""

    async def ready(self, pod: Mapping[str, Any]) -> VolumeSources:
        """Returns when every volume that a container of the pod uses is there; may be cancelled and asked again.

        Raises `VolumesNotReady` when it cannot be had, or not within the volume manager's patience.
        """

    async def sub_path(self, pod: Mapping[str, Any], container: str, wish: SubPathWish) -> Names:
        """A part of a volume that is ready, for a container that is about to start; `SubPathNotReady`."""

    async def let_go(self, pod: Mapping[str, Any]) -> None:
        """Nothing of the pod runs any more; returns when none of its volumes is mounted. May be asked twice."""


@dataclass(frozen=True, slots=True)
class PodSettings:
    """`hidden` are absolute paths of this machine, without symbolic links, that no container sees."""

    node_name: str
    node_address: str = "127.0.0.1"
    hidden: tuple[str, ...] = ()
    services: Mapping[str, str] = field(default_factory=dict)
    """Variables that every container has, with the way to the API."""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """What pods may have of the node, by resource."""
