"""The API server as this node uses it: under which name, by which client, and with which events."""

from __future__ import annotations

from dataclasses import dataclass

from orlop.kube.client import KubeClient
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder


@dataclass(frozen=True, slots=True)
class NodeApi:
    node_name: str
    kube: KubeClient
    events: EventRecorder

    @property
    def node(self) -> ObjectReference:
        """The Node in events: kubelet gives the name for the uid, and `kubectl describe` asks for both."""
        return ObjectReference("v1", "Node", self.node_name, uid=self.node_name)
