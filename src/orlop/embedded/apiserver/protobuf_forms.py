"""What Kubernetes writes in JSON for the messages that are no objects there: quantities, times, numbers or texts.

Each function takes the members that were sent and gives the JSON value; None stands for a null, which is left out.
Pure. A quantity is not checked here: whoever checks objects does so for JSON and protobuf alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from orlop.embedded.apiserver.protobuf_wire import MalformedBody

DEEPEST_RAW_JSON: Final = 100

_Members = Mapping[str, Any]
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - written with a Z below; an offset would be written as +00:00
_UNSET: Final = datetime.min  # noqa: DTZ901 - Go's zero time, which it writes as null
_TEXT_TYPE: Final = 1


def quantity(members: _Members) -> str:
    return str(members.get("string", "0"))


def time(members: _Members) -> str | None:
    """Whole seconds: Kubernetes drops the rest."""
    moment = _moment(members, nanos=0)
    return None if moment is None else f"{moment.isoformat()}Z"


def micro_time(members: _Members) -> str | None:
    moment = _moment(members, nanos=members.get("nanos", 0))
    return None if moment is None else f"{moment.isoformat(timespec='microseconds')}Z"


def _moment(members: _Members, *, nanos: int) -> datetime | None:
    if not members:
        return None
    try:
        moment = _EPOCH + timedelta(seconds=members.get("seconds", 0), microseconds=int(nanos / 1000))
    except OverflowError:
        raise MalformedBody("a time is before the year 1 or after the year 9999") from None
    return None if moment == _UNSET else moment


def int_or_string(members: _Members) -> int | str:
    value: int | str = members.get("strVal", "") if members.get("type") == _TEXT_TYPE else members.get("intVal", 0)
    return value


def raw_json(members: _Members) -> Any:
    if "raw" not in members:
        return None
    try:
        value = msgspec.json.decode(members["raw"])
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedBody(f"JSON within the protobuf body cannot be read: {error}") from None
    _refuse_depth(value)
    return value


def _refuse_depth(value: Any) -> None:
    """Level by level, so that what is too deep is refused without going there."""
    level = [value]
    for _ in range(DEEPEST_RAW_JSON):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return
    raise MalformedBody(f"JSON within the protobuf body is nested more than {DEEPEST_RAW_JSON} levels deep")


def _within(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def text_list(members: _Members) -> list[str]:
    items: list[str] = members.get("items", [])
    return items


FORMS: Final[Mapping[str, Callable[[_Members], Any]]] = {
    "Quantity": quantity,
    "Time": time,
    "MicroTime": micro_time,
    "IntOrString": int_or_string,
    "RawJson": raw_json,
    "TextList": text_list,
}
