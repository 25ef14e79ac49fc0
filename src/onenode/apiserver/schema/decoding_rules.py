"""What Kubernetes understands of a JSON object: the fields its schema knows, each of the right type, in canonical form.

`decode` gives a new object. Fields the schema does not know are left out and named, so that the caller can refuse or
warn (fieldValidation); null is absence; empty lists and maps are absent where they may be; quantities and times are
written the one way Kubernetes writes them. A value of the wrong type raises Undecodable with Go's words: such an object
is answered 400, before anything is validated.

Types can be completed while they are read (default_rules): that is when Kubernetes sets its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.schema.scalar_rules import (
    READERS,
    ZEROES,
    Malformed,
    Mismatch,
    go_name,
    json_name,
    read_resource_quantity,
)
from onenode.apiserver.schema.schemas import Definition, ListType, MapType, ReferenceType, Scalar, Schemas, Type
from onenode.go_text import quoted

MOST_STRICT_ERRORS: Final = 100
# How the names of definitions end whose values may also be true or false: a JSON schema's additionalProperties.
OR_BOOL: Final = "OrBool"
_QUANTITY: Final = Scalar("quantity")

Object = dict[str, Any]
# What a type's name stands for here: a function from the object as it was given to the object with defaults.
Completions = Mapping[str, Callable[[Object], Object]]


class Undecodable(ValueError):
    """The object is none of its kind; the text is Go's, without the kind in front."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`unknown` are paths such as `spec.foo` or `spec.containers[0].foo`."""

    object: Object
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a map on the way to a value: part of the path, but no field."""

    name: str


def decode(schemas: Schemas, definition: Definition, value: Any, completions: Completions | None = None) -> Decoded:
    decoder = _Decoder(schemas, completions or {})
    return Decoded(decoder.root(value, definition), tuple(decoder.unknown))


def strict_errors(unknown: tuple[str, ...], duplicates: tuple[str, ...]) -> list[str]:
    """What fieldValidation=Warn warns of, one by one, and Strict refuses, joined."""
    errors = [
        *(f"unknown field {quoted(path)}" for path in unknown),
        *(f"duplicate field {quoted(path)}" for path in duplicates),
    ]
    return list(dict.fromkeys(errors))[:MOST_STRICT_ERRORS]


def strict_refusal(errors: list[str]) -> str:
    return f"strict decoding error: {', '.join(errors)}"


def cannot_be_handled(api_version: str, kind: str, why: str) -> str:
    """The whole sentence for the client; why is an Undecodable or a strict refusal."""
    version = api_version.rpartition("/")[2]
    return f"{kind} in version {quoted(version)} cannot be handled as a {kind}: {why}"


class _Decoder:
    __slots__ = ("_completions", "_path", "_schemas", "_struct", "unknown")

    def __init__(self, schemas: Schemas, completions: Completions) -> None:
        self._schemas = schemas
        self._completions = completions
        self._path: list[str | int | _Key] = []
        self._struct = ""
        self.unknown: list[str] = []

    def root(self, value: Any, definition: Definition) -> Object:
        try:
            return self._object(value, definition)
        except Mismatch as mismatch:
            raise Undecodable(self._in_go(mismatch)) from None
        except Malformed as malformed:
            raise Undecodable(str(malformed)) from None

    def _in_go(self, mismatch: Mismatch) -> str:
        fields = [part for part in self._path if isinstance(part, str)]
        if not fields:
            return str(mismatch)
        place = f"{self._struct}.{'.'.join(fields)}"
        return f"json: cannot unmarshal {mismatch.found} into Go struct field {place} of type {mismatch.wanted}"

    def _object(self, value: Any, definition: Definition) -> Object:
        if not isinstance(value, dict):
            raise Mismatch(json_name(value), _go_type(ReferenceType(definition.name)))
        made: Object = {}
        outer = self._struct
        for key, inner in value.items():
            field = definition.fields.get(key)
            if field is None:
                self._note_unknown(key)
                continue
            if inner is None:
                continue
            self._path.append(key)
            self._struct = definition.go_name
            read = self._value(inner, field.type)
            self._path.pop()
            if read is not None and (read or field.required or not isinstance(field.type, ListType | MapType)):
                made[key] = read
        self._struct = outer
        complete = self._completions.get(definition.name)
        return made if complete is None else complete(made)

    def _note_unknown(self, key: str) -> None:
        if len(self.unknown) < MOST_STRICT_ERRORS:
            self.unknown.append(_path_text([*self._path, key]))

    def _value(self, value: Any, type_: Type) -> Any:
        match type_:
            case Scalar(name):
                return READERS[name](value)
            case ReferenceType(name):
                if isinstance(value, bool) and name.endswith(OR_BOOL):
                    return value
                return self._object(value, self._schemas.definition(name))
            case ListType(item):
                return self._list(value, item)
            case MapType(inner):
                return self._map(value, inner)

    def _list(self, value: Any, item: Type) -> list[Any]:
        if not isinstance(value, list):
            raise Mismatch(json_name(value), f"[]{_go_type(item)}")
        made = []
        for place, inner in enumerate(value):
            self._path.append(place)
            made.append(self._item(inner, item))
            self._path.pop()
        return made

    def _map(self, value: Any, type_: Type) -> Object:
        if not isinstance(value, dict):
            raise Mismatch(json_name(value), f"map[string]{_go_type(type_)}")
        made = {}
        for key, inner in value.items():
            self._path.append(_Key(key))
            made[key] = self._resource(inner) if type_ == _QUANTITY else self._item(inner, type_)
            self._path.pop()
        return made

    @staticmethod
    def _resource(value: Any) -> str:
        return str(ZEROES[_QUANTITY.name]) if value is None else read_resource_quantity(value)

    def _item(self, value: Any, type_: Type) -> Any:
        """A value that stands for itself: null is the zero value of its type."""
        if value is not None:
            return self._value(value, type_)
        if isinstance(type_, Scalar):
            return ZEROES[type_.name]
        return [] if isinstance(type_, ListType) else self._value({}, type_)


def _path_text(path: list[str | int | _Key]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part.name if isinstance(part, _Key) else part
            text += f".{name}" if text else name
    return text


def _go_type(type_: Type) -> str:
    match type_:
        case ReferenceType(name):
            package, _, type_name = name.rpartition(".")
            return f"{package.rpartition('.')[2]}.{type_name}"
        case ListType(item):
            return f"[]{_go_type(item)}"
        case MapType(inner):
            return f"map[string]{_go_type(inner)}"
        case Scalar(name):
            return go_name(name)
