"""The schemas of Kubernetes' own kinds: field names and types, which are required, how lists are patched and merged.

`Schemas.load()` reads the one generated file; a definition is only built when it is first asked for, since a server
that stores three kinds has no use for the other two hundred definitions. What is handed out is frozen.

Kinds are named by apiVersion and kind, such as ("storage.k8s.io/v1", "CSINode"); definitions by the last parts of their
OpenAPI names, such as "core.v1.PodSpec". Nothing here judges a value: decoding_rules does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import msgspec

FILE: Final = "schemas.json"
ITEM: Final = "[]"
VALUE: Final = "map[string]"


@dataclass(frozen=True, slots=True)
class Scalar:
    """One JSON value: string, bool, int32, int64, float64, bytes, quantity, time, microtime, int-or-string or any."""

    name: str


@dataclass(frozen=True, slots=True)
class ListType:
    item: Type


@dataclass(frozen=True, slots=True)
class MapType:
    value: Type


@dataclass(frozen=True, slots=True)
class ReferenceType:
    """An object with the fields of a definition."""

    definition: str


Type = Scalar | ListType | MapType | ReferenceType


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a definition.

    `merge_key` and `patch_strategies` are what strategic merge patches go by; `list_type` (atomic, set, map),
    `list_map_keys` and `map_type` (atomic, granular) what server-side apply goes by.
    """

    name: str
    type: Type
    required: bool = False
    merge_key: str | None = None
    patch_strategies: frozenset[str] = frozenset()
    list_type: str | None = None
    list_map_keys: tuple[str, ...] = ()
    map_type: str | None = None

    @property
    def is_merged(self) -> bool:
        return "merge" in self.patch_strategies


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    fields: Mapping[str, Field]
    map_type: str | None = None

    @property
    def go_name(self) -> str:
        """The name of the Go type, as it appears in messages: `PodSpec`."""
        return self.name.rpartition(".")[2]

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields.values() if field.required)


class UnknownKind(LookupError):
    def __init__(self, api_version: str, kind: str) -> None:
        super().__init__(f"there is no kind {kind} in {api_version}; the one-machine API server knows none but its own")


class UnknownField(LookupError):
    def __init__(self, definition: str, path: str) -> None:
        super().__init__(f"{definition} has no field {path}")


class _File(msgspec.Struct, frozen=True):
    kubernetes: str
    kinds: dict[str, str]
    definitions: dict[str, msgspec.Raw]


class _FileDefinition(msgspec.Struct, frozen=True, rename="camel"):
    fields: dict[str, str | dict[str, Any]]
    required: tuple[str, ...] = ()
    map_type: str | None = None


class Schemas:
    """Every definition of the file; each is built once, at its first use.

    `custom` has what is known of the custom resources of one server, by apiVersion and kind.
    """

    __slots__ = ("_built", "_file", "custom")

    def __init__(self, text: bytes) -> None:
        self._file = msgspec.json.decode(text, type=_File)
        self._built: dict[str, Definition] = {}
        self.custom: Mapping[tuple[str, str], Any] = {}

    @classmethod
    def load(cls) -> Schemas:
        return cls(files(__package__).joinpath(FILE).read_bytes())

    def with_custom(self, custom: Mapping[tuple[str, str], Any]) -> Schemas:
        """Return the same schemas beside custom resources; `custom` may change later."""
        made = copy(self)
        made.custom = custom
        return made

    @property
    def kubernetes_version(self) -> str:
        return self._file.kubernetes

    def kinds(self) -> Iterator[tuple[str, str]]:
        for name in self._file.kinds:
            api_version, _, kind = name.rpartition("/")
            yield api_version, kind

    def kind(self, api_version: str, kind: str) -> Definition:
        name = self._file.kinds.get(f"{api_version}/{kind}")
        if name is None:
            raise UnknownKind(api_version, kind)
        return self.definition(name)

    def definition(self, name: str) -> Definition:
        built = self._built.get(name)
        if built is None:
            built = self._built[name] = _definition(name, self._file.definitions[name])
        return built

    def field_at(self, definition: Definition, path: str) -> Field:
        """The field at a path such as `spec.containers.env`; indexes and the keys of maps are no part of it."""
        field = None
        inside: Definition | None = definition
        for name in path.split("."):
            field = None if inside is None else inside.fields.get(name)
            if field is None:
                raise UnknownField(definition.name, path)
            inside = self.inside(field.type)
        if field is None:
            raise UnknownField(definition.name, path)
        return field

    def inside(self, type_: Type) -> Definition | None:
        """The definition of an object, or of the items of a list or map; None where there are no fields."""
        match type_:
            case ReferenceType(name):
                return self.definition(name)
            case ListType(inner) | MapType(inner):
                return self.inside(inner)
            case _:
                return None


def _definition(name: str, raw: msgspec.Raw) -> Definition:
    read = msgspec.json.decode(raw, type=_FileDefinition)
    required = frozenset(read.required)
    fields = {key: _field(key, value, required=key in required) for key, value in read.fields.items()}
    return Definition(name, fields, read.map_type)


def _field(name: str, read: str | dict[str, Any], *, required: bool) -> Field:
    if isinstance(read, str):
        return Field(name, _type(read), required)
    strategies = read.get("patchStrategy", "")
    return Field(
        name,
        _type(read["type"]),
        required,
        merge_key=read.get("mergeKey"),
        patch_strategies=frozenset(strategies.split(",")) if strategies else frozenset(),
        list_type=read.get("listType"),
        list_map_keys=tuple(read.get("listMapKeys", ())),
        map_type=read.get("mapType"),
    )


def _type(text: str) -> Type:
    if text.startswith(ITEM):
        return ListType(_type(text.removeprefix(ITEM)))
    if text.startswith(VALUE):
        return MapType(_type(text.removeprefix(VALUE)))
    return ReferenceType(text[1:]) if text.startswith("@") else Scalar(text)
