"""Decide which nodes a volume, a class or a pod allows, by node selectors and topology terms. Pure.

A node selector is a list of terms; one matching term is enough. Kubernetes gives a term without requirements, and a
list without terms, the meaning "no node": callers pass None for "no restriction".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from orlop.kube import objects
from orlop.kube.label_requirements import InvalidSelector, Operator, Requirement

OPERATORS: Final[Mapping[str, Operator]] = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.NOT_EXISTS,
    "Gt": Operator.GREATER,
    "Lt": Operator.LESS,
}

Object = Mapping[str, Any]
Labels = Mapping[str, str]


def volume_allows_node(volume: Object, labels: Labels) -> bool:
    """Return whether a PersistentVolume may be used on a node with these labels.

    Only labels are compared: kube-scheduler passes no fields here, so a term with `matchFields` never matches.
    """
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required")
    return node_selector_matches(required, labels, fields=None)


def label_pins(volume: Object) -> frozenset[tuple[str, str]] | None:
    """Return labels such that every node the volume allows has at least one of them; None if there are none.

    For indexes: a local volume is found by its node's host name instead of being compared with each node.
    """
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required")
    if required is None:
        return None
    pins: set[tuple[str, str]] = set()
    for term in required.get("nodeSelectorTerms") or ():
        expressions = term.get("matchExpressions") or ()
        first = next((one for one in expressions if one.get("operator") == "In"), None)
        if first is None:
            return None
        pins |= {(first.get("key", ""), value) for value in first.get("values") or ()}
    return frozenset(pins)


def node_selector_matches(selector: Object | None, labels: Labels, fields: Labels | None) -> bool:
    """Return whether a node selector (`nodeSelectorTerms`) matches; None restricts nothing.

    `fields` holds `metadata.name` for pods' node affinity; None where fields are not supported.
    """
    if selector is None:
        return True
    return any(_term_matches(term, labels, fields) for term in selector.get("nodeSelectorTerms") or ())


def pod_allows_node(pod: Object, node: Object) -> bool:
    """Return whether a pod's nodeSelector and required node affinity match the node."""
    spec, labels = pod.get("spec") or {}, objects.labels(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return node_selector_matches(required, labels, fields={"metadata.name": objects.name(node)})


def topology_terms_match(allowed_topologies: Sequence[Object] | None, labels: Labels) -> bool:
    """Return whether a class's `allowedTopologies` match a node's labels; an empty list allows every node."""
    if not allowed_topologies:
        return True
    return any(_topology_term_matches(term, labels) for term in allowed_topologies)


def _topology_term_matches(term: Object, labels: Labels) -> bool:
    expressions = term.get("matchLabelExpressions") or ()
    # As in node selectors, a term that requires nothing matches nothing.
    return bool(expressions) and all(labels.get(one.get("key", "")) in (one.get("values") or ()) for one in expressions)


def _term_matches(term: Object, labels: Labels, fields: Labels | None) -> bool:
    expressions, on_fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not on_fields:
        return False
    if on_fields and fields is None:
        return False
    return all(_requirement_holds(one, labels) for one in expressions) and all(
        _field_holds(one, fields or {}) for one in on_fields
    )


def _requirement_holds(expression: Object, labels: Labels) -> bool:
    values = tuple(expression.get("values") or ())
    requirement = _requirement(expression.get("key", ""), expression.get("operator", ""), values)
    return requirement is not None and requirement.matches(labels)


@lru_cache(maxsize=4096)
def _requirement(key: str, operator: str, values: tuple[str, ...]) -> Requirement | None:
    """Return the requirement; cached, because each one is compared with hundreds of nodes.

    None for an expression the API server would refuse: it cannot be satisfied, and must not stop other decisions.
    """
    try:
        return Requirement(key, OPERATORS[operator], values)
    except (KeyError, InvalidSelector):
        return None


def _field_holds(expression: Object, fields: Labels) -> bool:
    value, values = fields.get(expression.get("key", "")), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value is not None and value not in values
        case _:
            return False
