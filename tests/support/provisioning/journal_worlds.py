"""Journals of orders on an API server on virtual time: provisioners that record, die, and take over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from onenode.apiserver.access.rbac_rules import ADMIN, User
from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.client import KubeClient
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import LEASE
from orlop.records.provision_journal import ANNOTATION, JournalEntry, decode_page
from orlop.records.volume_order import ClaimIdentity
from orlop.sidecars.provisioner.order_journal import OrderJournal
from support.api.api_wires import Before, Wire
from support.provisioning.volume_orders import order
from support.worlds import ClusterWorld

NAMESPACE = "default"
DRIVER = "mock.example.com"
Object = dict[str, Any]


def entry(number: int, **fields: Any) -> JournalEntry:
    """Return an entry for the volume `pvc-NUMBER`."""
    deadline = fields.pop("deadline", 1e9)
    is_being_deleted = fields.pop("is_being_deleted", False)
    identity = ClaimIdentity("team", f"data-{number}", f"uid-{number}")
    whole = order(claim=identity, volume_name=f"pvc-{number}", **fields)
    return JournalEntry(whole, deadline, 10.0, is_being_deleted)


def large_entry(number: int, kibibytes: int, **fields: Any) -> JournalEntry:
    """Return an entry that cannot be compressed."""
    noise = Random(number).randbytes(kibibytes * 1024 * 3 // 4).hex()[: kibibytes * 1024]
    return entry(number, storage={"parameters": (("noise", noise),)}, **fields)


@dataclass
class OpenJournal:
    journal: OrderJournal
    entries: list[JournalEntry]
    """What it found when it was opened."""
    running: asyncio.Task[None]

    async def record(self, *entries: JournalEntry) -> None:
        await asyncio.gather(*map(self.journal.record, entries))


class JournalWorld(ClusterWorld):
    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire()
        """The connections of all journals to the API server."""
        self.user: User = ADMIN
        """Whose connections they are."""
        self._processes = 0

    @asynccontextmanager
    async def opened(self, driver: str = DRIVER, namespace: str = NAMESPACE) -> AsyncIterator[OpenJournal]:
        """Open the journal as one process does; the process is killed when the block is left."""
        self._processes += 1
        runtime = self.runtime(f"provisioner-{self._processes}")
        wire = self.wire.around(self.on.transport(self.user))
        kube = KubeClient(wire, clock=self.clock, random=runtime.random, log=runtime.log)
        journal = OrderJournal(kube, namespace, driver, runtime=runtime, may_act=lambda: None)
        entries = await journal.open()
        running = asyncio.ensure_future(journal.run())
        try:
            yield OpenJournal(journal, entries, running)
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def leases(self) -> list[Object]:
        return (await self.client.list(LEASE)).items

    async def pages(self) -> dict[str, list[str]]:
        """The names of the volumes in each page, by the name of its Lease."""
        return {
            lease["metadata"]["name"]: [each.order.volume_name for each in _entries(lease)]
            for lease in await self.leases()
        }

    async def stored(self) -> list[JournalEntry]:
        return [each for lease in await self.leases() for each in _entries(lease)]

    async def names(self) -> list[str]:
        return sorted(each.order.volume_name for each in await self.stored())

    def losing_response(self, method: str, times: int = 1) -> Before:
        """Requests with this method have their effect, and their responses are lost."""
        left = times
        inner = self.transport()

        async def before(request: HttpRequest) -> HttpResponse | None:
            nonlocal left
            if request.method != method or not left:
                return None
            left -= 1
            await inner.exchange(request, 60.0)
            raise ConnectionBroken("the connection broke before the response came")

        return before


def _entries(lease: Object) -> tuple[JournalEntry, ...]:
    text = lease["metadata"].get("annotations", {}).get(ANNOTATION, "")
    return decode_page(text) if text else ()
