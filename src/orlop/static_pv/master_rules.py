"""Decide the next step of the master for one disk of a node, and for the node. Pure.

The life of a disk, and who is asked at each step:

    listed → PersistentVolume created, with our finalizer → bound → released → deleted (it stays, Terminating) →
    wipe decided → operation written → wiped by the worker, Complete → finalizer removed → gone → operation removed →
    listed

From the deletion to the end of the wipe, the Terminating object holds the name of the disk: no claim can bind it, and
no other object of the name can be created. That a disk is wiped is decided by a write to its PersistentVolume, which
fails if a claim or an admin changed it meanwhile; the operation follows from that write alone. Every write is guarded:
by the version of the PersistentVolume, or by the generation of the spec of the ProvisionerStatus. So a decision on a
view that is older than the objects, or a write of a former master that comes late, can only fail.
"""

from __future__ import annotations

import msgspec

from orlop.kube.patches import JsonPatch
from orlop.records.provisioner_status import DeleteOperation, LocalVolume
from orlop.static_pv.disk_step_rules import (
    DiskStep,
    DropOperation,
    EndVolume,
    LeaveAlone,
    LetVolumeGo,
    PatchVolume,
    ReportFailure,
    ReportVolume,
    RequestWipe,
)
from orlop.static_pv.naming_rules import capacity_text, rounded_capacity
from orlop.static_pv.node_disks_rules import COMPLETE, ERROR, DiskReport, NodeDisks, VersionedVolume
from orlop.static_pv.offer_rules import step_of_unoffered
from orlop.static_pv.static_volume_rules import (
    AS_IS,
    DELETE,
    RECYCLE,
    RETAIN,
    WIPE,
    StaticVolume,
    capacity_patch,
    deciding_patch,
    keeping_patch,
    releasing_patch,
    undeciding_patch,
)

# ---- one disk --------------------------------------------------------------------------------------------------------


def next_disk_step(disks: NodeDisks, name: str) -> DiskStep:
    """Return the next step for the disk of this name."""
    volume = disks.volumes.get(name)
    uid = volume.facts.uid if volume is not None else ""
    former = [each for each in disks.operations.get(name, ()) if each.uid != uid]
    # Operations of volumes that are gone. Their disk may be dirty until they are complete, whichever object has the
    # name now.
    for operation in former:
        status = disks.statuses.get(operation.uid)
        if status is not None and status.state == COMPLETE:
            return _dropped(disks, operation, "its volume is gone")
    if volume is None:
        return LeaveAlone("its disk is being wiped") if former else step_of_unoffered(disks, name)
    if volume.facts.is_being_deleted:
        return LeaveAlone("its disk is being wiped") if former else _step_of_terminating(disks, volume)
    return _step_of_present(disks, volume)


# ---- a volume that is not being deleted ------------------------------------------------------------------------------


def _step_of_present(disks: NodeDisks, volume: VersionedVolume) -> DiskStep:
    facts = volume.facts
    if disks.report is None:
        # Without a worker the volume may be another product's.
        return _step_of_lost(disks, volume)
    if facts.handed_back and facts.handed_back == disks.report.uid:
        return LeaveAlone("it is handed back, and the cache still has the ProvisionerStatus of that time")
    listed = disks.listed.get(facts.name)
    if (patch := keeping_patch(facts, volume.version, listed.identity if listed is not None else "")) is not None:
        return PatchVolume(patch, "recorded")
    if facts.is_released:
        return _step_of_released(volume)
    if disks.node is None:
        return _step_of_lost(disks, volume)
    return _step_of_offered(disks.report, volume, listed)


def _step_of_offered(report: DiskReport, volume: VersionedVolume, listed: LocalVolume | None) -> DiskStep:
    if report.volumes is None or not report.is_discovered:
        return LeaveAlone("it is not known which disks the node has")
    return _step_of_missing(volume) if listed is None else _step_of_listed(volume, listed)


def _step_of_lost(disks: NodeDisks, volume: VersionedVolume) -> DiskStep:
    if not disks.is_gone:
        return LeaveAlone("its node does not report" if disks.node is not None else "its node is missing")
    if volume.facts.is_untouched:
        return EndVolume(volume.facts.uid, volume.version, "its node is gone, and it was never bound")
    return ReportVolume(
        "NodeLost",
        f"The node {disks.name} is gone. The volume stays until the node is back, or until: "
        f"orlop static forget {disks.name}",
    )


def _step_of_released(volume: VersionedVolume) -> DiskStep:
    match volume.facts.policy:
        case policy if policy == DELETE:
            return EndVolume(volume.facts.uid, volume.version, "it is released")
        case policy if policy == RETAIN:
            return LeaveAlone("it is released, and its policy is Retain")
        case policy if policy == RECYCLE:
            return ReportVolume(
                "VolumeUnsupportedReclaimPolicy", "Volume has unsupported PersistentVolumeReclaimPolicy: Recycle"
            )
        case _:
            return ReportVolume("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")


def _step_of_missing(volume: VersionedVolume) -> DiskStep:
    facts = volume.facts
    if facts.is_untouched:
        return EndVolume(facts.uid, volume.version, "its disk is not listed any more, and it was never bound")
    return ReportVolume("DiskNotListed", f"The node {facts.node} does not list the disk {facts.path} any more")


