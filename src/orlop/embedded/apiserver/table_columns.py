"""The columns of a table, as the API describes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column of priority 1 is shown by `kubectl get -o wide` alone."""

    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0

    def definition(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": "",
            "priority": self.priority,
        }


def column(name: str) -> Column:
    return Column(name)


def wide(name: str) -> Column:
    return Column(name, priority=1)


def integer(name: str, priority: int = 0) -> Column:
    return Column(name, "integer", priority=priority)


def bool_column(name: str) -> Column:
    return Column(name, "boolean")


def date_column(name: str) -> Column:
    return Column(name, "date")
