"""Every state of a claim (U unbound, B was bound) and of a volume (V) leads to the step that Kubernetes takes.

Each test is named after the row of the table of states; the objects are written to by a model of the API server.
"""

from __future__ import annotations

from typing import Any

import pytest

from onenode.controllers import binder_rules as rules
from support.provisioning.binder_model import BinderModel, annotations, synced_claim
from support.provisioning.binding_objects import (
    BETA_CLASS,
    BETA_STORAGE_PROVISIONER,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    DRIVER,
    ROX,
    RWO,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    bound_claim,
    bound_volume,
    claim,
    reference,
    storage_class,
    user,
    volume,
)

Object = dict[str, Any]
IN_ORDER = ["volume spec", "volume status", "claim spec", "claim status"]
EXTERNAL = (
    "PVC Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner "
    f"'{DRIVER}' or manually by the system administrator. If volume creation is delayed, please verify that the "
    "provisioner is running and correctly registered."
)
FIRST_CONSUMER = "PVC Normal WaitForFirstConsumer: waiting for first consumer to be created before binding"
NOTHING_AVAILABLE = (
    "PVC Normal FailedBinding: no persistent volumes available for this claim and no storage class is set"
)
LOST_REFERENCE = (
    "PVC Warning ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
)
LOST_VOLUME = "PVC Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!"
MISBOUND = "PVC Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly"
FULL_STATUS = {
    "accessModes": [RWO],
    "capacity": {"storage": "1Gi"},
    "currentVolumeAttributesClassName": "fast",
}


# ---- U: no bind-completed --------------------------------------------------------------------------------------------


def test_u1_a_claim_is_bound_to_the_volume_that_the_search_finds_with_four_writes_in_order():
    model = synced_claim(claim(), volume(modes=(RWO, ROX), size="2Gi"))

    bound, taken = model.claims["c"], model.volumes["v"]
    assert model.writes == IN_ORDER
    assert taken["spec"]["claimRef"] == {**reference("c", "uid-c"), "resourceVersion": "1"}
    assert annotations(taken) == {BOUND_BY_CONTROLLER: "yes"}
    assert taken["status"] == {"phase": "Bound"}
    assert bound["spec"]["volumeName"] == "v"
    assert annotations(bound) == {BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"}
    assert bound["status"] == {"phase": "Bound", "accessModes": [RWO, ROX], "capacity": {"storage": "2Gi"}}
    assert model.events == []


@pytest.mark.parametrize("done", range(5))
def test_u1_a_bind_that_ended_after_any_of_its_writes_is_continued(done: int):
    model = BinderModel(claims=[claim()], volumes=[volume()])
    for _ in range(done):
        model.step_claim()
    before = list(model.writes)
    model.settle()

    assert model.writes == IN_ORDER
    assert before == IN_ORDER[:done]
    assert model.pairs() == {"c": "v"}


def test_u2_a_claim_without_a_class_gets_the_default_one_where_no_volume_fits():
    found = synced_claim(claim(of_class=None), classes=(storage_class("std", default=True),))

    assert found.claims["c"]["spec"]["storageClassName"] == "std"
    assert found.events == [EXTERNAL]


@pytest.mark.parametrize(
    ("found", "volumes"),
    [
        (claim(of_class=""), ()),
        (claim(of_class=None, annotations={BETA_CLASS: ""}), ()),
        (claim(of_class=None, names="missing"), ()),
        (claim(of_class=None), (volume(),)),
    ],
    ids=["it wants none", "it wants none by the old key", "it names a volume", "a volume without a class fits"],
)
def test_u2_a_default_class_is_not_assigned_where(found: Object, volumes: tuple[Object, ...]):
    before = found["spec"].get("storageClassName")
    model = synced_claim(found, *volumes, classes=(storage_class("std", default=True),))

    assert model.claims["c"]["spec"].get("storageClassName") == before


def test_u3_a_claim_of_a_late_binding_class_waits_for_a_pod_though_a_volume_would_fit():
    model = synced_claim(claim(of_class="late"), volume(of_class="late"), classes=(storage_class("late", late=True),))

    assert model.writes == []
    assert model.events == [FIRST_CONSUMER]


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([user("p")], "WaitForPodScheduled: waiting for pod p to be scheduled"),
        ([user("q"), user("p")], "WaitForPodScheduled: waiting for pods p,q to be scheduled"),
        ([user("p", node="n1")], "WaitForFirstConsumer: waiting for first consumer to be created before binding"),
        ([user("p", phase="Failed")], "WaitForFirstConsumer: waiting for first consumer to be created before binding"),
    ],
    ids=["one pod", "two pods", "a pod that has a node", "a pod that ended"],
)
def test_u3_the_event_names_the_pods_that_wait_for_a_node(pods: list[Object], text: str):
    model = synced_claim(claim(of_class="late"), classes=(storage_class("late", late=True),), pods=pods)

    assert model.events == [f"PVC Normal {text}"]


