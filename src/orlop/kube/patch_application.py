"""Apply JSON patches (RFC 6902) and merge patches (RFC 7386) to documents, as an API server does. Pure.

The document that was given is never changed, and the result shares nothing with it nor with the patch. A patch is
applied whole or not at all. A server answers `PatchError` with 400, `PatchTooLarge` with 413 and `PatchDoesNotApply`
with 422.

Where Kubernetes differs from the RFC, clients rely on Kubernetes: `test` with the value null also passes where the
member of an object is missing. That is the only way to say in a JSON patch that something must not be there yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict."""

MOST_OPERATIONS: Final = 10_000
MOST_COPIED_BYTES: Final = 3 * 1024 * 1024
INDEX: Final = re.compile(r"0|[1-9][0-9]{0,9}")
BAD_ESCAPE: Final = re.compile(r"~(?![01])")


class PatchError(ValueError):
    """The patch itself is not valid by its standard."""


class PatchTooLarge(PatchError):
    pass


class PatchDoesNotApply(Exception):
    """The patch is valid, but not for this document: a test failed, or a path does not exist."""


# ---- merge patches ---------------------------------------------------------------------------------------------------


def apply_merge_patch(document: Json, patch: Json) -> Json:
    try:
        return _merged(document, patch)
    except RecursionError:
        raise PatchTooLarge("the merge patch is nested too deeply") from None


def _merged(target: Json, patch: Json) -> Json:
    if not isinstance(patch, Mapping):
        return copied(patch)
    result = {key: copied(value) for key, value in target.items() if key not in patch} if _is_object(target) else {}
    before = target if _is_object(target) else {}
    for key, value in patch.items():
        if value is not None:
            result[key] = _merged(before.get(key), value)
    return result


def _is_object(value: Json) -> bool:
    return isinstance(value, Mapping)


# ---- values ----------------------------------------------------------------------------------------------------------


