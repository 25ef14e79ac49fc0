"""Whether a PersistentVolume may be used on a node: its required node affinity against the node's labels. Pure."""

from __future__ import annotations

from collections.abc import Mapping
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


def is_allowed_on(required: Mapping[str, Any] | None, node: Mapping[str, Any]) -> bool:
    """One of the terms is enough; a term that asks for nothing matches nothing."""
    if required is None:
        return True
    return any(_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def _matches(term: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    labels = objects.labels(node)
    named = {"metadata.name": objects.name(node)}
    return all(_holds(one, labels) for one in expressions) and all(_field_holds(one, named) for one in fields)


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    try:
        operator = OPERATORS[expression.get("operator", "")]
        return Requirement(expression.get("key", ""), operator, tuple(expression.get("values") or ())).matches(labels)
    except (KeyError, InvalidSelector):
        return False


def _field_holds(expression: Mapping[str, Any], fields: Mapping[str, str]) -> bool:
    value = fields.get(expression.get("key", ""))
    match expression.get("operator"):
        case "In":
            return value in (expression.get("values") or ())
        case "NotIn":
            return value is not None and value not in (expression.get("values") or ())
        case _:
            return False
