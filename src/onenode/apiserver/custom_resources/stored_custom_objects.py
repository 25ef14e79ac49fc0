"""How custom resources lie in the store: in the storage version, in the shape of its schema.

An object written since the schema last changed is answered as its stored bytes, like a built-in one. An older object,
and every object in another version, is decoded, pruned and defaulted as it is read; nothing is written back, so it
takes its new shape in the store with its next change. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from onenode.apiserver.answers.custom_columns import custom_table
from onenode.apiserver.custom_resources.object_rules import CustomKind
from onenode.apiserver.custom_resources.schema_nodes import node_of
from onenode.apiserver.kinds.scale_rules import WORKLOAD, ScalePaths
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.store.versions import JSON, Stored
from onenode.apiserver.verbs.stored_objects import NO_REVISION, KindInStore
from orlop.kube.kinds import SCALE, STATUS, Kind, Subresource
from orlop.kube.selectors import field_text

Object = dict[str, Any]

VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
VERBS_AT_THE_END: Final = ("delete", "deletecollection", "get", "list", "watch")
_VERSION: Final = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")
_STABILITY: Final = {None: 2, "beta": 1, "alpha": 0}


@dataclass(frozen=True, slots=True)
class CustomKindInStore(KindInStore):
    """One version of a custom resource.

    `storage` is the version in which objects are stored; what was written after the revision `in_shape_after` has the
    shape of its schema.
    """

    is_custom: ClassVar[bool] = True

    custom: CustomKind
    storage: CustomKind
    in_shape_after: int
    is_ending: bool
    """Whether the definition is being deleted."""

    @property
    def shown(self) -> Kind:
        """The kind as discovery shows it: of a definition that is being deleted, without what would keep it."""
        return replace(self.kind, verbs=VERBS_AT_THE_END) if self.is_ending else self.kind

    def has_shape_of(self, other: CustomKindInStore) -> bool:
        return self.storage.kind == other.storage.kind and self.storage.node.schema == other.storage.node.schema

    def with_shape_of(self, older: CustomKindInStore) -> CustomKindInStore:
        return replace(self, in_shape_after=older.in_shape_after)

    def is_kept_as_shown(self, stored: Stored) -> bool:
        in_shape = stored.revision == NO_REVISION or stored.revision > self.in_shape_after
        return in_shape and self.kept_as is self.kind

    def object(self, stored: Stored) -> Object:
        value = JSON.decode(stored.json)
        return value if self.is_kept_as_shown(stored) else self.custom.decode(_typed(value, self.custom)).object

    def kept_object(self, stored: Stored) -> Object:
        """Tables have columns of the version that is asked for."""
        return self.object(stored)

    def encoded(self, obj: Mapping[str, Any], revision: int) -> bytes:
        if self.kept_as is self.kind:
            return KindInStore.encoded(self, obj, revision)
        # What the storage version does not declare is not stored.
        kept = self.storage.decode(_typed(obj, self.storage)).object
        return KindInStore.encoded(self, kept, revision)

    def converted(self, obj: Mapping[str, Any]) -> Object:
        return self.custom.decode(_typed(obj, self.custom)).object

    def json(self, stored: Stored) -> bytes:
        return stored.json if self.is_kept_as_shown(stored) else msgspec.json.encode(self.object(stored))

    def items(self, items: Sequence[Stored]) -> bytes:
        """Items of lists name their type, other than those of built-in kinds."""
        return b",".join([self.json(stored) for stored in items])


def _typed(value: Mapping[str, Any], custom: CustomKind) -> Object:
    return {**value, "apiVersion": custom.kind.api_version, "kind": custom.kind.kind}


# ---- the kinds of a definition ---------------------------------------------------------------------------------------


def kinds_of(definition: Mapping[str, Any], schemas: Schemas, revision: int) -> Iterator[CustomKindInStore]:
    """The version in which objects are stored comes first: all others are kept as it."""
    versions = sorted(definition["spec"]["versions"], key=lambda version: not version["storage"])
    storage: CustomKind | None = None
    for version in versions:
        scale = version.get("subresources", {}).get("scale")
        paths = None if scale is None else ScalePaths.of_definition(scale)
        custom = CustomKind(_kind(definition, version), node_of(version["schema"]["openAPIV3Schema"]), schemas, paths)
        storage = storage or custom
        yield CustomKindInStore(
            custom.kind,
            storage.kind,
            table=custom_table(version.get("additionalPrinterColumns", ())),
            selectable=_selectable(version),
            warning=_deprecation(definition, version),
            scale=paths or WORKLOAD,
            custom=custom,
            storage=storage,
            in_shape_after=revision,
            is_ending="deletionTimestamp" in definition["metadata"],
        )


def _kind(definition: Mapping[str, Any], version: Mapping[str, Any]) -> Kind:
    spec, names = definition["spec"], definition.get("status", {}).get("acceptedNames", {})
    return Kind(
        spec["group"],
        version["name"],
        names.get("kind") or spec["names"]["kind"],
        spec["names"]["plural"],
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular", ""),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        verbs=VERBS,
        subresources=tuple(_subresources(version)),
    )


def _subresources(version: Mapping[str, Any]) -> Iterator[Subresource]:
    subresources = version.get("subresources", {})
    yield from (part for part in (STATUS, SCALE) if subresources.get(part.name) is not None)


def _selectable(version: Mapping[str, Any]) -> dict[str, Any]:
    paths = [field["jsonPath"].removeprefix(".") for field in version.get("selectableFields", ())]
    return {path: partial(_field_text, path) for path in paths}


def _field_text(path: str, obj: Mapping[str, Any]) -> str:
    return field_text(obj, path)


def _deprecation(definition: Mapping[str, Any], version: Mapping[str, Any]) -> str:
    if not version.get("deprecated"):
        return ""
    group, kind = definition["spec"]["group"], definition["spec"]["names"]["kind"]
    plain = f"{group}/{version['name']} {kind} is deprecated"
    newer = [each["name"] for each in definition["spec"]["versions"] if each["served"] and not each.get("deprecated")]
    newer = [name for name in newer if version_priority(name) < version_priority(version["name"])]
    better = f"; use {group}/{min(newer, key=version_priority)} {kind}" if newer else ""
    return version.get("deprecationWarning") or f"{plain}{better}"


def version_priority(version: str) -> tuple[Any, ...]:
    """Sort v2 before v1, v1beta2, v1beta1 and v1alpha1; names of another form come last, by name."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (1, version)
    major, stability, minor = match.groups()
    return (0, -_STABILITY[stability], -int(major), -int(minor or 0))
