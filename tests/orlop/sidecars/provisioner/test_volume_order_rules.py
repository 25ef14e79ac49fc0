"""What becomes an order, and the sentence for everything that does not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from orlop.binding import claim_state_rules as state
from orlop.binding.topology_rules import NoTopology, NotPlaceable, RequestedTopology
from orlop.records.volume_order import SecretReference, TopologyRequest, VolumeOrder
from orlop.sidecars.provisioner.clone_rules import Clone, NoSource, Populated, SourceRefused
from orlop.sidecars.provisioner.volume_order_rules import (
    LeaveClaim,
    OrderDecision,
    OrderFacts,
    PlaceOrder,
    RefuseClaim,
    ReturnToScheduler,
    decide_order,
    volume_name,
    why_not_wanted,
)
from support.provisioning.provisioner_objects import SETTINGS, UID, Object, claim, sized, storage_class
from support.provisioning.provisioner_worlds import DRIVER

CAPABLE = frozenset({"CREATE_DELETE_VOLUME", "MODIFY_VOLUME"})
LATE = storage_class(volumeBindingMode="WaitForFirstConsumer")
SELECTED = {state.SELECTED_NODE: "n1"}
MODIFIED = {"volumeAttributesClassName": "gold"}
GOLD = {"metadata": {"name": "gold"}, "driverName": DRIVER, "parameters": {"iops": "100", "a": "b"}}


def decision(of: Object | None = None, settings: Any = SETTINGS, **facts: Any) -> OrderDecision:
    usual = OrderFacts(storage_class(), None, NoSource(), NoTopology("none"), CAPABLE)
    return decide_order(claim() if of is None else of, replace(usual, **facts), settings)


def ordered(of: Object | None = None, settings: Any = SETTINGS, **facts: Any) -> VolumeOrder:
    decided = decision(of, settings, **facts)
    assert isinstance(decided, PlaceOrder), decided
    return decided.order


# ---- which claims are looked at --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (claim(), None),
        (claim(annotations={state.STORAGE_PROVISIONER: "", state.BETA_STORAGE_PROVISIONER: DRIVER}), None),
        (claim(volumeName="pv"), "the claim names a volume"),
        (claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "the claim is being deleted"),
        (claim(annotations={state.STORAGE_PROVISIONER: "other"}), "the claim is not marked for this driver"),
        (claim(metadata={"annotations": None}), "the claim is not marked for this driver"),
        (
            claim(annotations={state.STORAGE_PROVISIONER: "other", state.BETA_STORAGE_PROVISIONER: DRIVER}),
            "the claim is not marked for this driver",
        ),
        ({}, "the claim is not marked for this driver"),
    ],
    ids=["marked", "beta mark", "has a volume", "dying", "another's", "unmarked", "the newer mark wins", "empty"],
)
def test_a_claim_is_wanted_when_it_is_marked_lives_and_names_no_volume(of: Object, reason: str | None):
    assert why_not_wanted(of, DRIVER) == reason


@pytest.mark.parametrize(
    ("of", "is_left"),
    [
        (claim(), True),
        (claim(annotations={state.SELECTED_NODE: ""}), True),
        (claim(annotations={state.ALPHA_SELECTED_NODE: "n1"}), True),
        (claim(annotations={state.SELECTED_NODE: "", state.ALPHA_SELECTED_NODE: "n1"}), True),
        (claim(annotations=SELECTED), False),
    ],
    ids=["no node", "empty", "alpha key alone", "alpha key and an empty one", "node"],
)
def test_a_late_binding_claim_is_left_alone_until_the_current_key_names_a_node(of: Object, *, is_left: bool):
    decided = decision(of, storage_class=LATE)
    assert isinstance(decided, LeaveClaim) == is_left
    assert isinstance(decided, PlaceOrder) != is_left


def test_an_immediate_claim_needs_no_node_and_keeps_one_that_it_has():
    assert ordered().selected_node == ""
    assert ordered(claim(annotations=SELECTED)).selected_node == "n1"


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "facts", "sentence"),
    [
        (claim(), {"storage_class": None}, 'storageclass.storage.k8s.io "fast" not found'),
        (claim(), {"storage_class": storage_class(provisioner="")}, "the StorageClass fast names no provisioner"),
        (claim(), {"capabilities": frozenset()}, f"the driver {DRIVER} cannot create volumes: it lacks the capability"),
        (claim(selector={"matchLabels": {}}), {}, "claim Selector is not supported"),
        (claim(selector={}), {}, "claim Selector is not supported"),
        (claim(), {"source": SourceRefused("because")}, "because"),
        (claim(), {"topology": NotPlaceable("nowhere")}, "nowhere"),
        (claim(**MODIFIED), {}, "the VolumeAttributesClass gold does not exist or cannot be read"),
        (
            claim(**MODIFIED),
            {"attributes_class": GOLD, "capabilities": CAPABLE - {"MODIFY_VOLUME"}},
            "the claim names the VolumeAttributesClass gold, and the driver lacks the capability MODIFY_VOLUME",
        ),
        (
            claim(**MODIFIED),
            {"attributes_class": {**GOLD, "driverName": "other"}},
            f"the VolumeAttributesClass gold is for the driver other, not for {DRIVER}",
        ),
        (sized("0"), {}, "the claim requests 0 bytes; a volume has at least 1 and at most 9223372036854775807"),
        (sized("-1Gi"), {}, "the claim requests -1073741824 bytes"),
        (sized(str(2**63)), {}, f"the claim requests {2**63} bytes"),
        (sized("much"), {}, "the claim's resources.requests.storage is missing or not a quantity"),
        (sized(None), {}, "the claim's resources.requests.storage is missing or not a quantity"),
        (claim(resources=None), {}, "the claim's resources.requests.storage is missing or not a quantity"),
        (claim(accessModes=[]), {}, "the claim has the access modes none; known are ReadWriteOnce, ReadWriteOncePod"),
        (claim(accessModes=None), {}, "the claim has the access modes none"),
        (claim(accessModes=["ReadWriteOnce", "Often"]), {}, "the claim has the access modes ReadWriteOnce, Often;"),
    ],
)
def test_each_refusal_has_its_sentence(of: Object, facts: dict[str, Any], sentence: str):
    decided = decision(of, **facts)
    assert isinstance(decided, RefuseClaim)
    assert decided.reason.startswith(sentence)


@pytest.mark.parametrize(
    "parameters",
    [
        {"csi.storage.k8s.io/unknown": "x"},
        {"csi.storage.k8s.io/provisioner-secret-name": "s"},
        {"csi.storage.k8s.io/fstype": "ext4", "fsType": "xfs"},
    ],
    ids=["unknown reserved key", "half a pair", "two file systems"],
)
def test_a_class_with_wrong_parameters_is_refused_before_anything_is_created(parameters: dict[str, str]):
    decided = decision(storage_class=storage_class(parameters=parameters))
    assert isinstance(decided, RefuseClaim)
    assert next(iter(parameters)) in decided.reason


def test_a_class_that_was_created_again_for_another_driver_is_left_to_that():
    decided = decision(storage_class=storage_class(provisioner="other.example.com"))
    assert isinstance(decided, LeaveClaim)
    assert "other.example.com" in decided.reason


def test_a_claim_with_a_populator_is_left_to_it_and_its_user_is_told():
    decided = decision(source=Populated("Hello.example.com"))
    assert decided == LeaveClaim(
        "the data source is a Hello.example.com, for which a volume populator provides the volume",
        "Assuming an external populator will provision the volume",
    )


def test_a_node_that_cannot_be_used_goes_back_to_the_scheduler():
    decided = decision(topology=NotPlaceable("its CSINode is gone", reschedule=True))
    assert decided == ReturnToScheduler("its CSINode is gone")


# ---- orders ----------------------------------------------------------------------------------------------------------


def test_an_order_holds_what_claim_and_class_say():
    terms = storage_class(
        parameters={"type": "ssd", "csi.storage.k8s.io/fstype": "xfs"},
        mountOptions=["noatime", "discard"],
        reclaimPolicy="Retain",
    )
    order = ordered(claim(volumeMode="Block", accessModes=["ReadWriteMany", "ReadOnlyMany"]), storage_class=terms)

    assert (order.claim.namespace, order.claim.name, order.claim.uid) == ("team", "data", UID)
    assert (order.volume_name, order.size_bytes, order.volume_mode) == (f"pvc-{UID}", 1 << 30, "Block")
    assert order.access_modes == ("ReadWriteMany", "ReadOnlyMany")
    assert (order.storage.name, order.storage.uid) == ("fast", "class-1")
    assert order.storage.parameters == (("type", "ssd"),)
    assert (order.storage.fs_type, order.storage.reclaim_policy) == ("xfs", "Retain")
    assert order.storage.mount_options == ("noatime", "discard")


def test_a_class_without_a_policy_deletes_and_one_without_a_file_system_has_the_default():
    storage = ordered(settings=replace(SETTINGS, default_fs_type="ext4")).storage
    assert (storage.reclaim_policy, storage.fs_type) == ("Delete", "ext4")


def test_an_attributes_class_gives_the_mutable_parameters():
    order = ordered(claim(**MODIFIED), attributes_class=GOLD)
    assert order.attributes_class == "gold"
    assert order.storage.mutable_parameters == (("a", "b"), ("iops", "100"))


def test_an_empty_name_of_an_attributes_class_is_none():
    assert ordered(claim(volumeAttributesClassName="")).attributes_class == ""


def test_a_clone_names_its_source_and_topology_is_copied():
    requested = RequestedTopology(((("zone", "a"),),), ((("zone", "a"),),))
    order = ordered(source=Clone("vol-7"), topology=requested)
    assert order.source_volume_id == "vol-7"
    assert order.placement == TopologyRequest(requested.requisite, requested.preferred)


def test_the_secrets_of_the_class_are_resolved_and_stored_by_name():
    prefix = "csi.storage.k8s.io"
    parameters = {f"{prefix}/secret-name": "s-${pvc.name}", f"{prefix}/secret-namespace": "${pvc.namespace}"}
    order = ordered(storage_class=storage_class(parameters=parameters))
    assert len(order.secrets) == 7
    assert {reference for _, reference in order.secrets} == {SecretReference("team", "s-data")}
    assert order.storage.parameters == ()


@pytest.mark.parametrize(
    ("modes", "is_set", "read_only"),
    [
        (["ReadOnlyMany"], True, True),
        (["ReadOnlyMany"], False, False),
        (["ReadOnlyMany", "ReadWriteMany"], True, False),
        (["ReadWriteOnce"], True, False),
    ],
)
def test_only_a_claim_that_only_reads_is_read_only_and_only_with_the_flag(
    modes: list[str], *, is_set: bool, read_only: bool
):
    order = ordered(claim(accessModes=modes), replace(SETTINGS, publish_read_only=is_set))
    assert order.read_only is read_only


@pytest.mark.parametrize("size", ["1", "1Gi", "1.5Gi", "1e3", "100m", "8Ei", str(2**63 - 1)])
def test_a_size_is_rounded_up_to_whole_bytes(size: str):
    expected = {
        "1": 1,
        "1Gi": 1 << 30,
        "1.5Gi": 3 << 29,
        "1e3": 1000,
        "100m": 1,
        "8Ei": 2**63 - 1,
        str(2**63 - 1): 2**63 - 1,
    }
    assert ordered(sized(size)).size_bytes == expected[size]


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "length", "name"),
    [
        ("pvc", -1, f"pvc-{UID}"),
        ("kubernetes-dynamic", -1, f"kubernetes-dynamic-{UID}"),
        ("pvc", 32, "pvc-11111111222233334444555555555555"),
        ("pvc", 10, "pvc-1111111122"),
        ("pvc", 1, "pvc-1"),
    ],
)
def test_a_volume_is_named_by_the_prefix_and_the_uid(prefix: str, length: int, name: str):
    assert volume_name(UID, prefix, length) == name
    settings = replace(SETTINGS, volume_name_prefix=prefix, volume_name_uuid_length=length)
    assert ordered(settings=settings).volume_name == name


@given(some.uuids().map(str), some.uuids().map(str), some.sampled_from([-1, 32]))
def test_whole_uids_give_different_names(one: str, other: str, length: int):
    assume(one != other)
    assert volume_name(one, "pvc", length) != volume_name(other, "pvc", length)


@given(some.uuids().map(str), some.integers(1, 32))
def test_a_cut_name_has_as_many_characters_of_the_uid_as_asked_for(uid: str, length: int):
    assert re.fullmatch(rf"pvc-[0-9a-f]{{{length}}}", volume_name(uid, "pvc", length))


# ---- anything at all -------------------------------------------------------------------------------------------------

anything = some.none() | some.booleans() | some.integers() | some.text(max_size=4) | some.just([]) | some.just({})
fields = some.sampled_from(
    [
        "accessModes",
        "resources",
        "storageClassName",
        "volumeMode",
        "selector",
        "volumeAttributesClassName",
        "volumeName",
    ]
)
class_fields = some.sampled_from(["parameters", "mountOptions", "reclaimPolicy", "volumeBindingMode", "provisioner"])


@given(some.dictionaries(fields, anything), some.dictionaries(class_fields, anything))
def test_no_claim_and_no_class_breaks_the_rules_and_every_order_can_be_asked_for(
    changes: dict[str, Any], class_changes: dict[str, Any]
):
    of = claim(**changes)
    why_not_wanted(of, DRIVER)
    decided = decision(of, storage_class=storage_class(**class_changes))
    if isinstance(decided, PlaceOrder):
        assert 0 < decided.order.size_bytes < 2**63
        assert decided.order.access_modes
    else:
        assert decided.reason
