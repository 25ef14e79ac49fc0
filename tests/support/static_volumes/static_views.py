"""Views of the disks of one node, as the rules of the master get them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orlop.records.provisioner_status import DeleteOperation, DeleteStatus, LocalVolume
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.node_disks_rules import DiskReport, NodeDisks, VersionedVolume
from orlop.static_pv.static_volume_rules import WIPE_FINALIZER, StaticVolume
from support.static_volumes.static_objects import CLASS, CONFIGURATION, GIB, class_object, local_volume, node_object

NAME = volume_name("disk1", "n1", CLASS)
PLAIN = StaticVolume(
    name=NAME,
    uid="u1",
    node="n1",
    storage_class=CLASS,
    path="/mnt/fast/disk1",
    entry="disk1",
    volume_mode="Filesystem",
    capacity=20 * GIB,
    phase="Available",
    policy="Delete",
    claim="",
    claim_uid="",
    finalizers=(WIPE_FINALIZER,),
    is_being_deleted=False,
    is_ever_bound_noted=False,
    was_bound_by_controller=False,
    is_wipe_decided=False,
    identity="",
    release="",
)
BOUND = {"phase": "Bound", "claim": "default/c", "claim_uid": "c1", "is_ever_bound_noted": True}
RELEASED = BOUND | {"phase": "Released"}


def static_volume(**changes: Any) -> VersionedVolume:
    return VersionedVolume(replace(PLAIN, **changes), "7")


def report(
    volumes: tuple[LocalVolume, ...] | None = (),
    operations: tuple[DeleteOperation, ...] = (),
    statuses: tuple[DeleteStatus, ...] = (),
    *,
    is_discovered: bool = True,
) -> DiskReport:
    return DiskReport("n1", "report-1", 3, operations, volumes, statuses, is_discovered)


def listing(**rest: Any) -> DiskReport:
    """Return the report of a node with one disk."""
    return report(volumes=(local_volume("disk1"),), **rest)


def operation(uid: str = "u1", **changes: Any) -> DeleteOperation:
    plain = {"persistent_volume": NAME, "volume": NAME, "storage_class": CLASS, "entry": "disk1"}
    return DeleteOperation(uid=uid, **plain | changes)


def disks(of_node: DiskReport | None, *volumes: VersionedVolume, **changes: Any) -> NodeDisks:
    whole: dict[str, Any] = {
        "name": "n1",
        "node": node_object("n1"),
        "is_gone": False,
        "report": of_node,
        "volumes": {each.facts.name: each for each in volumes},
        "configuration": CONFIGURATION,
        "classes": {CLASS: class_object()},
    }
    return NodeDisks(**whole | changes)
