"""Making objects.

Order of effects: what is wrong with the namespace is said first, then what other objects forbid, then what is wrong
with the object itself; then it is written, and then answered. Whether the name is free, and whether the namespace is
still open, is decided in the store's turn. A generated name that is taken is generated anew.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AbstractAsyncContextManager, nullcontext
from random import Random
from typing import Any, Final

from onenode.apiserver.admission.write_attributes import Admit, admit_all
from onenode.apiserver.answers.status_answers import (
    Refusal,
    already_exists,
    bad_request,
    forbidden,
    invalid,
    no_name_left,
    version_on_create,
)
from onenode.apiserver.schema.creation_rules import MIRROR_ANNOTATION, CreationContext, default_class, missing_account
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.schema.validation_rules import prepare_create
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import JSON, Key, Put, Stored
from onenode.apiserver.verbs.guarded_writes import GuardedDecision, carry_out
from onenode.apiserver.verbs.namespace_gate import NamespaceGate
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.foundation.runtime import Runtime
from orlop.kube.kinds import (
    CUSTOM_RESOURCE_DEFINITION,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    Kind,
)
from orlop.kube.objects import time_text

Object = dict[str, Any]

MOST_NAMES_TRIED: Final = 8
# What generated names end with: no vowels, so that they spell nothing.
NAME_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
NAME_SUFFIX_LENGTH: Final = 5
NO_TURN: Final = nullcontext()
WRONG_NAMESPACE: Final = "the namespace of the provided object does not match the namespace sent on the request"


def check_namespace(obj: Object, namespace: str) -> Object:
    """The object in the namespace of the request; of a kind that has none, it loses the one it names."""
    metadata = obj.get("metadata", {})
    named = metadata.get("namespace", "")
    if named == namespace:
        return obj
    if named and namespace:
        raise bad_request(WRONG_NAMESPACE)
    others = {key: value for key, value in metadata.items() if key != "namespace"}
    return {**obj, "metadata": {**others, **({"namespace": namespace} if namespace else {})}}


class Creator:
    def __init__(self, store: ObjectStore, schemas: Schemas, runtime: Runtime, gate: NamespaceGate) -> None:
        self._store = store
        self._schemas = schemas
        self._runtime = runtime
        self._gate = gate
        self._definitions = asyncio.Lock()

    async def create(
        self, kind: KindInStore, namespace: str, obj: Object, *, dry_run: bool, admit: Admit = admit_all
    ) -> Stored:
        obj = check_namespace(obj, namespace)
        metadata = obj.get("metadata", {})
        self._gate.refuse_new_content(kind, namespace, metadata.get("name", ""))
        tries = 1 if metadata.get("name") else MOST_NAMES_TRIED
        for _ in range(tries):
            try:
                async with self.turn_of(kind.kind):
                    return await self._try(kind, namespace, obj, admit, dry_run=dry_run)
            except _NameTaken as taken:
                last = taken
        if tries > 1:
            raise no_name_left(kind.kind, last.name)
        raise already_exists(kind.kind, last.name, is_ending=last.is_ending)

    def turn_of(self, kind: Kind) -> AbstractAsyncContextManager[None]:
        """Return the turn of a write of this kind: definitions are written one after the other.

        Which names are free depends on all others, and the store shows a write only when it is durable.
        """
        return self._definitions if kind is CUSTOM_RESOURCE_DEFINITION else NO_TURN

    async def definitions_written(self) -> None:
        """Wait until no definition is being written."""
        if self._definitions.locked():
            async with self._definitions:
                pass

    async def _try(self, kind: KindInStore, namespace: str, obj: Object, admit: Admit, *, dry_run: bool) -> Stored:
        new = self._made(kind, namespace, obj)
        # Before the name is known to be free: as in Kubernetes, who may not create an object learns nothing of others.
        admit(new, None)
        key = kind.key(namespace, new["metadata"]["name"])

        def decide(newest: Stored | None, revision: int) -> GuardedDecision:
            self._gate.refuse_new_content(kind, namespace, key.name)
            if newest is not None:
                raise _NameTaken(key.name, is_ending="deletionTimestamp" in JSON.decode(newest.json)["metadata"])
            return GuardedDecision(Put(kind.encoded(new, revision)))

        return await carry_out(self._store, key, decide, dry_run=dry_run)

    def _made(self, kind: KindInStore, namespace: str, obj: Object) -> Object:
        around = self._context(kind, namespace, obj)
        prepared = prepare_create(self._schemas, kind.kind.api_version, kind.kind.kind, obj, around)
        name = prepared.object.get("metadata", {}).get("name", "")
        if prepared.causes:
            raise invalid(kind.kept_as, name, prepared.causes)
        if obj.get("metadata", {}).get("resourceVersion"):
            raise version_on_create()
        return prepared.object

    def _context(self, kind: KindInStore, namespace: str, obj: Object) -> CreationContext:
        return CreationContext(
            now=time_text(self._runtime.clock.now()),
            uid=_new_uid(self._runtime.random),
            name_suffix=_new_name_suffix(self._runtime.random),
            namespace=namespace if kind.kind.namespaced else None,
            default_class=self._default_class() if kind.kind is PERSISTENT_VOLUME_CLAIM else None,
            service_account=self._service_account(namespace, obj) if kind.kind is POD else None,
            definitions=stored_definitions(self._store) if kind.kind is CUSTOM_RESOURCE_DEFINITION else (),
        )

    def _default_class(self) -> str | None:
        page = self._store.list(STORAGE_CLASS.resource)
        return default_class([JSON.decode(stored.json) for stored in page.items])

    def _service_account(self, namespace: str, pod: Object) -> Object | None:
        metadata = pod.get("metadata", {})
        if MIRROR_ANNOTATION in metadata.get("annotations", {}):
            return None
        name = pod.get("spec", {}).get("serviceAccountName") or "default"
        stored = self._store.get(Key(SERVICE_ACCOUNT.resource, namespace, name))
        if stored is None:
            raise _without_account(namespace, metadata.get("name", ""), name)
        return JSON.decode(stored.json)


def stored_definitions(store: ObjectStore) -> tuple[Object, ...]:
    """Every CustomResourceDefinition: which names are free depends on all of them."""
    return tuple(JSON.decode(stored.json) for stored in store.list(CUSTOM_RESOURCE_DEFINITION.resource).items)


def _without_account(namespace: str, pod: str, account: str) -> Refusal:
    return forbidden(POD, pod, missing_account(namespace, account))


def _new_uid(random: Random) -> str:
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def _new_name_suffix(random: Random) -> str:
    return "".join(random.choices(NAME_LETTERS, k=NAME_SUFFIX_LENGTH))


class _NameTaken(Exception):
    def __init__(self, name: str, *, is_ending: bool) -> None:
        super().__init__(f"the name {name} is taken")
        self.name = name
        self.is_ending = is_ending
