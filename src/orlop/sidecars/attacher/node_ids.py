"""What a driver calls a node: as the CSINode says; else as the Node's annotation does, which older kubelets write.

The Node is read from the API server, by who needs it and found no CSINode, which is rare; who may not read Nodes does
without.
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

    def known(self, node_name: str) -> str | None:
        """None: no CSINode says."""
        return id_in_csi_node(self._csi_nodes.get(ObjectName(None, node_name)), self._driver) if node_name else None

    async def annotated(self, node_name: str) -> str | None:
        """None: no Node says either. Raises what the API server says against answering."""
        if not node_name:
            return None
        with suppress(NotFound, Forbidden, InvalidPath):  # the last: no node can have such a name
            return id_in_annotation(await self._kube.get(NODE, ObjectName(None, node_name)), self._driver)
        return None
