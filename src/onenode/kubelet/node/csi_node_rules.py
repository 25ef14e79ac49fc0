"""What of a driver stands on the Node and in the CSINode, and the writes that make it so. Pure. As kubelet writes it.

The Node: an entry in the annotation `csi.volume.kubernetes.io/nodeid`, and the driver's topology as labels; a label
that is there with another value refuses the driver and is never changed, and none is taken away again. The CSINode: an
entry among those of the other drivers, which stay as they are; what says the same already is not written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.kube import objects, patches
from orlop.kube.objects import Object
from orlop.kube.patches import NOT_THERE, JsonPatch

NODE_IDS_ANNOTATION: Final = "csi.volume.kubernetes.io/nodeid"
MIGRATED_ANNOTATION: Final = "storage.alpha.kubernetes.io/migrated-plugins"
MIGRATED_PLUGINS: Final = ",".join(
    f"kubernetes.io/{plugin}"
    for plugin in ("aws-ebs", "azure-disk", "azure-file", "cinder", "gce-pd", "portworx-volume", "vsphere-volume")
)
MOST_VOLUMES: Final = 2**31 - 1

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DriverNodeInfo:
    """What a driver says of its node; `topology` is sorted by key, and no number of volumes means any."""

    node_id: str
    topology: tuple[tuple[str, str], ...] = ()
    max_volumes: int = 0


class CannotStand(Exception):
    """What the driver says cannot be written; the sentence is kubelet's where it has one."""


# ---- the Node --------------------------------------------------------------------------------------------------------


def node_patch(node: ApiObject, driver: str, facts: DriverNodeInfo) -> JsonPatch | None:
    """None where everything stands there. Tests what it changes, so that it meets nothing but what was seen."""
    if not facts.node_id:
        raise CannotStand("error adding CSI driver node info: driverNodeID must not be empty")
    present = objects.labels(node)
    for key, value in facts.topology:
        if present.get(key, value) != value:
            raise CannotStand(_collision(key, value, present[key]))
    missing = {key: value for key, value in facts.topology if key not in present}
    return _patch(node, {**node_ids(node), driver: facts.node_id}, missing)


def node_patch_without(node: ApiObject, driver: str) -> JsonPatch | None:
    left = {name: node_id for name, node_id in node_ids(node).items() if name != driver}
    return _patch(node, left, {})


def node_ids(node: ApiObject) -> dict[str, str]:
    text = objects.annotations(node).get(NODE_IDS_ANNOTATION)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = ()
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(node_id, str) for node_id in found.values()):
        raise CannotStand(f"the annotation {NODE_IDS_ANNOTATION} is no JSON object from drivers to node ids: mend it")
    return found


def _collision(key: str, said: str, there: str) -> str:
    key, said, there = (json.dumps(text, ensure_ascii=False) for text in (key, said, there))
    return f"detected topology value collision: driver reported {key}:{said} but existing label is {key}:{there}"


def _patch(node: ApiObject, ids: Mapping[str, str], labels: Mapping[str, str]) -> JsonPatch | None:
    changes = (*_annotating(node, ids).operations, *_labelling(node, labels).operations)
    return JsonPatch((*patches.guarded_by_uid(node).operations, *changes)) if changes else None


def _annotating(node: ApiObject, ids: Mapping[str, str]) -> JsonPatch:
    if dict(ids) == node_ids(node):
        return JsonPatch()
    present = objects.annotations(node).get(NODE_IDS_ANNOTATION)
    at = ("metadata", "annotations", NODE_IDS_ANNOTATION)
    if not ids:
        return JsonPatch().test(*at, value=present).remove(*at)
    return _entries(node, "annotations", {NODE_IDS_ANNOTATION: json.dumps(ids, sort_keys=True, separators=(",", ":"))})


def _labelling(node: ApiObject, labels: Mapping[str, str]) -> JsonPatch:
    return _entries(node, "labels", labels) if labels else JsonPatch()


