"""One function of Kubernetes in CEL, and the values of types that the library does not have. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CelValue = Mapping[str, Any]
"""A value of a type of Kubernetes: a map with one key, the name of the type."""


@dataclass(frozen=True, slots=True)
class CelFunction:
    """One overload. Types have the library's names; a member's first parameter is the value that it is called on."""

    name: str
    parameters: tuple[str, ...]
    result: str
    implementation: Callable[..., Any]
    is_member: bool


def function(name: str, parameters: Sequence[str], result: str, implementation: Callable[..., Any]) -> CelFunction:
    return CelFunction(name, tuple(parameters), result, implementation, is_member=False)


def member(name: str, parameters: Sequence[str], result: str, implementation: Callable[..., Any]) -> CelFunction:
    return CelFunction(name, tuple(parameters), result, implementation, is_member=True)


def unwrapped(value: CelValue, type_name: str) -> Any:
    """Return what a value of the type holds; raise ValueError for a value of another type."""
    if type_name not in value:
        raise ValueError(f"no such overload: the value is no {type_name}")
    return value[type_name]


def holds(parse: Callable[..., Any]) -> Callable[..., bool]:
    """Return whether a text can be read."""

    def is_valid(*arguments: Any) -> bool:
        try:
            parse(*arguments)
        except ValueError:
            return False
        return True

    return is_valid