@pytest.mark.parametrize("node", ["", "n1"], ids=["at once", "late, when a node is selected"])
def test_u4_a_claim_is_marked_for_its_provisioner_with_both_keys_and_its_status_is_left(node: str):
    found = claim(of_class="fast", annotations={SELECTED_NODE: node} if node else {})
    model = synced_claim(found, classes=(storage_class("fast", late=bool(node)),))

    marked = annotations(model.claims["c"])
    assert (marked[STORAGE_PROVISIONER], marked[BETA_STORAGE_PROVISIONER]) == (DRIVER, DRIVER)
    assert model.writes == ["claim spec"]
    assert model.events == [EXTERNAL]


def test_u4_a_claim_marked_for_the_provisioner_of_a_former_class_is_marked_anew_and_a_missing_old_key_is_left():
    changed = synced_claim(
        claim(of_class="fast", annotations={STORAGE_PROVISIONER: "old", BETA_STORAGE_PROVISIONER: "old"}),
        classes=(storage_class("fast"),),
    )
    kept = synced_claim(
        claim(of_class="fast", annotations={STORAGE_PROVISIONER: DRIVER}), classes=(storage_class("fast"),)
    )

    assert annotations(changed.claims["c"]) == {STORAGE_PROVISIONER: DRIVER, BETA_STORAGE_PROVISIONER: DRIVER}
    assert kept.writes == []


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ((), 'storageclass.storage.k8s.io "fast" not found'),
        (
            (storage_class("fast", provisioner="kubernetes.io/no-provisioner"),),
            "no volume plugin matched name: kubernetes.io/no-provisioner",
        ),
    ],
    ids=["the class does not exist", "the class provisions nothing"],
)
def test_u4_nobody_is_asked_to_provision_where(classes: tuple[Object, ...], text: str):
    model = synced_claim(claim(of_class="fast"), classes=classes)

    assert model.writes == []
    assert model.events == [f"PVC Warning ProvisioningFailed: {text}"]


def test_u5_a_claim_without_a_class_and_without_a_volume_is_pending():
    model = synced_claim(claim(phase="Bound", status=FULL_STATUS))

    assert model.claims["c"]["status"] == {"phase": "Pending"}
    assert model.events == [NOTHING_AVAILABLE]


def test_u6_a_claim_that_names_a_missing_volume_is_pending_without_an_event_and_never_provisioned():
    model = synced_claim(
        claim(names="v", of_class="fast", phase="Lost", status=FULL_STATUS), classes=(storage_class("fast"),)
    )

    assert model.claims["c"]["status"] == {"phase": "Pending"}
    assert annotations(model.claims["c"]) == {}
    assert model.events == []


