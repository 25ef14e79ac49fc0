"""Which claims and volumes may lose their protection, and which lack it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.schema import creation_rules
from orlop.binding import storage_protection_rules as rules
from orlop.binding.storage_protection_rules import CLAIM_FINALIZER, VOLUME_FINALIZER
from orlop.kube.objects import ObjectName, finalizers
from orlop.kube.patch_application import PatchDoesNotApply, apply_json_patch

Object = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def claim(name: str = "data", *, owner: str = "", namespace: str = "n", **metadata: Any) -> Object:
    owners = {"ownerReferences": [{"uid": owner, "controller": True}]} if owner else {}
    return {"metadata": {"namespace": namespace, "name": name, "uid": "claim-1", **owners, **metadata}}


def pod(*volumes: Object, node: str = "n1", phase: str = "Running", **metadata: Any) -> Object:
    spec = {"volumes": list(volumes), **({"nodeName": node} if node else {})}
    return {
        "metadata": {"namespace": "n", "name": "p", "uid": "pod-1", **metadata},
        "spec": spec,
        "status": {"phase": phase},
    }


def by_name(claim_name: str) -> Object:
    return {"name": "v", "persistentVolumeClaim": {"claimName": claim_name}}


EPHEMERAL: Object = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}
SHUT_DOWN = {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0}


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_the_finalizers_are_those_that_admission_puts_on():
    assert creation_rules.CLAIM_FINALIZER == CLAIM_FINALIZER
    assert creation_rules.VOLUME_FINALIZER == VOLUME_FINALIZER


def test_a_claim_is_used_by_a_pod_on_a_node_that_names_it():
    assert rules.uses_claim(pod(by_name("other"), by_name("data")), claim("data"))
    assert not rules.uses_claim(pod(by_name("other")), claim("data"))


def test_a_pod_of_another_namespace_uses_another_claim():
    assert not rules.uses_claim(pod(by_name("data")), claim("data", namespace="m"))


def test_a_pod_without_a_node_uses_nothing_because_kubelet_will_not_start_it_any_more():
    assert not rules.uses_claim(pod(by_name("data"), node=""), claim("data"))


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed", "Unknown"])
def test_a_pod_uses_its_claim_until_it_is_gone_whatever_its_phase(phase: str):
    assert rules.uses_claim(pod(by_name("data"), phase=phase), claim("data"))
    assert rules.uses_claim(pod(by_name("data"), phase=phase, **SHUT_DOWN), claim("data"))


def test_the_claim_of_an_ephemeral_volume_is_used_by_the_pod_that_controls_it():
    mine = claim("p-scratch", owner="pod-1")

    assert rules.uses_claim(pod(EPHEMERAL), mine)
    assert not rules.uses_claim(pod(EPHEMERAL, uid="pod-2"), mine)
    assert not rules.uses_claim(pod(EPHEMERAL), claim("p-scratch"))
    assert not rules.uses_claim(pod(EPHEMERAL), claim("p-scratch", ownerReferences=[{"uid": "pod-1"}]))
    assert not rules.uses_claim(pod(EPHEMERAL), claim("p-other", owner="pod-1"))


def test_a_pod_that_is_shut_down_no_longer_holds_the_claims_of_its_ephemeral_volumes():
    mine = claim("p-scratch", owner="pod-1")

    assert not rules.uses_claim(pod(EPHEMERAL, **SHUT_DOWN), mine)
    assert rules.uses_claim(pod(EPHEMERAL, deletionTimestamp=NOW, deletionGracePeriodSeconds=30), mine)


def test_a_pod_may_name_a_claim_by_both_ways_and_names_it_once():
    both = pod(by_name("p-scratch"), EPHEMERAL, {"name": "c", "configMap": {"name": "x"}})

    assert rules.claims_named_by(both) == [ObjectName("n", "p-scratch")]
    assert rules.claims_named_by({"metadata": {"name": "bare"}}) == []


# ---- any of them -----------------------------------------------------------------------------------------------------

VOLUMES = st.lists(
    st.one_of(
        st.sampled_from(["data", "p-scratch", "x"]).map(by_name),
        st.sampled_from([EPHEMERAL, {"name": "e", "emptyDir": {}}, {"name": "x", "ephemeral": {}}]),
    ),
    max_size=3,
)
DELETIONS = st.sampled_from([{}, SHUT_DOWN, {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 30}])
PODS = st.builds(
    lambda volumes, node, phase, uid, deletion: pod(*volumes, node=node, phase=phase, uid=uid, **deletion),
    VOLUMES,
    st.sampled_from(["", "n1"]),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    st.sampled_from(["pod-1", "pod-2"]),
    DELETIONS,
)
CLAIMS = st.builds(
    lambda name, owner: claim(name, owner=owner),
    st.sampled_from(["data", "p-scratch", "p-x"]),
    st.sampled_from(["", "pod-1", "pod-2"]),
)


@given(PODS, CLAIMS)
def test_whoever_uses_a_claim_is_found_by_it(one: Object, wanted: Object):
    if rules.uses_claim(one, wanted):
        assert ObjectName("n", wanted["metadata"]["name"]) in rules.claims_named_by(one)


@given(st.lists(PODS, max_size=4), PODS, CLAIMS)
def test_one_more_pod_never_makes_a_claim_free(pods: list[Object], more: Object, wanted: Object):
    assert rules.is_claim_used(wanted, [*pods, more]) == (
        rules.is_claim_used(wanted, pods) or rules.uses_claim(more, wanted)
    )


@given(PODS, CLAIMS)
def test_the_phase_of_a_pod_decides_nothing(one: Object, wanted: Object):
    answers = {rules.uses_claim({**one, "status": {"phase": phase}}, wanted) for phase in ("Running", "Failed")}
    assert len(answers) == 1


# ---- volumes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Pending", "Available", "Released", "Failed", None])
def test_a_volume_is_used_while_it_is_bound(phase: str | None):
    assert not rules.is_volume_used({"status": {"phase": phase}})
    assert not rules.is_volume_used({})
    assert rules.is_volume_used({"status": {"phase": "Bound"}})


# ---- patches ---------------------------------------------------------------------------------------------------------

LISTS = st.lists(st.sampled_from(["a/x", "b/y", CLAIM_FINALIZER, VOLUME_FINALIZER]), max_size=4)


def stored(present: list[str], version: str = "7", **metadata: Any) -> Object:
    held = {"finalizers": present} if present else {}
    return {"metadata": {"name": "o", "uid": "u", "resourceVersion": version, **held, **metadata}}


@given(LISTS)
def test_an_object_lacks_protection_or_waits_or_is_none_of_our_business(present: list[str]):
    kept, deleted = stored(present), stored(present, deletionTimestamp=NOW)
    has = CLAIM_FINALIZER in present

    assert rules.lacks_protection(kept, CLAIM_FINALIZER) == (not has)
    assert not rules.lacks_protection(deleted, CLAIM_FINALIZER)
    assert rules.waits_for_release(deleted, CLAIM_FINALIZER) == has
    assert not rules.waits_for_release(kept, CLAIM_FINALIZER)


@given(LISTS)
def test_releasing_takes_that_finalizer_and_leaves_the_others(present: list[str]):
    obj = stored(present, deletionTimestamp=NOW)
    for patch, finalizer in (
        (rules.claim_releasing_patch(obj), CLAIM_FINALIZER),
        (rules.volume_releasing_patch(obj), VOLUME_FINALIZER),
    ):
        if patch is None:
            assert finalizer not in present
            continue
        assert list(finalizers(apply_json_patch(obj, patch.body()))) == [one for one in present if one != finalizer]


@given(LISTS.filter(lambda present: CLAIM_FINALIZER not in present))
def test_protecting_adds_the_finalizer_unless_the_object_is_being_deleted_by_now(present: list[str]):
    patch = rules.protecting_patch(stored(present), CLAIM_FINALIZER)
    assert patch is not None

    assert list(finalizers(apply_json_patch(stored(present), patch.body()))) == [*present, CLAIM_FINALIZER]
    with pytest.raises(PatchDoesNotApply):
        apply_json_patch(stored(present, deletionTimestamp=NOW), patch.body())


def test_what_changed_meanwhile_is_not_released():
    seen = stored([CLAIM_FINALIZER, VOLUME_FINALIZER], deletionTimestamp=NOW)
    by_claim, by_volume = rules.claim_releasing_patch(seen), rules.volume_releasing_patch(seen)
    assert by_claim is not None
    assert by_volume is not None

    another = {"metadata": {**seen["metadata"], "uid": "another"}}
    for patch in (by_claim, by_volume):
        with pytest.raises(PatchDoesNotApply):
            apply_json_patch(another, patch.body())
    with pytest.raises(PatchDoesNotApply):  # it may be bound in the version we have not seen
        apply_json_patch({"metadata": {**seen["metadata"], "resourceVersion": "8"}}, by_volume.body())
