"""A small controller that rents a room for each ConfigMap, right and in many ways wrong: what the explorer is tried on.

Right: our finalizer → the office rents a room, the same one however often it is asked → the room's number is written.
Gone: the office takes it back, and rents to this guest no more → the finalizer goes. What is not known is read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.csi.error_codes import CsiError
from orlop.foundation.structured_log import silent_log
from orlop.kube import objects, patches
from orlop.kube.api_errors import ApiError, Conflict, NotFound
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.http.http_messages import Transport
from orlop.kube.kinds import CONFIG_MAP
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.testing.explorer import Act, ExploredTransport, LeaseLost, Life, Process, Stage, Ways, carry_out
from orlop.testing.explorer.stage import REST_SECONDS
from support.api.api_servers import TestServer, api_server

NAME = ObjectName("default", "guest")
FINALIZER = "rooms.example.com/rented"
RETRY_SECONDS = 5.0
Object = dict[str, Any]


class Office:
    def __init__(self) -> None:
        self._rooms: dict[int, str] = {}
        self._left: set[str] = set()

    @property
    def rooms(self) -> dict[int, str]:
        return self._rooms

    def open_for(self, renter: Process) -> None:
        """It is told once who will ask."""

    def rooms_of(self, guest: str) -> list[int]:
        return [room for room, held_by in self.rooms.items() if held_by == guest]

    async def rent(self, guest: str) -> int:
        return self.rooms_of(guest)[0] if self.rooms_of(guest) else await self.rent_another(guest)

    async def rent_another(self, guest: str) -> int:
        if guest in self._left:
            raise OSError(f"{guest} has left")
        room = len(self.rooms) + 1
        self._rooms[room] = guest
        return room

    async def release(self, guest: str) -> None:
        self._left.add(guest)
        self._rooms = {room: held_by for room, held_by in self.rooms.items() if held_by != guest}


def _connection_reset() -> Any:
    raise OSError("connection reset")


class Renter:
    def __init__(self, life: Life, office: Office, way: Transport, kube: KubeClient, informer: Informer) -> None:
        self.life = life
        self.office = office
        self.way = way
        self.kube = kube
        self.informer = informer
        self.names: asyncio.Queue[ObjectName] = asyncio.Queue()

    @staticmethod
    def new_office(_stage: Stage) -> Office:
        return Office()

    async def run(self) -> None:
        await self.informer.wait_synced()
        self.informer.add_listener(self.changed)
        while True:
            name = await self.names.get()
            try:
                await self.settle(name)
            except LeaseLost:
                return
            except (ApiError, CsiError, OSError):
                self.again(name)

    def changed(self, name: ObjectName) -> None:
        self.names.put_nowait(name)

    def again(self, name: ObjectName) -> None:
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self.names.put_nowait, name)

    async def settle(self, name: ObjectName) -> None:
        with suppress(NotFound):
            found = await self.read(name)
            await (self.leave(found) if objects.is_being_deleted(found) else self.move_in(found))

    async def read(self, name: ObjectName) -> Object:
        return await self.kube.get(CONFIG_MAP, name)

    async def move_in(self, found: Object) -> None:
        found = await self.write(found, patches.add_finalizer(found, FINALIZER))
        if "data" not in found:
            room = await self.rent(objects.uid(found))
            await self.write(found, JsonPatch().add("data", value={"room": str(room)}))

    async def leave(self, found: Object) -> None:
        if objects.has_finalizer(found, FINALIZER):
            await self.release(objects.uid(found))
            await self.write(found, patches.remove_finalizer(found, FINALIZER))

    # ---- effects -------------------------------------------------------------------------------------------------

    def guard(self) -> None:
        self.life.guard()

    async def write(self, found: Object, patch: JsonPatch | None) -> Object:
        if patch is None:
            return found
        self.guard()
        return await self.kube.patch(CONFIG_MAP, objects.name_of(found), patch)

    async def rent(self, guest: str) -> int:
        self.guard()
        return await carry_out(self.life, "rent", lambda: self.office.rent(guest), Ways(_connection_reset))

    async def rent_another(self, guest: str) -> int:
        self.guard()
        return await carry_out(self.life, "rent", lambda: self.office.rent_another(guest), Ways(_connection_reset))

    async def release(self, guest: str) -> None:
        self.guard()
        await carry_out(self.life, "release", lambda: self.office.release(guest), Ways(_connection_reset))


# ---- the wrong ones --------------------------------------------------------------------------------------------------


class TriesOnce(Renter):
    def again(self, name: ObjectName) -> None:
        """What failed is forgotten."""


class TakesConflictForSuccess(Renter):
    async def write(self, found: Object, patch: JsonPatch | None) -> Object:
        try:
            return await super().write(found, patch)
        except Conflict:
            return found


class RentsAnotherEachTime(Renter):
    async def rent(self, guest: str) -> int:
        return await self.rent_another(guest)


class RemembersInMemory(RentsAnotherEachTime):
    """Asks at most once, and knows when it did not hear the answer; another life knows nothing."""

    asked = False

    async def rent(self, guest: str) -> int:
        if self.asked:
            return self.office.rooms_of(guest)[0]
        self.asked = True
        return await super().rent(guest)


class LooksBeforeItRents(RentsAnotherEachTime):
    """Nothing there: but what was asked for before may still be on its way."""

    async def rent(self, guest: str) -> int:
        rented = self.office.rooms_of(guest)
        return rented[0] if rented else await super().rent(guest)


class GivesUpWhatItDoesNotSee(Renter):
    """A failed call, and no room: it takes that for none, for ever."""

    given_up = False

    async def rent(self, guest: str) -> int:
        try:
            return await super().rent(guest)
        except OSError:
            self.given_up = not self.office.rooms_of(guest)
            if self.given_up:
                raise NotFound("no room", reason="NotFound", code=404) from None
            raise

    async def release(self, guest: str) -> None:
        if not self.given_up:
            await super().release(guest)


class DoesNotWait(Renter):
    async def release(self, guest: str) -> None:
        self.leaving = asyncio.ensure_future(super().release(guest))
        await asyncio.sleep(0)


class ProtectsAfterwards(Renter):
    async def move_in(self, found: Object) -> None:
        room = await self.rent(objects.uid(found))
        found = await self.write(found, patches.add_finalizer(found, FINALIZER))
        if "data" not in found:
            await self.write(found, JsonPatch().add("data", value={"room": str(room)}))


class BelievesItsCache(RentsAnotherEachTime):
    """It looks at all from time to time, and at what it has in memory."""

    async def run(self) -> None:
        async def look() -> None:
            while True:
                await self.life.stage.clock.sleep(1.0)
                for name in self.informer.cache.names():
                    if "data" not in (self.informer.get(name) or {}):
                        self.changed(name)

        looking = asyncio.ensure_future(look())
        try:
            await super().run()
        finally:
            looking.cancel()

    async def read(self, name: ObjectName) -> Object:
        await self.life.stage.clock.sleep(0.1)  # by then, it hopes, the cache has heard of its own writes
        found = self.informer.get(name)
        if found is None:
            raise NotFound("not in the cache", reason="NotFound", code=404)
        return dict(found)


class CountsEvents(Renter):
    """A room for each time it is told of a guest that has none."""

    def changed(self, name: ObjectName) -> None:
        found = self.informer.get(name)
        if found is not None and ("finalizers" not in found["metadata"] or objects.is_being_deleted(found)):
            self.names.put_nowait(name)

    async def move_in(self, found: Object) -> None:
        guest = objects.uid(found)
        found = await self.write(found, patches.add_finalizer(found, FINALIZER))
        await self.write(found, JsonPatch().add("data", value={"room": str(await self.rent_another(guest))}))


class KnowsGuestsByName(Renter):
    """No finalizer: it gives a room back when the name is gone."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.known: dict[ObjectName, str] = {}

    async def settle(self, name: ObjectName) -> None:
        found = self.informer.get(name)
        if found is None and name in self.known:
            await self.release(self.known.pop(name))
        elif found is not None and name not in self.known:
            self.known[name] = objects.uid(found)
            await self.rent(objects.uid(found))


