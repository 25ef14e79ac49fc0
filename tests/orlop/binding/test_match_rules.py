from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.binding.match_rules import mismatch, volume_for_binder, volume_for_scheduler
from orlop.kube import objects

RWO, ROX, RWX = "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"
KEPT = "k"


def claim(size: str = "5Gi", modes: tuple[str, ...] = (RWO,), **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": "c", "uid": "u1"},
        "spec": {"accessModes": list(modes), "resources": {"requests": {"storage": size}}, **spec},
    }


def volume(name: str, size: str = "5Gi", modes: tuple[str, ...] = (RWO,), **more: Any) -> dict[str, Any]:
    phase = more.pop("phase", "Available")
    metadata = {"name": name, **more.pop("metadata", {})}
    return {
        "metadata": metadata,
        "spec": {"capacity": {"storage": size}, "accessModes": list(modes), **more},
        "status": {"phase": phase},
    }


def reserved(uid: str | None = "u1", name: str = "c", namespace: str = "ns") -> dict[str, Any]:
    return {"claimRef": {"namespace": namespace, "name": name, **({} if uid is None else {"uid": uid})}}


def binders(wanted: dict[str, Any], *volumes: dict[str, Any], late: bool = False) -> str | None:
    chosen = volume_for_binder(wanted, volumes, is_late_binding=late)
    return None if chosen is None else objects.name(chosen)


def schedulers(wanted: dict[str, Any], *volumes: dict[str, Any], node: str = "n1", excluded: str = "") -> str | None:
    chosen = volume_for_scheduler(wanted, volumes, {"host": node}, frozenset(excluded.split()))
    return None if chosen is None else objects.name(chosen)


def on(*nodes: str) -> dict[str, Any]:
    expression = {"key": "host", "operator": "In", "values": list(nodes)}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


class TestBinder:
    def test_the_smallest_that_is_large_enough_is_taken(self):
        assert binders(claim(), volume("a", "20Gi"), volume("b", "6Gi"), volume("c", "1Gi")) == "b"

    def test_of_equal_ones_the_first_by_name_is_taken(self):
        assert binders(claim(), volume("b"), volume("a"), volume("c")) == "a"

    @pytest.mark.parametrize("uid", ["u1", None, ""])
    def test_one_reserved_for_the_claim_beats_a_smaller_one(self, uid: str | None):
        assert binders(claim(), volume("a"), volume("b", "50Gi", **reserved(uid))) == "b"

    @pytest.mark.parametrize("other", [reserved("u2"), reserved(name="d"), reserved(namespace="other")])
    def test_one_reserved_for_another_claim_is_never_taken(self, other: dict[str, Any]):
        assert binders(claim(), volume("a", **other)) is None

    def test_a_large_one_with_exactly_the_modes_beats_a_small_one_with_more(self):
        assert binders(claim(), volume("a", "6Gi", (RWO, RWX)), volume("b", "90Gi")) == "b"

    def test_one_reserved_with_more_modes_loses_to_a_free_one_with_fewer(self):
        assert binders(claim(), volume("a", modes=(RWO, RWX), **reserved()), volume("b", "90Gi")) == "b"

    @pytest.mark.parametrize("phase", ["Pending", "Failed", "Released", "Bound", ""])
    def test_only_available_ones_are_searched(self, phase: str):
        assert binders(claim(), volume("a", phase=phase)) is None
        assert binders(claim(), volume("a", phase=phase, **reserved())) == "a"

    def test_a_reserved_one_is_taken_whatever_its_class_and_the_claims_selector(self):
        wanted = claim(storageClassName="x", selector={"matchLabels": {"disk": "fast"}})
        assert binders(wanted, volume("a", storageClassName="y", **reserved())) == "a"

    @pytest.mark.parametrize(
        "unfit",
        [
            {"size": "4Gi"},
            {"volumeMode": "Block"},
            {"volumeAttributesClassName": "gold"},
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        ],
        ids=lambda unfit: next(iter(unfit)),
    )
    def test_size_mode_attributes_class_and_deletion_count_also_for_reserved_ones(self, unfit: dict[str, Any]):
        assert binders(claim(), volume("a", **{**reserved(), **unfit})) is None
        assert binders(claim(), volume("a", **unfit)) is None

    def test_the_class_must_be_the_same_and_none_is_the_empty_one(self):
        assert binders(claim(storageClassName="x"), volume("a"), volume("b", storageClassName="x")) == "b"
        assert binders(claim(storageClassName=""), volume("a")) == "a"
        assert binders(claim(), volume("a", storageClassName="x")) is None

    def test_the_beta_annotation_is_the_class_also_when_it_is_empty(self):
        beta = {"annotations": {"volume.beta.kubernetes.io/storage-class": "x"}}
        wanted = claim(storageClassName="y")
        wanted["metadata"].update(beta)
        assert binders(wanted, volume("a", storageClassName="y"), volume("b", metadata=beta)) == "b"

    def test_the_selector_decides_among_free_ones(self):
        wanted = claim(selector={"matchLabels": {"disk": "fast"}})
        assert binders(wanted, volume("a"), volume("b", "90Gi", metadata={"labels": {"disk": "fast"}})) == "b"

    def test_a_selector_that_makes_no_sense_matches_nothing(self):
        wanted = claim(selector={"matchExpressions": [{"key": "disk", "operator": "Is", "values": ["fast"]}]})
        assert binders(wanted, volume("a")) is None

    def test_a_late_binding_claim_gets_only_what_is_reserved_for_it(self):
        assert binders(claim(), volume("a"), late=True) is None
        assert binders(claim(), volume("a"), volume("b", **reserved()), late=True) == "b"

    def test_node_affinity_is_not_considered(self):
        assert binders(claim(), volume("a", **on("elsewhere"))) == "a"

    def test_a_size_that_is_no_quantity_counts_as_none(self):
        assert binders(claim(), volume("a", "much")) is None
        assert binders(claim("much"), volume("a")) == "a"


