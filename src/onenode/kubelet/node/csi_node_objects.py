"""Has what drivers say of the node stand on the Node and in its CSINode, and takes it away again.

Order for a driver that comes: the Node (annotation, labels), then the CSINode; for one that goes: the CSINode, then
the Node. Each write is based on what was just read, and is tried four times: a driver whose facts cannot be written is
not registered (`CannotStand`). A CSINode of a Node that had our name before is deleted, and made anew.

At the beginning the CSINode is made, without drivers; until that is done the node is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from onenode.kubelet.node import csi_node_rules as rules
from onenode.kubelet.node.csi_node_rules import CannotStand, DriverNodeInfo
from onenode.kubelet.node.node_api import NodeApi
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.client import DeleteOptions
from orlop.kube.kinds import CSI_NODE, NODE
from orlop.kube.objects import Object, ObjectName, uid
from orlop.kube.patches import JsonPatch

MOST_TRIES: Final = 4
BETWEEN_TRIES: Final = Backoff(initial=0.01, factor=5.0, cap=0.25, jitter=0.1)
BEGINNING: Final = Backoff(initial=0.03, factor=8.0, cap=30.0, jitter=0.1)
NOT_BEGUN: Final = "CSINode is not yet initialized"

ObjectUpdate = Callable[[Mapping[str, Any]], Object | None]


class CsiNodeObjects:
    def __init__(self, api: NodeApi, runtime: Runtime) -> None:
        self._kube = api.kube
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log
        self._name = ObjectName(None, api.node_name)
        self._one_at_a_time = asyncio.Lock()
        self._not_ready: str | None = NOT_BEGUN

    def not_ready(self) -> str | None:
        """Why the node is not ready, as far as the CSINode is concerned."""
        return self._not_ready

    async def begin(self) -> None:
        """Makes the CSINode, however long that takes; where kubelet would end after a while, this goes on trying."""
        failures = 0
        while self._not_ready is not None:
            try:
                async with self._one_at_a_time:
                    await self._change_csi_node(rules.with_migrated_plugins)
                self._not_ready = None
            except ApiError as error:
                failures += 1
                self._not_ready = f"Failed to initialize CSINode: {error.message}"
                await self._clock.sleep(BEGINNING.delay(failures, self._random))

    async def install(self, driver: str, facts: DriverNodeInfo) -> None:
        """`CannotStand` where it could not be written."""
        async with self._one_at_a_time:
            await self._insist(
                "error updating Node object with CSI driver node info",
                lambda: self._change_node(lambda node: rules.node_patch(node, driver, facts)),
            )
            await self._insist(
                "error updating CSINode object with CSI driver node info",
                lambda: self._change_csi_node(lambda seen: rules.with_driver(seen, driver, facts)),
            )

    async def uninstall(self, driver: str) -> None:
        """What cannot be removed stays, and is logged: the next registration writes over it."""
        async with self._one_at_a_time:
            try:
                await self._insist("error uninstalling CSI driver from CSINode object", lambda: self._drop(driver))
                await self._insist(
                    "error removing CSI driver node info from Node object",
                    lambda: self._change_node(lambda node: rules.node_patch_without(node, driver)),
                )
            except CannotStand as error:
                self._log.warning("driver not removed from the API", driver=driver, error=str(error))

    async def set_allocatable(self, driver: str, max_volumes: int) -> None:
        """`CannotStand` where it could not be written."""
        change: ObjectUpdate = lambda seen: rules.with_allocatable(seen, driver, max_volumes)  # noqa: E731 - as in install
        async with self._one_at_a_time:
            await self._insist("error updating CSINode allocatable", lambda: self._change_csi_node(change))

    # ---- one try -----------------------------------------------------------------------------------------------------

    async def _insist(self, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            try:
                return await attempt()
            except CannotStand as error:
                raise CannotStand(f"{what}: {error}") from None
            except ApiError as error:
                failures += 1
                if failures >= MOST_TRIES:
                    raise CannotStand(f"{what}: {error.message}") from None
                await self._clock.sleep(BETWEEN_TRIES.delay(failures, self._random))

    async def _change_node(self, change: Callable[[Mapping[str, Any]], JsonPatch | None]) -> None:
        patch = change(await self._kube.get(NODE, self._name))
        if patch is not None:
            await self._kube.patch(NODE, self._name, patch, subresource="status")

    async def _change_csi_node(self, change: ObjectUpdate) -> None:
        node = await self._kube.get(NODE, self._name)
        seen = await self._csi_node(node)
        if seen is None:
            fresh = rules.new_csi_node(node)
            await self._kube.create(CSI_NODE, change(fresh) or fresh)
        elif (changed := change(seen)) is not None:
            await self._kube.replace(CSI_NODE, changed)

    async def _drop(self, driver: str) -> None:
        try:
            seen = await self._kube.get(CSI_NODE, self._name)
        except NotFound:
            return
        if (changed := rules.without_driver(seen, driver)) is not None:
            await self._kube.replace(CSI_NODE, changed)

    async def _csi_node(self, node: Mapping[str, Any]) -> Object | None:
        try:
            seen = await self._kube.get(CSI_NODE, self._name)
        except NotFound:
            return None
        if not rules.is_of_another_node(seen, node):
            return seen
        await self._kube.delete(CSI_NODE, self._name, DeleteOptions(uid=uid(seen)))
        return None
