"""Creates the Node object of this machine and its Lease, and keeps both true.

Order: make the Node, or adopt the one that is there (labels, annotation) → tell its status at once, every 100 ms until
it is ready for the first time, then every 10 seconds: written when something has changed, and every five minutes. Parts
of the kubelet say what belongs into it (`Contribution`); after each look they hear what stands there.

There is no node controller beside this kubelet, so it also has the taint of a node that is not ready put on and off,
and makes a Node anew that somebody deleted: kubelet would leave both to others.

The heartbeat is a Lease in kube-node-lease, renewed every 10 seconds. Nobody else may hold it, so what stands there is
written over; a write that is refused reads it again first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from onenode.kubelet.node import node_status_rules as rules
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.node_status_rules import LEASE_NAMESPACE, Contribution, Machine, NodeSettings, lease_of
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import AlreadyExists, ApiError, Conflict, NotFound
from orlop.kube.client import StrategicPatch
from orlop.kube.kinds import LEASE, NODE
from orlop.kube.objects import Object, ObjectName

SYNC_SECONDS: Final = 10.0
SYNC_JITTER: Final = 0.04
UNTIL_READY_SECONDS: Final = 0.1
FORCED_SECONDS: Final = 300.0
MOST_TRIES: Final = 5
REGISTERING: Final = Backoff(initial=0.1, factor=2.0, cap=7.0)

Part: TypeAlias = Callable[[], Contribution]
NodeListener: TypeAlias = Callable[[Mapping[str, Any]], None]


class NodeRegistration:
    """`machine` reads what the machine is; it may take its time."""

    def __init__(
        self, settings: NodeSettings, machine: Callable[[], Awaitable[Machine]], api: NodeApi, runtime: Runtime
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._api = api
        self._runtime = runtime
        self._kube = api.kube
        self._clock = runtime.clock
        self._log = runtime.log
        self._name = ObjectName(None, settings.name)
        self._parts: list[Part] = []
        self._when_made: list[NodeListener] = []
        self._when_reported: list[NodeListener] = []
        self._soon = asyncio.Event()
        self._there = asyncio.Event()
        self._node: Object = {}
        self._written_at: float | None = None
        self._has_been_ready = False

    # ---- for the other parts of the kubelet --------------------------------------------------------------------------

    def add_part(self, part: Part) -> None:
        """Add a part of the Node's status. It is called before each report, and may call `report_soon`."""
        self._parts.append(part)

    def when_made(self, listener: NodeListener) -> None:
        """Call the listener each time the Node object was created, also again: its former content is gone."""
        self._when_made.append(listener)

    def when_reported(self, listener: NodeListener) -> None:
        """Call the listener after each report, with the Node object as it is in the API server."""
        self._when_reported.append(listener)

    def report_soon(self) -> None:
        self._soon.set()

    async def node(self) -> Object:
        """Return the Node object as last seen; wait until there is one."""
        await self._there.wait()
        return self._node

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        self._api.events.normal(self._api.node, "Starting", "Starting kubelet.")
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
                self._log.warning("node not registered", node=self._settings.name, error=error.message)
                await self._clock.sleep(REGISTERING.delay(failures, self._runtime.random))
                continue
            self._log.info("node registered", node=self._settings.name)
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
                self._log.warning("Node is gone; creating it again", node=self._settings.name)
                self._there.clear()
                self._soon.set()
            except ApiError as error:
                self._log.warning("node status not written", error=error.message)
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
        seconds = SYNC_SECONDS * (1 + SYNC_JITTER * self._runtime.random.random())
        with suppress(TimeoutError):
            async with self._clock.timeout(seconds if self._has_been_ready else UNTIL_READY_SECONDS):
                await self._soon.wait()

    # ---- events ------------------------------------------------------------------------------------------------------

    def _tell_changes(self, before: Object, node: Object) -> None:
        name, ready = self._settings.name, rules.is_ready(node)
        self._has_been_ready = self._has_been_ready or ready
        if ready != rules.is_ready(before):
            word = "NodeReady" if ready else "NodeNotReady"
            self._api.events.normal(self._api.node, word, f"Node {name} status is now: {word}")
        if (boot := rules.new_boot(before, node)) is not None:
            self._api.events.warning(self._api.node, "Rebooted", f"Node {name} has been rebooted, boot id: {boot}")


RENEW_SECONDS: Final = 10.0
MOST_RENEWALS_AT_ONCE: Final = 5
UNTIL_RENEWED: Final = Backoff(initial=0.2, factor=2.0, cap=7.0)


class NodeLease:
    """`node` gives the Node whose lease it is, and waits until there is one."""

    def __init__(self, node: Callable[[], Awaitable[Mapping[str, Any]]], api: NodeApi, runtime: Runtime) -> None:
        self._node = node
        self._kube = api.kube
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log
        self._name = ObjectName(LEASE_NAMESPACE, api.node_name)
        self._lease: Object | None = None

    async def run(self) -> None:
        """Until it is cancelled; the Lease then stays, and is over by itself."""
        failures = 0
        while True:
            renewed = await self._renew()
            failures = 0 if renewed else failures + 1
            wait = RENEW_SECONDS if renewed else min(RENEW_SECONDS, UNTIL_RENEWED.delay(failures, self._random))
            await self._clock.sleep(wait)

    async def _renew(self) -> bool:
        for _ in range(MOST_RENEWALS_AT_ONCE):
            try:
                self._lease = await self._written(await self._node())
            except (Conflict, AlreadyExists, NotFound):
                self._lease = await self._found()
            except ApiError as error:
                self._log.warning("node lease not renewed", error=error.message)
                return False
            else:
                return True
        return False

    async def _written(self, node: Mapping[str, Any]) -> Object:
        lease = lease_of(self._lease, node, self._clock.now())
        if self._lease is None:
            return await self._kube.create(LEASE, lease)
        return await self._kube.replace(LEASE, lease)

    async def _found(self) -> Object | None:
        try:
            return await self._kube.get(LEASE, self._name)
        except ApiError:
            return None
