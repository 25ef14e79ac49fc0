"""Has the Node object of this machine in the API, and keeps its status true.

Order: make the Node, or adopt the one that is there (labels, annotation) → tell its status at once, every 100 ms until
it is ready for the first time, then every 10 seconds: written when something has changed, and every five minutes. Parts
of the kubelet say what belongs into it (`Contribution`); after each look they hear what stands there.

There is no node controller beside this kubelet, so it also has the taint of a node that is not ready put on and off,
and makes a Node anew that somebody deleted: kubelet would leave both to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from orlop.embedded.kubelet import node_status_rules as rules
from orlop.embedded.kubelet.node_status_rules import Contribution, Machine, NodeSettings
from orlop.embedded.kubelet.tools import Tools
from orlop.foundation.backoff import Backoff
from orlop.kube.client import StrategicPatch
from orlop.kube.errors import AlreadyExists, ApiError, NotFound
from orlop.kube.kinds import NODE
from orlop.kube.objects import Object, ObjectName

SYNC_SECONDS: Final = 10.0
SYNC_JITTER: Final = 0.04
UNTIL_READY_SECONDS: Final = 0.1
FORCED_SECONDS: Final = 300.0
MOST_TRIES: Final = 5
REGISTERING: Final = Backoff(initial=0.1, factor=2.0, cap=7.0)

Part: TypeAlias = Callable[[], Contribution]
Listener: TypeAlias = Callable[[Mapping[str, Any]], None]


class NodeRegistration:
    """`machine` reads what the machine is; it may take its time."""

    def __init__(self, settings: NodeSettings, machine: Callable[[], Awaitable[Machine]], tools: Tools) -> None:
        self._settings = settings
        self._machine = machine
        self._tools = tools
        self._kube = tools.kube
        self._clock = tools.clock
        self._log = tools.log
        self._name = ObjectName(None, settings.name)
        self._parts: list[Part] = []
        self._when_made: list[Listener] = []
        self._when_reported: list[Listener] = []
        self._soon = asyncio.Event()
        self._there = asyncio.Event()
        self._node: Object = {}
        self._written_at: float | None = None
        self._has_been_ready = False

    # ---- for the other parts of the kubelet --------------------------------------------------------------------------

    def add_part(self, part: Part) -> None:
        """Asked before each look; it may call `report_soon` when it has something new to say."""
        self._parts.append(part)

    def when_made(self, listener: Listener) -> None:
        """Told each time when the Node was made, also anew: whatever stood on it is gone."""
        self._when_made.append(listener)

    def when_reported(self, listener: Listener) -> None:
        """Told after each look, with the Node as it stands there."""
        self._when_reported.append(listener)

    def report_soon(self) -> None:
        self._soon.set()

    async def node(self) -> Object:
        """As it was last seen; waits until there is one."""
        await self._there.wait()
        return self._node

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        self._tools.events.normal(self._tools.node, "Starting", "Starting kubelet.")
        while True:
            if not self._there.is_set():
                await self._register()
            self._soon.clear()
            await self._report()
            await self._pause()

    async def _register(self) -> None:
        failures = 0
        while True:
            try:
                self._seen(await self._made_or_adopted())
            except ApiError as error:
                failures += 1
                self._log.warning("the node cannot be registered", node=self._settings.name, error=error.message)
                await self._clock.sleep(REGISTERING.delay(failures, self._tools.random))
                continue
            self._log.info("registered the node", node=self._settings.name)
            self._there.set()
            return

    async def _made_or_adopted(self) -> Object:
        machine = await self._machine()
        fresh = rules.new_node(self._settings, machine, self._contributions(), self._clock.now())
        try:
            made = await self._kube.create(NODE, fresh)
        except AlreadyExists:
            return await self._adopted(machine)
        for listener in self._when_made:
            listener(made)
        return made

    async def _adopted(self, machine: Machine) -> Object:
        node = await self._kube.get(NODE, self._name)
        changes = rules.adoption(node, self._settings, machine)
        if changes is None:
            return node
        return await self._kube.patch(NODE, self._name, StrategicPatch(changes), subresource="status")

    async def _report(self) -> None:
        """A look that fails is repeated, and then left to the next one."""
        for _ in range(MOST_TRIES):
            try:
                await self._report_once()
            except NotFound:
                self._log.warning("the Node is gone, and is made anew", node=self._settings.name)
                self._there.clear()
                self._soon.set()
            except ApiError as error:
                self._log.warning("the node's status cannot be written", error=error.message)
                continue
            return

    async def _report_once(self) -> None:
        before = await self._kube.get(NODE, self._name)
        node = await self._with_status(before, await self._machine())
        if (taints := rules.taint_patch(node)) is not None:
            node = await self._kube.patch(NODE, self._name, taints)
        self._seen(node)
        self._tell_changes(before, node)
        for listener in self._when_reported:
            listener(node)

    async def _with_status(self, node: Object, machine: Machine) -> Object:
        status = rules.status_of(node, self._settings, machine, self._contributions(), self._clock.now())
        if not rules.has_changed(node, status) and not self._is_due():
            return node
        written = await self._kube.patch(NODE, self._name, StrategicPatch({"status": status}), subresource="status")
        self._written_at = self._clock.elapsed()
        return written

    def _contributions(self) -> Sequence[Contribution]:
        return [part() for part in self._parts]

    def _is_due(self) -> bool:
        return self._written_at is None or self._clock.elapsed() - self._written_at >= FORCED_SECONDS

    def _seen(self, node: Object) -> None:
        self._node = node

    async def _pause(self) -> None:
        seconds = SYNC_SECONDS * (1 + SYNC_JITTER * self._tools.random.random())
        with suppress(TimeoutError):
            async with self._clock.timeout(seconds if self._has_been_ready else UNTIL_READY_SECONDS):
                await self._soon.wait()

    # ---- events ------------------------------------------------------------------------------------------------------

    def _tell_changes(self, before: Object, node: Object) -> None:
        name, ready = self._settings.name, rules.is_ready(node)
        self._has_been_ready = self._has_been_ready or ready
        if ready != rules.is_ready(before):
            word = "NodeReady" if ready else "NodeNotReady"
            self._tools.events.normal(self._tools.node, word, f"Node {name} status is now: {word}")
        if (boot := rules.new_boot(before, node)) is not None:
            self._tools.events.warning(self._tools.node, "Rebooted", f"Node {name} has been rebooted, boot id: {boot}")
