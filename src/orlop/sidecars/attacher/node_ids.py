"""What a driver calls a node: as the CSINode says; else as the Node's annotation does, which older kubelets write.

The Node is asked of the API server when it is needed, which is rare; who may not read Nodes does without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from orlop.kube import objects
from orlop.kube.client import KubeClient
from orlop.kube.errors import Forbidden, NotFound
from orlop.kube.informer import Informer
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attacher_names import NODE_IDS_ANNOTATION


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
        with suppress(NotFound, Forbidden):
            return id_in_annotation(await self._kube.get(NODE, ObjectName(None, node_name)), self._driver)
        return None


def id_in_csi_node(csi_node: Mapping[str, Any] | None, driver: str) -> str | None:
    spec = csi_node.get("spec") if csi_node is not None else None
    drivers = spec.get("drivers") if isinstance(spec, Mapping) else None
    found = (one.get("nodeID") for one in drivers or () if isinstance(one, Mapping) and one.get("name") == driver)
    return next((node_id for node_id in found if isinstance(node_id, str) and node_id), None)


def id_in_annotation(node: Mapping[str, Any], driver: str) -> str | None:
    try:
        ids = json.loads(objects.annotations(node).get(NODE_IDS_ANNOTATION) or "{}")
    except ValueError:
        return None
    found = ids.get(driver) if isinstance(ids, dict) else None
    return found if isinstance(found, str) and found else None
