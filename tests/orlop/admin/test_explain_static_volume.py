"""`orlop explain` names for a static volume the step that the master takes, in any state of the objects."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, cast

import msgspec
import pytest

from orlop.admin.explain_static_volume import explain_static_volume, with_its_disk
from orlop.admin.explanation import Finding
from orlop.admin.volume_seen import VolumeSeen
from orlop.binding import claim_state_rules as state
from orlop.records.provisioner_status import DeleteState, DeleteStatus
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
from orlop.static_pv.master_rules import next_disk_step
from orlop.static_pv.node_disks_rules import VersionedVolume, read_node_report
from orlop.static_pv.static_volume_rules import (
    AS_IS,
    EVER_BOUND,
    RELEASE,
    WIPE,
    WIPE_DECIDED,
    WIPE_FINALIZER,
    read_static_volume,
    release_note,
)
from support.static_volumes.static_objects import node_object, report_object
from support.static_volumes.static_views import NAME, disks, operation
from support.static_volumes.static_views import local_volume as listed

DELETED_AT = "2026-01-01T00:00:00Z"
FITTING_STEPS = {
    "WaitsForWipe": (EndVolume, PatchVolume),
    "Released": (LeaveAlone,),
    "Retained": (ReportVolume,),
    "BeingDeleted": (LetVolumeGo,),
    "Wiped": (LetVolumeGo,),
    "Wiping": (LeaveAlone,),
    "WipeFails": (ReportFailure, PatchVolume, DropOperation),
    "WipeRequested": (RequestWipe, LeaveAlone),
}
"""The steps of the master that fit what is explained."""


def static_volumes() -> Iterator[dict[str, Any]]:
    """Yield a static volume in every state that the master has recorded."""
    for policy, is_used, has_claim in product(("Delete", "Retain"), (False, True), (False, True)):
        if has_claim and not is_used:
            continue
        for phase in ("Released", "Failed") if is_used else ("Available", ""):
            yield static_volume(policy, phase, {EVER_BOUND: "true"} if is_used else {}, has_claim=has_claim)
            for decided, release in product((False, True), ("", WIPE, AS_IS)):
                note = release_note(release, DELETED_AT) if release else ""
                notes = {EVER_BOUND: is_used, WIPE_DECIDED: decided and is_used, RELEASE: note}
                annotations = {key: str(value) for key, value in notes.items() if value}
                yield static_volume(policy, phase, annotations, has_claim=has_claim, is_deleted=True)


def static_volume(
    policy: str, phase: str, annotations: dict[str, str], *, has_claim: bool = False, is_deleted: bool = False
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": NAME, "uid": "u1", "resourceVersion": "7", "finalizers": [WIPE_FINALIZER]}
    metadata["annotations"] = {state.PROVISIONED_BY: "local-volume-provisioner-n1", **annotations}
    if is_deleted:
        metadata["deletionTimestamp"] = DELETED_AT
    spec: dict[str, Any] = {
        "local": {"path": "/mnt/fast/disk1"},
        "capacity": {"storage": "20Gi"},
        "storageClassName": "fast",
        "volumeMode": "Filesystem",
        "persistentVolumeReclaimPolicy": policy,
    }
    if has_claim:
        spec["claimRef"] = {"namespace": "team", "name": "data", "uid": "c1"}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def reports_on(volume: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the reports that its worker may have written. An operation follows the decision to wipe."""
    status: dict[str, Any] = {"localVolumes": [msgspec.to_builtins(listed("disk1"))]}
    yield report_object("n1") | {"status": status}
    words = ("", "InProgress", "Complete", "Error") if WIPE_DECIDED in volume["metadata"]["annotations"] else ()
    for word in words:
        obj = report_object("n1")
        obj["spec"]["deleteOperations"] = [msgspec.to_builtins(operation())]
        wiped = [DeleteStatus(uid="u1", state=cast("DeleteState", word), message="in use")] if word else []
        yield obj | {"status": {**status, "deleteStatuses": msgspec.to_builtins(wiped)}}


def step_of(volume: dict[str, Any], report: dict[str, Any]) -> DiskStep:
    facts = read_static_volume(volume)
    assert facts is not None
    return next_disk_step(disks(read_node_report(report), VersionedVolume(facts, "7")), NAME)


def test_an_explanation_names_the_step_that_the_master_takes():
    states = set()
    for volume, report in [(each, report) for each in static_volumes() for report in reports_on(each)]:
        finding = explain_static_volume(VolumeSeen(volume, disk_reports=(report,), nodes=(node_object("n1"),)))
        if finding is None:
            assert "deletionTimestamp" not in volume["metadata"]
            assert volume["status"]["phase"] not in {"Released", "Failed"}
            continue
        step = step_of(volume, report)
        assert isinstance(step, FITTING_STEPS[finding.state]), (finding, step, volume, report)
        assert not isinstance(step, ReportVolume) or step.reason == "VolumeRetained"
        states.add(finding.state)
    assert states == set(FITTING_STEPS)


@pytest.mark.parametrize(("nodes", "problem"), [((node_object("n1"),), None), ((), "NodeLost")])
def test_a_disk_that_is_listed_on_a_node_that_exists_has_no_problem(nodes: tuple[Any, ...], problem: str | None):
    for volume in static_volumes():
        seen = VolumeSeen(volume, disk_reports=(next(reports_on(volume)),), nodes=nodes)
        finding = with_its_disk(Finding("x", "It is so.", "Wait."), seen)
        assert finding.fields["staticVolume"]["problem"] == problem
        assert (finding.sentence == "It is so.") == (problem is None)
