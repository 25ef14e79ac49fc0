"""Kubernetes' functions of lists, sets, regular expressions and named formats in CEL. Pure.

The library makes no optional values of ours. So what `format` returns is a map with one key, which has `hasValue()` and
`value()`, and no other function of optional values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

from onenode.apiserver.custom_resources.cel_address_functions import is_url
from onenode.apiserver.custom_resources.cel_function import CelFunction, CelValue, function, member, unwrapped
from onenode.apiserver.custom_resources.leaf_rules import FORMATS
from onenode.apiserver.custom_resources.schema_patterns import InvalidSchemaPattern, found_in
from onenode.apiserver.schema import name_rules

FORMAT: Final = "kubernetes.NamedFormat"
OPTIONAL: Final = "optional"


# ---- lists and sets --------------------------------------------------------------------------------------------------


def _index(items: Sequence[Any], item: Any) -> int:
    return next((place for place, each in enumerate(items) if each == item), -1)


def _last_index(items: Sequence[Any], item: Any) -> int:
    return next((place for place in reversed(range(len(items))) if items[place] == item), -1)


def _contains(items: Sequence[Any], others: Sequence[Any]) -> bool:
    try:
        return set(items).issuperset(others)
    except TypeError:  # lists and maps have no hash: each is compared with each
        return all(other in items for other in others)


def _intersects(items: Sequence[Any], others: Sequence[Any]) -> bool:
    try:
        return not set(items).isdisjoint(others)
    except TypeError:
        return any(other in items for other in others)


LIST_FUNCTIONS: Final[tuple[CelFunction, ...]] = (
    member("isSorted", ["LIST"], "BOOL", lambda items: all(a <= b for a, b in pairwise(items))),
    member("sum", ["LIST"], "DYN", sum),
    member("min", ["LIST"], "DYN", min),
    member("max", ["LIST"], "DYN", max),
    member("indexOf", ["LIST", "DYN"], "INT", _index),
    member("lastIndexOf", ["LIST", "DYN"], "INT", _last_index),
    function("sets.contains", ["LIST", "LIST"], "BOOL", _contains),
    function("sets.equivalent", ["LIST", "LIST"], "BOOL", lambda a, b: _contains(a, b) and _contains(b, a)),
    function("sets.intersects", ["LIST", "LIST"], "BOOL", _intersects),
)


# ---- regular expressions ---------------------------------------------------------------------------------------------


def _found(text: str, pattern: str, limit: int = -1) -> Sequence[str]:
    try:
        return found_in(text, pattern, limit)
    except InvalidSchemaPattern as error:
        raise ValueError(f"error parsing regexp: {error}") from None


EXPRESSION_FUNCTIONS: Final[tuple[CelFunction, ...]] = (
    member("find", ["STRING", "STRING"], "STRING", lambda text, pattern: "".join(_found(text, pattern, 1))),
    member("findAll", ["STRING", "STRING"], "LIST", _found),
    member("findAll", ["STRING", "STRING", "INT"], "LIST", _found),
)


# ---- formats ---------------------------------------------------------------------------------------------------------


def _of_form(name: str, why: str) -> Callable[[str], list[str]]:
    return lambda text: [] if FORMATS[name](text) else [why]


NAMED: Final[Mapping[str, Callable[[str], list[str]]]] = {
    "dns1123Label": name_rules.dns_label,
    "dns1123Subdomain": name_rules.dns_subdomain,
    "dns1035Label": name_rules.dns_1035_label,
    "dns1123LabelPrefix": name_rules.as_prefix(name_rules.dns_label),
    "dns1123SubdomainPrefix": name_rules.as_prefix(name_rules.dns_subdomain),
    "dns1035LabelPrefix": name_rules.as_prefix(name_rules.dns_1035_label),
    "qualifiedName": name_rules.label_key,
    "labelValue": name_rules.label_value,
    "uri": lambda text: [] if is_url(text) else ["invalid URI for request"],
    "uuid": _of_form("uuid", "does not match the UUID format"),
    "byte": _of_form("byte", "invalid base64"),
    "date": _of_form("date", "invalid date"),
    "datetime": _of_form("datetime", "invalid datetime"),
}


def _format(name: str) -> CelValue:
    return {FORMAT: name}


def _validate(named_format: CelValue, text: str) -> CelValue:
    return {OPTIONAL: NAMED[unwrapped(named_format, FORMAT)](text) or None}


def _value(optional: CelValue) -> Any:
    if unwrapped(optional, OPTIONAL) is None:
        raise ValueError("optional.none() dereference")
    return optional[OPTIONAL]


FORMAT_FUNCTIONS: Final[tuple[CelFunction, ...]] = (
    *(function(f"format.{name}", [], "MAP", partial(_format, name)) for name in NAMED),
    function("format.named", ["STRING"], "MAP", lambda name: {OPTIONAL: _format(name) if name in NAMED else None}),
    member("validate", ["MAP", "STRING"], "MAP", _validate),
    member("hasValue", ["MAP"], "BOOL", lambda optional: unwrapped(optional, OPTIONAL) is not None),
    member("value", ["MAP"], "DYN", _value),
)

TEXT_FUNCTIONS: Final = (*LIST_FUNCTIONS, *EXPRESSION_FUNCTIONS, *FORMAT_FUNCTIONS)
