"""The seams of the volume manager: through these it sees and changes the world.

Time, randomness, log and metrics come separately, as a `Runtime`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from onenode.host.volume_host import VolumeHost
from onenode.kubelet.volumes.volume_values import ApiObject, PodFacts
from orlop.csi.client import CsiClient
from orlop.host.threads import Threads
from orlop.kube.client import KubeClient
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder


class Drivers(Protocol):
    """The drivers that are registered on this node."""

    def driver(self, name: str) -> CsiClient | None:
        """How to call it; None while it is not registered."""


@dataclass(frozen=True, slots=True)
class VolumeSeams:
    node: str
    client: KubeClient
    csi_driver: Callable[[str], ApiObject | None]
    """The CSIDriver object of this name, as last seen."""
    drivers: Drivers
    host: VolumeHost
    in_thread: Threads
    events: EventRecorder
    report_node: Callable[[], None] = lambda: None
    """Have the Node's status written soon: the list of volumes in use may have changed."""
    seen_node: Callable[[], ApiObject | None] = lambda: None
    """Return the Node as a cache has it, where there is one."""


def reference_to(pod: PodFacts) -> ObjectReference:
    return ObjectReference("v1", "Pod", pod.name.name, pod.name.namespace or "", pod.uid)
