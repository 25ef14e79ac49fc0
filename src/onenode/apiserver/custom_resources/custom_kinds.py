"""Which kinds are served right now: the built-in ones, and those of the CustomResourceDefinitions in the store.

Everything is derived from the stored definitions, so a kind is served from the write on that declared it, and after a
restart. A watch on the definitions reports that one changed; until then nothing is read again. Only a definition that
changed is compiled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onenode.apiserver.answers.discovery import storage_hash
from onenode.apiserver.answers.openapi import CustomSchema
from onenode.apiserver.custom_resources.definition_status_rules import is_served
from onenode.apiserver.custom_resources.object_rules import CustomKind
from onenode.apiserver.custom_resources.stored_custom_objects import CustomKindInStore, kinds_of, version_priority
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.store.change_notice import ChangeNotice
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import StoreClosed
from onenode.apiserver.store.versions import Stored, fresh
from onenode.apiserver.verbs.stored_objects import KindInStore, kinds_in_store
from orlop.kube.kinds import CREATE, CUSTOM_RESOURCE_DEFINITION, Kind

PathOfKind = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class KindTable:
    """`by_path` is keyed by group, version and resource; `stored` has one entry for each resource that is stored.

    `kinds` and `storage_hashes` are what discovery shows.
    """

    kinds: tuple[Kind, ...]
    storage_hashes: Mapping[Kind, str]
    by_path: Mapping[PathOfKind, KindInStore]
    stored: tuple[KindInStore, ...]
    group_versions: frozenset[tuple[str, str]]
    custom_groups: frozenset[str]

    def has_group(self, group: str) -> bool:
        return any(known == group for known, _ in self.group_versions)


@dataclass(frozen=True, slots=True)
class _Definition:
    """A stored definition, compiled: its versions, the one in which objects are stored first."""

    revision: int
    uid: str
    kinds: tuple[CustomKindInStore, ...]
    served: frozenset[str]


class KindRegistry:
    def __init__(self, store: ObjectStore, schemas: Schemas, built_in: Sequence[Kind]) -> None:
        self._store = store
        self._built_in = tuple(built_in)
        self._has_definitions = CUSTOM_RESOURCE_DEFINITION in self._built_in
        self._built_in_store = kinds_in_store(self._built_in)
        self._built_in_resources = frozenset(kind.resource for kind in self._built_in)
        kept = (each for each in self._built_in_store.values() if each.kind.verbs != CREATE)
        self._built_in_hashes = {each.kind: storage_hash(each.kept_as) for each in kept}
        self._notice = ChangeNotice(store, CUSTOM_RESOURCE_DEFINITION.resource)
        self._definitions: dict[str, _Definition] = {}
        self._custom: dict[tuple[str, str], CustomKind] = {}
        self.schemas = schemas.with_custom(self._custom)
        self._current = self._made()

    def current(self) -> KindTable:
        """Return the kinds that the newest stored definitions declare."""
        if self._has_definitions and self._has_changed():
            stored = self._store.list(CUSTOM_RESOURCE_DEFINITION.resource).items
            self._definitions = {each.key.name: self._definition(each) for each in stored}
            self._current = self._made()
        return self._current

    def is_built_in(self, path: PathOfKind) -> bool:
        return path in self._built_in_store

    def openapi(self) -> list[CustomSchema]:
        """Return what OpenAPI describes of the custom resources that are served."""
        self.current()
        return [CustomSchema(custom.kind, custom.node.schema) for custom in self._custom.values()]

    def close(self) -> None:
        self._notice.close()

    def _has_changed(self) -> bool:
        try:
            return self._notice.take()
        except StoreClosed:
            return False

    # ---- compiling ---------------------------------------------------------------------------------------------------

    def _definition(self, stored: Stored) -> _Definition:
        known = self._definitions.get(stored.key.name)
        if known is not None and known.revision == stored.revision:
            return known
        definition = fresh(stored)
        uid = definition["metadata"]["uid"]
        kinds = tuple(kinds_of(definition, self.schemas, stored.revision))
        if known is not None and known.uid == uid:
            kinds = _since_schema_changed(known.kinds, kinds)
        versions = definition["spec"]["versions"] if is_served(definition) else []
        return _Definition(stored.revision, uid, kinds, frozenset(each["name"] for each in versions if each["served"]))

    def _made(self) -> KindTable:
        served = [
            kind
            for definition in self._definitions.values()
            for kind in definition.kinds
            if kind.kind.version in definition.served and self._is_free(kind.kind)
        ]
        served.sort(key=lambda each: (each.kind.group, version_priority(each.kind.version), each.kind.plural))
        self._custom.clear()
        self._custom.update({(each.kind.api_version, each.kind.kind): each.custom for each in served})
        kinds = (*self._built_in, *(each.shown for each in served))
        first = (definition.kinds[0] for definition in self._definitions.values() if definition.kinds)
        stored = (each for each in first if self._is_free(each.kind))
        return KindTable(
            kinds,
            {**self._built_in_hashes, **{each.shown: storage_hash(each.kept_as) for each in served}},
            {**self._built_in_store, **{_path(each.kind): each for each in served}},
            (*self._built_in_store.values(), *stored),
            frozenset((kind.group, kind.version) for kind in kinds),
            frozenset(each.kind.group for each in served) - {kind.group for kind in self._built_in},
        )

    def _is_free(self, kind: Kind) -> bool:
        """What the server has itself is never replaced, nor do other versions of it share its place in the store."""
        return kind.resource not in self._built_in_resources


def _path(kind: Kind) -> PathOfKind:
    return kind.group, kind.version, kind.plural


def _since_schema_changed(
    old: Iterable[CustomKindInStore], new: Sequence[CustomKindInStore]
) -> tuple[CustomKindInStore, ...]:
    """Objects written under a schema that is still the same need not be brought into its shape again."""
    before = {each.kind.version: each for each in old}
    return tuple(
        each.with_shape_of(known)
        if (known := before.get(each.kind.version)) is not None and known.has_shape_of(each)
        else each
        for each in new
    )
