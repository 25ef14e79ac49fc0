"""What every part here is given, and what is settled for the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from orlop.embedded.kubelet.pods.containers import Containers
from orlop.embedded.kubelet.pods.pod_volumes import PodVolumes
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.kube.client import KubeClient
from orlop.kube.event_recorder import EventRecorder


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


@dataclass(frozen=True, slots=True)
class PodTools:
    client: KubeClient
    containers: Containers
    volumes: PodVolumes
    events: EventRecorder
    clock: Clock
    random: Random
    log: Log
    settings: PodSettings
