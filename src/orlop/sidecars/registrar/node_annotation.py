"""Writes on the Node object what a driver says of the node: its id as an annotation, its topology as labels.

kubelet of today writes both by itself when it registers a driver; this is for who has no such kubelet, and for
controllers that read the annotation. Order: read the Node → decide → one patch that tests what was read → again when
somebody else was faster. It looks again whenever kubelet has registered the driver, since kubelet takes the entry of a
driver that it forgets out of the annotation.

Nothing is taken away when the process ends: a node whose driver is being replaced still has its volumes attached under
this id, and whoever detaches them must find it. What cannot be written (no right to, no such Node, a label with another
value) is said once and tried again, ever less often; the registration itself never waits for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from orlop.foundation.backoff import Backoff
from orlop.kube.client import KubeClient
from orlop.kube.errors import ApiError, Conflict, Forbidden, Invalid, PatchRefused
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName
from orlop.sidecars.registrar.node_object_rules import Entry, NodeWish, node_change
from orlop.sidecars.registrar.registration_rules import NodeFacts
from orlop.sidecars.registrar.said_once import SaidOnce
from orlop.sidecars.registrar.tools import Tools

SOMEBODY_WAS_FASTER: Final = Backoff(initial=0.01, factor=5.0, cap=1.0, jitter=0.5)
NOT_NOW: Final = Backoff(initial=1.0, factor=2.0, cap=60.0, jitter=0.5)
SOMEBODY_MUST_ACT: Final = Backoff(initial=300.0, factor=1.0, cap=300.0, jitter=0.5)


class CannotBeWritten(Exception):
    """The Node is such that what the driver says must not be written."""


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """What was asked for."""

    annotate: bool
    label: bool


class NodeAnnotation:
    """Of one driver on one node."""

    def __init__(self, kube: KubeClient, node_name: str, marks: NodeMarks, tools: Tools) -> None:
        self._kube = kube
        self._name = ObjectName(None, node_name)
        self._marks = marks
        self._clock = tools.clock
        self._random = tools.random
        self._log = tools.log.bind(node=node_name)
        self._complaints = SaidOnce(self._log)
        self._wanted: tuple[str, NodeFacts] | None = None
        self._written: dict[str, Entry] = {}
        self._news = asyncio.Event()
        self._writes = tools.metrics.counter(
            "orlop_registrar_node_writes_total", "Attempts to write on the Node, by how they ended.", ("outcome",)
        )

    def want(self, driver: str, node: NodeFacts) -> None:
        """From now on this is to stand there; saying it again does nothing."""
        if self._wanted != (driver, node):
            self._wanted = (driver, node)
            self._news.set()

    def look_again(self) -> None:
        """Somebody may have changed the Node."""
        if self._wanted is not None:
            self._news.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._news.wait()
            await self._write_until_done()

    async def _write_until_done(self) -> None:
        failures = 0
        while (error := await self._tried()) is not None:
            failures += 1
            backoff, outcome = _remedy(error)
            self._writes.inc(outcome)
            if backoff is not SOMEBODY_WAS_FASTER:
                self._complaints.complain("what the driver says cannot be written on the Node", str(error))
            await self._pause(backoff.delay(failures, self._random))

    async def _tried(self) -> Exception | None:
        self._news.clear()
        try:
            await self._write()
        except (ApiError, CannotBeWritten) as error:
            return error
        return None

    async def _write(self) -> None:
        node = await self._kube.get(NODE, self._name)
        wish = self._wish()
        change = node_change(node, wish)
        if change.patch is not None:
            await self._kube.patch(NODE, self._name, change.patch)
            node_id = wish.entry.node_id if wish.entry else None
            self._log.info("wrote on the Node what the driver says", node_id=node_id, labels=dict(wish.labels))
            self._writes.inc("written")
        if wish.entry is not None:
            self._written[wish.entry.driver] = wish.entry
        if change.problems:
            raise CannotBeWritten("; ".join(change.problems))
        self._complaints.over("what the driver says stands on the Node now")

    def _wish(self) -> NodeWish:
        if self._wanted is None:
            return NodeWish()
        driver, facts = self._wanted
        return NodeWish(
            entry=Entry(driver, facts.node_id) if self._marks.annotate else None,
            labels=facts.topology if self._marks.label else (),
            former=tuple(entry for name, entry in self._written.items() if name != driver),
        )

    async def _pause(self, seconds: float) -> None:
        """Or less, when there is news."""
        with suppress(TimeoutError):
            async with self._clock.timeout(seconds):
                await self._news.wait()


def _remedy(error: Exception) -> tuple[Backoff, str]:
    """When to try again, and what the attempt is counted as."""
    match error:
        case Conflict() | PatchRefused():
            return SOMEBODY_WAS_FASTER, "conflict"
        case Forbidden():
            return SOMEBODY_MUST_ACT, "forbidden"
        case CannotBeWritten() | Invalid():
            return SOMEBODY_MUST_ACT, "refused"
        case _:
            return NOT_NOW, "failed"