def _entries(node: ApiObject, field: str, entries: Mapping[str, str]) -> JsonPatch:
    present = objects.metadata(node).get(field)
    if present is None:
        missing = JsonPatch().test("metadata", field, value=NOT_THERE)
        return missing.add("metadata", field, value=dict(entries))
    patch = JsonPatch()
    for key, value in entries.items():
        seen = present.get(key, NOT_THERE)
        patch = patch.test("metadata", field, key, value=seen).add("metadata", field, key, value=value)
    return patch


# ---- the CSINode -----------------------------------------------------------------------------------------------------


def new_csi_node(node: ApiObject) -> Object:
    owner = {"apiVersion": "v1", "kind": "Node", "name": objects.name(node), "uid": objects.uid(node)}
    metadata = {
        "name": objects.name(node),
        "annotations": {MIGRATED_ANNOTATION: MIGRATED_PLUGINS},
        "ownerReferences": [owner],
    }
    return {"metadata": metadata, "spec": {"drivers": []}}


def is_of_another_node(csi_node: ApiObject, node: ApiObject) -> bool:
    """Of one that had the name before: the node was deleted and made anew."""
    owners = [owner for owner in objects.owner_references(csi_node) if owner.get("kind") == "Node"]
    return any(owner.get("uid") != objects.uid(node) for owner in owners)


def with_migrated_plugins(csi_node: ApiObject) -> Object | None:
    """None where there is nothing to write."""
    if objects.annotations(csi_node).get(MIGRATED_ANNOTATION) == MIGRATED_PLUGINS:
        return None
    annotations = {**objects.annotations(csi_node), MIGRATED_ANNOTATION: MIGRATED_PLUGINS}
    return {**csi_node, "metadata": {**objects.metadata(csi_node), "annotations": annotations}}


def with_driver(csi_node: ApiObject, driver: str, facts: DriverNodeInfo) -> Object | None:
    """None where it says so already; a changed entry moves to the end."""
    entry = _entry(driver, facts)
    if entry in map(_plain, _drivers(csi_node)):
        return None
    return _with_drivers(csi_node, [*_others(csi_node, driver), entry])


def without_driver(csi_node: ApiObject, driver: str) -> Object | None:
    others = _others(csi_node, driver)
    return None if len(others) == len(_drivers(csi_node)) else _with_drivers(csi_node, others)


def with_allocatable(csi_node: ApiObject, driver: str, max_volumes: int) -> Object | None:
    """Changes the limit of an entry that is there, in its place."""
    limit = _allocatable(max_volumes)
    changed = [{**_without_limit(one), **limit} if one.get("name") == driver else one for one in _drivers(csi_node)]
    return None if changed == _drivers(csi_node) else _with_drivers(csi_node, changed)


def _entry(driver: str, facts: DriverNodeInfo) -> Object:
    keys = {"topologyKeys": sorted(key for key, _ in facts.topology)} if facts.topology else {}
    return {"name": driver, "nodeID": facts.node_id, **keys, **_allocatable(facts.max_volumes)}


def _allocatable(max_volumes: int) -> Object:
    return {"allocatable": {"count": min(max_volumes, MOST_VOLUMES)}} if max_volumes > 0 else {}


def _plain(entry: ApiObject) -> Object:
    """Without what says nothing: servers write an empty list, or null, where there are no keys."""
    return {field: value for field, value in entry.items() if value not in (None, [], {})}


def _without_limit(entry: ApiObject) -> Object:
    return {field: value for field, value in entry.items() if field != "allocatable"}


def _drivers(csi_node: ApiObject) -> list[Object]:
    return list((csi_node.get("spec") or {}).get("drivers") or ())


def _others(csi_node: ApiObject, driver: str) -> list[Object]:
    return [entry for entry in _drivers(csi_node) if entry.get("name") != driver]


def _with_drivers(csi_node: ApiObject, drivers: list[Object]) -> Object:
    return {**csi_node, "spec": {**(csi_node.get("spec") or {}), "drivers": drivers}}
