"""The parts of objects that are created by a POST to their own path: binding, eviction and token.

Order of effects as in the module that does the work: binding is one write decided upon the newest pod, eviction a
deletion, and the module of reviews makes the token.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.admission.write_attributes import Admit
from onenode.apiserver.answers.status_answers import (
    invalid,
    no_such_resource,
    not_found,
    success,
)
from onenode.apiserver.kinds.pod_update_rules import bound
from onenode.apiserver.requests.request_bodies import DecodedBody, read_object
from onenode.apiserver.requests.request_options import WriteOptions, read_deletion_options, read_write_options
from onenode.apiserver.requests.request_paths import ResourceRequest
from onenode.apiserver.schema.creation_rules import CreationContext
from onenode.apiserver.schema.schemas import Schemas, UnknownKind
from onenode.apiserver.schema.validation_rules import prepare_create
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import Put, Stored
from onenode.apiserver.verbs.deleting import Deleter
from onenode.apiserver.verbs.guarded_writes import GuardedDecision, carry_out
from onenode.apiserver.verbs.scaling import check_name
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.foundation.runtime import Runtime
from orlop.kube.kinds import BINDING, POD, Kind, Subresource

Object = dict[str, Any]

CREATED: Final = 201
NOWHERE: Final = CreationContext(now="", uid="", name_suffix="")


class Reviews(Protocol):
    """Answers the kinds that are asked and never stored: who am I, may I do this, give me a token."""

    async def review(self, kind: Kind, body: Object, user: User, namespace: str, name: str) -> Object:
        """`namespace` and `name` are the path's; the body was decoded and found valid. Raises a `Refusal`."""


class _NoReviews:
    async def review(self, kind: Kind, body: Object, user: User, namespace: str, name: str) -> Object:  # noqa: ARG002
        raise no_such_resource()


NO_REVIEWS: Final[Reviews] = _NoReviews()


class Subresources:
    def __init__(
        self,
        store: ObjectStore,
        schemas: Schemas,
        runtime: Runtime,
        deleter: Deleter,
        reviews: Reviews,
    ) -> None:
        self._store = store
        self._schemas = schemas
        self._runtime = runtime
        self._deleter = deleter
        self._reviews = reviews

    # ---- what is made by asking --------------------------------------------------------------------------------------

    async def create(self, request: ResourceRequest, part: Subresource, user: User, admit: Admit) -> Object:
        match part.name:
            case "binding":
                return await self.bind(request, admit)
            case "eviction":
                return await self._evict(request, admit)
            case "token":
                return await self.review(request, kind_of_part(part), user, admit)
            case _:
                raise no_such_resource()

    async def review(self, request: ResourceRequest, kind: Kind, user: User, admit: Admit) -> Object:
        options = read_write_options(request.http.query, "CreateOptions")
        body = self._given(request, kind, options)
        admit(body.object, None)
        return await self._reviews.review(kind, body.object, user, request.namespace, request.name)

    async def bind(self, request: ResourceRequest, admit: Admit) -> Object:
        """Bind the pod of the path, or the one that the Binding's own name names."""
        options = read_write_options(request.http.query, "CreateOptions")
        binding = self._given(request, BINDING, options).object
        metadata = binding.get("metadata") or {}
        name = request.name or metadata.get("name", "")
        check_name(metadata.get("name", ""), name)
        admit(binding, None)
        key = PODS.key(request.namespace, name)

        def decide(newest: Stored | None, revision: int) -> GuardedDecision:
            if newest is None:
                raise not_found(POD, name)
            pod = bound(PODS.object(newest), binding, self._runtime.clock.now())
            return GuardedDecision(Put(PODS.encoded(pod, revision)))

        await carry_out(self._store, key, decide, dry_run=options.dry_run)
        return success(code=CREATED)

    async def _evict(self, request: ResourceRequest, admit: Admit) -> Object:
        options = read_write_options(request.http.query, "CreateOptions")
        eviction = self._given(request, EVICTION, options).object
        check_name(eviction.get("metadata", {}).get("name", ""), request.name)
        admit(eviction, None)
        delete_options = eviction.get("deleteOptions") or {}
        if options.dry_run:
            delete_options = {**delete_options, "dryRun": ["All"]}
        await self._deleter.delete(request.kind, request.key, read_deletion_options((), delete_options))
        return success(code=CREATED)

    def _given(self, request: ResourceRequest, kind: Kind, options: WriteOptions) -> DecodedBody:
        body = read_object(self._schemas, request.http, kind.api_version, kind.kind, options)
        try:
            causes = prepare_create(self._schemas, kind.api_version, kind.kind, body.object, NOWHERE).causes
        except UnknownKind:
            return body
        if causes:
            raise invalid(kind, body.object.get("metadata", {}).get("name", ""), causes)
        return body


def kind_of_part(part: Subresource) -> Kind:
    """The kind of what is sent to a part that takes another kind than its object's."""
    group = part.group or ""
    return Kind(group, part.version or "v1", part.kind, f"{part.kind.lower()}s", namespaced=True)


PODS: Final = KindInStore(POD, POD)
EVICTION: Final = Kind("policy", "v1", "Eviction", "evictions", namespaced=True)
