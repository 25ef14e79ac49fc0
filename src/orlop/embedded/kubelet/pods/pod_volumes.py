"""The seam between pods and the volume manager: a pod waits for its volumes, and lets them go when nothing runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from orlop.embedded.kubelet.pods.container_rules import Names, SubPathWish, VolumeSources


class VolumesNotReady(Exception):
    """In kubelet's words. `told` is whether people hear of it: of a plain timeout they do not."""

    def __init__(self, message: str, *, told: bool = True) -> None:
        super().__init__(message)
        self.told = told


class SubPathNotReady(Exception):
    """The sentence is for the log: of what a tenant's links lead to, the pod is told nothing."""


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
