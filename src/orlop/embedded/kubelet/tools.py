"""What the parts of a kubelet are given, made once by their process or their test."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log
from orlop.kube.client import KubeClient
from orlop.kube.event_bodies import Reference
from orlop.kube.event_recorder import EventRecorder


@dataclass(frozen=True, slots=True)
class Tools:
    node_name: str
    kube: KubeClient
    events: EventRecorder
    clock: Clock
    random: Random
    log: Log
    metrics: Metrics

    @property
    def node(self) -> Reference:
        """The Node in events: kubelet gives the name for the uid, and `kubectl describe` asks for both."""
        return Reference("v1", "Node", self.node_name, uid=self.node_name)
