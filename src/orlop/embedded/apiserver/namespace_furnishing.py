"""What every namespace has: the service account `default`, without which no pod can be made, and the CA for its pods.

In a cluster two controllers of Kubernetes see to it. Level-triggered: it looks at what is in the store, also when it
begins, and makes only what is missing. A namespace that is ending refuses new content, and is left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

import msgspec

from orlop.embedded.apiserver.access_rules import User
from orlop.embedded.apiserver.authentication import ADMIN
from orlop.embedded.apiserver.object_store.errors import Expired, StoreClosed, TooSlow
from orlop.embedded.apiserver.object_store.store import ObjectStore
from orlop.embedded.apiserver.object_store.versions import Change, ChangeKind, Key
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.http_messages import HttpAnswer, HttpRequest, HttpStream
from orlop.kube.kinds import CONFIG_MAP, NAMESPACE, SERVICE_ACCOUNT, Kind

ACCOUNT: Final = "default"
CA: Final = "kube-root-ca.crt"
ABOUT_CA: Final = {"kubernetes.io/description": "The CA with which pods verify the API server."}
JSON: Final = {"content-type": "application/json", "accept": "application/json"}
# Somebody else made it, or the namespace is ending or gone.
NOT_NEEDED: Final = frozenset({409, 403, 404})
FIRST_ERROR: Final = 400


class Server(Protocol):
    async def answer(self, request: HttpRequest, user: User) -> HttpAnswer | HttpStream: ...


class NamespaceFurnishing:
    def __init__(self, server: Server, store: ObjectStore, ca_certificate: str, log: Log) -> None:
        self._server = server
        self._store = store
        self._log = log
        annotated = {"name": CA, "annotations": ABOUT_CA}
        self._furniture: tuple[tuple[Kind, dict[str, Any]], ...] = (
            (SERVICE_ACCOUNT, {"metadata": {"name": ACCOUNT}}),
            (CONFIG_MAP, {"metadata": annotated, "data": {"ca.crt": ca_certificate}}),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """When it is entered, the namespaces that are there are furnished."""
        await self._furnish_all()
        async with TaskGroup() as group:
            kinds = (NAMESPACE, SERVICE_ACCOUNT, CONFIG_MAP)
            tasks = [group.start(self._follow(kind), name=f"furnish by {kind.plural}") for kind in kinds]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _follow(self, kind: Kind) -> None:
        while True:
            try:
                with self._store.watch(kind.resource, after=self._store.revision) as watch:
                    await self._furnish_all()
                    async for change in watch:
                        await self._look(change)
                    return
            except (TooSlow, Expired):
                continue
            except StoreClosed:
                return

    async def _look(self, change: Change) -> None:
        if change.key.resource == NAMESPACE.resource:
            if change.kind is ChangeKind.CREATED:
                await self._furnish(change.key.name)
        elif change.kind is ChangeKind.DELETED and change.key.name in {ACCOUNT, CA}:
            await self._furnish(change.key.namespace)

    async def _furnish_all(self) -> None:
        for stored in self._store.list(NAMESPACE.resource).items:
            await self._furnish(stored.key.name)

    async def _furnish(self, namespace: str) -> None:
        for kind, value in self._furniture:
            if self._store.get(Key(kind.resource, namespace, value["metadata"]["name"])) is not None:
                continue
            path = kind.collection_path(namespace)
            answer = await self._server.answer(HttpRequest("POST", path, (), JSON, msgspec.json.encode(value)), ADMIN)
            if answer.status >= FIRST_ERROR and answer.status not in NOT_NEEDED:
                self._log.error("a namespace could not be furnished", namespace=namespace, status=answer.status)
