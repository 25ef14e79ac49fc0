from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.binding.node_affinity_rules import node_selector_matches
from orlop.binding.topology_rules import (
    MOST_TERMS,
    NoTopology,
    NotPlaceable,
    RequestedTopology,
    SelectedNode,
    TopologyMode,
    contains,
    flattened,
    immediate_topology,
    late_topology,
    node_affinity,
    spread_index,
    term_of,
    topology_faults,
    topology_keys,
    why_too_many_terms,
)

DRIVER = "csi.example.com"
ZONE, RACK = "example.com/zone", "example.com/rack"
STRICT, LATE = TopologyMode(strict=True), TopologyMode()


def node(name: str, **values: str) -> dict[str, Any]:
    labels = {ZONE: values["zone"], **({RACK: values["rack"]} if "rack" in values else {})} if values else {}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}}


def csi_node(name: str, *keys: str, driver: str = DRIVER) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"drivers": [{"name": driver, "topologyKeys": list(keys)}]}}


def in_zones(*zones: str) -> list[dict[str, Any]]:
    return [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}]


def zone(name: str) -> tuple[tuple[str, str], ...]:
    return ((ZONE, name),)


NODES = [node("n1", zone="a"), node("n2", zone="b"), node("n3", zone="c"), node("n4", zone="b")]
CSI_NODES = [csi_node(f"n{number}", ZONE) for number in range(1, 5)]


def late(of: int, allowed: Sequence[Mapping[str, Any]] = (), mode: TopologyMode = LATE) -> Any:
    return late_topology(DRIVER, SelectedNode(f"n{of}", NODES[of - 1], CSI_NODES[of - 1]), allowed, NODES, mode)


def immediate(
    claim: str = "data", allowed: Sequence[Mapping[str, Any]] = (), mode: TopologyMode = LATE, nodes: Any = NODES
) -> Any:
    return immediate_topology(DRIVER, claim, allowed, nodes, CSI_NODES, mode)


class TestLateBinding:
    def test_the_selected_node_is_preferred_and_every_topology_of_the_cluster_is_requisite(self):
        decision = late(2)

        assert decision.requisite == (zone("a"), zone("b"), zone("c"))
        assert decision.preferred == (zone("b"), zone("c"), zone("a"))

    def test_the_topologies_the_class_allows_are_requisite(self):
        decision = late(2, in_zones("c", "b"))

        assert decision.requisite == (zone("b"), zone("c"))
        assert decision.preferred == (zone("b"), zone("c"))

    def test_strict_asks_for_the_selected_node_alone(self):
        assert late(3, mode=STRICT) == RequestedTopology((zone("c"),), (zone("c"),))
        assert late(3, in_zones("a", "c"), STRICT) == RequestedTopology((zone("c"),), (zone("c"),))

    @pytest.mark.parametrize("mode", [STRICT, LATE])
    def test_a_node_that_the_class_does_not_allow_gives_the_claim_back_to_the_scheduler(self, mode: TopologyMode):
        decision = late(1, in_zones("b", "c"), mode)

        assert isinstance(decision, NotPlaceable)
        assert decision.reschedule
        assert '"n1" is not in the class' in decision.reason

    def test_a_node_that_is_gone_gives_the_claim_back_to_the_scheduler(self):
        for selected in (SelectedNode("n9", None, CSI_NODES[0]), SelectedNode("n9", NODES[0], None)):
            decision = late_topology(DRIVER, selected, (), NODES, LATE)

            assert isinstance(decision, NotPlaceable)
            assert decision.reschedule

    @pytest.mark.parametrize("allowed", [(), in_zones("a")], ids=["all", "allowed"])
    @pytest.mark.parametrize("mode", [STRICT, LATE])
    def test_a_node_on_which_the_driver_is_not_registered_is_waited_for(self, mode: TopologyMode, allowed: Any):
        for entry in (csi_node("n1"), csi_node("n1", ZONE, driver="other"), {"metadata": {"name": "n1"}}):
            decision = late_topology(DRIVER, SelectedNode("n1", NODES[0], entry), allowed, NODES, mode)

            assert isinstance(decision, NotPlaceable)
            assert not decision.reschedule
            assert 'no topology keys on CSINode "n1"' in decision.reason

    def test_a_node_whose_labels_are_not_there_yet_is_waited_for(self):
        selected = SelectedNode("n1", node("n1"), csi_node("n1", ZONE))

        decision = late_topology(DRIVER, selected, (), NODES, LATE)

        assert isinstance(decision, NotPlaceable)
        assert not decision.reschedule
        assert ZONE in decision.reason

    def test_a_class_that_names_a_zone_allows_a_node_with_a_finer_topology(self):
        here = node("n1", zone="a", rack="r1")
        selected = SelectedNode("n1", here, csi_node("n1", ZONE, RACK))

        strict = late_topology(DRIVER, selected, in_zones("a"), [here], STRICT)
        loose = late_topology(DRIVER, selected, in_zones("a", "b"), [here], LATE)

        assert strict.requisite == (((RACK, "r1"), (ZONE, "a")),)
        assert loose.requisite == loose.preferred == (zone("a"), zone("b"))