class TestScheduler:
    def test_the_smallest_usable_on_the_node_is_taken(self):
        here, there = on("n1", "n2"), on("n2")
        assert schedulers(claim(), volume("a", "5Gi", **there), volume("b", "9Gi", **here), volume("c", "20Gi")) == "b"

    def test_there_are_no_groups_of_access_modes(self):
        assert schedulers(claim(), volume("a", "6Gi", (RWO, RWX)), volume("b", "90Gi")) == "a"

    def test_modes_of_a_reserved_one_are_not_considered(self):
        assert schedulers(claim(modes=(RWX,)), volume("a", modes=(RWO,), **reserved())) == "a"
        assert schedulers(claim(modes=(RWX,)), volume("a", modes=(RWO,))) is None

    def test_where_the_reserved_one_is_not_usable_nothing_fits(self):
        assert schedulers(claim(), volume("a"), volume("b", **reserved(), **on("n2"))) is None

    def test_what_another_claim_of_the_pod_gets_is_excluded(self):
        assert schedulers(claim(), volume("a"), volume("b"), excluded="a") == "b"
        assert schedulers(claim(), volume("a"), excluded="a") is None

    def test_a_volume_for_no_node_is_usable_nowhere(self):
        nowhere = {"nodeAffinity": {"required": {"nodeSelectorTerms": []}}}
        assert schedulers(claim(), volume("a", **nowhere)) is None


class TestNamedVolume:
    @pytest.mark.parametrize(
        ("wanted", "named", "reason"),
        [
            (claim(), volume("a"), None),
            (claim(selector={"matchLabels": {"x": "y"}}), volume("a", phase="Released"), None),
            (
                claim(),
                volume("a", "1Gi", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
                'the volume is marked for deletion "a"',
            ),
            (claim(), volume("a", "1Gi", storageClassName="x"), "requested PV is too small"),
            (claim(), volume("a", storageClassName="x", volumeMode="Block"), "storageClassName does not match"),
            (
                claim(volumeAttributesClassName="gold"),
                volume("a", volumeMode="Block"),
                "volumeAttributesClassName does not match",
            ),
            (claim(), volume("a", modes=(ROX,), volumeMode="Block"), "incompatible volumeMode"),
            (claim(), volume("a", modes=(ROX,)), "incompatible accessMode"),
        ],
    )
    def test_the_first_thing_that_does_not_fit_is_named_in_kubernetes_words(
        self, wanted: dict[str, Any], named: dict[str, Any], reason: str | None
    ):
        assert mismatch(wanted, named) == reason


modes = some.lists(some.sampled_from([RWO, ROX, RWX]), min_size=1, unique=True).map(tuple)


@some.composite
def volumes(draw: Any) -> list[dict[str, Any]]:
    made = []
    for number in range(draw(some.integers(0, 6))):
        more = draw(some.sampled_from([{}, reserved(), reserved(None), reserved("u2"), {"storageClassName": "x"}]))
        phase = draw(some.sampled_from(["Available", "Released"]))
        made.append(volume(f"v{number}", f"{draw(some.integers(1, 9))}Gi", draw(modes), phase=phase, **more))
    return made


@given(volumes(), modes, some.booleans(), some.randoms())
def test_the_choice_does_not_depend_on_the_order_of_listing(made: Any, wanted: Any, late: Any, random: Any):
    shuffled = random.sample(made, len(made))

    assert binders(claim(modes=wanted), *made, late=late) == binders(claim(modes=wanted), *shuffled, late=late)
    assert schedulers(claim(modes=wanted), *made) == schedulers(claim(modes=wanted), *shuffled)


@given(volumes(), modes, some.booleans())
def test_what_the_binder_takes_is_large_enough_has_the_modes_and_is_nobody_elses(made: Any, wanted: Any, late: Any):
    chosen = volume_for_binder(claim(modes=wanted), made, is_late_binding=late)

    if chosen is not None:
        reference = chosen["spec"].get("claimRef")
        assert int(chosen["spec"]["capacity"]["storage"].removesuffix("Gi")) >= 5
        assert set(wanted) <= set(chosen["spec"]["accessModes"])
        assert reference is None or reference.get("uid", "u1") == "u1"
        assert reference is not None or (mismatch(claim(modes=wanted), chosen) is None and not late)
