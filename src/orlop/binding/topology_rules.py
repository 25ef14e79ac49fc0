"""Decide the topology of a CreateVolume request, and the node affinity for the topology in its response. Pure.

A driver that reports VOLUME_ACCESSIBILITY_CONSTRAINTS has topology keys: its CSINode entry names them, and each Node
carries their values as labels. CreateVolume takes two lists of terms: *requisite* (the volume must be usable in one of
them) and *preferred* (try them in this order). Their content, as in external-provisioner:

    late binding, strict   requisite = preferred = the selected node's own term, which must be allowed by the class
    late binding           requisite = the class's allowedTopologies, else every term in the cluster;
                           preferred = the same list, rotated so that the selected node's term comes first
    immediate binding      the same lists, rotated by the claim's name: StatefulSet members spread over the terms, and
                           the claims of one member stay together. With `immediate=False` and no allowedTopologies: none

The same claim gets the same lists on every retry while the cluster does not change; the caller keeps the first lists
for a request that may still be running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

from orlop.kube import objects
from orlop.kube.label_syntax import faults_of_label_key, faults_of_label_value

FNV_OFFSET: Final = 2166136261
FNV_PRIME: Final = 16777619
UINT32: Final = 2**32
MOST_TERMS: Final = 10_000
"""Most terms that a class may allow: twice as many as the largest cluster that Kubernetes supports has nodes."""

Object = Mapping[str, Any]
Term = tuple[tuple[str, str], ...]
"""Topology keys with their values, sorted by key."""


@dataclass(frozen=True, slots=True)
class SelectedNode:
    """The scheduler's choice for a late-binding claim. None: the object does not exist."""

    name: str
    node: Object | None
    csi_node: Object | None


@dataclass(frozen=True, slots=True)
class TopologyMode:
    """Settings of the provisioner: `--strict-topology` and `--immediate-topology`."""

    strict: bool = False
    immediate: bool = True


@dataclass(frozen=True, slots=True)
class RequestedTopology:
    requisite: tuple[Term, ...]
    preferred: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class NoTopology:
    """Send no topology: the driver may put the volume anywhere."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotPlaceable:
    """The claim cannot be provisioned. `reschedule`: another node may do, so the scheduler should choose again."""

    reason: str
    reschedule: bool = False


TopologyDecision = RequestedTopology | NoTopology | NotPlaceable


def late_topology(
    driver: str,
    selected: SelectedNode,
    allowed_topologies: Sequence[Object],
    nodes: Iterable[Object],
    mode: TopologyMode,
) -> TopologyDecision:
    """Return the topology of a claim whose pod has a node."""
    if selected.csi_node is None or selected.node is None:
        missing = "CSINode" if selected.csi_node is None else "Node"
        return NotPlaceable(f'{missing} "{selected.name}" of the selected node does not exist', reschedule=True)
    keys = topology_keys(selected.csi_node, driver)
    if not keys:
        # The node plugin is restarting, or does not run on this node. Without topology the driver could create the
        # volume where this node can never reach it: retry, as external-provisioner does.
        return NotPlaceable(f'driver {driver} has no topology keys on CSINode "{selected.name}"')
    own = term_of(selected.node, keys)
    if own is None:
        return NotPlaceable(f'node "{selected.name}" lacks a label of the topology keys {", ".join(keys)}')
    if (refusal := why_too_many_terms(allowed_topologies)) is not None:
        return NotPlaceable(refusal)
    allowed = flattened(allowed_topologies)
    requisite = _unique(allowed or terms_of(nodes, keys)) if allowed or not mode.strict else (own,)
    # The class may have been replaced since the scheduler selected the node, and no longer allow it.
    first = next((index for index, term in enumerate(requisite) if contains(own, term)), None)
    if first is None:
        return NotPlaceable(f'node "{selected.name}" is not in the class\'s allowedTopologies', reschedule=True)
    return (
        RequestedTopology((own,), (own,)) if mode.strict else RequestedTopology(requisite, _rotated(requisite, first))
    )


def immediate_topology(
    driver: str,
    claim_name: str,
    allowed_topologies: Sequence[Object],
    nodes: Iterable[Object],
    csi_nodes: Iterable[Object],
    mode: TopologyMode,
) -> TopologyDecision:
    """Return the topology of a claim that does not wait for a pod."""
    if (refusal := why_too_many_terms(allowed_topologies)) is not None:
        return NotPlaceable(refusal)
    allowed = flattened(allowed_topologies)
    if not allowed and not mode.immediate:
        return NoTopology("--immediate-topology=false and the class has no allowedTopologies")
    if not allowed and allowed_topologies:
        return NoTopology("the class's allowedTopologies are empty")
    requisite = _unique(allowed or _terms_in_cluster(driver, nodes, csi_nodes))
    if not requisite:
        # The volume could be created where no node reaches it: wait until one node has the driver.
        return NotPlaceable(f"no node has topology keys and labels of driver {driver} yet")
    return RequestedTopology(requisite, _rotated(requisite, spread_index(claim_name, len(requisite))))


def spread_index(claim_name: str, count: int) -> int:
    """Return where a claim's list begins.

    Claims of StatefulSets are named `<template>-<set>-<ordinal>`. The last part of the set's name is hashed and the
    ordinal added: members go round robin, and two claims of one member begin at the same term.
    """
    hashed, ordinal = claim_name, 0
    prefix, dash, last = claim_name.rpartition("-")
    if dash and last.isascii() and last.isdigit() and int(last) < UINT32:
        ordinal, hashed = int(last), prefix.rpartition("-")[2]
    return (_fnv_1(hashed) + ordinal) % UINT32 % count


def topology_keys(csi_node: Object, driver: str) -> tuple[str, ...]:
    """Return the driver's topology keys on a node, sorted; empty where it is not registered or has none."""
    drivers = (csi_node.get("spec") or {}).get("drivers") or ()
    keys = next((entry.get("topologyKeys") for entry in drivers if entry.get("name") == driver), None)
    return tuple(sorted(set(keys or ())))


