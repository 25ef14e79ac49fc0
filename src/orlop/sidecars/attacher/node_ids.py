"""What a driver calls a node: as the CSINode says; else as the Node's annotation does, which older kubelets write.

The Node is asked of the API server when it is needed, which is rare; who may not read Nodes does without.
"""

from __future__ import annotations

from contextlib import suppress

from orlop.kube.client import KubeClient
from orlop.kube.errors import Forbidden, NotFound
from orlop.kube.informer import Informer
from orlop.kube.kinds import NODE, InvalidPath
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.node_id_rules import id_in_annotation, id_in_csi_node


class NodeIds:
    def __init__(self, csi_nodes: Informer, kube: KubeClient, driver: str) -> None:
        self._csi_nodes = csi_nodes
        self._kube = kube
        self._driver = driver

    async def of(self, node_name: str) -> str | None:
        """None: nobody says. Raises what the API server says against answering."""
        if not node_name:
            return None
        known = id_in_csi_node(self._csi_nodes.get(ObjectName(None, node_name)), self._driver)
        return known or await self._annotated(node_name)

    async def _annotated(self, node_name: str) -> str | None:
        with suppress(NotFound, Forbidden, InvalidPath):  # the last: no node can have such a name
            return id_in_annotation(await self._kube.get(NODE, ObjectName(None, node_name)), self._driver)
        return None
