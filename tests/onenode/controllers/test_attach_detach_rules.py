"""What comes next for a volume on a node: a table of sentences, and what holds whatever the facts are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.controllers import attach_detach_rules as rules
from onenode.controllers import attachable_volumes_rules as volumes
from onenode.controllers.attach_detach_rules import (
    Attach,
    AttachDetachFacts,
    Attached,
    Detach,
    NodeFacts,
    NotAttached,
    NotDetached,
    Taken,
    UsingPod,
    Wait,
    is_to_be_listed,
    next_step,
)
from onenode.controllers.attachable_volumes_rules import Attachable
from onenode.controllers.known_attachments import AttachmentHistory
from onenode.kubelet.volumes.volume_values import driver_and_handle, persistent_name
from orlop.binding.pod_claim_rules import ClaimUse
from orlop.kube.objects import ObjectName
from orlop.kube.patch_application import apply_json_patch

NAME = "kubernetes.io/csi/d.example^h1"
ONE = Attachable(NAME, "pv1", "d.example", "h1", is_exclusive=True)
MANY = replace(ONE, is_exclusive=False)
WELL = NodeFacts(is_there=True, is_managed=True, is_ready=True, in_use=frozenset())
POD = UsingPod("default", "p", "u1")
Object = dict[str, Any]


def made(*, deleted: bool = False, **status: Any) -> Object:
    metadata = {"name": "csi-1", "uid": "va-uid", **({"deletionTimestamp": "2026-01-02T03:04:05Z"} if deleted else {})}
    return {"metadata": metadata, "spec": {"nodeName": "n1"}, **({"status": status} if status else {})}


def facts(
    attachment: Object | None = None, *, needed: bool = True, place: NodeFacts = WELL, **rest: Any
) -> AttachDetachFacts:
    return AttachDetachFacts("n1", place, attachment, (POD,) if needed else (), **rest)


FRESH, ATTACHED, GOING = made(), made(attached=True), made(deleted=True, attached=True)
ELSEWHERE = replace(facts(ATTACHED), node="n2")


# ---- a table ---------------------------------------------------------------------------------------------------------

STEPS = [
    ("nothing is there: it is made", facts(), ONE, (), Attach),
    ("another node has it: it waits", facts(), ONE, (ELSEWHERE,), Taken),
    ("another node has it, and may: it is made", facts(), MANY, (ELSEWHERE,), Attach),
    ("another node is getting it: it waits", facts(), ONE, (replace(ELSEWHERE, attachment=FRESH),), Wait),
    (
        "another node is getting it, and needs it no more: it waits until that has ended",
        facts(),
        ONE,
        (replace(facts(FRESH, needed=False, is_in_use=True), node="n2"),),
        Wait,
    ),
    (
        "another node failed to get it: it is made",
        facts(),
        ONE,
        (replace(ELSEWHERE, attachment=made(attachError={"message": "no"})),),
        Attach,
    ),
    ("it is made: it is waited for", facts(FRESH), ONE, (), Wait),
    ("it was waited for too long: it is told", facts(FRESH, seconds_awaited=120.0), ONE, (), NotAttached),
    ("it is attached", facts(ATTACHED), ONE, (), Attached),
    ("it is attached and going: that is a failure", facts(GOING), ONE, (), NotAttached),
    ("nobody needs it: it goes", facts(ATTACHED, needed=False), ONE, (), Detach),
    (
        "nobody needs it, and it is listed: the list comes first",
        facts(ATTACHED, needed=False, is_listed=True),
        ONE,
        (),
        Wait,
    ),
    ("nobody needs it, and it is in use: it stays", facts(ATTACHED, needed=False, is_in_use=True), ONE, (), Wait),
    ("nobody needs it, and it is going", facts(GOING, needed=False), ONE, (), Wait),
    (
        "nobody needs it, and it does not go: that is told",
        facts(made(deleted=True, detachError={"message": "busy"}), needed=False),
        ONE,
        (),
        NotDetached,
    ),
    ("nobody needs it, and it is not there", facts(needed=False), ONE, (), Wait),
    ("its node is unmanaged: nothing is attached", facts(place=replace(WELL, is_managed=False)), ONE, (), Wait),
    ("its node is gone: nothing is attached", facts(place=NodeFacts()), ONE, (), Wait),
    (
        "its node is gone, and its pod is not: it stays",
        facts(ATTACHED, place=NodeFacts(), is_in_use=True),
        ONE,
        (),
        Attached,
    ),
]


@pytest.mark.parametrize(
    ("one", "volume", "others", "expected"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS]
)
def test_a_volume_on_a_node(
    one: AttachDetachFacts, volume: Attachable, others: tuple[AttachDetachFacts, ...], expected: type
):
    assert isinstance(next_step(one, volume, others), expected)


IN_USE = facts(ATTACHED, needed=False, is_in_use=True)
SICK = replace(WELL, is_ready=False)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (replace(IN_USE, place=SICK, seconds_unneeded=359.0), Wait(1.0)),
        (replace(IN_USE, place=SICK, seconds_unneeded=360.0), Detach("va-uid")),
        (replace(IN_USE, seconds_unneeded=360.0), Wait(None)),
        (replace(IN_USE, place=replace(WELL, is_out_of_service=True)), Detach("va-uid")),
        (replace(IN_USE, place=NodeFacts(), seconds_unneeded=360.0), Detach("va-uid")),
    ],
    ids=["sick for long", "sick for too long", "ready", "out of service", "gone for too long"],
)
def test_a_volume_in_use_is_waited_for_as_long_as_its_node_deserves(one: AttachDetachFacts, expected: object):
    assert next_step(one, ONE, ()) == expected


def test_an_old_error_of_the_attacher_is_a_failure_though_it_may_try_again():
    error = {"message": "no room", "time": "2026-01-02T03:04:05Z"}
    step = next_step(facts(made(attached=False, attachError=error)), ONE, ())
    assert step == NotAttached("no room", "2026-01-02T03:04:05Z")


def test_a_detach_ends_with_the_object_and_fails_with_an_error_or_after_two_minutes():
    going = replace(facts(made(deleted=True, attached=False), needed=False), volume=NAME)
    why = "timed out waiting for external-attacher of d.example CSI driver to detach volume h1"

    assert next_step(replace(going, attachment=None), ONE, ()) == Wait()
    assert next_step(going, ONE, ()) == Wait(120.0), "attached: false alone is no end"
    assert next_step(replace(going, seconds_detaching=119.0), ONE, ()) == Wait(1.0)
    assert next_step(replace(going, seconds_detaching=121.0), ONE, ()) == NotDetached(why, "round 1", 119.0)
    assert next_step(replace(going, seconds_detaching=240.0), ONE, ()) == NotDetached(why, "round 2", 120.0)
    refused = made(deleted=True, attached=True, detachError={"message": "busy", "time": "t1"})
    assert next_step(replace(going, attachment=refused, seconds_detaching=500.0), ONE, ()) == NotDetached("busy")


def test_the_time_of_a_detach_is_counted_anew_for_the_next_attachment():
    remembered = AttachmentHistory()

    assert remembered.seconds_detaching(10.0, is_detaching=True) == 0.0
    assert remembered.seconds_detaching(130.0, is_detaching=True) == 120.0
    assert remembered.seconds_detaching(140.0, is_detaching=False) == 0.0
    assert remembered.seconds_detaching(150.0, is_detaching=True) == 0.0


# ---- what always holds -----------------------------------------------------------------------------------------------

STATUSES = st.sampled_from([{}, {"attached": True}, {"attached": False}, {"attachError": {"message": "m"}}])
ATTACHMENTS = st.none() | st.builds(lambda deleted, status: made(deleted=deleted, **status), st.booleans(), STATUSES)
PLACES = st.builds(
    NodeFacts, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, frozenset(), {NAME}])
)
FACTS = st.builds(
    AttachDetachFacts,
    st.sampled_from(["n1", "n2", "n3"]),
    PLACES,
    ATTACHMENTS,
    st.sampled_from([(), (POD,)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 359.0, 360.0, 1e6]),
    st.sampled_from([0.0, 119.0, 120.0, 1e6]),
    st.sampled_from([0.0, 119.0, 120.0, 1e6]),
)
OTHERS = st.lists(FACTS, max_size=3).map(tuple)


@given(FACTS, OTHERS)
def test_a_volume_that_is_listed_or_needed_is_never_detached(
    one: AttachDetachFacts, others: tuple[AttachDetachFacts, ...]
):
    if isinstance(next_step(one, ONE, others), Detach):
        assert not one.is_listed
        assert not one.is_needed
        assert not is_to_be_listed(one)


@given(FACTS, OTHERS)
def test_a_volume_that_kubelet_uses_is_only_detached_from_a_node_that_is_given_up(
    one: AttachDetachFacts, others: tuple[AttachDetachFacts, ...]
):
    if isinstance(next_step(one, ONE, others), Detach) and one.is_in_use:
        assert one.place.is_out_of_service or (one.seconds_unneeded >= 360 and not one.place.is_ready)


@given(FACTS, OTHERS)
def test_an_exclusive_volume_is_attached_nowhere_else_while_a_node_has_it(
    one: AttachDetachFacts, others: tuple[AttachDetachFacts, ...]
):
    if isinstance(next_step(one, ONE, others), Attach):
        assert not [other for other in others if other.attachment and rules.is_attached(other.attachment)]


@given(FACTS)
def test_only_what_is_attached_and_stays_is_listed(one: AttachDetachFacts):
    if is_to_be_listed(one):
        assert one.attachment is not None
        assert one.attachment["status"]["attached"] is True
        assert "deletionTimestamp" not in one.attachment["metadata"]


@given(FACTS, OTHERS)
def test_time_alone_is_only_waited_for_when_it_will_change_something(
    one: AttachDetachFacts, others: tuple[AttachDetachFacts, ...]
):
    step = next_step(one, ONE, others)
    failed = step.retry_after if isinstance(step, NotAttached | NotDetached) else None
    seconds = step.seconds if isinstance(step, Wait) else failed
    assert seconds is None or 0 < seconds <= 360


# ---- nodes -----------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [NAME, "kubernetes.io/csi/d.example^h2", "kubernetes.io/iscsi/x", "kubernetes.io/csi/uid-inline"]
)
LISTS = st.none() | st.lists(NAMES, unique=True).map(lambda names: [{"name": n, "devicePath": ""} for n in names])

WANTED = st.sets(st.sampled_from([NAME, "kubernetes.io/csi/d.example^h2"]))


@given(present=LISTS, wanted=WANTED, has_status=st.booleans())
def test_a_patched_node_lists_what_is_wanted_and_what_is_not_ours_and_needs_no_second_patch(
    present: list[Object] | None, wanted: set[str], *, has_status: bool
):
    listed = {} if present is None else {"volumesAttached": present}
    node: Object = {"metadata": {"uid": "u"}, **({"status": {"phase": "x", **listed}} if has_status or present else {})}
    patch = rules.listing_patch(node, wanted)
    after = node if patch is None else apply_json_patch(node, patch.body())
    names = {one["name"] for one in after.get("status", {}).get("volumesAttached") or ()}
    others = {one["name"] for one in present or () if driver_and_handle(one["name"]) is None}

    assert names == wanted | others
    assert rules.listing_patch(after, wanted) is None


def test_a_node_that_is_gone_is_remembered_by_what_it_used():
    place = rules.place_of({"status": {"volumesInUse": [NAME], "volumesAttached": [{"name": NAME}]}}, NodeFacts())
    gone = rules.place_of(None, place)
    assert (place.uses(NAME), place.uses("other"), place.listed) == (True, False, frozenset({NAME}))
    assert (gone.is_there, gone.uses(NAME), gone.uses("other"), gone.listed) == (False, True, False, frozenset())
    assert rules.place_of(None, NodeFacts()).uses(NAME), "of a node that nobody has seen nobody knows"


@given(st.text(st.characters(codec="ascii", exclude_characters="^"), min_size=1), st.text(min_size=1))
def test_the_name_of_a_volume_tells_its_driver_and_its_handle_whatever_is_in_it(driver: str, handle: str):
    assert driver_and_handle(persistent_name(driver, handle)) == (driver, handle)


# ---- what pods need --------------------------------------------------------------------------------------------------

RUNS, WAITS, ENDED = ({"state": {kind: {}}} for kind in ("running", "waiting", "terminated"))
DELETED = {"deletionTimestamp": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("metadata", "status", "done"),
    [
        ({}, {"phase": "Running"}, False),
        ({}, {"phase": "Succeeded"}, True),
        ({}, {"phase": "Failed", "containerStatuses": [RUNS]}, True),
        (DELETED, {"phase": "Running", "containerStatuses": [RUNS]}, False),
        (DELETED, {"phase": "Running", "containerStatuses": [ENDED, RUNS]}, False),
        (DELETED, {"phase": "Running", "containerStatuses": [{"state": {}}]}, False),
        (DELETED, {"phase": "Running", "containerStatuses": [WAITS, ENDED]}, True),
        (DELETED, {}, True),
    ],
)
def test_a_pod_is_done_with_its_volumes_when_nothing_of_it_runs(metadata: Object, status: Object, *, done: bool):
    assert volumes.is_done_with_volumes({"metadata": metadata, "status": status}) is done


def pv(**spec: Any) -> Object:
    return {"metadata": {"name": "pv1"}, "spec": {"csi": {"driver": "d.example", "volumeHandle": "h1"}, **spec}}


@pytest.mark.parametrize(
    ("modes", "exclusive"),
    [
        ([], False),
        (["ReadWriteOnce"], True),
        (["ReadWriteOncePod"], True),
        (["ReadWriteMany"], False),
        (["ReadWriteOnce", "ReadOnlyMany"], False),
    ],
)
def test_a_volume_is_exclusive_by_its_access_modes(modes: list[str], *, exclusive: bool):
    found = volumes.attachable(pv(accessModes=modes))
    assert found == Attachable(NAME, "pv1", "d.example", "h1", is_exclusive=exclusive)


CLAIM = {"metadata": {"uid": "c1"}, "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}}
USE = ClaimUse("data", ObjectName("default", "c"), is_ephemeral=False)
BOUND = pv(claimRef={"uid": "c1"})


@pytest.mark.parametrize(
    ("use", "claim", "volume"),
    [
        (USE, None, BOUND),
        (USE, CLAIM, None),
        (USE, {**CLAIM, "status": {"phase": "Pending"}}, BOUND),
        (USE, CLAIM, pv(claimRef={"uid": "another"})),
        (USE, CLAIM, pv()),
        (USE, CLAIM, {"metadata": {"name": "pv1"}, "spec": {"claimRef": {"uid": "c1"}, "hostPath": {}}}),
        (replace(USE, is_ephemeral=True), CLAIM, BOUND),
    ],
)
def test_a_volume_that_is_not_known_to_be_the_claims_is_not_attached(
    use: ClaimUse, claim: Object | None, volume: Object | None
):
    assert volumes.attachable_by({"metadata": {"uid": "p1"}}, use, claim, volume) is None
    assert volumes.attachable_by({"metadata": {"uid": "p1"}}, USE, CLAIM, BOUND) is not None


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_who_has_a_volume_is_told_by_name_in_ones_own_namespace_and_by_number_elsewhere():
    users = [rules.PodName("default", "a"), rules.PodName("default", "b"), rules.PodName("other", "c")]
    assert rules.taken_text("v", "default", users).endswith(
        "Volume is already used by pod(s) a, b and 1 pod(s) in different namespaces"
    )
    assert rules.taken_text("v", "third", users).endswith("Volume is already used by 3 pod(s) in different namespaces")
    assert rules.taken_text("v", "default", users[:2]).endswith("Volume is already used by pod(s) a, b")
