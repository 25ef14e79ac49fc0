"""The pods of this node, as the kubelet's server sees them: values and seams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orlop.embedded.kubelet.pods.containers import RunningContainer
from orlop.kube.objects import ObjectName


class PodSeen(Protocol):
    @property
    def pod(self) -> Mapping[str, Any]:
        """With its status."""

    @property
    def running(self) -> Mapping[str, RunningContainer]:
        """By the containers' names."""

    def is_running(self, container: str, attempt: int) -> bool:
        """Whether this very attempt is, so that more of its output may come."""


class Pods(Protocol):
    def named(self, name: ObjectName) -> PodSeen | None: ...

    def workers(self) -> Sequence[PodSeen]:
        """All of them."""
