"""What every namespace has: the service account `default`, without which no pod can be made, and the CA for its pods.

In a cluster two controllers of Kubernetes see to it. Level-triggered: it looks at what is in the store, also when it
begins, makes what is missing, and corrects the CA: the one of before is of no use to anybody. Whatever else people have
put there stays. What fails is tried again, later each time. A namespace that is ending refuses new content, and is left
alone.

The namespace kube-system also has the ConfigMap that the API server of a cluster writes for servers that have it
authenticate their own clients: kube-controller-manager and kube-scheduler log an error each second while it is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Any, Final, Protocol

import msgspec

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.apiserver.edge.http_upgrade import ServerAnswer
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import RevisionExpired, StoreClosed, TooSlow
from onenode.apiserver.store.versions import Change, ChangeKind, Key, fresh
from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import CONFIG_MAP, NAMESPACE, SERVICE_ACCOUNT, Kind

ACCOUNT: Final = "default"
SYSTEM: Final = "kube-system"
CA: Final = "kube-root-ca.crt"
DELEGATION: Final = "extension-apiserver-authentication"
ABOUT_CA: Final = {"kubernetes.io/description": "The CA with which pods verify the API server."}
JSON: Final = {"content-type": "application/json", "accept": "application/json"}
# Somebody else made or changed it, which is seen as a change of its own; or the namespace is ending or gone.
NOT_NEEDED: Final = frozenset({409, 403, 404})
FIRST_ERROR: Final = 400
BACKOFF: Final = Backoff(initial=0.5, factor=2.0, cap=60.0, jitter=0.5)

Object = dict[str, Any]


class Server(Protocol):
    async def answer(self, request: HttpRequest, user: User) -> ServerAnswer: ...


class NamespaceFurnishing:
    def __init__(
        self, server: Server, store: ObjectStore, ca_certificate: str, *, clock: Clock, random: Random, log: Log
    ) -> None:
        self._server = server
        self._store = store
        self._clock = clock
        self._random = random
        self._log = log
        self._group = TaskGroup()
        self._retrying: dict[str, asyncio.Task[None]] = {}
        annotated = {"name": CA, "annotations": ABOUT_CA}
        self._furniture: tuple[tuple[Kind, Object], ...] = (
            (SERVICE_ACCOUNT, {"metadata": {"name": ACCOUNT}}),
            (CONFIG_MAP, {"metadata": annotated, "data": {"ca.crt": ca_certificate}}),
        )
        self._system_furniture = (*self._furniture, (CONFIG_MAP, _delegated_authentication(ca_certificate)))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Once. When it is entered, the namespaces that are there are furnished, or the failure has been logged."""
        async with self._group as group:
            await self._furnish_all()
            kinds = (NAMESPACE, SERVICE_ACCOUNT, CONFIG_MAP)
            tasks = [group.start(self._follow(kind), name=f"furnish by {kind.plural}") for kind in kinds]
            try:
                yield
            finally:
                for task in (*tasks, *self._retrying.values()):
                    task.cancel()

    async def _follow(self, kind: Kind) -> None:
        while True:
            try:
                with self._store.watch(kind.resource, after=self._store.revision) as watch:
                    await self._furnish_all()
                    async for change in watch:
                        await self._look(change)
                    return
            except (TooSlow, RevisionExpired):
                continue
            except StoreClosed:
                return

    async def _look(self, change: Change) -> None:
        if change.key.resource == NAMESPACE.resource:
            if change.kind is ChangeKind.CREATED:
                await self._furnish(change.key.name)
        elif change.key.name in {ACCOUNT, CA, DELEGATION}:
            await self._furnish(change.key.namespace)

    async def _furnish_all(self) -> None:
        """All at once, so that one commit serves many."""
        await asyncio.gather(*(self._furnish(stored.key.name) for stored in self._store.list(NAMESPACE.resource).items))

    async def _furnish(self, namespace: str) -> None:
        if not await self._is_furnished(namespace) and namespace not in self._retrying:
            task = self._group.start(self._retry(namespace), name=f"furnish {namespace} again")
            self._retrying[namespace] = task

    async def _retry(self, namespace: str) -> None:
        failures = 1
        try:
            await self._clock.sleep(BACKOFF.delay(failures, self._random))
            while not await self._is_furnished(namespace):
                failures += 1
                await self._clock.sleep(BACKOFF.delay(failures, self._random))
        finally:
            self._retrying.pop(namespace, None)

    async def _is_furnished(self, namespace: str) -> bool:
        """Whether all is there, made and corrected by this call where it was not."""
        furniture = self._system_furniture if namespace == SYSTEM else self._furniture
        done = [await self._place(namespace, kind, wanted) for kind, wanted in furniture]
        return all(done)

    async def _place(self, namespace: str, kind: Kind, wanted: Object) -> bool:
        name = wanted["metadata"]["name"]
        stored = self._store.get(Key(kind.resource, namespace, name))
        if stored is None:
            return await self._write("POST", kind.collection_path(namespace), wanted)
        found = fresh(stored)
        corrected = _corrected(found, wanted)
        return corrected == found or await self._write("PUT", kind.object_path(namespace, name), corrected)

    async def _write(self, method: str, path: str, value: Object) -> bool:
        answer = await self._server.answer(HttpRequest(method, path, (), JSON, msgspec.json.encode(value)), ADMIN)
        if answer.status < FIRST_ERROR or answer.status in NOT_NEEDED:
            return True
        self._log.error("cannot create default objects of namespace, retrying", path=path, status=answer.status)
        return False


def _delegated_authentication(ca_certificate: str) -> Object:
    """Return the ConfigMap, with one CA for both uses: it signs no client's certificate."""
    headers = {"username-headers": "User", "uid-headers": "Uid", "group-headers": "Group"}
    proxy = {
        **{f"requestheader-{key}": f'["X-Remote-{header}"]' for key, header in headers.items()},
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-client-ca-file": ca_certificate,
    }
    return {"metadata": {"name": DELEGATION}, "data": {"client-ca-file": ca_certificate, **proxy}}


def _corrected(found: Object, wanted: Object) -> Object:
    """Only what is wanted is put right, and an annotation only where there is none; the rest is other people's."""
    annotations = {**wanted["metadata"].get("annotations", {}), **found["metadata"].get("annotations", {})}
    metadata = {**found["metadata"], **({"annotations": annotations} if annotations else {})}
    return {**found, **wanted, "metadata": metadata}
