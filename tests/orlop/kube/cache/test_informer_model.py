"""Random histories of a server that does all that servers do: whoever looks when he is told knows the truth in the end.

Between any two steps, what listeners were told agrees with the cache: it never changes in silence. Whoever waited for a
version never finds anything older. When the server has recovered, the cache is what the server has.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import CacheBehind, ConnectionBroken, NotConnected, ResponseTimeout
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.client import Selection
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from orlop.kube.objects import ObjectName, labels, resource_version
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.api.kube_model import BROKEN, ModelServer, status
from support.random_tests import FEW

PV = PERSISTENT_VOLUME
NAMES = "abcde"
FAULTS = [
    NotConnected("refused"),
    ConnectionBroken("reset"),
    ResponseTimeout("silence"),
    status(410, "Expired"),
    status(429, "TooManyRequests", retry_after="3"),
    status(500, "InternalError"),
    status(503, "ServiceUnavailable"),
    status(504, "Timeout"),
    status(403, "Forbidden"),
    status(401, "Unauthorized"),
    status(400, "BadRequest"),
]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("put"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("pass"), st.sampled_from([0.0, 0.1, 1.0, 30.0, 400.0, 2000.0])),
        st.tuples(st.just("end")),
        st.tuples(st.just("break")),
        st.tuples(st.just("silence")),
        st.tuples(st.just("compact")),
        st.tuples(st.just("compact between pages")),
        st.tuples(st.just("miss"), st.sampled_from(NAMES)),
        st.tuples(st.just("bookmarks")),
        st.tuples(st.just("other kind")),
        st.tuples(st.just("slow"), st.sampled_from([0.0, 0.5, 5.0])),
        st.tuples(st.just("fault"), st.sampled_from(FAULTS)),
        st.tuples(st.just("fault"), st.sampled_from(FAULTS)),
        st.tuples(st.just("wait")),
        st.tuples(st.just("wait for deletion"), st.sampled_from(NAMES)),
    ),
    min_size=12,  # or most would be too short for anything to go wrong
    max_size=60,
)


class World:
    """A server, an informer of what is selected, and one who looks only when he is told."""

    def __init__(self, selection: Selection) -> None:
        self.server = ModelServer()
        self.server.largest_page = 2
        self.selection = selection
        self.informer = Informer(
            self.server.client(), Watched(PV, selection), clock=VirtualClock(), random=Random(7), log=silent_log()
        )
        self.known: dict[str, Any] = {}
        self.waiting: list[asyncio.Task[None]] = []
        self.informer.add_listener(self.look)

    def look(self, name: ObjectName) -> None:
        found = self.informer.get(name)
        self.known.pop(name.name, None)
        if found is not None:
            self.known[name.name] = found

    def truth(self) -> dict[str, Any]:
        chosen = (obj for obj in self.server.of(PV) if not self.selection.labels or labels(obj).get("mine") == "yes")
        return {obj["metadata"]["name"]: obj for obj in chosen}

    def step(self, what: str, *details: Any) -> None:  # noqa: C901, PLR0912 - one case for each step
        server = self.server
        match what:
            case "put":
                server.put(PV, details[0], metadata={"labels": {"mine": "yes"} if details[1] else {}})
            case "remove":
                server.remove(PV, details[0])
            case "end":
                server.end_watches()
            case "break":
                server.end_watches(BROKEN)
            case "silence":
                server.watches.clear()
            case "miss":  # what nobody will ever hear of
                watches, server.watches = server.watches, set()
                server.remove(PV, details[0])
                server.compact()
                for watch in watches:
                    watch.finish("done")
            case "compact":
                server.compact()
            case "compact between pages":
                server.page_began = server.compact
            case "bookmarks":
                server.send_bookmarks()
            case "other kind":
                server.put(PERSISTENT_VOLUME_CLAIM, "x", "ns")
            case "slow":
                server.delay = details[0]
            case "fault":
                server.faults.append(details[0])
            case "wait":
                self.waiting.append(asyncio.create_task(self.wait(self.server.version, self.truth())))
            case "wait for deletion":
                self.waiting.append(asyncio.create_task(self.wait_for_deletion(details[0])))

    async def wait(self, version: int, then: dict[str, Any]) -> None:
        """All that was there when he began to wait, or what came after it."""
        with suppress(CacheBehind):
            await self.informer.reached(str(version))
            later = {change.key[1].strip("/") for change in self.server.everything if change.version > version}
            for name in NAMES:
                if name not in later:
                    assert self.known.get(name) == then.get(name)
                elif name in self.known and name in then:
                    assert int(resource_version(self.known[name])) >= int(resource_version(then[name]))

    async def wait_for_deletion(self, name: str) -> None:
        found = self.truth().get(name)
        self.server.remove(PV, name)
        if found is not None:
            with suppress(CacheBehind):
                await self.informer.gone(ObjectName(None, name), found["metadata"]["uid"])
                assert self.known.get(name, {}).get("metadata", {}).get("uid") != found["metadata"]["uid"]

    def check(self) -> None:
        held = {name.name: self.informer.get(name) for name in self.informer.cache.names()}
        assert held == self.known, "the cache changed and nobody was told"

    async def live(self, steps: list[tuple[Any, ...]], clock: VirtualClock) -> None:
        for what, *details in steps:
            if what == "pass":
                await clock.sleep(details[0])
            self.step(what, *details)
            self.check()
        self.server.faults.clear()
        self.server.delay = 0.0
        self.server.page_began = lambda: None
        await clock.sleep(2000)
        assert self.known == self.truth()
        await asyncio.gather(*self.waiting)


def run_history(steps: list[tuple[Any, ...]], selection: Selection) -> None:
    async def main(clock: VirtualClock) -> None:
        world = World(selection)
        running = asyncio.create_task(world.informer.run())
        try:
            await world.live(steps, clock)
        finally:
            for task in (running, *world.waiting):
                task.cancel()
            await asyncio.wait([running, *world.waiting])

    run_virtual(main)


@FEW
@given(STEPS)
def test_who_looks_when_told_knows_the_truth_in_the_end(steps: list[tuple[Any, ...]]):
    run_history(steps, Selection())


@FEW
@given(STEPS)
def test_who_looks_when_told_knows_the_truth_of_what_is_selected(steps: list[tuple[Any, ...]]):
    run_history(steps, Selection(labels="mine=yes"))
