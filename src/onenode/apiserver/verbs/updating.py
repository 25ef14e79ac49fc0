"""Changing objects that are there: replacing and patching, whole or by a subresource.

Order of effects: in the store's turn, upon the newest version, the new object is made (a patch is applied there, so it
never meets a version other than the one it changes), compared with what the client expects, judged, and written; then
it is answered. An object that was being deleted and now has nothing left to wait for goes in the same write, seen last
as it was. A change that changes nothing is no write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.admission.write_attributes import Admit, admit_all
from onenode.apiserver.answers.status_answers import (
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
    version_missing,
)
from onenode.apiserver.custom_resources.definition_status_rules import with_status
from onenode.apiserver.kinds.kind_rules import rules_of
from onenode.apiserver.kinds.volume_claim_rules import resize_refusal
from onenode.apiserver.requests.request_bodies import DecodedBody, read_patched
from onenode.apiserver.requests.request_options import WriteOptions, read_version
from onenode.apiserver.schema.metadata_rules import missing_version
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.schema.validation_rules import MAIN, prepare_update
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import JSON, Key, Put, Remove, Stored, Unchanged
from onenode.apiserver.verbs.creating import Creator, check_namespace, stored_definitions
from onenode.apiserver.verbs.deletion_rules import is_over
from onenode.apiserver.verbs.guarded_writes import GuardedDecision, carry_out
from onenode.apiserver.verbs.object_patches import PatchBody, patched
from onenode.apiserver.verbs.stored_objects import NO_REVISION, KindInStore
from orlop.foundation.runtime import Runtime
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.kube.objects import time_text

Object = dict[str, Any]

UNVERSIONED: Final = frozenset({"", "0"})
MISSING_VERSION: Final = (missing_version(),)


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The object that is meant, and the part of it."""

    kind: KindInStore
    key: Key
    subresource: str = MAIN


@dataclass(frozen=True, slots=True)
class WriteResult:
    stored: Stored
    created: bool = False
    warnings: tuple[str, ...] = ()


class Updater:
    def __init__(self, store: ObjectStore, schemas: Schemas, runtime: Runtime, creator: Creator) -> None:
        self._store = store
        self._schemas = schemas
        self._runtime = runtime
        self._creator = creator

    async def replace(
        self,
        place: WriteTarget,
        body: DecodedBody,
        admit: Admit,
        *,
        dry_run: bool,
        allow_create: Callable[[], None],
    ) -> WriteResult:
        """`allow_create` raises when the client may not make the object it meant to replace."""
        new = _named_as_asked(check_namespace(body.object, place.key.namespace), place.key.name)
        kind = place.kind.kind
        creates = rules_of(kind.api_version, kind.kind).created_by_replacing and place.subresource == MAIN
        if creates and self._store.get(place.key) is None:
            allow_create()
            unversioned = _without_version(new)
            stored = await self._creator.create(
                place.kind, place.key.namespace, unversioned, dry_run=dry_run, admit=admit
            )
            return WriteResult(stored, created=True, warnings=body.warnings)
        stored = await self.change(place, lambda old: _checked_uid(place, old, new), admit, dry_run=dry_run)
        return WriteResult(stored, warnings=body.warnings)

    async def patch(self, place: WriteTarget, patch: PatchBody, options: WriteOptions, admit: Admit) -> WriteResult:
        warnings: list[str] = []
        kind = place.kind.kind

        def make(old: Object) -> Object:
            result = patched(self._schemas, old, patch)
            body = read_patched(self._schemas, result, kind.api_version, kind.kind, options, patch.duplicates)
            warnings.extend(body.warnings)
            return _named_as_asked(check_namespace(body.object, place.key.namespace), place.key.name)

        stored = await self.change(place, make, admit, dry_run=options.dry_run)
        return WriteResult(stored, warnings=tuple(warnings))

    async def change(
        self, place: WriteTarget, make: Callable[[Object], Object], admit: Admit = admit_all, *, dry_run: bool
    ) -> Stored:
        """`make` gets the newest object, of its own to change, and gives the one that a client wants."""

        def decide(newest: Stored | None, revision: int) -> GuardedDecision:
            if newest is None:
                raise not_found(place.kind.kind, place.key.name)
            old = place.kind.object(newest)
            new = self._judged(place, old, _versioned(place, newest, make(place.kind.object(newest))))
            admit(new, old)
            if new == old:
                return GuardedDecision(Unchanged())
            encoded = place.kind.encoded(new, revision)
            if is_over(new):
                return GuardedDecision(Remove(place.kind.encoded(old, revision)), shown=encoded)
            return GuardedDecision(Put(encoded))

        async with self._creator.turn_of(place.kind.kind):
            return await carry_out(self._store, place.key, decide, dry_run=dry_run)

    def _judged(self, place: WriteTarget, old: Object, new: Object) -> Object:
        kind, name = place.kind.kind, place.key.name
        prepared = prepare_update(
            self._schemas, old, new, now=time_text(self._runtime.clock.now()), subresource=place.subresource
        )
        if prepared.causes == MISSING_VERSION:
            raise version_missing(kind, name, prepared.causes)
        if prepared.causes:
            raise invalid(place.kind.kept_as, name, prepared.causes)
        if kind is PERSISTENT_VOLUME_CLAIM and place.subresource == MAIN:
            self._refuse_resize(old, prepared.object, name)
        if kind is CUSTOM_RESOURCE_DEFINITION and place.subresource == MAIN:
            now = time_text(self._runtime.clock.now())
            return with_status(prepared.object, stored_definitions(self._store), now)
        return prepared.object

    def _refuse_resize(self, old: Object, new: Object, name: str) -> None:
        named = new.get("spec", {}).get("storageClassName") or ""
        stored = self._store.get(Key(STORAGE_CLASS.resource, "", named))
        storage_class = None if stored is None else JSON.decode(stored.json)
        if why := resize_refusal(old, new, storage_class):
            raise forbidden(PERSISTENT_VOLUME_CLAIM, name, why)


def _named_as_asked(new: Object, name: str) -> Object:
    named = new.get("metadata", {}).get("name", "")
    if not named:
        what = f"the name of the object ({name} based on URL) was undeterminable"
        raise bad_request(f"{what}: name must be provided")
    if named != name:
        raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({name})")
    return new


def _checked_uid(place: WriteTarget, old: Object, new: Object) -> Object:
    expected, actual = new.get("metadata", {}).get("uid"), old["metadata"].get("uid")
    if expected and expected != actual:
        key = "/".join(filter(None, ("/registry", place.kind.kind.plural, place.key.namespace, place.key.name)))
        what = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        why = f"Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
        raise conflict(place.kind.kind, place.key.name, what + why)
    return new


def _versioned(place: WriteTarget, newest: Stored, new: Object) -> Object:
    """The client's object, if it was made from the newest version or from none in particular."""
    version = new.get("metadata", {}).get("resourceVersion", "")
    if version in UNVERSIONED:
        return _without_version(new)
    if newest.revision != NO_REVISION and read_version(version) != newest.revision:
        raise conflict(place.kind.kind, place.key.name)
    return new


def _without_version(new: Object) -> Object:
    metadata = new.get("metadata", {})
    return {**new, "metadata": {key: value for key, value in metadata.items() if key != "resourceVersion"}}