def test_u7_a_claim_gets_the_free_volume_that_it_names():
    model = synced_claim(claim(names="v", selector={"matchLabels": {"no": "such"}}), volume(phase="Pending"))

    assert model.pairs() == {"c": "v"}
    assert annotations(model.volumes["v"]) == {BOUND_BY_CONTROLLER: "yes"}
    assert annotations(model.claims["c"]) == {BIND_COMPLETED: "yes"}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (volume(dying=True, size="1Mi"), 'the volume is marked for deletion "v"'),
        (volume(size="1Mi", of_class="other"), "requested PV is too small"),
        (volume(of_class="other", volumeMode="Block"), "storageClassName does not match"),
        (volume(volumeAttributesClassName="x", volumeMode="Block"), "volumeAttributesClassName does not match"),
        (volume(volumeMode="Block", modes=(ROX,)), "incompatible volumeMode"),
        (volume(modes=(ROX,)), "incompatible accessMode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_u7_a_free_volume_that_does_not_fit_is_refused_with_the_first_reason(found: Object, why: str):
    model = synced_claim(claim(names="v"), found)

    assert model.writes == []
    assert model.events == [f'PVC Warning VolumeMismatch: Cannot bind to requested volume "v": {why}']


@pytest.mark.parametrize("uid", ["", "uid-c"])
def test_u8_a_claim_and_a_volume_that_name_each_other_are_bound_without_any_comparison(uid: str):
    model = synced_claim(
        claim(names="v"), volume(size="1Mi", of_class="other", reserved=("c", uid), dying=True, phase="Released")
    )

    assert model.pairs() == {"c": "v"}
    assert model.volumes["v"]["spec"]["claimRef"]["uid"] == "uid-c"
    assert annotations(model.volumes["v"]) == {}
    assert annotations(model.claims["c"]) == {BIND_COMPLETED: "yes"}


def test_u9_a_volume_of_another_claim_is_waited_for():
    model = synced_claim(claim(names="v", phase="Bound"), volume(reserved=("other", "")))

    assert model.claims["c"]["status"] == {"phase": "Pending"}
    assert model.events == ['PVC Warning FailedBinding: volume "v" already bound to a different claim.']


def test_u9_a_claim_that_the_binder_had_bound_to_a_volume_of_another_claim_is_an_error_and_keeps_its_phase():
    model = synced_claim(claim(names="v", keys=(BOUND_BY_CONTROLLER,), phase="Bound"), volume(reserved=("other", "x")))

    assert model.writes == []
    assert model.events == []
    assert model.refused == [
        'invalid binding of claim "default/c" to volume "v": volume already claimed by "default/other"'
    ]


# ---- B: bind-completed -----------------------------------------------------------------------------------------------


def test_b1_a_bound_claim_whose_volume_name_or_volume_is_gone_is_lost_and_says_so_once():
    without_name = synced_claim(bound_claim(names=""))
    without_volume = synced_claim(bound_claim(status=FULL_STATUS))
    again = synced_claim(without_volume.claims["c"])

    assert without_name.events == [LOST_REFERENCE]
    assert without_volume.events == [LOST_VOLUME]
    assert without_volume.claims["c"]["status"] == {"phase": "Lost"}
    assert (again.events, again.writes) == ([], [])


def test_b1_a_claim_is_not_lost_before_the_volume_was_read_from_the_api_server():
    assert rules.next_claim_step(rules.BindingClaimFacts(bound_claim())) == rules.ReadVolume()
    behind = rules.BindingClaimFacts(bound_claim(), volume=bound_volume(), is_volume_read=True)
    assert rules.next_claim_step(behind) == rules.Wait("it is bound")


def test_b2_a_bound_claim_takes_its_volume_again_that_names_nobody_though_it_would_not_fit():
    model = synced_claim(bound_claim(phase="Lost", status={}), volume(size="1Mi", of_class="other"))

    assert model.claims["c"]["status"] == {
        "phase": "Bound",
        "accessModes": [RWO],
        "capacity": {"storage": "1Mi"},
    }
    assert model.volumes["v"]["status"]["phase"] == "Bound"


def test_b3_a_bound_pair_is_left_alone_and_what_differs_is_repaired():
    whole = synced_claim(bound_claim(), bound_volume())
    damaged = synced_claim(
        bound_claim(status={"capacity": {"storage": "7Gi"}}), bound_volume(phase="Released", modes=(RWO, ROX))
    )

    assert whole.writes == []
    assert damaged.writes == ["volume status", "claim status"]
    assert damaged.claims["c"]["status"] == {
        "phase": "Bound",
        "accessModes": [RWO, ROX],
        "capacity": {"storage": "7Gi"},
    }


@pytest.mark.parametrize("uid", ["", "uid-of-another"])
def test_b4_a_bound_claim_whose_volume_has_another_uid_or_none_is_lost(uid: str):
    model = synced_claim(bound_claim(), bound_volume(reserved=("c", uid)))

    assert model.claims["c"]["status"] == {"phase": "Lost"}
    assert model.events == [MISBOUND]


# ---- status of a bind ------------------------------------------------------------------------------------------------


def test_the_size_from_before_an_unfinished_expansion_is_the_capacity_if_it_can_be_read():
    key = "volume.alpha.kubernetes.io/pre-resize-capacity"
    sizes = [
        synced_claim(claim(), volume(size="2Gi", annotations={key: text})).claims["c"]["status"]["capacity"]["storage"]
        for text in ("1Gi", "much")
    ]

    assert sizes == ["1Gi", "2Gi"]


def test_the_class_of_attributes_reaches_the_status_from_pending_but_not_from_lost():
    with_class = {"volumeAttributesClassName": "fast"}
    pending = synced_claim(claim(**with_class), volume(**with_class))
    lost = synced_claim(bound_claim(phase="Lost", status={}, **with_class), bound_volume(**with_class))

    assert pending.claims["c"]["status"]["currentVolumeAttributesClassName"] == "fast"
    assert "currentVolumeAttributesClassName" not in lost.claims["c"]["status"]


def test_a_volume_without_a_capacity_is_an_error_before_anything_is_written():
    found = volume(reserved=("c", ""))
    found["spec"]["capacity"] = {}
    model = synced_claim(claim(names="v"), found)

    assert model.writes == []
    assert model.refused == ['PersistentVolume "v" is without a storage capacity']
