"""Checks that many kinds share: numbers, quantities, enumerations, names in fields, labels, label and node selectors.

Each gives the causes it finds. A value that is absent is no business of these checks, unless they say so.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, not_supported, required, too_long
from onenode.apiserver.schema.name_rules import NameCheck
from orlop.foundation.quantity import Quantity

Object = Mapping[str, Any]

IMMUTABLE: Final = "field is immutable"
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
POSITIVE: Final = "must be greater than zero"
# Comparing takes the square of them.
MOST_COMPARED_LINES: Final = 2000
DRIVER_NAME_LENGTH: Final = 63
VALUES_NEEDED: Final = "must be specified when `operator` is 'In' or 'NotIn'"
VALUES_NOT_ALLOWED: Final = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
NO_OPERATOR: Final = "not a valid selector operator"
ONE_VALUE_NEEDED: Final = "must be specified single value when `operator` is 'Lt' or 'Gt'"
ONE_NODE_NEEDED: Final = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"


def named_well(check: NameCheck, value: str, path: str) -> Iterator[Cause]:
    """One cause for each thing that is wrong with the name."""
    return (invalid(path, value, sentence) for sentence in check(value))


def named(check: NameCheck, value: str | None, path: str) -> Iterator[Cause]:
    """The same for a name that must be there."""
    return named_well(check, value, path) if value else iter([required(path)])


def given(owner: Object, path: str, *fields: str) -> Iterator[Cause]:
    """These fields must be there and not be empty."""
    return (required(f"{path}.{field}") for field in fields if is_empty(owner.get(field)))


def is_empty(value: Any) -> bool:
    """Zero and false are values."""
    return value is None or value in ("", [], {})


def not_negative(owner: Object, path: str, *fields: str) -> Iterator[Cause]:
    return (invalid(f"{path}.{field}", owner[field], NOT_NEGATIVE) for field in fields if owner.get(field, 0) < 0)


def one_of(value: Any, supported: Sequence[str], path: str) -> Iterator[Cause]:
    if value is not None and value not in supported:
        yield not_supported(path, value, supported)


def unchanged(old: Any, new: Any, path: str) -> Iterator[Cause]:
    if old != new:
        yield invalid(path, new, IMMUTABLE)


def quantity(text: Any) -> Quantity:
    """A quantity of an object that was decoded, so that it is one; absence is zero."""
    return Quantity.parse(text or "0")


def not_negative_quantity(value: Any, path: str) -> Iterator[Cause]:
    if quantity(value).nanos < 0:
        yield invalid(path, value, NOT_NEGATIVE)


def positive_quantity(value: Any, path: str) -> Iterator[Cause]:
    if quantity(value).nanos <= 0:
        yield invalid(path, value, POSITIVE)


def driver_name(name: str | None, path: str) -> Iterator[Cause]:
    if not name:
        yield required(path)
        return
    if len(name.encode()) > DRIVER_NAME_LENGTH:
        yield too_long(path, DRIVER_NAME_LENGTH)
    yield from named_well(name_rules.driver_name, name, path)


def no_backsteps(target: str, path: str) -> Iterator[Cause]:
    if ".." in target.split("/"):
        yield invalid(path, target, "must not contain '..'")


def labels(owner: Object | None, path: str) -> Iterator[Cause]:
    for key, value in (owner or {}).items():
        yield from named_well(name_rules.label_key, key, path)
        yield from named_well(name_rules.label_value, value, path)


def label_selector(selector: Object | None, path: str) -> Iterator[Cause]:
    if selector is None:
        return
    yield from labels(selector.get("matchLabels"), f"{path}.matchLabels")
    for place, requirement in enumerate(selector.get("matchExpressions", [])):
        yield from _requirement(requirement, f"{path}.matchExpressions[{place}]", numeric=False)


def node_selector(selector: Object, path: str) -> Iterator[Cause]:
    terms = selector.get("nodeSelectorTerms", [])
    if not terms:
        yield required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    for place, term in enumerate(terms):
        yield from node_selector_term(term, f"{path}.nodeSelectorTerms[{place}]")


def node_selector_term(term: Object, path: str) -> Iterator[Cause]:
    for place, requirement in enumerate(term.get("matchExpressions", [])):
        yield from _requirement(requirement, f"{path}.matchExpressions[{place}]", numeric=True)
    for place, requirement in enumerate(term.get("matchFields", [])):
        yield from _node_field(requirement, f"{path}.matchFields[{place}]")


def _requirement(requirement: Object, path: str, *, numeric: bool) -> Iterator[Cause]:
    values = requirement.get("values", [])
    yield from _operator(requirement.get("operator", ""), values, path, numeric=numeric)
    yield from named_well(name_rules.label_key, requirement.get("key", ""), f"{path}.key")
    for place, value in enumerate(values):
        yield from named_well(name_rules.label_value, value, f"{path}.values[{place}]")


def _operator(operator: str, values: Sequence[str], path: str, *, numeric: bool) -> Iterator[Cause]:
    match operator:
        case "In" | "NotIn":
            if not values:
                yield required(f"{path}.values", VALUES_NEEDED)
        case "Exists" | "DoesNotExist":
            if values:
                yield forbidden(f"{path}.values", VALUES_NOT_ALLOWED)
        case "Gt" | "Lt" if numeric:
            if len(values) != 1:
                yield required(f"{path}.values", ONE_VALUE_NEEDED)
        case _:
            yield invalid(f"{path}.operator", operator, NO_OPERATOR)


def _node_field(requirement: Object, path: str) -> Iterator[Cause]:
    operator, key, values = requirement.get("operator", ""), requirement.get("key", ""), requirement.get("values", [])
    if operator not in {"In", "NotIn"}:
        yield invalid(f"{path}.operator", operator, NO_OPERATOR)
    elif len(values) != 1:
        yield required(f"{path}.values", ONE_NODE_NEEDED)
    if key != "metadata.name":
        yield invalid(f"{path}.key", key, "not a valid field selector key")
        return
    for place, value in enumerate(values):
        yield from named_well(name_rules.dns_subdomain, value, f"{path}.values[{place}]")


def repeated_places(values: Iterable[str]) -> Iterator[int]:
    """Where a value stands that stood before already."""
    seen: set[str] = set()
    for place, value in enumerate(values):
        if value in seen:
            yield place
        seen.add(value)


def difference(old: Any, new: Any) -> str:
    """What a message shows of a change that is not allowed: the lines that differ, of very many the first ones."""
    before, after = (json.dumps(value, indent=2, sort_keys=True).splitlines() for value in (old, new))
    if len(before) + len(after) > MOST_COMPARED_LINES:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        before, after = (lines[max(same - 1, 0) :][: MOST_COMPARED_LINES // 2] for lines in (before, after))
    lines = difflib.unified_diff(before, after, lineterm="", n=1)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def without(owner: Object, keys: Iterable[str]) -> dict[str, Any]:
    gone = frozenset(keys)
    return {key: value for key, value in owner.items() if key not in gone}
