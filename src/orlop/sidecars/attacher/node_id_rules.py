"""What a driver calls a node, as it stands in a CSINode or in a Node's annotation. Pure; what is odd says nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orlop.kube import objects
from orlop.sidecars.attacher.attacher_name_rules import NODE_IDS_ANNOTATION


def id_in_csi_node(csi_node: Mapping[str, Any] | None, driver: str) -> str | None:
    spec = csi_node.get("spec") if csi_node is not None else None
    drivers = spec.get("drivers") if isinstance(spec, Mapping) else None
    found = (one.get("nodeID") for one in drivers or () if isinstance(one, Mapping) and one.get("name") == driver)
    return next((node_id for node_id in found if isinstance(node_id, str) and node_id), None)


def id_in_annotation(node: Mapping[str, Any], driver: str) -> str | None:
    try:
        ids = json.loads(objects.annotations(node).get(NODE_IDS_ANNOTATION) or "{}")
    except (ValueError, RecursionError):
        return None
    found = ids.get(driver) if isinstance(ids, dict) else None
    return found if isinstance(found, str) and found else None
