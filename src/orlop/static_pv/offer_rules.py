"""Decide whether a listed disk gets a PersistentVolume. Pure.

A disk is offered if nothing of it is on record: no volume of its name or path, no used volume that misses it (disks are
mounted under other names and move to other nodes), and no operation or status of a wipe. What cannot be offered is
reported with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orlop.binding.claim_state_rules import BLOCK
from orlop.kube import objects
from orlop.records.provisioner_status import LocalVolume
from orlop.static_pv.configuration import StaticClass
from orlop.static_pv.disk_step_rules import LeaveAlone, OfferDisk, ReportDisk
from orlop.static_pv.naming_rules import entry_fault, entry_path, matches, volume_name
from orlop.static_pv.node_disks_rules import NodeDisks
from orlop.static_pv.static_volume_rules import HOSTNAME, RECLAIM_POLICIES, new_volume, reclaim_policy

ApiObject = Mapping[str, Any]


def step_of_unoffered(disks: NodeDisks, name: str) -> LeaveAlone | ReportDisk | OfferDisk:
    """Return the step for a disk of which there is no PersistentVolume, and no operation under its name."""
    listed = disks.listed.get(name)
    if listed is None:
        return LeaveAlone("nothing is there")
    if disks.node is None:
        return LeaveAlone("its node is gone")
    if disks.has_stray_status or disks.is_being_wiped(listed.identity):
        return LeaveAlone("an operation of the node is not forgotten yet")
    return _offer(disks, listed, disks.node)


def _offer(disks: NodeDisks, listed: LocalVolume, node: ApiObject) -> ReportDisk | OfferDisk:
    of_class = disks.configuration.of_class(listed.storage_class)
    storage_class = disks.classes.get(listed.storage_class)
    if of_class is None:
        return ReportDisk("ClassNotConfigured", f"{_shown(listed)}: the class is not in the master's configuration")
    if fault := _fault_of_entry(disks, listed, of_class) or _fault_of_place(disks, listed, of_class, node):
        return ReportDisk("DiskRefused", f"{_shown(listed)}: {fault}")
    if storage_class is None:
        return ReportDisk("StorageClassMissing", f"{_shown(listed)}: there is no StorageClass of this name")
    if (policy := reclaim_policy(storage_class)) not in RECLAIM_POLICIES:
        return ReportDisk(
            "VolumeUnsupportedReclaimPolicy",
            f"{_shown(listed)}: the StorageClass has the reclaim policy {policy}; Delete and Retain are supported",
        )
    return OfferDisk(new_volume(listed, of_class, node, storage_class, disks.configuration))


def _fault_of_entry(disks: NodeDisks, listed: LocalVolume, of_class: StaticClass) -> str:
    """Return why the listed disk is not one of the configuration; empty if it is.

    The path is built from the entry, and a worker is trusted with its disks alone.
    """
    if fault := entry_fault(listed.entry):
        return fault
    if not matches(of_class.name_pattern, listed.entry):
        return "its name does not match the namePattern of the class"
    if listed.name != volume_name(listed.entry, disks.name, listed.storage_class):
        return "its name is not the one that is computed of node, class and entry"
    if of_class.volume_mode == BLOCK and not listed.device:
        return "it is a folder, and the class offers block devices"
    return ""


def _fault_of_place(disks: NodeDisks, listed: LocalVolume, of_class: StaticClass, node: ApiObject) -> str:
    """Return why a PersistentVolume cannot be made of the disk; empty if it can."""
    if listed.name in disks.taken_names:
        return f"there is another PersistentVolume of the name {listed.name}"
    path = entry_path(of_class.host_dir, listed.entry)
    if others := sorted(disks.users_of_path.get(path, frozenset()) - {listed.name}):
        return f"the volume {others[0]} has its path {path}"
    if listed.identity and (missed := disks.missed_disks.get(listed.identity)):
        return f"it is the disk of the volume {missed}, which was used: put it back, or release that volume as it is"
    if HOSTNAME not in objects.labels(node):
        return f"the node {disks.name} has no label {HOSTNAME}"
    return ""


def _shown(listed: LocalVolume) -> str:
    return f"The disk {listed.entry} of the class {listed.storage_class} is not offered"
