"""What every part of the volume manager is given: the seams through which it sees and changes the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from orlop.csi.client import CsiClient
from orlop.embedded.kubelet.volumes.volume_values import PodFacts, Seen
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.host.volume_host import VolumeHost
from orlop.kube.client import KubeClient
from orlop.kube.event_bodies import Reference
from orlop.kube.event_recorder import EventRecorder

T = TypeVar("T")


class Drivers(Protocol):
    """The drivers that are registered on this node."""

    def driver(self, name: str) -> CsiClient | None:
        """How to call it; None while it is not registered."""


class InThread(Protocol):
    async def __call__(self, work: Callable[[], T]) -> T:
        """Runs what blocks, so that nobody else waits for it."""


@dataclass(frozen=True, slots=True)
class VolumeTools:
    node: str
    client: KubeClient
    csi_driver: Callable[[str], Seen | None]
    """The CSIDriver object of this name, as last seen."""
    drivers: Drivers
    host: VolumeHost
    in_thread: InThread
    events: EventRecorder
    clock: Clock
    log: Log
    report_node: Callable[[], None] = lambda: None
    """Has the Node's status told soon: what is in use may be new."""
    seen_node: Callable[[], Seen | None] = lambda: None
    """The Node as a cache has it, where there is one."""


def reference_to(pod: PodFacts) -> Reference:
    return Reference("v1", "Pod", pod.name.name, pod.name.namespace or "", pod.uid)
