"""A kubelet's server put together: its pods, their logs, its statistics, on the socket `kubelet.sock` in its folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orlop.csi.client import CsiClient
from orlop.embedded.kubelet.kubelet_side import KubeletSide
from orlop.embedded.kubelet.pods.container_logs import ContainerLogs
from orlop.embedded.kubelet.registered_drivers import RegisteredDrivers
from orlop.embedded.kubelet.server.answers import KubeletParts
from orlop.embedded.kubelet.server.kubelet_server import ServerTools, kubelet_server
from orlop.embedded.kubelet.server.node_summary import NodeSummary
from orlop.embedded.kubelet.tools import Tools
from orlop.embedded.kubelet.volumes.volume_stats import StatsTools, volume_stats
from orlop.host.confined_paths import opened_root

KUBELET_SOCKET: Final = "kubelet.sock"


@dataclass(frozen=True, slots=True)
class _ClientsOf:
    drivers: RegisteredDrivers

    def driver(self, name: str) -> CsiClient | None:
        return self.drivers[name].client if name in self.drivers else None


@asynccontextmanager
async def server_side(folder: Path, kubelet: KubeletSide, tools: Tools) -> AsyncIterator[None]:
    """Answers while it is entered. SocketInUse or SocketUnusable say what stands against it."""
    stats = StatsTools(_ClientsOf(kubelet.node.drivers), tools.clock, tools.log)
    with opened_root(str(folder)) as root:
        async with volume_stats(kubelet.volumes.mounted_volumes, stats) as volumes:
            summary = NodeSummary(tools.node_name, root, kubelet.pods, volumes, tools.clock)
            parts = KubeletParts(kubelet.pods, ContainerLogs(root, tools.clock), summary)
            async with kubelet_server(folder / KUBELET_SOCKET, parts, ServerTools(tools.clock, tools.log)):
                yield
