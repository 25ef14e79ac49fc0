"""Asks drivers again how many volumes the node takes, as often as their CSIDriver says, and writes it in the CSINode.

Follows the CSIDriver objects and the drivers that come and go. Each driver is asked in a task of its own: one that does
not answer keeps no other waiting. Nothing but the limit is changed: not the node's id, nor its topology.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from onenode.kubelet.node.csi_node_objects import CsiNodeObjects
from onenode.kubelet.node.csi_node_rules import CannotStand
from onenode.kubelet.node.plugin_registration import CSI_STEP_SECONDS
from onenode.kubelet.node.registered_drivers import RegisteredDrivers
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informer import Informer
from orlop.kube.objects import ObjectName

PERIOD_FIELD: Final = "nodeAllocatableUpdatePeriodSeconds"
SHORTEST_PERIOD_SECONDS: Final = 10.0


class AllocatableRefresh:
    """`csi_drivers` is an informer of the CSIDriver objects, which somebody keeps running."""

    def __init__(
        self, csi_drivers: Informer, drivers: RegisteredDrivers, objects: CsiNodeObjects, runtime: Runtime
    ) -> None:
        self._csi_drivers = csi_drivers
        self._drivers = drivers
        self._objects = objects
        self._clock = runtime.clock
        self._log = runtime.log
        self._wake = asyncio.Event()
        self._periods: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        stop_listening = self._csi_drivers.add_listener(lambda _name: self._wake.set())
        try:
            async with TaskGroup() as tasks:
                tasks.start(self._follow_drivers(), name="follow the registered drivers")
                while True:
                    self._wake.clear()
                    await self._pause(self._look(tasks))
        finally:
            stop_listening()

    async def refresh(self, name: str) -> None:
        """Now: also for who found that the node takes no more. Failures are logged."""
        driver = self._drivers.get(name)
        if driver is None:
            return
        try:
            info = await driver.client.call(rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest(), within=CSI_STEP_SECONDS)
            await self._objects.set_allocatable(name, info.max_volumes_per_node)
        except CsiError as error:
            self._log.warning("volume limit of driver not available", driver=name, error=error.message)
        except CannotStand as error:
            self._log.warning("volume limit of driver not written", driver=name, error=str(error))

    # ---- when --------------------------------------------------------------------------------------------------------

    async def _follow_drivers(self) -> None:
        while True:
            await self._drivers.changed()
            self._wake.set()

    def _look(self, tasks: TaskGroup) -> float | None:
        elapsed = self._clock.elapsed()
        self._take_in_periods(elapsed)
        for name in [name for name, instant in self._due.items() if elapsed >= instant]:
            self._due[name] = elapsed + self._periods[name]
            if name not in self._busy:
                self._busy.add(name)
                tasks.start(self._at_work(name), name=f"ask {name} for its limit")
        return min(self._due.values(), default=None)

    def _take_in_periods(self, elapsed: float) -> None:
        """A period that is new, or another, begins now."""
        wanted = {name: period for name in self._drivers if (period := self._period(name)) is not None}
        for name in [name for name in self._periods if wanted.get(name) != self._periods[name]]:
            del self._periods[name], self._due[name]
        for name, period in wanted.items():
            if name not in self._periods:
                self._periods[name], self._due[name] = period, elapsed + period

    def _period(self, name: str) -> float | None:
        found = self._csi_drivers.get(ObjectName(None, name))
        seconds = (found.get("spec") or {}).get(PERIOD_FIELD) if found is not None else None
        return max(SHORTEST_PERIOD_SECONDS, float(seconds)) if seconds else None

    async def _at_work(self, name: str) -> None:
        try:
            await self.refresh(name)
        finally:
            self._busy.discard(name)

    async def _pause(self, until: float | None) -> None:
        if until is None:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            async with self._clock.timeout(max(0.0, until - self._clock.elapsed())):
                await self._wake.wait()
