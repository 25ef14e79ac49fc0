"""Single values as Kubernetes reads and writes them: numbers, base64, quantities, times, ports.

Each function takes a JSON value that is not null and gives what is stored; a value of the wrong type raises Mismatch,
one of the wrong form Malformed, with Go's words.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from onenode.apiserver.schema.json_values import copied
from onenode.go_text import go_type, quoted
from orlop.foundation.quantity import InvalidQuantity, Quantity

_QUANTITY_FORM: Final = re.compile(r"[+-]?[0-9]*\.?[0-9]*[eEinumkKMGTP]*[-+]?[0-9]*")
_QUANTITY_RULE: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_QUANTITY_SUFFIX: Final = "unable to parse quantity's suffix"
_NANOS_PER_MILLI: Final = 10**6

_TIME_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
_MICRO_TIME_LAYOUT: Final = "2006-01-02T15:04:05.000000Z07:00"
_ZONE: Final = r"(Z|[+-][0-9]{2}:[0-9]{2})"
_DATE_AND_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
_TIME: Final = re.compile(rf"{_DATE_AND_TIME}(\.[0-9]+)?{_ZONE}")
_MICRO_TIME: Final = re.compile(rf"{_DATE_AND_TIME}\.[0-9]{{6}}{_ZONE}")
_MOST_DECIMALS: Final = 6
_NO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)

_LARGEST: Final = {"int32": 2**31 - 1, "int64": 2**63 - 1}
_JSON_NAMES: Final = {dict: "object", list: "array", str: "string", bool: "bool"}


class Mismatch(ValueError):
    """A value of another JSON type than the field's; `found` as Go names it, such as `number 3000000000`."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"json: cannot unmarshal {found} into Go value of type {wanted}")
        self.found = found
        self.wanted = wanted


class Malformed(ValueError):
    """A value of the right type and the wrong form; the text is Go's."""


def json_name(value: Any) -> str:
    return _JSON_NAMES.get(type(value), "number")


def read_string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Mismatch(json_name(value), "string")


def read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Mismatch(json_name(value), "bool")


def read_int32(value: Any) -> int:
    return _integer(value, "int32")


def read_int64(value: Any) -> int:
    return _integer(value, "int64")


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mismatch(json_name(value), name)
    if isinstance(value, float) or not -_LARGEST[name] - 1 <= value <= _LARGEST[name]:
        raise Mismatch(f"number {value}", name)
    return value


def read_float64(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mismatch(json_name(value), "float64")
    return value


def read_bytes(value: Any) -> str:
    """Base64, as it is written again: padded, without line breaks."""
    if not isinstance(value, str):
        raise Mismatch(json_name(value), "[]uint8")
    text = value.replace("\r", "").replace("\n", "")
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode()
    except (binascii.Error, ValueError):
        place = re.match(r"[A-Za-z0-9+/]*", text)
        raise Malformed(f"illegal base64 data at input byte {place.end() if place else 0}") from None


def read_quantity(value: Any) -> str:
    """In the canonical form: 1024Mi becomes 1Gi."""
    return str(parsed_quantity(value))


def read_resource_quantity(value: Any) -> str:
    """A quantity in a list of resources: what is finer than a thousandth is rounded up."""
    quantity = parsed_quantity(value)
    rest = quantity.nanos % _NANOS_PER_MILLI
    return str(Quantity(quantity.nanos + _NANOS_PER_MILLI - rest, quantity.format) if rest else quantity)


def parsed_quantity(value: Any) -> Quantity:
    text = value.strip() if isinstance(value, str) else str(value)
    if isinstance(value, bool | dict | list) or not _QUANTITY_FORM.fullmatch(text) or not re.search("[0-9]", text):
        raise Malformed(_QUANTITY_RULE)
    try:
        return Quantity.parse(text)
    except InvalidQuantity:
        raise Malformed(_QUANTITY_SUFFIX) from None


def read_time(value: Any) -> str | None:
    """In UTC and whole seconds; None for Go's zero time, which stands for no time."""
    moment = _moment(value, _TIME, _TIME_LAYOUT)
    return None if moment == _NO_TIME else moment.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")


def read_micro_time(value: Any) -> str | None:
    moment = _moment(value, _MICRO_TIME, _MICRO_TIME_LAYOUT)
    return None if moment == _NO_TIME else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _moment(value: Any, form: re.Pattern[str], layout: str) -> datetime:
    if not isinstance(value, str):
        raise Mismatch(json_name(value), "string")
    match = form.fullmatch(value)
    if match is None:
        raise Malformed(
            f"parsing time {quoted(value)} as {quoted(layout)}: cannot parse {quoted(value)} as {_part(layout)}"
        )
    try:
        return datetime.fromisoformat(_as_python_reads(value)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Malformed(f"parsing time {quoted(value)}: out of range") from None


def _part(layout: str) -> str:
    return quoted(layout[:4])


def _as_python_reads(value: str) -> str:
    """With no more decimals than Python keeps; Go keeps nine and prints none, or six."""
    return re.sub(rf"(\.[0-9]{{{_MOST_DECIMALS}}})[0-9]+", r"\1", value)


def read_int_or_string(value: Any) -> int | str:
    return value if isinstance(value, str) else read_int32(value)


def read_any(value: Any) -> Any:
    return copied(value)


READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "string": read_string,
    "bool": read_bool,
    "int32": read_int32,
    "int64": read_int64,
    "float64": read_float64,
    "bytes": read_bytes,
    "quantity": read_quantity,
    "time": read_time,
    "microtime": read_micro_time,
    "int-or-string": read_int_or_string,
    "any": read_any,
}

# What null means where a value must stand: as an item of a list or the value of a map.
ZEROES: Final[Mapping[str, Any]] = {
    "string": "",
    "bool": False,
    "int32": 0,
    "int64": 0,
    "float64": 0,
    "bytes": "",
    "quantity": "0",
    "time": None,
    "microtime": None,
    "int-or-string": 0,
    "any": None,
}


def go_name(scalar: str) -> str:
    """The Go type of a scalar, as messages name it."""
    return {"bytes": "[]uint8", "quantity": "resource.Quantity", "time": "v1.Time", "any": go_type({})}.get(
        scalar, scalar
    )