class TestImmediateBinding:
    def test_every_topology_of_the_cluster_is_requisite_once(self):
        assert immediate().requisite == (zone("a"), zone("b"), zone("c"))

    def test_without_immediate_topology_only_what_the_class_allows_is_sent(self):
        mode = TopologyMode(immediate=False)

        assert isinstance(immediate(mode=mode), NoTopology)
        assert immediate(allowed=in_zones("a"), mode=mode).requisite == (zone("a"),)

    def test_a_node_with_the_driver_is_waited_for(self):
        for decision in (immediate(nodes=[node("n1")]), immediate_topology(DRIVER, "data", (), NODES, [], LATE)):
            assert isinstance(decision, NotPlaceable)
            assert not decision.reschedule
            assert DRIVER in decision.reason

    def test_a_class_that_allows_topologies_waits_for_no_node(self):
        decision = immediate_topology(DRIVER, "data", in_zones("a"), NODES, [], LATE)

        assert decision.requisite == (zone("a"),)

    def test_allowed_topologies_without_an_expression_allow_every_place(self):
        assert isinstance(immediate(allowed=[{}]), NoTopology)

    def test_members_of_a_stateful_set_go_round_the_topologies_one_after_the_other(self):
        firsts = [immediate(f"data-web-{member}").preferred[0] for member in range(6)]

        assert firsts[:3] == firsts[3:]
        assert set(firsts) == {zone("a"), zone("b"), zone("c")}

    def test_the_claims_of_one_member_stay_together(self):
        assert immediate("data-web-4").preferred == immediate("logs-web-4").preferred

    @pytest.mark.parametrize(
        ("claim", "count", "index"),
        [
            ("", 7, 2166136261 % 7),
            # FNV-1 (not 1a) of 32 bits, as published: "a" is 0x050c5d7e, "foobar" is 0x31f0b262.
            ("a", 1000, 0x050C5D7E % 1000),
            ("foobar", 1000, 0x31F0B262 % 1000),
            ("data-foobar-3", 1000, (0x31F0B262 + 3) % 1000),
            ("foobar-3", 1000, (0x31F0B262 + 3) % 1000),
            ("data-foobar-x3", 1000, spread_index("data-foobar-x3", 1000)),
            ("foobar-4294967295", 1000, (0x31F0B262 + 4294967295) % 2**32 % 1000),
        ],
    )
    def test_the_index_is_the_one_external_provisioner_computes(self, claim: str, count: int, index: int):
        assert spread_index(claim, count) == index

    def test_an_ordinal_of_more_than_32_bits_is_part_of_the_name(self):
        assert spread_index("foobar-4294967296", 10**6) != (0x31F0B262 + 4294967296) % 2**32 % 10**6


terms = some.dictionaries(some.sampled_from([ZONE, RACK]), some.sampled_from("abc"), min_size=1)


@given(nodes=some.lists(some.sampled_from("abcd"), min_size=1, max_size=6), claim=some.from_regex(r"\A[a-z-]{1,12}\Z"))
def test_preferred_is_a_rotation_of_requisite_and_the_order_of_nodes_does_not_matter(nodes: list[str], claim: str):
    made = [node(f"n{number}", zone=name) for number, name in enumerate(nodes)]
    keyed = [csi_node(f"n{number}", ZONE) for number in range(len(nodes))]

    decision = immediate_topology(DRIVER, claim, (), made, keyed, LATE)
    again = immediate_topology(DRIVER, claim, (), made[::-1], keyed[::-1], LATE)

    assert isinstance(decision, RequestedTopology)
    assert sorted(decision.preferred) == list(decision.requisite)
    assert again == decision


