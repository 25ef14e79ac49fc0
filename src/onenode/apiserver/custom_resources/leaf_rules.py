"""Validate single values by their schema: bounds, lengths, patterns and formats, with Kubernetes' texts. Pure.

A schema becomes a tuple of checks once, and each check is called with a value and its path. A check ignores values of a
type that it is not about: the type itself is validated by value_rules.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

from onenode.apiserver.custom_resources.schema_patterns import SchemaPattern
from onenode.apiserver.schema.field_errors import Cause, invalid, shown
from onenode.apiserver.schema.name_rules import dns_label, dns_subdomain
from onenode.go_text import quoted
from orlop.foundation.duration import Duration

NO_FIELD: Final = "<nil>"
"""The field of causes that Kubernetes reports without one."""
TYPE_INVALID: Final = "FieldValueTypeInvalid"
LeafCheck = Callable[[Any, str], Iterator[Cause]]

# Beyond these exponents Go writes a number as 1e+06.
LARGEST_PLAIN_EXPONENT: Final = 5
SMALLEST_PLAIN_EXPONENT: Final = -4
_UUID: Final = "[0-9a-f]{8}-?[0-9a-f]{4}-?%s[0-9a-f]{3}-?%s[0-9a-f]{3}-?[0-9a-f]{12}"
_HOST: Final = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*\.?"
_DATE_TIME: Final = r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})"


def leaf_checks(schema: Mapping[str, Any]) -> tuple[LeafCheck, ...]:
    """Build the checks of a schema that has been validated, in the order in which Kubernetes reports causes."""
    checks: list[LeafCheck] = []
    for name, make in _LENGTHS.items():
        if name in schema:
            checks.append(partial(make, schema[name]))
    if schema.get("pattern"):
        checks.append(partial(_pattern, SchemaPattern(schema["pattern"])))
    if (holds := FORMATS.get(_format(schema))) is not None:
        checks.append(partial(_of_format, schema["format"], holds))
    if schema.get("type") == "integer" and schema.get("format") in _SMALLEST:
        checks.append(partial(_sized, schema["format"]))
    if "multipleOf" in schema:
        checks.append(partial(_multiple, schema["multipleOf"]))
    if "maximum" in schema:
        checks.append(partial(_maximum, schema["maximum"], bool(schema.get("exclusiveMaximum"))))
    if "minimum" in schema:
        checks.append(partial(_minimum, schema["minimum"], bool(schema.get("exclusiveMinimum"))))
    return tuple(checks)


def is_known_format(schema: Mapping[str, Any]) -> bool:
    """Return whether Kubernetes knows the format of this schema: it warns of others and does not check them."""
    stated, type_ = schema.get("format", ""), schema.get("type", "")
    if type_ == "integer":
        return stated in {"int32", "int64"}
    if type_ == "number":
        return stated in {"float", "double"}
    return type_ in {"", "string"} and (_format(schema) in FORMATS or _format(schema) in UNCHECKED_FORMATS)


def _format(schema: Mapping[str, Any]) -> str:
    stated: str = schema.get("format", "") if schema.get("type", "") in {"", "string"} else ""
    return stated if stated.startswith("k8s-") else stated.replace("-", "")


def go_number(value: float) -> str:
    """Return a number as Go prints a float64: 5, 0.5, 1e+06."""
    digits = Decimal(repr(value)).normalize()
    exponent = digits.adjusted()
    if value and not SMALLEST_PLAIN_EXPONENT <= exponent <= LARGEST_PLAIN_EXPONENT:
        mantissa = digits.scaleb(-exponent)
        return f"{mantissa:f}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return f"{digits:f}"


def type_invalid(path: str, value: str, type_: str, found: str) -> Cause:
    text = f"Invalid value: {shown(value)}: {path} in body must be of type {type_}: {quoted(found)}"
    return Cause(TYPE_INVALID, text, path)


# ---- lengths ---------------------------------------------------------------------------------------------------------


def _too_many(path: str, found: int, most: int) -> Cause:
    items = "item" if most == 1 else "items"
    return Cause("FieldValueTooMany", f"Too many: {found}: must have at most {most} {items}", path)


def _min_length(least: int, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, str) and len(value) < least:
        yield invalid(path, value, f"{path} in body should be at least {least} chars long")


def _max_length(most: int, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, str) and len(value) > most:
        yield Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", path)


def _min_items(least: int, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, list) and len(value) < least:
        yield invalid(path, len(value), f"{path} in body should have at least {least} items")


def _max_items(most: int, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, list) and len(value) > most:
        yield _too_many(path, len(value), most)


def _min_properties(least: int, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, dict) and len(value) < least:
        yield invalid(path, len(value), f"{path} in body should have at least {least} properties")


def _max_properties(most: int, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, dict) and len(value) > most:
        yield _too_many(path, len(value), most)


_LENGTHS: Final[Mapping[str, Callable[[int, Any, str], Iterator[Cause]]]] = {
    "maxLength": _max_length,
    "minLength": _min_length,
    "maxItems": _max_items,
    "minItems": _min_items,
    "maxProperties": _max_properties,
    "minProperties": _min_properties,
}


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bound(bound: float, value: float) -> str:
    """Of a whole number a whole bound is printed as one."""
    return str(int(bound)) if isinstance(value, int) and float(bound).is_integer() else go_number(bound)


def _sized(name: str, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, int) and not isinstance(value, bool) and not _SMALLEST[name] <= value < -_SMALLEST[name]:
        yield invalid(NO_FIELD, "", f"Checked value must be of type integer with format {name} in {path}")


_SMALLEST: Final = {"int32": -(2**31), "int64": -(2**63)}


def _multiple(factor: float, value: Any, path: str) -> Iterator[Cause]:
    if _is_number(value) and Decimal(repr(value)) % Decimal(repr(factor)):
        yield invalid(path, value, f"{path} in body should be a multiple of {_bound(factor, value)}")


def _maximum(most: float, exclusive: bool, value: Any, path: str) -> Iterator[Cause]:  # noqa: FBT001 - a schema's flag
    if _is_number(value) and (value > most or (exclusive and value == most)):
        relation = "less than" if exclusive else "less than or equal to"
        yield invalid(path, value, f"{path} in body should be {relation} {_bound(most, value)}")


def _minimum(least: float, exclusive: bool, value: Any, path: str) -> Iterator[Cause]:  # noqa: FBT001 - as above
    if _is_number(value) and (value < least or (exclusive and value == least)):
        relation = "greater than" if exclusive else "greater than or equal to"
        yield invalid(path, value, f"{path} in body should be {relation} {_bound(least, value)}")


# ---- texts -----------------------------------------------------------------------------------------------------------


def _pattern(pattern: SchemaPattern, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, str) and not pattern.is_in(value):
        yield invalid(path, value, f"{path} in body should match '{pattern.text}'")


def _of_format(name: str, holds: Callable[[str], bool], value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, str) and not holds(value):
        yield type_invalid(path, value, name, value)


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return holds


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


def _cidr(text: str) -> None:
    if "/" not in text:
        raise ValueError(text)
    ipaddress.ip_interface(text)


def _date_time(text: str) -> None:
    if not re.fullmatch(_DATE_TIME, text):
        raise ValueError(text)
    datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.upper()))


def _date(text: str) -> None:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        raise ValueError(text)
    date.fromisoformat(text)


FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    "byte": _parses(lambda text: base64.b64decode(text, validate=True)),
    "cidr": _parses(_cidr),
    "date": _parses(_date),
    "datetime": _parses(_date_time),
    "duration": _parses(Duration.parse),
    "email": _matches(r"[^@\s<>]+@[^@\s<>]+"),
    "hexcolor": _matches("#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "hostname": _matches(_HOST),
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "k8s-long-name": lambda text: not dns_subdomain(text),
    "k8s-short-name": lambda text: not dns_label(text),
    "mac": _matches(r"([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}"),
    "uri": _matches(r"([a-zA-Z][a-zA-Z0-9+.-]*:\S*|/\S*)"),
    "uuid": _matches("(?i)" + _UUID % ("[0-9a-f]", "[0-9a-f]")),
    "uuid3": _matches("(?i)" + _UUID % ("3", "[0-9a-f]")),
    "uuid4": _matches("(?i)" + _UUID % ("4", "[89ab]")),
    "uuid5": _matches("(?i)" + _UUID % ("5", "[89ab]")),
}
UNCHECKED_FORMATS: Final = frozenset(
    {"bsonobjectid", "creditcard", "isbn", "isbn10", "isbn13", "password", "rgbcolor", "ssn"}
)