def _step_of_listed(volume: VersionedVolume, listed: LocalVolume) -> DiskStep:
    facts, capacity = volume.facts, rounded_capacity(listed.capacity_bytes)
    if facts.identity and listed.identity and facts.identity != listed.identity:
        if facts.is_untouched:
            return EndVolume(facts.uid, volume.version, "another disk is in its place, and it was never bound")
        return ReportVolume(
            "DiskReplaced", f"Another disk is at {facts.path}: {listed.identity}, and it was {facts.identity}"
        )
    if facts.capacity != capacity and facts.is_untouched:
        return PatchVolume(capacity_patch(facts, volume.version, capacity), "capacity changed")
    if facts.capacity < capacity:
        return ReportVolume(
            "DiskGrown",
            f"The disk has {capacity_text(capacity)}. The volume gets them when it is offered again",
        )
    return LeaveAlone("it is offered")


# ---- a volume that is being deleted ----------------------------------------------------------------------------------


def _step_of_terminating(disks: NodeDisks, volume: VersionedVolume) -> DiskStep:
    facts = volume.facts
    if not facts.has_finalizer:
        return LeaveAlone("it is being deleted, and does not have our finalizer")
    if (patch := keeping_patch(facts, volume.version, "")) is not None:
        return PatchVolume(patch, "recorded")
    operation = next((each for each in disks.operations.get(facts.name, ()) if each.uid == facts.uid), None)
    if operation is not None:
        return _step_of_wiped(disks, volume, operation)
    if facts.uid in disks.statuses:
        # A result of before would be taken for that of the next operation.
        return LeaveAlone("the worker has not forgotten its former operation yet")
    return _step_of_unwiped(disks, volume)


def _step_of_unwiped(disks: NodeDisks, volume: VersionedVolume) -> DiskStep:
    """Return the step for a volume that is being deleted, and whose wipe is not requested."""
    facts = volume.facts
    if facts.is_bound:
        return LeaveAlone(f"it is being deleted, and bound to {facts.claim}")
    if facts.is_wipe_decided:
        return _request_of_wipe(disks, volume)
    if facts.release == AS_IS:
        return _let_go(volume, "released as it is")
    if not facts.was_ever_bound:
        return _let_go(volume, "it was never bound")
    if facts.policy != DELETE and facts.release != WIPE:
        return ReportVolume("VolumeRetained", _retained_note(facts))
    return PatchVolume(deciding_patch(facts, volume.version), "wipe decided")


def _step_of_wiped(disks: NodeDisks, volume: VersionedVolume, operation: DeleteOperation) -> DiskStep:
    """Return the step for a volume that is being deleted, and whose wipe is requested."""
    facts, status = volume.facts, disks.statuses.get(volume.facts.uid)
    if status is None:
        return LeaveAlone("its disk is to be wiped")
    if status.state == COMPLETE:
        if facts.is_bound:
            # An admin had a claim bind it meanwhile, by hand. It is wiped again when that claim is gone.
            return _dropped(disks, operation, "it is bound again")
        return _let_go(volume, "its disk is wiped")
    if status.state == ERROR and facts.release == AS_IS:
        if facts.is_wipe_decided:
            return PatchVolume(undeciding_patch(facts, volume.version), "wipe given up")
        return _dropped(disks, operation, "it is released as it is")
    return ReportFailure(status) if status.state == ERROR else LeaveAlone("its disk is being wiped")


def _let_go(volume: VersionedVolume, why: str) -> LetVolumeGo:
    return LetVolumeGo(releasing_patch(volume.facts, volume.version), why)


def _retained_note(facts: StaticVolume) -> str:
    return (
        f"The volume was used, and its policy is {facts.policy}: its disk is neither wiped nor offered. To offer it "
        f"again: orlop static release {facts.name} --wipe, or --as-is to keep the data"
    )


def _request_of_wipe(disks: NodeDisks, volume: VersionedVolume) -> DiskStep:
    facts = volume.facts
    if facts.release == AS_IS and disks.report is None and disks.is_gone:
        return PatchVolume(undeciding_patch(facts, volume.version), "wipe given up")
    if (report := disks.report) is None:
        return LeaveAlone("its node does not report" if disks.node is not None else "its node is gone")
    operation = DeleteOperation(
        uid=facts.uid,
        persistent_volume=facts.name,
        volume=facts.name,
        storage_class=facts.storage_class,
        entry=facts.entry,
        identity=facts.identity,
    )
    patch = _guarded_by_generation(report).add("spec", "deleteOperations", "-", value=msgspec.to_builtins(operation))
    return RequestWipe(operation, patch)


def _dropped(disks: NodeDisks, operation: DeleteOperation, why: str) -> DiskStep:
    if (report := disks.report) is None:
        return LeaveAlone("its node is gone")
    # The generation is tested, so that the index is that of the list which was read.
    patch = _guarded_by_generation(report).remove("spec", "deleteOperations", report.operations.index(operation))
    return DropOperation(operation, patch, why)


def _guarded_by_generation(report: DiskReport) -> JsonPatch:
    """Start a patch that fails if the spec has changed since it was read. Writes of the worker do not disturb it."""
    return JsonPatch().test("metadata", "uid", value=report.uid).test("metadata", "generation", value=report.generation)


# ---- the node --------------------------------------------------------------------------------------------------------


def is_report_over(disks: NodeDisks) -> bool:
    """Return whether the ProvisionerStatus of a node is to be deleted."""
    return disks.report is not None and disks.is_gone