@given(entries=some.lists(terms, max_size=4), labels=terms)
def test_a_volume_is_usable_where_one_entry_of_the_answer_holds(entries: list[dict[str, str]], labels: dict[str, str]):
    affinity = node_affinity(entries)

    usable = not entries or any(labels.items() >= entry.items() for entry in entries)
    required = None if affinity is None else affinity["required"]
    assert node_selector_matches(required, labels, fields=None) == usable


@given(some.dictionaries(some.sampled_from([ZONE, RACK, "k"]), some.sampled_from("ab"), min_size=1))
def test_a_term_contains_itself_and_every_part_of_itself(labels: dict[str, str]):
    own = tuple(sorted(labels.items()))

    assert contains(own, own)
    assert contains(own, own[1:])


def test_a_class_with_two_keys_of_two_values_allows_four_terms():
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}, {"key": RACK, "values": ["1", "2"]}]}]

    assert sorted(flattened(allowed)) == [((RACK, rack), (ZONE, name)) for rack in "12" for name in "ab"]


def test_a_term_of_a_class_without_requirements_allows_nothing():
    assert flattened([{}, {"matchLabelExpressions": []}]) == []
    assert flattened([{"matchLabelExpressions": [{"key": ZONE, "values": []}]}]) == []


def of_two_keys(zones: int, racks: int) -> list[dict[str, Any]]:
    """Return allowedTopologies of `zones` times `racks` terms; the values are those of NODES and others."""
    values = ["a", *map(str, range(zones - 1))]
    return [
        {
            "matchLabelExpressions": [
                {"key": ZONE, "values": values},
                {"key": RACK, "values": [str(rack) for rack in range(racks)]},
            ]
        }
    ]


def test_a_class_that_allows_more_terms_than_any_cluster_has_is_refused_by_their_number():
    too_many = NotPlaceable("the class's allowedTopologies combine to 10100 topologies; at most 10000 are supported")

    assert [late(1, of_two_keys(101, 100)), immediate(allowed=of_two_keys(101, 100))] == [too_many, too_many]
    assert late(1, of_two_keys(101, 100), STRICT) == too_many
    assert len(immediate(allowed=of_two_keys(100, 100)).requisite) == MOST_TERMS


def test_terms_are_counted_over_all_entries_and_none_is_built():
    # 300 ** 40 terms: no machine could build them.
    keys = [{"key": f"k{number}", "values": list(map(str, range(300)))} for number in range(40)]

    assert f"combine to {300**40} topologies" in (why_too_many_terms([{"matchLabelExpressions": keys}]) or "")
    assert why_too_many_terms(in_zones("a", "b") * (MOST_TERMS // 2)) is None
    assert why_too_many_terms(in_zones("a", "b") * (MOST_TERMS // 2 + 1)) is not None
    assert why_too_many_terms([{}, *in_zones()] * MOST_TERMS) is None


def test_keys_are_those_of_the_driver_sorted_and_once():
    assert topology_keys(csi_node("n1", ZONE, RACK, ZONE), DRIVER) == (RACK, ZONE)
    assert topology_keys({"spec": {"drivers": [{"name": DRIVER, "topologyKeys": None}]}}, DRIVER) == ()


def test_a_node_without_one_of_the_labels_has_no_term():
    assert term_of(node("n1", zone="a"), (ZONE, RACK)) is None


def test_a_volume_without_topology_is_usable_everywhere():
    assert node_affinity([]) is None
    assert node_affinity([{}]) is None


@pytest.mark.parametrize(
    ("entry", "named"), [({"": "a"}, "key ''"), ({"not a key!": "a"}, "not a key!"), ({ZONE: "a" * 64}, f"of {ZONE}")]
)
def test_an_answer_with_illegal_labels_is_named(entry: dict[str, str], named: str):
    assert any(named in fault for fault in topology_faults([{ZONE: "a"}, entry]))
    assert topology_faults([{ZONE: "a"}]) == []