class MissesWhatWasThere(Renter):
    """Waits for news: what was there before it began is none."""

    async def run(self) -> None:
        await self.informer.wait_synced()
        self.old = set(self.informer.cache.names())
        await super().run()

    def changed(self, name: ObjectName) -> None:
        if name not in self.old:
            super().changed(name)


class AsksNobody(Renter):
    def guard(self) -> None:
        """Whoever began leading leads for ever."""


class TurnsInCircles(Renter):
    """Each turn it writes wakes it for the next."""

    async def move_in(self, found: Object) -> None:
        await super().move_in(found)
        turn = int(objects.annotations(found).get("turn", "0")) + 1
        await self.write(found, patches.set_annotation(found, "turn", str(turn)))


class TurnsInSlowCircles(TurnsInCircles):
    """So slowly that time is over before there were too many effects."""

    async def move_in(self, found: Object) -> None:
        await super().move_in(found)
        await self.life.stage.clock.sleep(REST_SECONDS / 2)


class DiesOfErrors(Renter):
    def again(self, name: ObjectName) -> None:
        raise RuntimeError(f"{name} cannot be settled")


# ---- the scenarios ---------------------------------------------------------------------------------------------------


class Hotel:
    def __init__(self, stage: Stage, on: TestServer, renter: type[Renter]) -> None:
        self.stage = stage
        self.on = on
        self.office = renter.new_office(stage)
        self._client = on.client()
        self._renter = renter
        self.asked = Act("a guest asks", self._ask)
        self.gone = Act("the guest goes", lambda: self._client.delete(CONFIG_MAP, NAME))
        self.restarted = Act("the renter is restarted", self._restart)
        self._process = stage.run("renter", self._live)
        self.office.open_for(self._process)

    async def _ask(self) -> None:
        self.stage.later(0.0, self._ask_when_gone)

    async def _ask_when_gone(self) -> None:
        while self.guest() is not None:
            await self.stage.clock.sleep(0.5)
        await self._client.create(CONFIG_MAP, {"metadata": {"name": NAME.name, "namespace": NAME.namespace}})

    async def _restart(self) -> None:
        self._process.current.die()

    async def _live(self, life: Life) -> None:
        clock, log = self.stage.clock, silent_log()
        way = ExploredTransport(life, self.on.transport())
        kube = KubeClient(way, clock=clock, random=Random(2), log=log)
        async with (
            Informers(kube, clock=clock, random=Random(3), log=log) as informers,
            informers.using(Watched(CONFIG_MAP)) as informer,
        ):
            await self._renter(life, self.office, way, kube, informer).run()

    def guest(self) -> Object | None:
        kept = KindInStore(CONFIG_MAP, CONFIG_MAP)
        found = self.on.store.get(kept.key(str(NAME.namespace), NAME.name))
        return kept.kept_object(found) if found is not None else None

    def no_room_of_nobody(self) -> None:
        guest = objects.uid(self.guest() or {})
        assert set(self.office.rooms.values()) <= {guest}, f"rooms of nobody: {self.office.rooms}, and {guest} is there"

    def one_room(self) -> None:
        guest = self.guest() or {}
        assert len(self.office.rooms_of(objects.uid(guest))) == 1, f"{self.office.rooms} for one guest"
        assert guest.get("data") == {"room": str(*self.office.rooms)}, guest.get("data")


@asynccontextmanager
async def hotel(stage: Stage, renter: type[Renter]) -> AsyncIterator[Hotel]:
    async with api_server(stage.clock) as on:
        yield Hotel(stage, on, renter)


async def comes_and_goes(stage: Stage, renter: type[Renter]) -> None:
    async with hotel(stage, renter) as house:
        stage.always(house.no_room_of_nobody)
        await stage.acts(house.asked)
        house.one_room()
        await stage.acts(house.gone)
        assert house.guest() is None
        assert not house.office.rooms


async def goes_at_any_moment(stage: Stage, renter: type[Renter]) -> None:
    async with hotel(stage, renter) as house:
        stage.always(house.no_room_of_nobody)
        await stage.acts(house.asked, house.gone)
        assert house.guest() is None
        assert not house.office.rooms


async def comes_again(stage: Stage, renter: type[Renter]) -> None:
    async with hotel(stage, renter) as house:
        await stage.acts(house.asked, house.gone, house.asked)
        assert list(house.office.rooms.values()) == [objects.uid(house.guest() or {})], house.office.rooms
