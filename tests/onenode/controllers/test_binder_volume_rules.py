"""Every state of a volume (V) leads to the step that Kubernetes takes; tests are named after the rows of the table."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.controllers import binder_rules as rules
from support.provisioning.binder_model import BinderModel, annotations, synced_volume
from support.provisioning.binding_objects import (
    BOUND_BY_CONTROLLER,
    DRIVER,
    MIGRATED_TO,
    PROVISIONED_BY,
    bound_claim,
    bound_volume,
    claim,
    reference,
    user,
    volume,
)

Object = dict[str, Any]
LOCAL = {"local": {"path": "/mnt/a"}}
MODES = "due to incompatible volumeMode."


def test_v0_the_annotation_of_a_migrated_volume_is_left_as_it_is():
    model = synced_volume(volume(annotations={MIGRATED_TO: "x.csi", PROVISIONED_BY: "kubernetes.io/x"}))

    assert model.writes == []


@pytest.mark.parametrize("phase", ["", "Pending", "Bound", "Released", "Failed"])
@pytest.mark.parametrize("reserved", [None, ("c", "")])
def test_v1_a_volume_without_a_claim_or_without_its_uid_is_available(phase: str, reserved: tuple[str, str] | None):
    model = synced_volume(volume(phase=phase, reserved=reserved, message="it failed"))

    assert model.volumes["v"]["status"] == {"phase": "Available"}


def test_v2_a_claim_that_the_cache_lacks_is_read_before_the_volume_is_released():
    assert rules.next_volume_step(rules.BindingVolumeFacts(bound_volume())) == rules.ReadClaim()
    found = synced_volume(bound_volume(), in_api=[bound_claim()])
    gone = synced_volume(bound_volume())

    assert found.writes == []
    assert gone.volumes["v"]["status"]["phase"] == "Released"


@pytest.mark.parametrize("phase", ["Released", "Failed"])
def test_v2_a_volume_that_is_released_already_does_not_ask_again(phase: str):
    step = rules.next_volume_step(rules.BindingVolumeFacts(bound_volume(phase=phase)))

    assert step == rules.Wait("it is retained")


@pytest.mark.parametrize("phase", ["Bound", "Released", "Failed"])
def test_v3_a_claim_of_another_uid_is_read_in_every_phase(phase: str):
    old = bound_claim(uid="uid-of-another")
    step = rules.next_volume_step(rules.BindingVolumeFacts(bound_volume(phase=phase), claim=old))
    newer = synced_volume(bound_volume(phase=phase), old, in_api=[bound_claim()])

    assert step == rules.ReadClaim()
    assert newer.volumes["v"]["status"]["phase"] == "Bound"


def test_v4_a_volume_whose_claim_is_gone_or_is_another_is_released():
    gone = synced_volume(bound_volume())
    another = synced_volume(bound_volume(), claim(uid="uid-of-another"))

    assert gone.volumes["v"]["status"]["phase"] == "Released"
    assert another.volumes["v"]["status"]["phase"] == "Released"
    assert another.volumes["v"]["spec"]["claimRef"]["uid"] == "uid-c"


def test_v4_a_failure_to_reclaim_is_not_overwritten():
    model = synced_volume(bound_volume(phase="Failed", policy="Delete", message="why", source={"local": {}}))

    assert model.writes == []
    assert model.volumes["v"]["status"] == {"phase": "Failed", "message": "why"}


def test_v5_a_volume_whose_claim_does_not_name_it_yet_keeps_its_phase_and_waits_for_the_claim():
    model = BinderModel(claims=[claim()], volumes=[volume(reserved=("c", "uid-c"), phase="Pending")])
    model.sync_volume()
    written = list(model.writes)
    model.sync_claim()

    assert written == []
    assert model.pairs() == {"c": "v"}


def test_v5_a_volume_of_another_mode_is_not_bound_and_both_are_warned():
    model = synced_volume(volume(reserved=("c", "uid-c"), volumeMode="Block"), claim())

    assert model.events == [
        f'PV Warning VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim "c" {MODES}',
        f'PVC Warning VolumeMismatch: Cannot bind PersistentVolume "v" to requested PersistentVolumeClaim {MODES}',
    ]


@pytest.mark.parametrize("phase", ["Pending", "Available", "Released", "Failed"])
def test_v6_a_volume_that_its_claim_names_is_bound_from_any_phase(phase: str):
    model = synced_volume(bound_volume(phase=phase), bound_claim())

    assert model.volumes["v"]["status"]["phase"] == "Bound"


def test_v7_a_provisioned_volume_whose_claim_is_bound_elsewhere_is_released_for_its_provisioner():
    surplus = bound_volume(policy="Delete", annotations={PROVISIONED_BY: DRIVER}, keys=())
    model = synced_volume(surplus, bound_claim(volume="other"))

    assert model.volumes["v"]["status"]["phase"] == "Released"
    assert model.volumes["v"]["spec"]["claimRef"]["uid"] == "uid-c"


@pytest.mark.parametrize(
    ("found", "left"),
    [
        (bound_volume(), None),
        (bound_volume(keys=()), reference("c")),
        (bound_volume(annotations={PROVISIONED_BY: DRIVER}), None),
    ],
    ids=["chosen by the binder", "reserved by its owner", "provisioned, but retained"],
)
def test_v8_a_volume_whose_claim_is_bound_elsewhere_is_available_again(found: Object, left: Object | None):
    model = synced_volume(found, bound_claim(volume="other"))

    assert model.volumes["v"]["status"]["phase"] == "Available"
    assert model.volumes["v"]["spec"].get("claimRef") == left
    assert BOUND_BY_CONTROLLER not in annotations(model.volumes["v"])


# ---- reclaiming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found",
    [
        volume(policy="Retain"),
        volume(policy="Delete"),
        volume(policy="Delete", source=LOCAL, annotations={PROVISIONED_BY: DRIVER}),
        volume(policy="Recycle", source=LOCAL, annotations={MIGRATED_TO: "x.csi"}),
        volume(policy="Delete", dying=True),
    ],
    ids=["retained", "of a CSI driver", "of another provisioner", "migrated", "being deleted"],
)
def test_a_volume_stays_released_that_is(found: Object):
    found["spec"]["claimRef"] = reference("c", "uid-c")
    model = synced_volume(found)

    assert model.volumes["v"]["status"] == {"phase": "Released"}
    assert model.events == []


@pytest.mark.parametrize(
    ("found", "reason", "text"),
    [
        (
            volume(policy="Delete", source=LOCAL),
            "VolumeFailedDelete",
            'error getting deleter volume plugin for volume "v": no volume plugin matched',
        ),
        (
            volume(policy="Delete", annotations={PROVISIONED_BY: "kubernetes.io/x"}),
            "VolumeFailedDelete",
            "no volume plugin matched name: kubernetes.io/x",
        ),
        (volume(policy="Recycle"), "VolumeFailedRecycle", "No recycler plugin found for the volume!"),
        (
            volume(policy="Shred"),
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        ),
    ],
    ids=["nobody provisioned it", "an in-tree driver did", "Recycle", "unknown policy"],
)
def test_a_volume_that_nobody_can_reclaim_fails_with_the_reason_once(found: Object, reason: str, text: str):
    found["spec"]["claimRef"] = reference("c", "uid-c")
    model = synced_volume(found)
    model.sync_volume()

    assert model.volumes["v"]["status"] == {"phase": "Failed", "message": text}
    assert model.events == [f"PV Warning {reason}: {text}"]


# ---- pods ------------------------------------------------------------------------------------------------------------


def test_a_pod_that_is_being_deleted_has_ended_when_none_of_its_containers_runs():
    dying, running = user("p"), user("q")
    for pod, state in ((dying, {"terminated": {}}), (running, {"running": {}})):
        pod["metadata"]["deletionTimestamp"] = "2026-08-01T12:00:00Z"
        pod["status"]["containerStatuses"] = [{"state": state}]

    assert rules.using_pods([dying, running]) == ("default/q",)
    assert rules.waiting_pods([dying, running]) == ("q",)
