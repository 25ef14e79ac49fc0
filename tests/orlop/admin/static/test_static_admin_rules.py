"""Properties of the operator's rules, for every static volume: no disk is lost, and no data destroyed by mistake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orlop.admin.static.static_list_rules import STATES, StaticRow, find_row, static_rows
from orlop.admin.static.static_release_rules import (
    forget_plan,
    hand_back_plan,
    is_kept_until_wiped,
    release_patch,
    release_plan,
)
from orlop.binding import claim_state_rules as state
from orlop.kube.patch_application import apply_json_patch
from orlop.records.provisioner_status import DeleteStatus
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.static_volume_rules import (
    AS_IS,
    EVER_BOUND,
    RELEASE,
    WIPE,
    WIPE_DECIDED,
    WIPE_FINALIZER,
    StaticVolume,
    read_static_volume,
    release_note,
)
from support.static_volumes.static_objects import CLASS, local_volume
from support.static_volumes.static_views import operation, report

ENTRIES = ("disk1", "disk2", "disk3")
TIMES = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
HOWS = st.sampled_from((WIPE, AS_IS))


@st.composite
def volumes(draw: st.DrawFn, entry: str = "disk1") -> dict[str, object]:
    """A PersistentVolume as any history of claims, policies and admins may have left it."""
    annotations = {state.PROVISIONED_BY: "local-volume-provisioner-n1"}
    annotations |= draw(
        st.fixed_dictionaries({}, optional={EVER_BOUND: st.just("true"), WIPE_DECIDED: st.just("true")})
    )
    notes = [*(release_note(how, at) for how in (WIPE, AS_IS) for at in TIMES), WIPE, AS_IS, ""]
    annotations |= draw(st.fixed_dictionaries({}, optional={RELEASE: st.sampled_from(notes)}))
    deleted = draw(st.sampled_from((None, *TIMES)))
    claim = draw(
        st.sampled_from((None, {"namespace": "team", "name": "c"}, {"namespace": "team", "name": "c", "uid": "1"}))
    )
    return {
        "metadata": {
            "name": volume_name(entry, "n1", CLASS),
            "uid": f"u-{entry}",
            "resourceVersion": "7",
            "annotations": annotations,
            "finalizers": draw(st.sampled_from(([], [WIPE_FINALIZER], ["x/y", WIPE_FINALIZER]))),
            **({"deletionTimestamp": deleted} if deleted else {}),
        },
        "spec": {
            "local": {"path": f"/mnt/fast/{entry}"},
            "capacity": {"storage": "20Gi"},
            "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": draw(st.sampled_from(("Delete", "Retain"))),
            **({"claimRef": claim} if claim else {}),
        },
        "status": {"phase": draw(st.sampled_from(("", "Available", "Bound", "Released", "Failed")))},
    }


@st.composite
def clusters(draw: st.DrawFn) -> list[StaticRow]:
    """The rows of a node with some volumes, some disks and some wipes."""
    made = [draw(volumes(entry)) for entry in ENTRIES if draw(st.booleans())]
    listed = tuple(local_volume(entry) for entry in ENTRIES if draw(st.booleans()))
    wiped = [each for each in made if draw(st.booleans())]
    operations = tuple(operation(_uid(each), volume=_name(each), persistent_volume=_name(each)) for each in wiped)
    states = st.sampled_from(("InProgress", "Complete", "Error"))
    statuses = tuple(DeleteStatus(uid=_uid(each), state=draw(states)) for each in wiped if draw(st.booleans()))
    nodes = draw(st.sampled_from((frozenset(), frozenset({"n1"}))))
    reports = [report(volumes=listed, operations=operations, statuses=statuses)] if draw(st.booleans()) else []
    rows = static_rows(reports, made, nodes)
    expected = {_name(each) for each in made} | ({each.name for each in listed} if reports else set())
    assert sorted(row.name for row in rows) == sorted(expected)
    return rows


def _name(volume: dict[str, object]) -> str:
    return str(volume["metadata"]["name"])  # type: ignore[index]


def _uid(volume: dict[str, object]) -> str:
    return str(volume["metadata"]["uid"])  # type: ignore[index]


def facts_of(volume: dict[str, object]) -> StaticVolume:
    facts = read_static_volume(volume)
    assert facts is not None
    return facts


@given(clusters())
def test_every_disk_and_every_volume_is_one_row_that_its_name_finds(rows: list[StaticRow]):
    for row in rows:
        assert row.state in STATES
        assert find_row(rows, row.name) is row
        assert find_row(rows, f"{row.node}/{row.entry}") is row


@given(clusters(), HOWS)
def test_only_a_volume_that_no_claim_has_is_released_and_no_wipe_that_goes_well_is_given_up(
    rows: list[StaticRow], how: str
):
    for row in rows:
        plan = release_plan(row, how)
        if plan.why_not:
            continue
        assert row.volume is not None
        assert not row.volume.is_bound
        has_failed = row.status is not None and row.status.state == "Error"
        assert not (how == AS_IS and row.volume.is_wipe_decided) or has_failed


@given(volumes(), HOWS)
def test_a_release_counts_for_the_deletion_that_it_was_decided_for_and_for_no_other(
    volume: dict[str, object], how: str
):
    facts = facts_of(volume)
    if not facts.is_being_deleted:
        assert facts.release == ""
        return
    released = apply_json_patch(volume, release_patch(facts, "7", how).body())
    assert facts_of(released).release == how

    other = next(at for at in TIMES if at != facts.deleted_at)
    released["metadata"]["deletionTimestamp"] = other
    assert facts_of(released).release == ""


@given(clusters(), st.booleans())
def test_what_is_handed_back_loses_no_finalizer_that_keeps_a_dirty_disk(rows: list[StaticRow], has_report: bool):  # noqa: FBT001
    of_node = report(operations=(operation(),)) if has_report else None
    plan = hand_back_plan("n1", tuple(rows), of_node)

    assert not (has_report and not plan.why_not)
    if not plan.why_not:
        assert all(row.volume is not None and not is_kept_until_wiped(row.volume) for row in plan.volumes)
        assert all(row.volume is not None and row.volume.has_finalizer for row in plan.volumes)


@given(clusters(), st.booleans())
def test_only_volumes_of_a_node_that_is_gone_are_given_up(rows: list[StaticRow], node_exists: bool):  # noqa: FBT001
    plan = forget_plan("n1", tuple(rows), node_exists=node_exists)

    assert bool(plan.why_not) is node_exists
    if not node_exists:
        assert {row.name for row in plan.volumes} == {row.name for row in rows if row.volume is not None}
        assert set(plan.claims) == {row.volume.claim for row in rows if row.volume is not None and row.volume.is_bound}