def term_of(node: Object, keys: Sequence[str]) -> Term | None:
    """Return a node's values of the keys; None if it lacks one."""
    labels = objects.labels(node)
    if any(key not in labels for key in keys):
        return None
    return tuple((key, labels[key]) for key in sorted(keys))


def terms_of(nodes: Iterable[Object], keys: Sequence[str]) -> list[Term]:
    return [term for node in nodes if (term := term_of(node, keys)) is not None]


def contains(own: Term, other: Term) -> bool:
    """Return whether every value of `other` is also in `own`: a class may name a zone, a node also has a host name."""
    return set(other) <= set(own)


def why_too_many_terms(allowed_topologies: Sequence[Object]) -> str | None:
    """Return why allowedTopologies must not be passed to `flattened`; None if they may be."""
    # Values of different keys multiply: an object of a few kilobytes may stand for more terms than fit into memory.
    # Count them before any is built.
    requirements = [allowed.get("matchLabelExpressions") or () for allowed in allowed_topologies]
    count = sum(prod(len(each.get("values") or ()) for each in keys) for keys in requirements if keys)
    if count <= MOST_TERMS:
        return None
    return f"the class's allowedTopologies combine to {count} topologies; at most {MOST_TERMS} are supported"


def flattened(allowed_topologies: Sequence[Object]) -> list[Term]:
    """Return allowedTopologies as terms with one value for each key: `zone in (a, b)` becomes two terms."""
    terms: list[Term] = []
    for allowed in allowed_topologies:
        expressions = allowed.get("matchLabelExpressions") or ()
        choices = [[(each.get("key", ""), value) for value in each.get("values") or ()] for each in expressions]
        terms += [tuple(sorted(chosen)) for chosen in product(*choices) if chosen]
    return terms


def node_affinity(accessible: Sequence[Mapping[str, str]]) -> dict[str, Any] | None:
    """Return a PersistentVolume's nodeAffinity for the topologies in a driver's response; None for no restriction.

    Entries are alternatives; the keys of one entry hold together.
    """
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [entry[key]]} for key in sorted(entry)]}
        for entry in accessible
        if entry
    ]
    return {"required": {"nodeSelectorTerms": terms}} if terms else None


def topology_faults(accessible: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what is wrong with the topologies in a response: keys and values must be valid as node labels."""
    return [
        fault
        for entry in accessible
        for key, value in sorted(entry.items())
        for fault in (
            *(f"topology key {key!r}: {text}" for text in faults_of_label_key(key)),
            *(f"topology value {value!r} of {key}: {text}" for text in faults_of_label_value(value)),
        )
    ]


def _terms_in_cluster(driver: str, nodes: Iterable[Object], csi_nodes: Iterable[Object]) -> list[Term]:
    # Nodes may be upgraded one by one and have different keys meanwhile. The first by name decides, so that a retry
    # asks the same; external-provisioner takes a random one.
    for csi_node in sorted(csi_nodes, key=objects.name):
        if keys := topology_keys(csi_node, driver):
            return terms_of(nodes, keys)
    return []


def _unique(terms: Iterable[Term]) -> tuple[Term, ...]:
    return tuple(sorted(set(terms)))


def _rotated(terms: tuple[Term, ...], first: int) -> tuple[Term, ...]:
    return (*terms[first:], *terms[:first])


def _fnv_1(text: str) -> int:
    """Return the FNV-1 hash of 32 bits, which external-provisioner uses: a replacement spreads the same way."""
    value = FNV_OFFSET
    for byte in text.encode():
        value = value * FNV_PRIME % UINT32 ^ byte
    return value
