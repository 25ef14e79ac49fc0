"""Which volumes are deleted, and when the finalizer comes and goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.binding import claim_state_rules as state
from orlop.records.volume_order import SecretReference
from orlop.sidecars.provisioner.volume_deletion_rules import (
    DeleteObject,
    DeleteVolume,
    DeletionFacts,
    DeletionStep,
    NoVolumeStep,
    PatchFinalizers,
    RefuseDeletion,
    WaitForCalls,
    WaitForDetach,
    needs_volume,
    next_volume_step,
)
from orlop.sidecars.provisioner.volume_object_rules import DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, FINALIZER
from support.provisioning.provisioner_objects import Object, persistent_volume, storage_class
from support.provisioning.provisioner_worlds import DRIVER

DYING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
OTHERS = {"driver": "other.example.com", "volumeHandle": "vol-1"}
SECRET = "csi.storage.k8s.io/provisioner-secret"


def step(volume: Object, **facts: Any) -> DeletionStep:
    return next_volume_step(DeletionFacts(volume, DRIVER, **facts))


def released(**changes: Any) -> Object:
    return persistent_volume(**{"phase": "Released", **changes})


def finalizers_after(volume: Object, **facts: Any) -> list[str]:
    """The finalizers that the patch of this step leaves."""
    taken = step(volume, **facts)
    assert isinstance(taken, PatchFinalizers), taken
    operations = [each for each in taken.patch.operations if each["path"].startswith("/metadata/finalizers")]
    (change,) = [each for each in operations if each["op"] != "test"]
    left = list(volume["metadata"].get("finalizers") or ())
    match change["op"]:
        case "remove" if change["path"] == "/metadata/finalizers":
            return []
        case "remove":
            del left[int(change["path"].rpartition("/")[2])]
            return left
        case "add" if change["path"] == "/metadata/finalizers/-":
            return [*left, change["value"]]
        case _:
            return list(change["value"])


# ---- deleting --------------------------------------------------------------------------------------------------------


def test_a_released_volume_of_the_driver_is_deleted():
    assert step(released()) == DeleteVolume("vol-1", None)


def test_a_volume_that_another_object_needs_is_not_deleted():
    assert isinstance(step(released(), needed_by="other"), RefuseDeletion)


@pytest.mark.parametrize(
    ("phase", "policy", "needs"),
    [("Released", "Delete", False), ("Released", "Retain", True), ("Bound", "Delete", True), ("", "Delete", True)],
)
def test_an_object_needs_its_volume_unless_it_waits_for_its_deletion(phase: str, policy: str, *, needs: bool):
    assert needs_volume(persistent_volume(phase=phase, persistentVolumeReclaimPolicy=policy)) == needs


@pytest.mark.parametrize("phase", ["Bound", "Available", "Pending", "Failed", ""])
def test_a_volume_that_is_not_released_is_kept(phase: str):
    assert isinstance(step(persistent_volume(phase=phase)), NoVolumeStep)


@pytest.mark.parametrize("policy", ["Retain", "Recycle"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["before the deletion", "half-way"])
def test_a_volume_that_is_to_be_kept_loses_the_finalizer_and_nothing_else(policy: str, *, is_deleted: bool):
    volume = released(persistentVolumeReclaimPolicy=policy)
    assert finalizers_after(volume, is_deleted=is_deleted) == []
    without = released(persistentVolumeReclaimPolicy=policy, metadata={"finalizers": ["other"]})
    assert step(without) == NoVolumeStep(f"its reclaim policy is {policy}")


@pytest.mark.parametrize("policy", [None, "", "Keep"])
def test_an_unknown_policy_deletes_nothing(policy: str | None):
    assert isinstance(step(released(persistentVolumeReclaimPolicy=policy)), NoVolumeStep)


@pytest.mark.parametrize(
    ("volume", "is_ours"),
    [
        (released(), True),
        (released(annotations={state.PROVISIONED_BY: "other.example.com"}), False),
        (released(csi=OTHERS, annotations={}), False),
        (released(annotations={}), True),
        (released(annotations={state.PROVISIONED_BY: "kubernetes.io/x", state.MIGRATED_TO: DRIVER}), True),
        (released(annotations={state.PROVISIONED_BY: "kubernetes.io/x", state.MIGRATED_TO: "other"}), False),
        (released(csi=None, annotations={}, hostPath={"path": "/x"}), False),
    ],
    ids=[
        "provisioned",
        "another's",
        "another's static",
        "static of the driver",
        "migrated to it",
        "migrated",
        "no CSI",
    ],
)
def test_only_volumes_of_this_driver_are_touched(volume: Object, *, is_ours: bool):
    assert isinstance(step(volume), DeleteVolume) is is_ours
    if not is_ours:
        assert step(volume) == NoVolumeStep("another driver's volume")


@pytest.mark.parametrize("source", [None, {}, {"driver": DRIVER}, {"driver": DRIVER, "volumeHandle": ""}, OTHERS])
def test_a_volume_without_a_handle_of_the_driver_is_not_guessed_at(source: Any):
    assert step(released(csi=source)) == RefuseDeletion(
        f"persistentvolume pv has no volumeHandle of the driver {DRIVER}"
    )


def test_an_attached_volume_waits_until_it_is_detached():
    assert step(released(), attached_to="n1") == WaitForDetach("n1")


def test_nothing_is_deleted_while_a_call_may_still_create_it():
    assert step(released(), may_run_until=10.0, now=9.9) == WaitForCalls(10.0)
    assert step(released(), may_run_until=10.0, now=10.0) == DeleteVolume("vol-1", None)


def test_a_volume_whose_object_was_deleted_before_its_claim_is_kept_until_it_is_released():
    assert step(persistent_volume(metadata=DYING)) == NoVolumeStep("its phase is Bound")
    assert step(released(metadata=DYING)) == DeleteVolume("vol-1", None)


def test_a_volume_whose_finalizer_is_gone_while_it_is_deleted_was_deleted_already():
    volume = released(metadata={**DYING, "finalizers": ["other"]})
    assert step(volume) == NoVolumeStep("being deleted without our finalizer")


def test_a_released_volume_that_never_had_the_finalizer_is_deleted():
    assert step(released(metadata={"finalizers": []})) == DeleteVolume("vol-1", None)


# ---- after the deletion ----------------------------------------------------------------------------------------------


def test_the_object_goes_after_its_volume_and_the_finalizer_last():
    assert step(released(), is_deleted=True) == DeleteObject()
    assert finalizers_after(released(metadata=DYING), is_deleted=True) == []
    done = released(metadata={**DYING, "finalizers": ["other"]})
    assert isinstance(step(done, is_deleted=True), NoVolumeStep)


@pytest.mark.parametrize(("others", "resets"), [([], True), (["kubernetes.io/pv-protection"], False)])
def test_who_changed_which_field_is_dropped_only_with_the_object(others: list[str], *, resets: bool):
    dying = released(metadata={**DYING, "finalizers": [*others, FINALIZER]})
    patch = step(dying, is_deleted=True)
    assert isinstance(patch, PatchFinalizers)
    assert any(each["path"] == "/metadata/managedFields" for each in patch.patch.operations) is resets


# ---- the finalizer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotations", [{}, {state.PROVISIONED_BY: DRIVER}], ids=["static", "provisioned"])
def test_a_bound_volume_gets_the_finalizer_back(annotations: dict[str, str]):
    volume = persistent_volume(annotations=annotations, metadata={"finalizers": ["kubernetes.io/pv-protection"]})
    assert finalizers_after(volume) == ["kubernetes.io/pv-protection", FINALIZER]


@pytest.mark.parametrize(
    "changes",
    [{"phase": "Available"}, {"phase": "Released", "metadata": DYING}, {"metadata": DYING}],
    ids=["not bound", "released", "being deleted"],
)
def test_no_other_volume_gets_it(changes: dict[str, Any]):
    changes = {**changes, "metadata": {"finalizers": [], **changes.get("metadata", {})}}
    assert not isinstance(step(persistent_volume(**changes)), PatchFinalizers)


# ---- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "parameters", "secret"),
    [
        ({DELETION_SECRET_NAME: "s", DELETION_SECRET_NAMESPACE: "n"}, None, SecretReference("n", "s")),
        ({DELETION_SECRET_NAME: "", DELETION_SECRET_NAMESPACE: ""}, None, None),
        ({DELETION_SECRET_NAME: "", DELETION_SECRET_NAMESPACE: ""}, ("s", "n"), None),
        ({DELETION_SECRET_NAME: "s", DELETION_SECRET_NAMESPACE: "n"}, ("t", "m"), SecretReference("n", "s")),
        ({}, ("s-${pvc.name}", "${pvc.namespace}"), SecretReference("team", "s-data")),
        ({}, None, None),
        ({DELETION_SECRET_NAME: "s"}, None, None),
    ],
    ids=["annotations", "none", "none, whatever the class says", "not the class", "the class", "no class", "half"],
)
def test_the_secret_is_the_one_of_the_annotations_or_without_them_of_the_class(
    annotations: dict[str, str], parameters: tuple[str, str] | None, secret: SecretReference | None
):
    named = None if parameters is None else {f"{SECRET}-name": parameters[0], f"{SECRET}-namespace": parameters[1]}
    found = None if named is None else storage_class(parameters=named)
    volume = released(annotations={state.PROVISIONED_BY: DRIVER, **annotations})
    assert step(volume, storage_class=found) == DeleteVolume("vol-1", secret)


def test_a_class_whose_secret_cannot_be_resolved_refuses_the_deletion():
    template = {f"{SECRET}-name": "${pvc.annotations['a']}", f"{SECRET}-namespace": "n"}
    refused = step(released(annotations={}), storage_class=storage_class(parameters=template))
    assert isinstance(refused, RefuseDeletion)


# ---- anything --------------------------------------------------------------------------------------------------------

volumes = some.builds(
    persistent_volume,
    phase=some.sampled_from(["Bound", "Released", "Available", ""]),
    persistentVolumeReclaimPolicy=some.sampled_from(["Delete", "Retain", "Recycle", None]),
    csi=some.sampled_from([None, {"driver": DRIVER, "volumeHandle": "vol-1"}, OTHERS]),
    annotations=some.dictionaries(
        some.sampled_from([state.PROVISIONED_BY, state.MIGRATED_TO]), some.sampled_from([DRIVER, "other"])
    ),
    metadata=some.fixed_dictionaries(
        {"finalizers": some.lists(some.sampled_from([FINALIZER, "other"]), unique=True)},
        optional={"deletionTimestamp": some.just("2026-01-01T00:00:00Z")},
    ),
)


@given(
    volume=volumes,
    attached_to=some.sampled_from(["", "n1"]),
    is_deleted=some.booleans(),
    running=some.floats(0, 10),
    now=some.floats(0, 10),
)
def test_a_volume_is_deleted_only_when_everything_allows_it(
    *, volume: Object, attached_to: str, is_deleted: bool, running: float, now: float
):
    taken = step(volume, attached_to=attached_to, is_deleted=is_deleted, may_run_until=running, now=now)
    if isinstance(taken, DeleteVolume):
        assert volume["status"]["phase"] == "Released"
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        assert volume["spec"]["csi"] == {"driver": DRIVER, "volumeHandle": taken.handle}
        assert not attached_to
        assert now >= running
        assert not is_deleted
        assert FINALIZER in volume["metadata"]["finalizers"] or "deletionTimestamp" not in volume["metadata"]
    if isinstance(taken, DeleteObject):
        assert is_deleted
