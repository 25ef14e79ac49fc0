"""The syntax tree of a compiled expression, read from the bytes that the CEL library makes of it. Pure.

The library offers no other access to the tree: `serialize` returns the protobuf message cel.expr.CheckedExpr. Macros
are expanded in it, so every loop is a `Loop`, whatever macro it was written with. The library compiles nothing that is
nested more than 32 levels deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that is written in the expression: a text, or None for a value that has no length."""

    value: str | None


@dataclass(frozen=True, slots=True)
class NameReference:
    name: str


@dataclass(frozen=True, slots=True)
class Selection:
    operand: Syntax
    field: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator; the value that a member is called on is the first argument."""

    function: str
    arguments: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Collection:
    """A list, or a map's keys and values."""

    parts: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A comprehension. `cel.bind` is one over no items, whose accumulator is the bound value."""

    variables: tuple[str, ...]
    range: Syntax
    accumulator: str
    initial: Syntax
    condition: Syntax
    step: Syntax
    result: Syntax


Syntax = Literal | NameReference | Selection | Call | Collection | Loop


def syntax_of(serialized: bytes) -> Syntax:
    """Read what `serialize` returned: an Any that holds a CheckedExpr."""
    checked = _one(serialized, 2)
    return _syntax(_one(checked, 4))


# ---- messages of cel.expr, by the numbers of their fields ------------------------------------------------------------


def _syntax(expression: bytes) -> Syntax:
    for number, value in _fields(expression):
        if number in _READERS:
            return _READERS[number](value)
    return Literal(None)


def _literal(constant: bytes) -> Syntax:
    for number, value in _fields(constant):
        if number in {6, 7}:  # a string, bytes
            return Literal(value.decode(errors="replace"))
    return Literal(None)


def _name(identifier: bytes) -> Syntax:
    return NameReference(_text(identifier, 1))


def _selection(select: bytes) -> Syntax:
    return Selection(_syntax(_one(select, 1)), _text(select, 2))


def _call(call: bytes) -> Syntax:
    arguments = [value for number in (1, 3) for found, value in _fields(call) if found == number]
    return Call(_text(call, 2), tuple(_syntax(each) for each in arguments))


def _list(list_: bytes) -> Syntax:
    return Collection(tuple(_syntax(value) for number, value in _fields(list_) if number == 1))


def _map(struct: bytes) -> Syntax:
    entries = [value for number, value in _fields(struct) if number == 2]  # noqa: PLR2004 - Struct.entries
    parts = [value for entry in entries for number, value in _fields(entry) if number in {3, 4}]
    return Collection(tuple(_syntax(part) for part in parts))


def _loop(loop: bytes) -> Syntax:
    range_, initial, condition, step, result = (_syntax(_one(loop, number)) for number in (2, 4, 5, 6, 7))
    variables = tuple(name for number in (1, 8) if (name := _text(loop, number)))
    return Loop(variables, range_, _text(loop, 3), initial, condition, step, result)


_READERS: Final[Mapping[int, Callable[[bytes], Syntax]]] = {
    3: _literal,
    4: _name,
    5: _selection,
    6: _call,
    7: _list,
    8: _map,
    9: _loop,
}


# ---- protobuf --------------------------------------------------------------------------------------------------------


def _one(message: bytes, number: int) -> bytes:
    return next((value for found, value in _fields(message) if found == number), b"")


def _text(message: bytes, number: int) -> str:
    return _one(message, number).decode()


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the bytes of each field that has a length; skip all other fields."""
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        match key & 7:
            case 0:
                _, offset = _varint(message, offset)
            case 1:
                offset += 8
            case 5:
                offset += 4
            case _:
                length, offset = _varint(message, offset)
                yield key >> 3, message[offset : offset + length]
                offset += length


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte has no continuation bit
            return value, offset
        shift += 7
