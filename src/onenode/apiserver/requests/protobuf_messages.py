"""From a message on the wire to the object it is in JSON, as Kubernetes' own Go types would write that object.

Go writes every field that is not a pointer, empty or not; in the JSON it is left out when it is empty, unless the table
says otherwise. Where Go writes null, the member is left out (to Kubernetes that is the same), and `[]` stands for an
empty list that Go always writes. A field sent twice is merged or overwritten, as protobuf has it; fields that nobody
knows are passed over; one with a wrong wire type is an error, as it is in Go.

How deep a body can be is how deep the table is: no message holds itself, the generator of the table sees to that. A
message is made ready when the first one of its kind arrives, so that nobody pays for the kinds he never sends.
Pure: bytes in, plain values out.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec

from onenode.apiserver.proto.message_table import MESSAGES
from onenode.apiserver.requests.protobuf_wire import (
    MORE_FOLLOWS,
    NUMBER,
    STRETCH,
    MalformedBody,
    ProtobufBody,
    read_number,
    read_stretch,
    read_text,
    skip,
)

# ---- values as JSON has them -----------------------------------------------------------------------------------------

# What Kubernetes writes in JSON for the messages that are no objects there: quantities, times, numbers or texts.
#
# Each function takes the members that were sent and gives the JSON value; None stands for a null, which is left out.
# Pure. A quantity is not checked here: the schema checks it, for JSON and protobuf alike.


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


JsonObject = dict[str, Any]
Element = Callable[[ProtobufBody, int, int], Any]
"""Reads one value from a stretch of a body; of an empty stretch, the value's empty form."""


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of one kind of message, by tag: those that are stretches of bytes, and those that are numbers."""

    name: str
    stretches: Mapping[int, StretchField]
    numbers: Mapping[int, NumericField]
    always: tuple[MessageField, ...] = ()

    def read(self, body: ProtobufBody, position: int, end: int, into: JsonObject) -> JsonObject:
        data, stretches = body.data, self.stretches
        while position < end:
            body.count_field()
            tag = data[position]
            position += 1
            if tag >= MORE_FOLLOWS:
                tag, position = read_number(data, position - 1, end)
            field = stretches.get(tag)
            if field is not None:
                start, position = read_stretch(data, position, end)
                field.read(body, start, position, into)
            else:
                position = self._read_other(tag, data, position, end, into)
        for always in self.always:
            always.complete(body, into)
        return into

    def _read_other(self, tag: int, data: bytes, position: int, end: int, into: JsonObject) -> int:
        numeric = self.numbers.get(tag)
        if numeric is None:
            self._refuse_if_known(tag >> 3, tag & 7, position)
            return skip(tag & 7, data, position, end)
        value, position = read_number(data, position, end)
        numeric.take(value, into)
        return position

    def _refuse_if_known(self, number: int, wire_type: int, position: int) -> None:
        if number == 0:
            raise MalformedBody(f"{self.name} has a field with the number 0 before byte {position}")
        if number << 3 | STRETCH in self.stretches or number << 3 | NUMBER in self.numbers:
            raise MalformedBody(f"field {number} of {self.name}, before byte {position}, has wire type {wire_type}")


@dataclass(frozen=True, slots=True)
class ValueField:
    """A text, bytes, or a message with a form of its own."""

    name: str
    element: Element
    kept_when_empty: bool

    def read(self, body: ProtobufBody, start: int, stop: int, into: JsonObject) -> None:
        value = self.element(body, start, stop)
        if value is None or (value == "" and not self.kept_when_empty):
            into.pop(self.name, None)
        else:
            into[self.name] = value

    def complete(self, body: ProtobufBody, into: JsonObject) -> None:
        if self.name not in into:
            into[self.name] = self.element(body, 0, 0)


@dataclass(frozen=True, slots=True)
class ObjectField:
    name: str
    message: str
    kept_when_empty: bool

    def read(self, body: ProtobufBody, start: int, stop: int, into: JsonObject) -> None:
        members = message(self.message).read(body, start, stop, into.get(self.name, {}))
        if members or self.kept_when_empty:
            into[self.name] = members

    def complete(self, body: ProtobufBody, into: JsonObject) -> None:
        if self.name not in into:
            into[self.name] = message(self.message).read(body, 0, 0, {})


@dataclass(frozen=True, slots=True)
class InlineField:
    """A message whose members are members of the object that holds it."""

    message: str

    def read(self, body: ProtobufBody, start: int, stop: int, into: JsonObject) -> None:
        message(self.message).read(body, start, stop, into)

    def complete(self, body: ProtobufBody, into: JsonObject) -> None:
        message(self.message).read(body, 0, 0, into)


@dataclass(frozen=True, slots=True)
class ListField:
    name: str
    element: Element

    def read(self, body: ProtobufBody, start: int, stop: int, into: JsonObject) -> None:
        into.setdefault(self.name, []).append(self.element(body, start, stop))

    def complete(self, _body: ProtobufBody, into: JsonObject) -> None:
        into.setdefault(self.name, [])


@dataclass(frozen=True, slots=True)
class MapField:
    name: str
    entry: Message

    def read(self, body: ProtobufBody, start: int, stop: int, into: JsonObject) -> None:
        entry = self.entry.read(body, start, stop, {})
        into.setdefault(self.name, {})[entry["key"]] = entry["value"]

    def complete(self, _body: ProtobufBody, into: JsonObject) -> None:
        into.setdefault(self.name, {})


@dataclass(frozen=True, slots=True)
class NumberField:
    name: str
    meaning: Callable[[int], int]
    kept_when_zero: bool

    def take(self, number: int, into: JsonObject) -> None:
        value = self.meaning(number)
        if value or self.kept_when_zero:
            into[self.name] = value
        else:
            into.pop(self.name, None)

    def complete(self, _body: ProtobufBody, into: JsonObject) -> None:
        if self.name not in into:
            into[self.name] = self.meaning(0)


@dataclass(frozen=True, slots=True)
class NumberListField:
    """Go sends each number as a field of its own; others may pack them into one stretch."""

    name: str
    meaning: Callable[[int], int]

    def take(self, number: int, into: JsonObject) -> None:
        into.setdefault(self.name, []).append(self.meaning(number))

    def read(self, body: ProtobufBody, start: int, stop: int, into: JsonObject) -> None:
        while start < stop:
            body.count_field()
            number, start = read_number(body.data, start, stop)
            self.take(number, into)

    def complete(self, _body: ProtobufBody, into: JsonObject) -> None:
        into.setdefault(self.name, [])


StretchField = ValueField | ObjectField | InlineField | ListField | MapField | NumberListField
NumericField = NumberField | NumberListField
MessageField = StretchField | NumberField


def _base64(body: ProtobufBody, start: int, stop: int) -> str:
    return b64encode(body.data[start:stop]).decode()


def _signed(bits: int) -> Callable[[int], int]:
    half, whole = 1 << (bits - 1), 1 << bits
    return lambda number: ((number + half) & (whole - 1)) - half


NUMBERS: Final[Mapping[str, Callable[[int], int]]] = {"bool": bool, "int32": _signed(32), "int64": _signed(64)}
_FIELD: Final = re.compile(r"(?P<number>\d+) (?P<name>\w+) (?P<mark>[*!]?(?:\[\]|\{\}|<)?)(?P<type>[\w.]+)")


@cache
def message(name: str) -> Message:
    """The message that the table has under this name."""
    stretches: dict[int, StretchField] = {}
    numbers: dict[int, NumericField] = {}
    always: list[MessageField] = []
    for match in _FIELD.finditer(MESSAGES[name]):
        number, mark, field = int(match["number"]), match["mark"], _field(match["name"], match["mark"], match["type"])
        if not isinstance(field, NumberField):
            stretches[number << 3 | STRETCH] = field
        if isinstance(field, NumberField | NumberListField):
            numbers[number << 3 | NUMBER] = field
        if "!" in mark or "<" in mark:
            always.append(field)
    return Message(name, stretches, numbers, tuple(always))


def _field(name: str, mark: str, kind: str) -> MessageField:
    is_kept = mark in {"*", "!"}
    match mark.removeprefix("!"):
        case "[]":
            return NumberListField(name, NUMBERS[kind]) if kind in NUMBERS else ListField(name, _element(kind))
        case "{}":
            return MapField(name, _entry(kind))
        case "<":
            return InlineField(kind)
    if kind in NUMBERS:
        return NumberField(name, NUMBERS[kind], is_kept)
    if kind in MESSAGES and kind not in FORMS:
        return ObjectField(name, kind, is_kept)
    return ValueField(name, _element(kind), is_kept)


def _entry(kind: str) -> Message:
    key, value = ValueField("key", read_text, True), ValueField("value", _element(kind), True)
    return Message(f"an entry of a map of {kind}", {1 << 3 | STRETCH: key, 2 << 3 | STRETCH: value}, {}, (key, value))


def _element(kind: str) -> Element:
    if kind == "string":
        return read_text
    if kind == "bytes":
        return _base64
    if kind in FORMS:
        form = FORMS[kind]
        return lambda body, start, stop: form(message(kind).read(body, start, stop, {}))
    return lambda body, start, stop: message(kind).read(body, start, stop, {})
