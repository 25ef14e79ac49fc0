"""The seams of the volume manager: what it is built with, beside the API server and a `Runtime`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from onenode.host.volume_host import VolumeHost
from onenode.kubelet.volumes.volume_values import ApiObject, PodFacts
from orlop.csi.client import CsiClient
from orlop.host.threads import Threads
from orlop.kube.events.event_bodies import ObjectReference


class Drivers(Protocol):
    """The CSI drivers that are registered on this node."""

    def driver(self, name: str) -> CsiClient | None:
        """Return the client of a driver; None while it is not registered."""


class KnownDrivers(Drivers, Protocol):
    """The CSI drivers, also those that only the API server knows."""

    def csi_driver(self, name: str) -> ApiObject | None:
        """Return the CSIDriver object of this name, as last seen."""


@dataclass(frozen=True, slots=True)
class KubeletDisk:
    """Kubelet's folder, with the mounts below it. The methods of `host` block: `in_thread` calls them."""

    host: VolumeHost
    in_thread: Threads


@dataclass(frozen=True, slots=True)
class StepDrivers:
    """What steps call: the CSI drivers, and the disk on which kubelet itself serves local volumes."""

    known: KnownDrivers
    disk: KubeletDisk

    def driver(self, name: str) -> CsiClient | None:
        return self.known.driver(name)

    def csi_driver(self, name: str) -> ApiObject | None:
        return self.known.csi_driver(name)


@dataclass(frozen=True, slots=True)
class OwnNode:
    """The Node object of this node."""

    report_soon: Callable[[], None] = lambda: None
    """Have its status written soon: the list of volumes in use may have changed."""
    seen: Callable[[], ApiObject | None] = lambda: None
    """Return the Node as cached; None without a cache."""


def reference_to(pod: PodFacts) -> ObjectReference:
    return ObjectReference("v1", "Pod", pod.name.name, pod.name.namespace or "", pod.uid)
