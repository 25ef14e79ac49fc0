"""The next step for a disk: each state of its volume, its operation and its node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from orlop.records.provisioner_status import DeleteOperation, DeleteStatus
from orlop.static_pv.disk_step_rules import (
    DiskStep,
    DropOperation,
    EndVolume,
    LeaveAlone,
    LetVolumeGo,
    OfferDisk,
    PatchVolume,
    ReportFailure,
    ReportVolume,
    RequestWipe,
)
from orlop.static_pv.master_rules import is_report_over, next_disk_step
from orlop.static_pv.node_disks_rules import NodeDisks, VersionedVolume
from orlop.static_pv.static_volume_rules import AS_IS, WIPE
from support.static_volumes.static_objects import GIB, local_volume
from support.static_volumes.static_views import (
    BOUND,
    NAME,
    RELEASED,
    disks,
    listing,
    operation,
    report,
    static_volume,
)

TERMINATING = {"is_being_deleted": True}
USED = RELEASED | TERMINATING
DECIDED = USED | {"is_wipe_decided": True}
OTHERS = {"finalizers": ("kubernetes.io/pv-protection",)}
COMPLETE = DeleteStatus(uid="u1", state="Complete")
ERROR = DeleteStatus(uid="u1", state="Error", message="it hangs")
IN_PROGRESS = DeleteStatus(uid="u1", state="InProgress")


def step_of(of_node: Any, *volumes: VersionedVolume, **changes: Any) -> DiskStep:
    return next_disk_step(disks(of_node, *volumes, **changes), NAME)


def what(step: DiskStep) -> str:
    """Return the step in one word or two, with its reason."""
    match step:
        case LeaveAlone(reason):
            return f"leave: {reason}"
        case ReportVolume(reason, _):
            return f"report: {reason}"
        case PatchVolume(_, done):
            return f"patch: {done}"
        case EndVolume(_, _, why) | LetVolumeGo(_, why) | DropOperation(_, _, why):
            return f"{type(step).__name__}: {why}"
        case _:
            return type(step).__name__


# ---- a volume that is not being deleted ------------------------------------------------------------------------------

PRESENT: list[tuple[dict[str, Any], str]] = [
    ({}, "leave: it is offered"),
    (OTHERS, "patch: recorded"),
    ({"phase": "Pending", "claim": "default/c", "claim_uid": "c1"}, "patch: recorded"),
    (BOUND, "leave: it is offered"),
    (BOUND | OTHERS, "patch: recorded"),
    (RELEASED, "EndVolume: it is released"),
    (RELEASED | OTHERS, "patch: recorded"),
    (RELEASED | {"phase": "Failed"}, "EndVolume: it is released"),
    (RELEASED | {"policy": "Retain"}, "leave: it is released, and its policy is Retain"),
    (RELEASED | {"policy": "Recycle"}, "report: VolumeUnsupportedReclaimPolicy"),
    (RELEASED | {"policy": "Shred"}, "report: VolumeUnknownReclaimPolicy"),
]


@pytest.mark.parametrize(("changes", "expected"), PRESENT)
def test_a_volume_on_a_listed_disk(changes: dict[str, Any], expected: str):
    assert what(step_of(listing(), static_volume(**changes))) == expected


MISSING: list[tuple[dict[str, Any], str]] = [
    ({}, "EndVolume: its disk is not listed any more, and it was never bound"),
    (BOUND, "report: DiskNotListed"),
    ({"is_ever_bound_noted": True}, "report: DiskNotListed"),
    ({"claim": "default/c"}, "report: DiskNotListed"),
    (RELEASED, "EndVolume: it is released"),
]


@pytest.mark.parametrize(("changes", "expected"), MISSING)
def test_a_volume_on_a_disk_that_is_not_listed(changes: dict[str, Any], expected: str):
    assert what(step_of(report(), static_volume(**changes))) == expected


@pytest.mark.parametrize("of_node", [report(volumes=None), report(is_discovered=False)])
def test_a_volume_is_kept_while_it_is_not_known_which_disks_there_are(of_node: Any):
    assert what(step_of(of_node, static_volume())) == "leave: it is not known which disks the node has"


def test_another_disk_in_the_place_of_one_ends_only_a_volume_that_nobody_had():
    of_node = report(volumes=(local_volume("disk1", identity="wwn:2"),))

    assert "another disk is in its place" in what(step_of(of_node, static_volume(identity="wwn:1")))
    assert what(step_of(of_node, static_volume(identity="wwn:1", **BOUND))) == "report: DiskReplaced"
    assert what(step_of(of_node, static_volume())) == "patch: recorded"


def test_a_disk_of_another_size_changes_only_a_volume_that_nobody_has():
    of_node = report(volumes=(local_volume("disk1", capacity=40 * GIB),))

    step = step_of(of_node, static_volume())
    assert isinstance(step, PatchVolume)
    assert step.patch.body()[-1] == {"op": "replace", "path": "/spec/capacity/storage", "value": "40Gi"}
    assert what(step_of(of_node, static_volume(**BOUND))) == "report: DiskGrown"
    assert what(step_of(listing(), static_volume(capacity=30 * GIB, **BOUND))) == "leave: it is offered"


# ---- a node that is gone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_node", [None, listing()])
def test_of_a_gone_node_only_volumes_that_nobody_had_are_deleted(of_node: Any):
    gone = {"node": None, "is_gone": True}

    assert "its node is gone" in what(step_of(of_node, static_volume(), **gone))
    assert what(step_of(of_node, static_volume(**BOUND), **gone)) == "report: NodeLost"
    assert what(step_of(None, static_volume(**RELEASED), **gone)) == "report: NodeLost"
    assert what(step_of(None, static_volume(**DECIDED), **gone)) == "leave: its node is gone"


def test_an_admin_gives_up_the_volumes_of_a_gone_node():
    gone = {"node": None, "is_gone": True}

    assert what(step_of(None, static_volume(**DECIDED, release=AS_IS), **gone)) == "patch: wipe given up"
    assert what(step_of(None, static_volume(**USED, release=AS_IS), **gone)) == "LetVolumeGo: released as it is"
    assert what(step_of(None, static_volume(**DECIDED, release=AS_IS), node=None)) == "leave: its node is gone"


def test_a_missing_node_is_waited_for():
    assert what(step_of(None, static_volume(), node=None)) == "leave: its node is missing"
    assert not is_report_over(disks(listing(), node=None))
    assert is_report_over(disks(listing(), node=None, is_gone=True))
    assert not is_report_over(disks(None, node=None, is_gone=True))


def test_without_a_worker_nothing_of_a_node_is_touched():
    for changes in (OTHERS, RELEASED, BOUND, {}):
        assert what(step_of(None, static_volume(**changes))) == "leave: its node does not report"


# ---- a volume that is being deleted ----------------------------------------------------------------------------------

DELETED: list[tuple[dict[str, Any], str]] = [
    (TERMINATING, "LetVolumeGo: it was never bound"),
    (TERMINATING | {"claim": "default/c"}, "LetVolumeGo: it was never bound"),
    (BOUND | TERMINATING, "leave: it is being deleted, and bound to default/c"),
    (TERMINATING | {"claim": "default/c", "claim_uid": "c1"}, "patch: recorded"),
    (USED, "patch: wipe decided"),
    (USED | {"phase": "Available", "claim": "", "claim_uid": ""}, "patch: wipe decided"),
    (DECIDED, "RequestWipe"),
    (DECIDED | {"policy": "Retain"}, "RequestWipe"),
    (DECIDED | {"release": AS_IS}, "RequestWipe"),
    (USED | {"policy": "Retain"}, "report: VolumeRetained"),
    (USED | {"policy": "Recycle"}, "report: VolumeRetained"),
    (USED | {"policy": "Retain", "release": WIPE}, "patch: wipe decided"),
    (USED | {"policy": "Retain", "release": AS_IS}, "LetVolumeGo: released as it is"),
    (USED | {"release": AS_IS}, "LetVolumeGo: released as it is"),
    (BOUND | TERMINATING | {"release": AS_IS}, "leave: it is being deleted, and bound to default/c"),
    (USED | OTHERS, "leave: it is being deleted, and does not have our finalizer"),
]


@pytest.mark.parametrize(("changes", "expected"), DELETED)
@pytest.mark.parametrize("of_node", [listing(), report(), report(volumes=None)])
def test_a_volume_that_is_being_deleted(changes: dict[str, Any], expected: str, of_node: Any):
    assert what(step_of(of_node, static_volume(**changes))) == expected


WIPED: list[tuple[dict[str, Any], tuple[DeleteStatus, ...], str]] = [
    (DECIDED, (), "leave: its disk is to be wiped"),
    (DECIDED, (IN_PROGRESS,), "leave: its disk is being wiped"),
    (DECIDED, (ERROR,), "ReportFailure"),
    (DECIDED, (COMPLETE,), "LetVolumeGo: its disk is wiped"),
    (DECIDED | {"policy": "Retain"}, (IN_PROGRESS,), "leave: its disk is being wiped"),
    (DECIDED | {"release": AS_IS}, (), "leave: its disk is to be wiped"),
    (DECIDED | {"release": AS_IS}, (IN_PROGRESS,), "leave: its disk is being wiped"),
    (DECIDED | {"release": AS_IS}, (ERROR,), "patch: wipe given up"),
    (USED | {"release": AS_IS}, (ERROR,), "DropOperation: it is released as it is"),
    (DECIDED | BOUND, (COMPLETE,), "DropOperation: it is bound again"),
]


@pytest.mark.parametrize(("changes", "statuses", "expected"), WIPED)
def test_a_volume_whose_disk_is_to_be_wiped(changes: dict[str, Any], statuses: tuple[DeleteStatus, ...], expected: str):
    of_node = listing(operations=(operation(),), statuses=statuses)

    assert what(step_of(of_node, static_volume(**changes))) == expected


def test_a_former_result_is_not_taken_for_that_of_the_next_operation():
    assert "not forgotten" in what(step_of(listing(statuses=(COMPLETE,)), static_volume(**DECIDED)))


def test_an_operation_names_the_volume_and_the_disk_that_was_offered():
    step = step_of(listing(), static_volume(**DECIDED, identity="wwn:1"))

    assert isinstance(step, RequestWipe)
    assert step.operation == operation(identity="wwn:1")
    assert step.patch.body() == [
        {"op": "test", "path": "/metadata/uid", "value": "report-1"},
        {"op": "test", "path": "/metadata/generation", "value": 3},
        {
            "op": "add",
            "path": "/spec/deleteOperations/-",
            "value": {
                "uid": "u1",
                "persistentVolume": NAME,
                "volume": NAME,
                "storageClass": "fast",
                "entry": "disk1",
                "identity": "wwn:1",
            },
        },
    ]


def test_an_operation_is_removed_by_its_place_when_its_volume_is_gone():
    other = operation("u0", volume="local-pv-0")
    of_node = listing(operations=(other, operation()), statuses=(COMPLETE,))

    step = step_of(of_node)

    assert isinstance(step, DropOperation)
    assert step.operation.uid == "u1"
    assert step.patch.body()[-1] == {"op": "remove", "path": "/spec/deleteOperations/1"}


@pytest.mark.parametrize("statuses", [(), (IN_PROGRESS,), (ERROR,)])
def test_an_operation_whose_volume_was_removed_by_force_is_carried_out(statuses: tuple[DeleteStatus, ...]):
    of_node = listing(operations=(operation(),), statuses=statuses)

    assert what(step_of(of_node)) == "leave: its disk is being wiped"
    assert what(step_of(of_node, static_volume(uid="u2", **TERMINATING))) == "leave: its disk is being wiped"


# ---- every state -----------------------------------------------------------------------------------------------------


def every_state() -> Iterator[NodeDisks]:
    """Yield all combinations of what the decisions depend on."""
    volumes: list[tuple[VersionedVolume, ...]] = [()]
    for phase, policy, claim, noted, decided, release, ending, ours, uid in product(
        ("Pending", "Available", "Bound", "Released"),
        ("Delete", "Retain"),
        ({}, {"claim": "default/c"}, {"claim": "default/c", "claim_uid": "c1"}),
        (False, True),
        (False, True),
        ("", AS_IS, WIPE),
        (False, True),
        ({}, OTHERS),
        ("u1", "u2"),
    ):
        own = {"is_ever_bound_noted": noted, "is_wipe_decided": decided, "release": release, "uid": uid}
        volumes.append((static_volume(phase=phase, policy=policy, is_being_deleted=ending, **own, **claim, **ours),))
    requested: list[tuple[DeleteOperation, ...]] = [(), (operation(),)]
    results: list[tuple[DeleteStatus, ...]] = [(), (IN_PROGRESS,), (ERROR,), (COMPLETE,)]
    for volume, operations, statuses, listed in product(
        volumes, requested, results, (None, (), (local_volume("disk1"),))
    ):
        yield disks(report(listed, operations, statuses), *volume)


def test_in_no_state_is_a_step_possible_that_loses_or_leaks_data():
    states = 0
    for each in every_state():
        states += 1
        check_step(each, next_disk_step(each, NAME))
    assert states > 50_000


def check_step(state: NodeDisks, step: DiskStep) -> None:
    volume = state.volumes[NAME].facts if NAME in state.volumes else None
    statuses = {each.uid: each.state for each in state.report.statuses} if state.report is not None else {}
    operations = [each.uid for each in state.report.operations] if state.report is not None else []
    match step:
        case OfferDisk():
            assert volume is None
            assert not operations
            assert not statuses
        case RequestWipe(requested):
            assert volume is not None
            assert requested.uid == volume.uid
            assert not operations
            assert volume.uid not in statuses
            assert volume.is_being_deleted
            assert volume.has_finalizer
            assert volume.is_wipe_decided
            assert not volume.is_bound
        case PatchVolume(_, "wipe decided"):
            assert volume is not None
            assert volume.is_being_deleted
            assert not volume.is_bound
            assert volume.was_ever_bound
            assert volume.release != AS_IS
            assert volume.policy == "Delete" or volume.release == WIPE
        case LetVolumeGo():
            assert volume is not None
            assert not volume.is_bound
            if operations:
                assert statuses[volume.uid] == "Complete"
            else:
                assert volume.uid not in statuses
                assert not volume.is_wipe_decided
                assert volume.release == AS_IS or not volume.was_ever_bound
        case EndVolume():
            assert volume is not None
            assert volume.is_untouched or (volume.phase == "Released" and volume.policy == "Delete")
        case DropOperation(dropped):
            is_wiped = statuses.get(dropped.uid) == "Complete"
            is_given_up = volume is not None and volume.release == AS_IS and statuses.get(dropped.uid) == "Error"
            assert is_wiped or is_given_up
        case LeaveAlone() | ReportVolume() | ReportFailure() | PatchVolume():
            pass
        case _:
            raise AssertionError(step)
