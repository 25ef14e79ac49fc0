"""What a claim's data source means, and when a source may be deleted again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.sidecars.provisioner.clone_rules import (
    Clone,
    NoSource,
    Populated,
    SourceRefused,
    data_source,
    decide_source,
    may_release_source,
    source_claim_name,
)
from support.provisioning.provisioner_objects import UID, Object, claim, persistent_volume, sized
from support.provisioning.provisioner_worlds import DRIVER

CLONES = frozenset({"CLONE_VOLUME"})
FROM = {"kind": "PersistentVolumeClaim", "name": "source"}
SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
BOUND = {"phase": "Bound"}


def source(**changes: Any) -> Object:
    return claim("source", **{"volumeName": "pv", "status": BOUND, **changes})


def wanted(**changes: Any) -> Object:
    return claim("copy", **{"dataSource": FROM, **changes})


def decided(
    of: Object | None = None,
    source_claim: Object | None = None,
    volume: Object | None = None,
    capabilities: frozenset[str] = CLONES,
) -> Any:
    return decide_source(of or wanted(), source_claim or source(), volume or persistent_volume(), DRIVER, capabilities)


def test_a_bound_claim_of_the_driver_can_be_cloned():
    assert decided() == Clone("vol-1")


def test_a_larger_claim_can_be_cloned_from_a_smaller_one_and_of_another_class():
    larger = wanted(resources={"requests": {"storage": "2Gi"}}, storageClassName="slow")
    assert decided(larger) == Clone("vol-1")


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"capabilities": frozenset()}, f"the driver {DRIVER} lacks the capability CLONE_VOLUME"),
        ({"source_claim": source(status={"phase": "Pending"})}, "it is Pending, not Bound"),
        ({"source_claim": source(status={"phase": "Lost"})}, "it is Lost, not Bound"),
        ({"source_claim": source(status={})}, "it is Pending, not Bound"),
        ({"source_claim": source(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})}, "it is being deleted"),
        ({"volume": persistent_volume(csi={"driver": "x", "volumeHandle": "v"})}, "its volume is not of the driver"),
        ({"volume": persistent_volume(csi=None)}, "its volume is not of the driver"),
        ({"volume": persistent_volume(claimRef={"uid": "other"})}, "its PersistentVolume pv is bound to another claim"),
        ({"volume": persistent_volume(claimRef=None)}, "its PersistentVolume pv is bound to another claim"),
        ({"volume": persistent_volume(phase="Released")}, "its PersistentVolume pv is Released, not Bound"),
        ({"volume": persistent_volume(phase="Failed")}, "its PersistentVolume pv is Failed, not Bound"),
        ({"volume": persistent_volume(phase="")}, "its PersistentVolume pv is Pending, not Bound"),
        (
            {"source_claim": {**source(), "spec": {**sized("2Gi")["spec"], "volumeName": "pv"}}},
            "it requests 2Gi, and the new claim only 1Gi",
        ),
        ({"of": wanted(volumeMode="Block")}, "its volumeMode is Filesystem, and the new claim's Block"),
        ({"source_claim": source(volumeMode="Block")}, "its volumeMode is Block, and the new claim's Filesystem"),
    ],
)
def test_each_check_of_a_clone_has_its_sentence(facts: dict[str, Any], fault: str):
    found = decided(**facts)
    assert isinstance(found, SourceRefused)
    assert found.reason.startswith(f"the claim source cannot be cloned: {fault}")


def test_a_source_or_a_volume_that_does_not_exist_cannot_be_cloned():
    assert decide_source(wanted(), None, None, DRIVER, CLONES) == SourceRefused(
        "the claim source cannot be cloned: it does not exist"
    )
    assert decide_source(wanted(), source(), None, DRIVER, CLONES) == SourceRefused(
        "the claim source cannot be cloned: its PersistentVolume pv does not exist"
    )


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (claim(), NoSource()),
        (claim(dataSource=None, dataSourceRef=None), NoSource()),
        (claim(dataSource={"kind": "", "name": "x"}), NoSource()),
        (claim(dataSource={"apiGroup": "example.com", "kind": "Hello", "name": "x"}), Populated("Hello.example.com")),
        (claim(dataSource={"kind": "Pod", "name": "x"}), Populated("Pod")),
        (
            claim(dataSource={"apiGroup": "x.io", "kind": "PersistentVolumeClaim", "name": "x"}),
            Populated("PersistentVolumeClaim.x.io"),
        ),
        (
            claim(dataSource={"apiGroup": "x.io", "kind": "VolumeSnapshot", "name": "s"}),
            Populated("VolumeSnapshot.x.io"),
        ),
    ],
)
def test_other_kinds_are_left_to_their_populators(of: Object, expected: Any):
    assert decided(of) == expected


@pytest.mark.parametrize("field", ["dataSource", "dataSourceRef"])
def test_a_snapshot_is_refused_in_either_field(field: str):
    found = decided(claim(**{field: SNAPSHOT}))
    assert found == SourceRefused("the data source is a VolumeSnapshot; volumes from snapshots are not supported yet")


def test_the_newer_field_wins():
    assert data_source(claim(dataSource=SNAPSHOT, dataSourceRef=FROM)) == FROM
    assert source_claim_name(claim(dataSourceRef={**FROM, "apiGroup": ""})) == "source"


def test_a_source_in_another_namespace_is_refused_and_one_in_its_own_is_not():
    elsewhere = decided(claim(dataSourceRef={**FROM, "namespace": "other"}))
    assert elsewhere == SourceRefused("the data source is in another namespace, which is not supported")
    assert decided(claim(dataSourceRef={**FROM, "namespace": "team"})) == Clone("vol-1")


@pytest.mark.parametrize(
    ("others", "may_go"),
    [
        ([], True),
        ([claim("x")], True),
        ([wanted()], False),
        ([wanted(status=BOUND)], True),
        ([wanted(status={"phase": "Lost"})], False),
        ([wanted(dataSource={**FROM, "name": "another"})], True),
        ([wanted(status=BOUND), wanted(metadata={"name": "second"})], False),
        ([claim("x", dataSource={**FROM, "apiGroup": "x.io"})], True),
    ],
)
def test_a_source_is_protected_while_an_unfinished_clone_names_it(others: list[Object], *, may_go: bool):
    assert may_release_source(source(), others) is may_go


sources = some.none() | some.fixed_dictionaries(
    {},
    optional={
        "kind": some.sampled_from(["PersistentVolumeClaim", "VolumeSnapshot", "Hello", ""]),
        "apiGroup": some.sampled_from([None, "", "snapshot.storage.k8s.io", "x.io"]),
        "name": some.sampled_from(["source", ""]),
        "namespace": some.sampled_from([None, "", "team", "other"]),
    },
)
found_claims = some.none() | some.builds(
    source,
    status=some.sampled_from([{}, BOUND, {"phase": "Lost"}]),
    volumeMode=some.sampled_from([None, "Block"]),
)
found_volumes = some.none() | some.builds(
    persistent_volume,
    phase=some.sampled_from(["Bound", "Released"]),
    claimRef=some.sampled_from([None, {"uid": UID}, {"uid": "x"}]),
    csi=some.sampled_from([None, {"driver": DRIVER, "volumeHandle": "vol-1"}, {"driver": "x", "volumeHandle": "v"}]),
)


@given(sources, sources, found_claims, found_volumes)
def test_only_a_bound_volume_of_the_driver_in_the_same_namespace_is_ever_cloned(
    old: Any, new: Any, source_claim: Any, volume: Any
):
    of = claim("copy", dataSource=old, dataSourceRef=new)
    found = decide_source(of, source_claim, volume, DRIVER, CLONES)
    if isinstance(found, Clone):
        assert found.volume_id == "vol-1"
        assert source_claim["status"] == volume["status"] == BOUND
        assert volume["spec"]["claimRef"]["uid"] == UID
        assert (data_source(of) or {}).get("namespace") in {None, "", "team"}
