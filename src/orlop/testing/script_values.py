"""Read values of a script strictly: an invalid one raises `ScriptError`, which names its place.

This module knows how to read values, not which values a script has. It must not open files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import yaml

from orlop.foundation.duration import Duration, InvalidDuration
from orlop.foundation.quantity import InvalidQuantity, Quantity

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

KIND_NAMES = {
    dict: "a mapping",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


class ScriptError(ValueError):
    """The script is invalid. The text names the place, the problem, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its place in the script, such as `script.CreateVolume[0].delay`."""

    content: Any
    place: str

    def wrong(self, why: str) -> ScriptError:
        return ScriptError(f"{self.place or 'the script'}: {why}")

    def fields(self, allowed: Collection[str]) -> dict[str, Value]:
        """Return the values of a mapping by key. The error for an unknown key suggests the most similar allowed one."""
        return {self._allowed_key(key, allowed): self._below(key) for key in self.mapping()}

    def mapping(self) -> Mapping[str, Any]:
        if self.content is None:
            return {}
        if not isinstance(self.content, Mapping):
            raise self._not_a("mapping")
        return self.content

    def items(self) -> list[Value]:
        if not isinstance(self.content, list | tuple):
            raise self._not_a("list")
        return [Value(item, f"{self.place}[{number}]") for number, item in enumerate(self.content)]

    def text(self) -> str:
        if not isinstance(self.content, str):
            raise self._not_a("text", " (write it in quotes)" if isinstance(self.content, int | float) else "")
        if not self.content:
            raise self.wrong("is empty: a text is needed")
        if any("\ud800" <= character <= "\udfff" for character in self.content):
            raise self.wrong("contains a lone surrogate: protobuf cannot encode it")
        return self.content

    def one_of(self, allowed: Collection[str]) -> str:
        text = self.text()
        if text not in allowed:
            raise self.wrong(f"there is no {text!r}{_meant(text, allowed)}; allowed are {', '.join(sorted(allowed))}")
        return text

    def names(self, allowed: Collection[str]) -> frozenset[str]:
        return frozenset(item.one_of(allowed) for item in self.items())

    def texts(self) -> frozenset[str]:
        return frozenset(item.text() for item in self.items())

    def text_map(self) -> dict[str, str]:
        return {str(key): self._below(key).text() for key in self.mapping()}

    def boolean(self) -> bool:
        if not isinstance(self.content, bool):
            raise self.wrong(f"is {self.content!r}: allowed are true and false")
        return self.content

    def whole_number(self) -> int:
        if not isinstance(self.content, int) or isinstance(self.content, bool) or self.content < 0:
            raise self.wrong(f"is {self.content!r}: allowed are whole numbers from 0 on")
        return self.content

    def seconds(self) -> float:
        text = str(self.content) if isinstance(self.content, int | float) else self.text()
        try:
            duration = Duration.parse(text)
        except InvalidDuration as error:
            raise self.wrong(str(error)) from None
        if duration.nanoseconds < 0:
            raise self.wrong(f"is {text}: allowed are durations from 0 on")
        return duration.seconds

    def size(self) -> int:
        try:
            size = self.content if type(self.content) is int else Quantity.parse(self.text()).value()
        except InvalidQuantity as error:
            raise self.wrong(str(error)) from None
        if not 0 <= size < 1 << 63:
            shown = "more" if size > 0 else str(self.content)[:40]
            raise self.wrong(f"is {shown}: allowed are sizes from 0 on that fit into 64 bits")
        return size

    def _allowed_key(self, key: object, allowed: Collection[str]) -> str:
        if key not in allowed:
            hint = _meant(str(key), allowed)
            raise self.wrong(f"there is no key {key!r} here{hint}; allowed are {', '.join(sorted(allowed))}")
        return str(key)

    def _below(self, key: object) -> Value:
        return Value(self.mapping()[key], f"{self.place}.{key}" if self.place else str(key))  # type: ignore[index]

    def _not_a(self, kind: str, hint: str = "") -> ScriptError:
        return self.wrong(f"is {KIND_NAMES.get(type(self.content), 'nothing')}: a {kind} is needed{hint}")


def _meant(written: str, allowed: Collection[str]) -> str:
    near = get_close_matches(written, allowed, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def load_yaml(text: str) -> Any:
    """Read one YAML document. A key that occurs twice in a mapping is an error: one of the two would be lost."""
    try:
        return yaml.load(text, Loader=_LoaderWithoutDuplicates)  # noqa: S506 - a safe loader, made stricter
    except yaml.YAMLError as error:
        raise ScriptError(f"the script is not YAML: {error}") from None
    except RecursionError:
        raise ScriptError("the script cannot be read: it is nested too deep") from None


class _LoaderWithoutDuplicates(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        try:
            return super().construct_object(node, deep)
        except (ScriptError, yaml.YAMLError, RecursionError):
            raise
        except Exception:  # noqa: BLE001 - each kind of scalar breaks in its own way, as `!!bool maybe` with a KeyError
            raise ScriptError(f"line {node.start_mark.line + 1}: the value does not fit its tag {node.tag}") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str):
                raise ScriptError(f"line {key_node.start_mark.line + 1}: a key must be a text")
            if key in keys and key_node.tag != "tag:yaml.org,2002:merge":
                raise ScriptError(f"line {key_node.start_mark.line + 1}: the key {key!r} occurs twice in one mapping")
            keys.add(key)
        return super().construct_mapping(node, deep)
