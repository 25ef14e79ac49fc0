"""The table of a custom resource: the columns of its definition, filled by their JSON paths. Pure.

A path that finds nothing gives an empty cell, as does a value of another type than the column's; a column of texts
shows any value, objects as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from onenode.apiserver.answers.table_columns import NAME, Column, age_text
from onenode.apiserver.answers.table_rules import TableShape
from onenode.go_text import printed
from orlop.kube.objects import InvalidTime, read_time

PathStep = Callable[[Any], Iterator[Any]]

AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
AGE_DESCRIPTION: Final = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed "
    "to be set in happens-before order across separate operations. Clients may not set this value. It is represented "
    "in "
    "RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)
_TOKEN: Final = re.compile(
    r"""\.(?P<name>(?:[^.\[\]\\]|\\.)+)|\[\?\((?P<filter>.+?)\)\]|\['(?P<quoted>[^']*)'\]|\[(?P<index>-?\d+|\*)\]"""
)
_FILTER: Final = re.compile(r"""@(?P<path>(?:\.[^=!<>\s]+)+)\s*(?:(?P<relation>==|!=)\s*(?P<value>.+?)\s*)?""")


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path such as `.status.conditions[?(@.type=="Ready")].status`; what cannot be read finds nothing."""

    steps: tuple[PathStep, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        steps, place = [], 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                return cls((lambda _value: iter(()),))
            steps.append(_step(match))
            place = match.end()
        return cls(tuple(steps))

    def first(self, value: Any) -> Any:
        """Return the first value at the path, None where there is none."""
        found = [value]
        for step in self.steps:
            found = [inner for outer in found for inner in step(outer)]
        return found[0] if found else None


def _step(match: re.Match[str]) -> PathStep:
    if (text := match["filter"]) is not None:
        return _filtering(text)
    if (index := match["index"]) is not None:
        return _everything if index == "*" else lambda value: _item(value, int(index))
    name = match["quoted"] if match["quoted"] is not None else re.sub(r"\\(.)", r"\1", match["name"])
    return lambda value: iter([value[name]] if isinstance(value, dict) and name in value else [])


def _everything(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())


def _item(value: Any, index: int) -> Iterator[Any]:
    inside = isinstance(value, list) and -len(value) <= index < len(value)
    return iter([value[index]] if inside else [])


def _filtering(text: str) -> PathStep:
    match = _FILTER.fullmatch(text)
    if match is None:
        return lambda _value: iter(())
    path, relation, operand = JsonPath.parse(match["path"]), match["relation"], match["value"]
    wanted = _operand(operand) if relation else None

    def takes(item: Any) -> bool:
        found = path.first(item)
        if relation is None:
            return found is not None
        return bool(found == wanted) == (relation == "==")

    return lambda value: iter([item for item in _everything(value) if takes(item)])


def _operand(text: str) -> Any:
    if text[:1] in {"'", '"'}:
        return text[1:-1]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


# ---- cells -----------------------------------------------------------------------------------------------------------


def custom_table(columns: Sequence[Mapping[str, Any]]) -> TableShape:
    """Return the table of a version's `additionalPrinterColumns`; without any, objects show their age."""
    shown = list(columns) or [AGE]
    paths = [(JsonPath.parse(column["jsonPath"]), column["type"]) for column in shown]

    def cells(obj: Mapping[str, Any], now: datetime) -> Sequence[Any]:
        return [obj["metadata"].get("name", ""), *(_cell(path.first(obj), type_, now) for path, type_ in paths)]

    return TableShape((NAME, *map(_column, shown)), cells)


def _column(column: Mapping[str, Any]) -> Column:
    path = column["jsonPath"]
    described = AGE_DESCRIPTION if column is AGE else f"Custom resource definition column (in JSONPath format): {path}"
    return Column(
        column["name"],
        column["type"],
        format=column.get("format", ""),
        priority=column.get("priority", 0),
        description=column.get("description") or described,
    )


def _cell(value: Any, type_: str, now: datetime) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match type_:
        case "string":
            return _text(value)
        case "integer" if is_number:
            return int(value)
        case "number" if is_number:
            return float(value)
        case "boolean" if isinstance(value, bool):
            return value
        case "date" if isinstance(value, str):
            return _age(value, now)
        case _:
            return None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else printed(value)


def _age(value: str, now: datetime) -> str:
    try:
        read_time(value)
    except InvalidTime:
        return "<invalid>"
    return age_text(value, now)
