"""What is looked at before a volume is mounted or mapped: whether it may be used on this node, and by this pod."""

from __future__ import annotations

from typing import Final

from orlop.embedded.kubelet.volumes import event_texts as texts
from orlop.embedded.kubelet.volumes.actual_state import ActualState
from orlop.embedded.kubelet.volumes.node_affinity_rules import is_allowed_on
from orlop.embedded.kubelet.volumes.step_failures import StepFailed
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.embedded.kubelet.volumes.volume_values import DesiredMount
from orlop.kube.errors import ApiError
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName

ONE_POD: Final = ("ReadWriteOncePod",)


class MountChecks:
    """Each function is told what an event about its failure begins with."""

    def __init__(self, tools: VolumeTools, actual: ActualState) -> None:
        self._tools = tools
        self._actual = actual

    async def node(self, mount: DesiredMount, prefix: str) -> None:
        if mount.spec.node_affinity is None:
            return
        try:
            node = await self._tools.client.get(NODE, ObjectName(None, self._tools.node))
        except ApiError as error:
            raise StepFailed(prefix, f"error retrieving node: {error.message}") from None
        if not is_allowed_on(mount.spec.node_affinity, node):
            raise StepFailed(prefix, texts.NO_MATCHING_TERMS)

    def one_pod(self, mount: DesiredMount, prefix: str) -> None:
        """Where it is the only access mode: among several nobody knows which one the pod means."""
        if mount.spec.access_modes == ONE_POD and self._actual.is_used_by_others(mount.volume, mount.pod.uid):
            raise StepFailed(prefix, texts.IN_USE_BY_ANOTHER)
