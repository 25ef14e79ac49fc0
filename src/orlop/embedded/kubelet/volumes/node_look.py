"""One look at our own Node after a start: which of the volumes found on disk were attached for us.

Nothing is unmounted before it has succeeded, so that a kubelet that cannot reach its API server leaves pods alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orlop.embedded.kubelet.volumes.actual_state import ActualState
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.kube.errors import ApiError
from orlop.kube.kinds import NODE
from orlop.kube.objects import ObjectName

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0


class NodeLook:
    def __init__(self, tools: VolumeTools, actual: ActualState) -> None:
        self._tools = tools
        self._actual = actual
        self.is_done = False

    async def look(self, done: Callable[[], None]) -> None:
        """Until it succeeds."""
        delay = FIRST_DELAY
        while not await self._try():
            await self._tools.clock.sleep(delay)
            delay = min(LONGEST_DELAY, delay * 2)
        self.is_done = True
        done()

    async def _try(self) -> bool:
        try:
            node = await self._tools.client.get(NODE, ObjectName(None, self._tools.node))
        except ApiError as error:
            self._tools.log.info("the node's own object cannot be read yet", error=error.message)
            return False
        attached = {volume.get("name") for volume in (node.get("status") or {}).get("volumesAttached") or ()}
        for name in [*self._actual.volumes]:
            if name in attached:
                self._actual.set_attachable(name, attachable=True)
        return True