def copied(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: copied(member) for key, member in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def equal(left: Json, right: Json) -> bool:
    """Compare values as JSON does: numbers by value; true is not equal to 1, although Python has them equal."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _size(value: Json) -> int:
    """Estimate the encoded size in bytes."""
    if isinstance(value, Mapping):
        return 2 + sum(len(key) + 4 + _size(member) for key, member in value.items())
    if isinstance(value, list):
        return 2 + sum(1 + _size(item) for item in value)
    return 2 + len(value) if isinstance(value, str) else 8


# ---- JSON pointers ---------------------------------------------------------------------------------------------------


def pointer(*parts: str | int) -> str:
    """Build a JSON pointer: `pointer("metadata", "labels", "a/b")` is `/metadata/labels/a~1b`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def pointer_parts(text: str) -> tuple[str, ...]:
    """Split a JSON pointer; the empty one, for the whole document, has no parts."""
    if text and not text.startswith("/"):
        raise PatchError(f'{text!r} is no JSON pointer: one is empty or begins with "/"')
    if BAD_ESCAPE.search(text):
        raise PatchError(f'{text!r} is no JSON pointer: after "~" comes 0 or 1')
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def _index(part: str, length: int) -> int:
    """Return the index in a list of that length at which an item is, or can be inserted."""
    if not INDEX.fullmatch(part):
        raise PatchDoesNotApply(f"{part!r} is no index of a list")
    index = int(part)
    if index >= length:
        raise PatchDoesNotApply(f"the list has no place {part}")
    return index


def _member(container: Json, part: str) -> Json:
    if isinstance(container, dict):
        if part not in container:
            raise PatchDoesNotApply(f"there is no {part!r}")
        return container[part]
    if isinstance(container, list):
        return container[_index(part, len(container))]
    raise PatchDoesNotApply(f"there is no {part!r}: only objects and lists have parts")


# ---- JSON patches ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Operation:
    """One operation, parsed and checked; `OPERATIONS` applies it."""

    name: str
    path: tuple[str, ...]
    source: tuple[str, ...]
    value: Json


def apply_json_patch(document: Json, patch: Json) -> Json:
    """Apply a JSON patch as it was on the wire; raise `PatchError` if it is not a list of operations."""
    operations = read_json_patch(patch)
    try:
        applied = _Application(copied(document))
        for number, operation in enumerate(operations):
            applied.apply(number, operation)
    except RecursionError:
        raise PatchTooLarge("the document is nested too deeply") from None
    return applied.document


def read_json_patch(patch: Json) -> tuple[_Operation, ...]:
    if not isinstance(patch, Sequence) or isinstance(patch, str | bytes):
        raise PatchError("a JSON patch is a list of operations")
    if len(patch) > MOST_OPERATIONS:
        allowed = f"The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {len(patch)}"
        raise PatchTooLarge(allowed)
    return tuple(_read_operation(number, operation) for number, operation in enumerate(patch))


def _read_operation(number: int, operation: Json) -> _Operation:
    try:
        return _checked_operation(operation)
    except PatchError as error:
        raise PatchError(f"operation {number} of the JSON patch: {error}") from None


def _checked_operation(operation: Json) -> _Operation:
    if not isinstance(operation, Mapping):
        raise PatchError("it is no object")
    name = operation.get("op")
    if not isinstance(name, str) or name not in OPERATIONS:
        raise PatchError(f"{name!r} is no operation; there are {', '.join(OPERATIONS)}")
    if name in NEED_VALUE and "value" not in operation:
        raise PatchError(f"{name} needs a value")
    path = _read_pointer(operation, "path")
    source = _read_pointer(operation, "from") if name in NEED_SOURCE else ()
    if name == "move" and len(source) < len(path) and path[: len(source)] == source:
        raise PatchError("what is moved cannot be moved into itself")
    return _Operation(name, path, source, operation.get("value"))


def _read_pointer(operation: Mapping[str, Json], field: str) -> tuple[str, ...]:
    text = operation.get(field)
    if not isinstance(text, str):
        raise PatchError(f"{operation['op']} needs a {field}")
    return pointer_parts(text)


class _Application:
    """A document that the operations change in place."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self._copied_bytes = 0

    def apply(self, number: int, operation: _Operation) -> None:
        try:
            OPERATIONS[operation.name](self, operation)
        except PatchDoesNotApply as error:
            where = (
                f"operation {number} of the JSON patch ({operation.name} {pointer(*operation.path) or 'the document'})"
            )
            raise PatchDoesNotApply(f"{where}: {error}") from None

    def add(self, operation: _Operation) -> None:
        self._put(operation.path, copied(operation.value))

    def remove(self, operation: _Operation) -> None:
        self._take(operation.path)

    def replace(self, operation: _Operation) -> None:
        if not operation.path:
            self.document = copied(operation.value)
            return
        container, last = self._container(operation.path)
        if not isinstance(container, dict):  # In an object, Kubernetes also replaces a missing member.
            _member(container, last)
        container[last if isinstance(container, dict) else int(last)] = copied(operation.value)

    def move(self, operation: _Operation) -> None:
        if operation.path == operation.source:
            self._find(operation.source)
        else:
            self._put(operation.path, self._take(operation.source))

    def copy(self, operation: _Operation) -> None:
        value = self._find(operation.source)
        self._copied_bytes += _size(value)
        if self._copied_bytes > MOST_COPIED_BYTES:  # A document that copies itself into itself doubles each time.
            raise PatchTooLarge(f"the JSON patch copies more than {MOST_COPIED_BYTES} bytes")
        self._put(operation.path, copied(value))

    def test(self, operation: _Operation) -> None:
        if operation.value is None and operation.path:
            container, last = self._container(operation.path)
            if isinstance(container, dict) and last not in container:
                return  # As Kubernetes does.
        if not equal(self._find(operation.path), operation.value):
            raise PatchDoesNotApply("the value there is another one")

    def _find(self, path: tuple[str, ...]) -> Json:
        value = self.document
        for part in path:
            value = _member(value, part)
        return value

    def _container(self, path: tuple[str, ...]) -> tuple[Json, str]:
        return self._find(path[:-1]), path[-1]

    def _put(self, path: tuple[str, ...], value: Json) -> None:
        if not path:
            self.document = value
            return
        container, last = self._container(path)
        if isinstance(container, dict):
            container[last] = value
        elif isinstance(container, list):
            container.insert(len(container) if last == "-" else _index(last, len(container) + 1), value)
        else:
            raise PatchDoesNotApply("only objects and lists have parts")

    def _take(self, path: tuple[str, ...]) -> Json:
        if not path:
            raise PatchDoesNotApply("the whole document cannot be taken away")
        container, last = self._container(path)
        value = _member(container, last)
        del container[last if isinstance(container, dict) else int(last)]
        return value


OPERATIONS: Final[Mapping[str, Callable[[_Application, _Operation], None]]] = {
    "add": _Application.add,
    "remove": _Application.remove,
    "replace": _Application.replace,
    "move": _Application.move,
    "copy": _Application.copy,
    "test": _Application.test,
}
NEED_VALUE: Final = frozenset({"add", "replace", "test"})
NEED_SOURCE: Final = frozenset({"move", "copy"})
