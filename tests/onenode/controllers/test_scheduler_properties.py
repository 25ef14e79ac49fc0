"""Whatever nodes, volumes, claims and pods there are: no limit is exceeded, and nothing is given twice."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.scheduling.searched_nodes import (
    SearchedNodes,
    attachment,
    claim,
    csi_node,
    late_class,
    node,
    pod,
    volume,
)

Object = dict[str, Any]
NODES, CLAIMS, VOLUMES = ("n1", "n2", "n3"), tuple("abcdef"), ("v1", "v2", "v3", "v4")


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, list[Object]]:
    amounts = st.integers(0, 4)
    nodes = [
        node(name, allocatable={"cpu": str(draw(amounts)), "memory": "8Gi", "pods": str(draw(amounts))})
        for name in NODES[: draw(st.integers(1, 3))]
    ]
    limits = [csi_node(name, draw(st.none() | st.integers(0, 3))) for name in NODES]
    one_pod = {"accessModes": ["ReadWriteOncePod"]}
    modes: list[Object] = [{}, one_pod]
    claims = [claim(name, draw(st.sampled_from(["1Gi", "2Gi"])), **draw(st.sampled_from(modes))) for name in CLAIMS]
    many_modes = {"accessModes": ["ReadWriteOnce", "ReadWriteOncePod"]}
    volumes = [
        volume(name, draw(st.sampled_from(["1Gi", "3Gi"])), on=draw(st.sampled_from([None, *NODES])), **many_modes)
        for name in VOLUMES[: draw(st.integers(0, 4))]
    ]
    provisioner = draw(st.sampled_from(["d.example", "kubernetes.io/no-provisioner"]))
    old = [volume(f"old-{name}", class_name="other", phase="Bound") for name in NODES]
    attachments = [attachment(f"a-{name}", f"old-{name}", name) for name in NODES if draw(st.booleans())]
    return {
        "nodes": nodes,
        "csi_nodes": limits,
        "claims": claims,
        "volumes": volumes + old,
        "classes": [late_class(provisioner=provisioner)],
        "attachments": attachments,
    }


@st.composite
def pods(draw: st.DrawFn) -> list[Object]:
    wanted = st.lists(st.sampled_from(CLAIMS), max_size=2, unique=True)
    requests = st.sampled_from([{}, {"cpu": "500m"}, {"cpu": "1"}])
    return [pod(f"p{n}", *draw(wanted), requests=draw(requests)) for n in range(draw(st.integers(1, 8)))]


def scheduled(cluster: dict[str, list[Object]], wanted: list[Object]) -> dict[str, tuple[str, dict[str, str | None]]]:
    """By pod: its node, and the volume of each claim, None for one that is provisioned."""
    s = SearchedNodes(**cluster)
    found = {}
    for body in wanted:
        made = s.reserve(body)
        if made is not None:
            chosen = {one.claim.name: one.volume.name if one.volume else None for one in made.claims}
            found[body["metadata"]["name"]] = made.node, chosen
    return found


@given(clusters(), pods())
def test_no_node_is_over_its_resources_or_its_attach_limit(cluster: dict[str, list[Object]], wanted: list[Object]):
    placed = scheduled(cluster, wanted)
    by_name = {body["metadata"]["name"]: body for body in wanted}
    for one in cluster["nodes"]:
        name, allocatable = one["metadata"]["name"], one["status"]["allocatable"]
        here = [by_name[pod_name] for pod_name, (node_name, _) in placed.items() if node_name == name]
        cpus = [body["spec"]["containers"][0]["resources"]["requests"].get("cpu", "0") for body in here]
        assert sum(0.5 if cpu == "500m" else float(cpu) for cpu in cpus) <= float(allocatable["cpu"])
        assert len(here) <= int(allocatable["pods"])
        # As in Kubernetes, a claim counts under its class's provisioner until it is bound, whatever volume it gets.
        limit = limit_of(cluster, name) if cluster["classes"][0]["provisioner"] == "d.example" else None
        attached = [one for one in cluster["attachments"] if one["spec"]["nodeName"] == name]
        claims = {source["persistentVolumeClaim"]["claimName"] for body in here for source in body["spec"]["volumes"]}
        assert limit is None or not claims or len(claims) + len(attached) <= limit


def limit_of(cluster: dict[str, list[Object]], name: str) -> int | None:
    found = next(one for one in cluster["csi_nodes"] if one["metadata"]["name"] == name)
    limit = found["spec"]["drivers"][0].get("allocatable", {}).get("count")
    return None if limit is None else int(limit)


@given(clusters(), pods())
def test_no_volume_is_given_to_two_claims_and_no_claim_two_volumes(
    cluster: dict[str, list[Object]], wanted: list[Object]
):
    given_to: dict[str, set[str]] = {}
    nodes_of: dict[str, set[str]] = {}
    for node_name, chosen in scheduled(cluster, wanted).values():
        for claim_name, volume_name in chosen.items():
            nodes_of.setdefault(claim_name, set()).add(node_name if volume_name is None else "")
            if volume_name is not None:
                given_to.setdefault(volume_name, set()).add(claim_name)

    assert [claims for claims in given_to.values() if len(claims) > 1] == []
    assert [nodes for nodes in nodes_of.values() if len(nodes) > 1] == []


@given(clusters(), pods())
def test_a_claim_for_one_pod_has_one(cluster: dict[str, list[Object]], wanted: list[Object]):
    for_one = {
        one["metadata"]["name"] for one in cluster["claims"] if one["spec"]["accessModes"] == ["ReadWriteOncePod"]
    }
    users = Counter(name for _, chosen in scheduled(cluster, wanted).values() for name in chosen)

    assert {name: count for name, count in users.items() if name in for_one and count > 1} == {}


@given(clusters(), pods(), st.integers())
def test_the_result_does_not_depend_on_the_order_of_what_is_listed(
    cluster: dict[str, list[Object]], wanted: list[Object], seed: int
):
    random = Random(seed)
    shuffled = {kind: random.sample(found, len(found)) for kind, found in cluster.items()}
    kinds = random.sample(list(shuffled), len(shuffled))

    assert scheduled({kind: shuffled[kind] for kind in kinds}, wanted) == scheduled(cluster, wanted)


@given(clusters(), pods())
def test_a_pod_that_is_given_up_leaves_nothing_behind(cluster: dict[str, list[Object]], wanted: list[Object]):
    s = SearchedNodes(**cluster)
    before = [s.message(body) for body in wanted]
    made = [reservation for body in wanted if (reservation := s.reserve(body)) is not None]
    for reservation in made:
        s.reservations.give_up(reservation)

    assert [s.message(body) for body in wanted] == before
    assert len(s.search.claims) == len(s.search.volumes) == len(s.reservations) == 0
