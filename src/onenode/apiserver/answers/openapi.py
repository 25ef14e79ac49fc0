"""OpenAPI v3 of what is served, for kubectl's explain, validation and apply: an index, and one document per group.

Made from the schemas and the kinds when first asked for, and kept: a server that nobody asks has no use for them. The
address in the index holds a hash of the document, so that clients keep it for as long as it is the same. The documents
of custom resources are made again when a definition in their group changed.

Pure, but for what it remembers of its own results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from onenode.apiserver.schema.schemas import Definition, Field, ListType, MapType, ReferenceType, Scalar, Schemas, Type
from orlop.kube.kinds import Kind

Document = dict[str, Any]

OBJECT_META: Final = "meta.v1.ObjectMeta"
LIST_META: Final = "meta.v1.ListMeta"
META_PREFIX: Final = "io.k8s.apimachinery.pkg.apis."
API_PREFIX: Final = "io.k8s.api."
EXTENSIONS_PREFIX: Final = "io.k8s.apiextensions-apiserver.pkg.apis."
COMPONENTS: Final = "#/components/schemas/"
QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
# kubectl sends a strategic merge patch where a kind takes one, and else a merge patch.
CUSTOM_PATCHES: Final = PATCHES[:2]
OPERATIONS: Final = {
    "get": "get",
    "list": "get",
    "create": "post",
    "update": "put",
    "patch": "patch",
    "delete": "delete",
}
ON_COLLECTIONS: Final = frozenset({"list", "create"})

SCALARS: Final[Mapping[str, Document]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "float64": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"allOf": [{"$ref": COMPONENTS + QUANTITY}]},
    "int-or-string": {"allOf": [{"$ref": COMPONENTS + INT_OR_STRING}]},
    "any": {"type": "object"},
}
SHARED: Final[Mapping[str, Document]] = {
    QUANTITY: {
        "description": "A number with a unit, such as 10Gi or 500m.",
        "oneOf": [{"type": "string"}, {"type": "number"}],
    },
    INT_OR_STRING: {
        "description": "A whole number, or a text such as a percentage.",
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
}


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """A document as it is sent, and the hash of that."""

    body: bytes
    hash: str


@dataclass(frozen=True, slots=True)
class CustomSchema:
    """A custom resource: its kind and its `openAPIV3Schema`."""

    kind: Kind
    schema: Mapping[str, Any]


class OpenApi:
    """`custom` returns the custom resources that are served at the moment."""

    def __init__(
        self,
        schemas: Schemas,
        kinds: Sequence[Kind],
        version: str,
        custom: Callable[[], Sequence[CustomSchema]] = tuple,
    ) -> None:
        self._schemas = schemas
        self._kinds = kinds
        self._version = version
        self._custom = custom
        self._written: dict[str, EncodedDocument] = {}
        self._custom_written: dict[str, tuple[list[CustomSchema], EncodedDocument]] = {}

    def index(self) -> Document:
        """Of `/openapi/v3`."""
        kinds = (*self._kinds, *(each.kind for each in self._custom()))
        names = dict.fromkeys(_group_name(kind) for kind in kinds)
        urls = {name: f"/openapi/v3/{name}?hash={self._document(name).hash}" for name in names}
        return {"paths": {name: {"serverRelativeURL": url} for name, url in urls.items()}}

    def document(self, name: str) -> EncodedDocument | None:
        """Of `/openapi/v3/NAME`, such as `api/v1` or `apis/storage.k8s.io/v1`."""
        kinds = (*self._kinds, *(each.kind for each in self._custom()))
        return self._document(name) if any(_group_name(kind) == name for kind in kinds) else None

    def _document(self, name: str) -> EncodedDocument:
        if any(_group_name(kind) == name for kind in self._kinds):
            if name not in self._written:
                self._written[name] = _encoded(self._made([each for each in self._kinds if _group_name(each) == name]))
            return self._written[name]
        return self._custom_document(name)

    def _custom_document(self, name: str) -> EncodedDocument:
        mine = [each for each in self._custom() if _group_name(each.kind) == name]
        known = self._custom_written.get(name)
        if known is None or known[0] != mine:
            known = self._custom_written[name] = (mine, _encoded(self._made_custom(mine)))
        return known[1]

    def _made_custom(self, resources: Sequence[CustomSchema]) -> Document:
        components: Document = {}
        for name in (OBJECT_META, LIST_META):
            self._add(self._schemas.definition(name), components)
        for each in resources:
            components |= _custom_components(each)
        paths = {path: item for each in resources for path, item in _paths(each.kind, CUSTOM_PATCHES)}
        return self._whole(paths, components)

    def _made(self, kinds: Sequence[Kind]) -> Document:
        known = set(self._schemas.kinds())
        mine = [kind for kind in kinds if (kind.api_version, kind.kind) in known]
        paths = {path: item for kind in mine for path, item in _paths(kind)}
        return self._whole(paths, self._components(mine))

    def _whole(self, paths: Document, components: Document) -> Document:
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": self._version},
            "paths": paths,
            "components": {"schemas": components},
        }

    def _components(self, kinds: Sequence[Kind]) -> Document:
        made: Document = {}
        for kind in kinds:
            definition = self._schemas.kind(kind.api_version, kind.kind)
            self._add(definition, made)
            made[_full_name(definition.name)]["x-kubernetes-group-version-kind"] = [_gvk(kind)]
        return {**dict(sorted(made.items())), **SHARED}

    def _add(self, definition: Definition, made: Document) -> None:
        name = _full_name(definition.name)
        if name in made:
            return
        made[name] = _schema(definition)
        for field in definition.fields.values():
            inside = self._schemas.inside(field.type)
            if inside is not None:
                self._add(inside, made)


def _encoded(document: Document) -> EncodedDocument:
    body = msgspec.json.encode(document)
    return EncodedDocument(body, hashlib.sha256(body).hexdigest().upper())


def _group_name(kind: Kind) -> str:
    return kind.group_path.removeprefix("/")


def _full_name(name: str) -> str:
    prefixes = {"meta": META_PREFIX, "apiextensions": EXTENSIONS_PREFIX}
    return f"{prefixes.get(name.partition('.')[0], API_PREFIX)}{name}"


def _gvk(kind: Kind) -> dict[str, str]:
    return {"group": kind.group, "kind": kind.kind, "version": kind.version}


# ---- schemas ---------------------------------------------------------------------------------------------------------


def _schema(definition: Definition) -> Document:
    schema: Document = {
        "type": "object",
        "properties": {name: _property(field) for name, field in definition.fields.items()},
    }
    if definition.required:
        schema["required"] = list(definition.required)
    if definition.map_type:
        schema["x-kubernetes-map-type"] = definition.map_type
    return schema


def _property(field: Field) -> Document:
    made = _type(field.type)
    extensions = {
        "x-kubernetes-patch-merge-key": field.merge_key,
        "x-kubernetes-patch-strategy": ",".join(sorted(field.patch_strategies)),
        "x-kubernetes-list-type": field.list_type,
        "x-kubernetes-list-map-keys": list(field.list_map_keys),
        "x-kubernetes-map-type": field.map_type,
    }
    return {**made, **{name: value for name, value in extensions.items() if value}}


def _type(type_: Type) -> Document:
    match type_:
        case Scalar(name):
            return SCALARS[name]
        case ListType(item):
            return {"type": "array", "items": _type(item)}
        case MapType(value):
            return {"type": "object", "additionalProperties": _type(value)}
        case ReferenceType(name):
            return {"allOf": [{"$ref": COMPONENTS + _full_name(name)}]}


def _custom_components(resource: CustomSchema) -> Document:
    """The schema of a custom resource and of its list: what every object has is added to what is declared."""
    kind, reversed_group = resource.kind, ".".join(reversed(resource.kind.group.split(".")))
    name = f"{reversed_group}.{kind.version}.{kind.kind}"
    declared = resource.schema.get("properties", {})
    whole = {**resource.schema, "properties": {**declared, **_TYPE_PROPERTIES, "metadata": _reference(OBJECT_META)}}
    items = {"type": "array", "items": {"$ref": COMPONENTS + name}}
    listed = {"items": items, **_TYPE_PROPERTIES, "metadata": _reference(LIST_META)}
    of_list = {**_gvk(kind), "kind": kind.list_kind}
    return {
        name: {**whole, "x-kubernetes-group-version-kind": [_gvk(kind)]},
        f"{name}List": {
            "type": "object",
            "required": ["items"],
            "properties": listed,
            "x-kubernetes-group-version-kind": [of_list],
        },
    }


def _reference(name: str) -> Document:
    return {"allOf": [{"$ref": COMPONENTS + _full_name(name)}]}


_TYPE_PROPERTIES: Final[Document] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}


# ---- paths -----------------------------------------------------------------------------------------------------------


def _paths(kind: Kind, patches: Sequence[str] = PATCHES) -> Iterator[tuple[str, Document]]:
    inside = f"{kind.group_path}/namespaces/{{namespace}}" if kind.namespaced else kind.group_path
    collection = f"{inside}/{kind.plural}"
    yield collection, _operations(kind, [verb for verb in kind.verbs if verb in ON_COLLECTIONS], patches)
    named = [verb for verb in kind.verbs if verb in OPERATIONS and verb not in ON_COLLECTIONS]
    if named:
        yield f"{collection}/{{name}}", _operations(kind, named, patches)


def _operations(kind: Kind, verbs: Sequence[str], patches: Sequence[str]) -> Document:
    return {OPERATIONS[verb]: _operation(kind, verb, patches) for verb in verbs}


def _operation(kind: Kind, verb: str, patches: Sequence[str]) -> Document:
    operation: Document = {"x-kubernetes-action": verb, "x-kubernetes-group-version-kind": _gvk(kind), "responses": {}}
    if verb in {"create", "update", "patch"}:
        queries = ("dryRun", "fieldManager", "fieldValidation")
        operation["parameters"] = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in queries]
    if verb == "patch":
        operation["requestBody"] = {"content": {media: {} for media in patches}}
    return operation
