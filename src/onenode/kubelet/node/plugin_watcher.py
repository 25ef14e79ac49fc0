"""Registers the drivers that announce themselves by a socket in `plugins_registry`, and forgets those whose is gone.

For each socket: connect (10 s) → GetInfo (1 s) → refuse or accept (`plugin_watcher_rules`) → have it registered
(`plugin_registration`) → notify the plugin. A failed attempt is undone, reported to the plugin if possible, and tried
again from the beginning with growing delays. Every path has a task of its own: who never answers keeps nobody else
waiting.

A driver that is wanted and that nobody announces is looked for after a while at the place that the oldest drivers use,
`plugins/<driver>/csi.sock`. It yields to any that announces itself under its name, and is forgotten with its socket.

Cancelled, it closes all clients and leaves the API as it is: the drivers' volumes are still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Final

from onenode.kubelet.node import plugin_watcher_rules as rules
from onenode.kubelet.node.kubelet_folders import PluginSockets
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.plugin_registration import PluginRegistration, go_text
from onenode.kubelet.node.plugin_watcher_rules import (
    Accepted,
    Claim,
    Held,
    PathBackoff,
    RegistrationRefused,
    WatcherState,
)
from onenode.kubelet.node.registered_drivers import RegisteredDriver, RegisteredDrivers
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, registration_pb2, rpc
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup

DIAL_SECONDS: Final = 10.0
GET_INFO_SECONDS: Final = 1.0
NOTIFY_SECONDS: Final = 5.0
UNANNOUNCED_AFTER_SECONDS: Final = 5.0
"""How long a driver may be wanted before it is looked for where nobody announced it: most are about to."""
LOOK_AT_UNANNOUNCED_SECONDS: Final = 10.0
THE_NODE: Final = "the Node"
"""Stands among the paths for who is at work on it."""
NAME_REFUSED: Final = "InvalidCSIDriverName"
UNANNOUNCED: Final = "UnannouncedCSIDriver"


class _Failed(Exception):
    """The attempt is over; the plugin was notified if it listened."""


class PluginWatcher:
    """`plugins_folder` is kubelet's `plugins`, as a path."""

    def __init__(
        self,
        folder: PluginSockets,
        plugins_folder: str,
        registration: PluginRegistration,
        drivers: RegisteredDrivers,
        api: NodeApi,
        runtime: Runtime,
    ) -> None:
        self.drivers = drivers
        self._folder = folder
        self._plugins_folder = plugins_folder
        self._registration = registration
        self._api = api
        self._runtime = runtime
        self._clock = runtime.clock
        self._log = runtime.log
        self._wake = asyncio.Event()
        self._held: dict[str, Held] = {}
        self._busy: set[str] = set()
        self._waits: dict[str, PathBackoff] = {}
        self._wanted: dict[str, float] = {}
        self._unannounced: dict[str, str] = {}
        self._is_node_new = False
        self._attempts = runtime.metrics.counter(
            "orlop_kubelet_plugin_registrations_total",
            "Attempts to register a plugin, by how they ended.",
            ("outcome",),
        )

    def driver(self, name: str) -> CsiClient | None:
        """How to call it; None while it is not registered, and then as `find`."""
        found = self.find(name)
        return found.client if found is not None else None

    def find(self, name: str) -> RegisteredDriver | None:
        """One that is not registered is looked for where nobody announces himself, unless it comes soon."""
        found = self.drivers.get(name)
        if found is None:
            self._want(name)
        return found

    async def wait_for(self, name: str) -> RegisteredDriver:
        """However long that takes."""
        while (found := self.find(name)) is None:
            with suppress(TimeoutError):
                async with self._clock.timeout(LOOK_AT_UNANNOUNCED_SECONDS):
                    await self.drivers.wait_for(name)
        return found

    def node_was_made(self) -> None:
        """Whatever stood on the Node is gone: what the drivers say is written again."""
        self._is_node_new = True
        self._wake.set()

    def _want(self, name: str) -> None:
        try:
            rules.fixed_path(self._plugins_folder, name)
        except ValueError as error:
            self._complain_of_name(str(error))
            return
        if name not in self._wanted:
            self._wanted[name] = self._clock.elapsed() + UNANNOUNCED_AFTER_SECONDS
            self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            async with TaskGroup() as tasks:
                tasks.start(self._follow_folder(), name="follow the plugins' folder")
                while True:
                    self._wake.clear()
                    await self._pause(self._look(tasks))
        finally:
            await self.drivers.close()

    # ---- what there is to do -----------------------------------------------------------------------------------------

    async def _follow_folder(self) -> None:
        while True:
            await self._folder.changed()
            self._wake.set()
            await self._clock.sleep(0)

    def _look(self, tasks: TaskGroup) -> float | None:
        """Starts what is to be done; gives the instant at which time alone brings more of it."""
        elapsed = self._clock.elapsed()
        sockets = self._folder.sockets()
        steps = rules.next_steps(WatcherState(sockets, self._held, self._busy, self._waits), elapsed)
        for path in steps.let_go:
            self._start(tasks, path, self._let_go)
        for path in steps.attempt:
            self._start(tasks, path, self._attempt_of(sockets[path]))
        later = (self._look_for_wanted(tasks, elapsed), self._look_at_unannounced(tasks), self._look_at_node(tasks))
        return rules.earliest((steps.look_again, *later))

    def _start(self, tasks: TaskGroup, path: str, work: Callable[[str], Awaitable[None]]) -> None:
        self._busy.add(path)
        tasks.start(self._at_work(path, work), name=f"plugin at {path}")

    async def _at_work(self, path: str, work: Callable[[str], Awaitable[None]]) -> None:
        try:
            await work(path)
            self._waits.pop(path, None)
        except _Failed as error:
            self._waits[path] = rules.after_failure(self._waits.get(path), self._clock.elapsed())
            self._log.warning("plugin not registered", socket=path, error=str(error))
        except Exception as error:  # noqa: BLE001 - one plugin's trouble must not end the others' registrations
            self._waits[path] = rules.after_failure(self._waits.get(path), self._clock.elapsed())
            self._log.exception("plugin registration raised an unexpected error", error, socket=path)
        finally:
            self._busy.discard(path)
            self._wake.set()

    async def _pause(self, until: float | None) -> None:
        if until is None:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            async with self._clock.timeout(max(0.0, until - self._clock.elapsed())):
                await self._wake.wait()

    # ---- a Node that is a new one ------------------------------------------------------------------------------------

    def _look_at_node(self, tasks: TaskGroup) -> float | None:
        wait = self._waits.get(THE_NODE)
        if not self._is_node_new or THE_NODE in self._busy:
            return None
        if wait is not None and self._clock.elapsed() < wait.until:
            return wait.until
        self._is_node_new = False
        self._start(tasks, THE_NODE, self._write_again)
        return None

    async def _write_again(self, _place: str) -> None:
        try:
            for name in list(self.drivers):
                await self._registration.write_again(name)
        except RegistrationRefused as error:
            self._is_node_new = True
            raise _Failed(error.why) from None

    # ---- sockets in the folder ---------------------------------------------------------------------------------------

    async def _let_go(self, path: str) -> None:
        held = self._held.pop(path)
        await self._registration.forget(held.name)
        if others := [other for other, one in self._held.items() if one.name == held.name]:
            self._log.warning(
                "driver deregistered by another driver's socket, as in kubelet",
                driver=held.name,
                socket=path,
                until_made_anew=others,
            )

    def _attempt_of(self, identity: Hashable) -> Callable[[str], Awaitable[None]]:
        async def attempt(path: str) -> None:
            plugin = self._registration.client(UnixEndpoint(path))
            try:
                await self._attempt(plugin, path, identity)
                self._attempts.inc("registered")
            except (CsiError, RegistrationRefused, TimeoutError) as error:
                self._attempts.inc("refused" if isinstance(error, RegistrationRefused) else "failed")
                raise _Failed(_told(error, path)) from None
            finally:
                await plugin.close()

        return attempt

    async def _attempt(self, plugin: CsiClient, path: str, identity: Hashable) -> None:
        async with self._clock.timeout(DIAL_SECONDS):
            await plugin.connected()
        info = await plugin.call(rpc.GET_INFO, registration_pb2.InfoRequest(), within=GET_INFO_SECONDS)
        claim = Claim(info.type, info.name, info.endpoint, tuple(info.supported_versions))
        try:
            await self._take(claim, path, identity)
        except RegistrationRefused as refused:
            if refused.is_about_name:
                self._complain_of_name(refused.why)
            with suppress(CsiError):  # the refusal counts, even if it could not be reported
                await _notify(plugin, str(refused))
            raise
        try:
            await _notify(plugin, "")
        except CsiError:
            self._held.pop(path, None)
            await self._registration.forget(claim.name)
            raise

    async def _take(self, claim: Claim, path: str, identity: Hashable) -> None:
        accepted = rules.accept(claim, path, self._registration.versions())
        self._held[path] = Held(identity, claim.name)
        try:
            await self._registration.install(
                accepted, lambda: rules.refuse_taken_name(claim, accepted.version, self._registration.versions())
            )
        except BaseException:
            self._held.pop(path, None)
            raise
        self._unannounced.pop(claim.name, None)
        self._wanted.pop(claim.name, None)

    def _complain_of_name(self, why: str) -> None:
        self._api.events.warning(self._api.node, NAME_REFUSED, why)

    # ---- drivers that nobody announced -------------------------------------------------------------------------------

    def _look_for_wanted(self, tasks: TaskGroup, elapsed: float) -> float | None:
        """Each look is for one wish; who still wants a driver that is not there says so again."""
        due, later = rules.due_and_next(self._wanted, elapsed)
        for name in due:
            del self._wanted[name]
            path = rules.fixed_path(self._plugins_folder, name)
            wait = self._waits.get(path)
            is_free = name not in self.drivers and path not in self._busy and (wait is None or elapsed >= wait.until)
            if is_free and self._folder.is_socket(path):
                self._start(tasks, path, self._attempt_unannounced(name))
        return later

    def _attempt_unannounced(self, name: str) -> Callable[[str], Awaitable[None]]:
        async def attempt(path: str) -> None:
            try:
                await self._take_unannounced(name, path)
            except (CsiError, RegistrationRefused, TimeoutError) as error:
                raise _Failed(_told(error, path)) from None

        return attempt

    async def _take_unannounced(self, name: str, path: str) -> None:
        def refuse() -> None:
            if name in self.drivers:
                raise RegistrationRefused(
                    f"{name} has announced itself meanwhile, and is not looked for at {path} any longer"
                )

        endpoint = UnixEndpoint(path)
        await self._ask_name(name, endpoint)
        await self._registration.install(Accepted(name, endpoint, rules.UNANNOUNCED), refuse)
        self._unannounced[name] = path
        note = f"{name} was found at {path}, and nobody announces it: a kubelet of today would not find it there"
        self._api.events.normal(self._api.node, UNANNOUNCED, note)

    async def _ask_name(self, name: str, endpoint: UnixEndpoint) -> None:
        client = self._registration.client(endpoint)
        try:
            async with self._clock.timeout(DIAL_SECONDS):
                await client.connected()
            info = await client.call(rpc.GET_PLUGIN_INFO, csi_pb2.GetPluginInfoRequest(), within=DIAL_SECONDS)
        finally:
            await client.close()
        if info.name != name:
            raise RegistrationRefused(
                f"the driver at {endpoint.path} calls itself {info.name!r}, where {name} is looked for"
            )

    def _look_at_unannounced(self, tasks: TaskGroup) -> float | None:
        for name, path in list(self._unannounced.items()):
            if path not in self._busy and not self._folder.is_socket(path):
                del self._unannounced[name]
                self._start(tasks, path, partial(self._forget, name))
        return self._clock.elapsed() + LOOK_AT_UNANNOUNCED_SECONDS if self._unannounced else None

    async def _forget(self, name: str, _path: str) -> None:
        await self._registration.forget(name)


async def _notify(plugin: CsiClient, error: str) -> None:
    status = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
    await plugin.call(rpc.NOTIFY_REGISTRATION_STATUS, status, within=NOTIFY_SECONDS)


def _told(error: CsiError | RegistrationRefused | TimeoutError, path: str) -> str:
    match error:
        case RegistrationRefused():
            return str(error)
        case CsiError():
            return f"RegisterPlugin error -- {go_text(error)} at socket {path}"
        case _:
            return f"RegisterPlugin error -- dial failed at socket {path}: nobody answers there"
