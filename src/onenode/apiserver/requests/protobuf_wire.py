"""Protobuf's wire format: numbers, and stretches of bytes within bounds.

It knows no message and no field. What it is given was sent by anybody: every position is checked against the end of
what holds it, and the fields of one body are counted, so that time and memory stay in proportion to honest bodies.
Pure; nothing is copied, and no error repeats what the body holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NUMBER: Final = 0
STRETCH: Final = 2
FIXED_LENGTHS: Final = {1: 8, 5: 4}

MOST_FIELDS: Final = 100_000
"""Of one body: those of a pod with 1,500 containers, or of a ConfigMap with 33,000 keys."""

MORE_FOLLOWS: Final = 0x80
_LONGEST_NUMBER_BITS: Final = 70
_LARGEST_NUMBER: Final = 2**64 - 1


class MalformedBody(ValueError):
    """A body that is not what its content type promises; the text says what is wrong and where."""


@dataclass(slots=True)
class ProtobufBody:
    """The bytes of one request, and how many fields may still be read from them."""

    data: bytes
    fields_left: int = MOST_FIELDS

    def count_field(self) -> None:
        self.fields_left -= 1
        if self.fields_left < 0:
            raise MalformedBody(f"the body has more than {MOST_FIELDS} fields: split the object, or send it as JSON")


def read_number(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The number at `position`, of 64 bits, and the position after it."""
    value = bits = 0
    while position < end and bits < _LONGEST_NUMBER_BITS:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << bits
        if byte < MORE_FOLLOWS:
            return value & _LARGEST_NUMBER, position
        bits += 7
    raise MalformedBody(f"the number before byte {position} does not end")


def read_stretch(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Where the stretch whose length stands at `position` begins, and where it ends."""
    if position < end and data[position] < MORE_FOLLOWS:
        length, start = data[position], position + 1
    else:
        length, start = read_number(data, position, end)
    stop = start + length
    if stop > end:
        raise MalformedBody(_cut_off(length, start, end))
    return start, stop


def _cut_off(length: int, start: int, end: int) -> str:
    return f"{length} bytes are announced at byte {start}, and only {end - start} are there"


def skip(wire_type: int, data: bytes, position: int, end: int) -> int:
    """The position after a field that nobody here knows."""
    if wire_type == NUMBER:
        return read_number(data, position, end)[1]
    if wire_type == STRETCH:
        return read_stretch(data, position, end)[1]
    if wire_type not in FIXED_LENGTHS:
        raise MalformedBody(f"the field before byte {position} has the wire type {wire_type}: Kubernetes has none such")
    length = FIXED_LENGTHS[wire_type]
    if position + length > end:
        raise MalformedBody(_cut_off(length, position, end))
    return position + length


def read_text(body: ProtobufBody, start: int, stop: int) -> str:
    try:
        return str(body.data[start:stop], "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the text at byte {start} is not UTF-8: {error.reason}") from None
