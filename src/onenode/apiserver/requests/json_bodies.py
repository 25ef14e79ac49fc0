"""Reading the JSON of a request: one value, and the names that were given twice in one object.

As in Go, a name given twice has its last value, bytes that are no UTF-8 become U+FFFD, and NaN is no number, nor is one
too large for a double. Unlike in Go, which allows 10,000, values nest at most 200 deep: nothing Kubernetes has nests
deeper than 30, and whatever walks a value later may do so by recursion. Time and memory are bounded by the length of
the text. Nothing here knows kinds.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

DEEPEST: Final = 200
# As many strict errors as Kubernetes lists.
MOST_DUPLICATES: Final = 100
LONGEST_PATH: Final = 1024

Path = tuple[str | int, ...]


class NotJson(ValueError):
    """The text is no JSON value, or one nobody can mean."""


@dataclass(frozen=True, slots=True)
class JsonBody:
    """`duplicates` are paths such as `data.a` or `spec.containers[0].name`, in the order of the objects' ends.

    They are shortened to LONGEST_PATH characters.
    """

    value: Any
    duplicates: tuple[str, ...] = ()


def read_body(text: bytes) -> JsonBody:
    twice: list[tuple[dict[str, Any], str]] = []
    value = _parsed(_decoded(text), twice)
    _check_depth(text, value)
    return JsonBody(value, tuple(_paths(value, twice)) if twice else ())


def _decoded(text: bytes) -> str:
    return text.decode("utf-8-sig" if text.startswith(b"\xef\xbb\xbf") else "utf-8", errors="replace")


def _parsed(text: str, twice: list[tuple[dict[str, Any], str]]) -> Any:
    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice.extend((made, name) for name in _repeated(pairs))
        return made

    try:
        value = json.loads(text, object_pairs_hook=hook, parse_float=_number, parse_constant=_no_number)
    except RecursionError:
        raise NotJson(f"the value nests deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise NotJson(str(error)) from None
    return _without_lone_surrogates(value) if "\\u" in text else value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _repeated(pairs: list[tuple[str, Any]]) -> list[str]:
    counts = Counter(name for name, _ in pairs)
    return [name for name, count in counts.items() if count > 1]


def _without_lone_surrogates(value: Any) -> Any:
    """A text with half of a surrogate pair cannot be written again."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        value[:] = [_without_lone_surrogates(item) for item in value]
    elif isinstance(value, dict):
        items = [(_without_lone_surrogates(key), _without_lone_surrogates(inner)) for key, inner in value.items()]
        value.clear()
        value.update(items)
    return value


def _check_depth(text: bytes, value: Any) -> None:
    # A text with so few brackets cannot nest too deep: nearly all of them end here.
    if text.count(b"{") + text.count(b"[") <= DEEPEST:
        return
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return
    raise NotJson(f"the value nests deeper than {DEEPEST} levels")


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _paths(value: Any, twice: list[tuple[dict[str, Any], str]]) -> Iterator[str]:
    reported = twice[:MOST_DUPLICATES]
    places = dict(_places(value, (), frozenset(id(owner) for owner, _ in reported)))
    for owner, name in reported:
        # An object that was itself given twice is no part of the value any more.
        if id(owner) in places:
            yield _path_text((*places[id(owner)], _without_lone_surrogates(name)))


def _places(value: Any, path: Path, wanted: frozenset[int]) -> Iterator[tuple[int, Path]]:
    """The way to each wanted object, by its identity; the ways to all objects could be far longer than the text."""
    if isinstance(value, dict):
        if id(value) in wanted:
            yield id(value), path
        for key, inner in value.items():
            yield from _places(inner, (*path, key), wanted)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _places(item, (*path, place), wanted)


def _path_text(path: Path) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:LONGEST_PATH]}" for part in path)
    return "".join(parts).removeprefix(".")[:LONGEST_PATH]
