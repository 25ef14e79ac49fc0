"""Watchers over real sockets in front of the real server: who does not read is cut, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.apiserver.store.versions import Limits, SizeLimits
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream
from support.api.api_edge import RawClient, edge, local_client, request
from support.api.api_servers import TestServer, api_server
from support.waiting import HANGS_AFTER, eventually

PATH = "/api/v1/namespaces/default/configmaps"
LIMITS = Limits(history=SizeLimits(1000, 8 << 20), unread=SizeLimits(20, 1 << 20))
CHANGES = 150


class Open:
    """Lets everybody in as admin."""

    def __init__(self, on: TestServer) -> None:
        self._on = on

    def admit(self, head: HttpRequest, *, local: bool) -> User | HttpResponse:
        return ADMIN

    async def answer(self, asked: HttpRequest, user: User) -> HttpResponse | HttpStream:
        return await self._on.server.answer(asked, user)


async def test_a_watcher_that_stops_reading_is_cut_and_another_sees_every_change(short_folder: Path):
    async with (
        api_server(limits=LIMITS) as on,
        edge(short_folder, Open(on)) as running,
        local_client(running) as stalled,
        local_client(running) as reading,
    ):
        await stalled.send(request("GET", f"{PATH}?watch=true"))
        await reading.send(request("GET", f"{PATH}?watch=true"))
        await reading.head()
        seen = asyncio.ensure_future(names(reading, CHANGES))
        for number in range(CHANGES):
            body = {"metadata": {"name": f"c{number:03}"}, "data": {"a": "x" * 50_000}}
            assert (await on.ask("POST", PATH, body)).status == 201
        everything = await asyncio.wait_for(seen, HANGS_AFTER)
        await eventually(lambda: len(running.openings[1].connections) == 1)

    assert everything == [f"c{number:03}" for number in range(CHANGES)]


async def test_a_watcher_is_cut_as_soon_as_its_buffer_overflows_however_patient_the_server_is(short_folder: Path):
    async with (
        api_server(limits=LIMITS) as on,
        edge(short_folder, Open(on)) as running,
        local_client(running) as stalled,
    ):
        await stalled.send(request("GET", f"{PATH}?watch=true"))
        await stalled.head()
        for number in range(CHANGES):
            body = {"metadata": {"name": f"c{number:03}"}, "data": {"a": "x" * 50_000}}
            assert (await on.ask("POST", PATH, body)).status == 201
        await eventually(lambda: running.openings[1].connections == set())


async def names(client: RawClient, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        lines = (await client.chunk()).splitlines()
        found += [json.loads(line)["object"]["metadata"]["name"] for line in lines]
    return found
