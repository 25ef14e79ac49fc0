"""Writes a driver's node id and topology to the Node object: the id as an annotation, the topology as labels.

Current kubelets write both when they register a driver. This writer is for clusters whose kubelet does not, and for
controllers that read the annotation. Order: read the Node → decide → one patch that tests what was read → start again
if another writer was faster. It checks again whenever kubelet registered the driver, because kubelet removes a driver's
entry from the annotation when it unregisters the driver.

Nothing is removed when the process ends: while a driver is being replaced its volumes stay attached under this id, and
the attacher that detaches them must find it. A write that fails (no permission, no such Node, a label with another
value) is logged once and retried less and less often; the registration never waits for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import ApiError, Conflict, Forbidden, Invalid, PatchRefused
from orlop.kube.client import KubeClient
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName
from orlop.sidecars.registrar.driver_registration import WarnOnce
from orlop.sidecars.registrar.node_metadata_rules import AnnotationEntry, DesiredMetadata, node_change
from orlop.sidecars.registrar.registration_rules import NodeInfo

CONFLICT_BACKOFF: Final = Backoff(initial=0.01, factor=5.0, cap=1.0, jitter=0.5)
FAILURE_BACKOFF: Final = Backoff(initial=1.0, factor=2.0, cap=60.0, jitter=0.5)
OPERATOR_BACKOFF: Final = Backoff(initial=300.0, factor=1.0, cap=300.0, jitter=0.5)
"""For what only a person can change: a missing permission, a label that collides."""


class NotWritable(Exception):
    """The Node has metadata that must not be overwritten."""


class NodeMetadataWriter:
    """Keep one driver's metadata on one Node. `annotate` and `label` select what is written."""

    def __init__(self, kube: KubeClient, node_name: str, runtime: Runtime, *, annotate: bool, label: bool) -> None:
        self._kube = kube
        self._name = ObjectName(None, node_name)
        self._annotate = annotate
        self._label = label
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log.bind(node=node_name)
        self._warnings = WarnOnce(self._log)
        self._desired: tuple[str, NodeInfo] | None = None
        self._written: dict[str, AnnotationEntry] = {}
        self._wakeup = asyncio.Event()
        self._writes = runtime.metrics.counter(
            "orlop_registrar_node_writes_total", "Attempts to write to the Node, by outcome.", ("outcome",)
        )

    def set_desired(self, driver: str, node: NodeInfo) -> None:
        """Set what the Node shall show; the same values again have no effect."""
        if self._desired != (driver, node):
            self._desired = (driver, node)
            self._wakeup.set()

    def check_again(self) -> None:
        """Read the Node again: another writer may have changed it."""
        if self._desired is not None:
            self._wakeup.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._wakeup.wait()
            await self._write_until_done()

    async def _write_until_done(self) -> None:
        failures = 0
        while (error := await self._try_to_write()) is not None:
            failures += 1
            backoff, outcome = _retry_after(error)
            self._writes.inc(outcome)
            if backoff is not CONFLICT_BACKOFF:
                self._warnings.warn("cannot write the driver's node id and topology to the Node", error=str(error))
            await self._pause(backoff.delay(failures, self._random))

    async def _try_to_write(self) -> Exception | None:
        # Clear before reading the desired values: values that are set during the write must cause another write.
        self._wakeup.clear()
        try:
            await self._write()
        except (ApiError, NotWritable) as error:
            return error
        return None

    async def _write(self) -> None:
        node = await self._kube.get(NODE, self._name)
        desired = self._desired_metadata()
        change = node_change(node, desired)
        # Remember the entry before the patch: a patch whose response is lost may have been applied, and if the driver's
        # name changes, only entries that we remember are removed.
        if desired.entry is not None:
            self._written[desired.entry.driver] = desired.entry
        if change.patch is not None:
            await self._kube.patch(NODE, self._name, change.patch)
            node_id = desired.entry.node_id if desired.entry else None
            self._log.info("wrote node id and topology to the Node", node_id=node_id, labels=dict(desired.labels))
            self._writes.inc("written")
        if change.problems:
            raise NotWritable("; ".join(change.problems))
        self._warnings.clear("the Node shows the driver's node id and topology")

    def _desired_metadata(self) -> DesiredMetadata:
        if self._desired is None:
            return DesiredMetadata()
        driver, node = self._desired
        return DesiredMetadata(
            entry=AnnotationEntry(driver, node.node_id) if self._annotate else None,
            labels=node.topology if self._label else (),
            former=tuple(entry for name, entry in self._written.items() if name != driver),
        )

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not longer than until the next change of what is desired."""
        with suppress(TimeoutError):
            async with self._clock.timeout(seconds):
                await self._wakeup.wait()


def _retry_after(error: Exception) -> tuple[Backoff, str]:
    """Return how to back off, and the metric's outcome."""
    match error:
        case Conflict() | PatchRefused():
            return CONFLICT_BACKOFF, "conflict"
        case Forbidden():
            return OPERATOR_BACKOFF, "forbidden"
        case NotWritable() | Invalid():
            return OPERATOR_BACKOFF, "refused"
        case _:
            return FAILURE_BACKOFF, "failed"
