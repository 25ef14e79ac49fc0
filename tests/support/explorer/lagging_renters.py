"""Renters that believe any API server, also one that lags behind; and a scenario in which one begins anew."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

from orlop.kube import objects
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import CONFIG_MAP
from orlop.kube.objects import ObjectName
from orlop.testing.explorer import Stage
from support.explorer.room_renters import NAME, Object, Renter, RentsAnotherEachTime, hotel


class EvictsWhomItDoesNotSee(Renter):
    """When it begins: whoever is not in the list of any server that answers has left, it thinks."""

    async def run(self) -> None:
        path = CONFIG_MAP.collection_path(NAME.namespace)
        listed = await self.way.exchange(HttpRequest("GET", path, (("resourceVersion", "0"),)), 10.0)
        there = {objects.uid(found) for found in json.loads(listed.body)["items"]}
        for guest in set(self.office.rooms.values()) - there:
            with suppress(OSError):
                await self.release(guest)
        await super().run()


class ReadsOfAnyServer(RentsAnotherEachTime):
    async def read(self, name: ObjectName) -> Object:
        return await self.kube.get(CONFIG_MAP, name, version="0")


async def stays_while_all_begins_anew(stage: Stage, renter: type[Renter]) -> None:
    async with hotel(stage, renter) as house:
        await stage.acts(house.asked, replace(house.restarted, expects=house.one_room))
        house.one_room()
