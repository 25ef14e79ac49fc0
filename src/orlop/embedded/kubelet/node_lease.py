"""The node's heartbeat: a Lease in kube-node-lease, renewed every 10 seconds.

Nobody else may hold it, so what stands there is written over; a write that is refused looks again first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from orlop.embedded.kubelet.node_status_rules import LEASE_NAMESPACE, lease_of
from orlop.embedded.kubelet.tools import Tools
from orlop.foundation.backoff import Backoff
from orlop.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from orlop.kube.kinds import LEASE
from orlop.kube.objects import Object, ObjectName

RENEW_SECONDS: Final = 10.0
MOST_TRIES: Final = 5
UNTIL_THERE: Final = Backoff(initial=0.2, factor=2.0, cap=7.0)


class NodeLease:
    """`node` gives the Node whose lease it is, and waits until there is one."""

    def __init__(self, node: Callable[[], Awaitable[Mapping[str, Any]]], tools: Tools) -> None:
        self._node = node
        self._kube = tools.kube
        self._clock = tools.clock
        self._random = tools.random
        self._log = tools.log
        self._name = ObjectName(LEASE_NAMESPACE, tools.node_name)
        self._lease: Object | None = None

    async def run(self) -> None:
        """Until it is cancelled; the Lease then stays, and is over by itself."""
        failures = 0
        while True:
            renewed = await self._renew()
            failures = 0 if renewed else failures + 1
            wait = RENEW_SECONDS if renewed else min(RENEW_SECONDS, UNTIL_THERE.delay(failures, self._random))
            await self._clock.sleep(wait)

    async def _renew(self) -> bool:
        for _ in range(MOST_TRIES):
            try:
                self._lease = await self._written(await self._node())
            except (Conflict, AlreadyExists, NotFound):
                self._lease = await self._found()
            except ApiError as error:
                self._log.warning("the node's lease cannot be renewed", error=error.message)
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
