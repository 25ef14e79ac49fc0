"""The node's statistics, when they are asked for: its disk and memory now, its volumes as their drivers last said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from orlop.embedded.kubelet.server.pods_seen import Pods
from orlop.embedded.kubelet.server.summary_rules import NodeMeasured, summary
from orlop.embedded.kubelet.volumes.volume_stats import VolumeStats
from orlop.embedded.kubelet.volumes.volume_stats_rules import Amount
from orlop.foundation.clock import Clock
from orlop.host.disk_usage import room_on
from orlop.host.machine_facts import read_memory


class NodeSummary:
    """`folder` is a descriptor of the kubelet's folder: the disk it is on is the node's."""

    def __init__(self, node_name: str, folder: int, pods: Pods, volumes: VolumeStats, clock: Clock) -> None:
        self._node_name = node_name
        self._folder = folder
        self._pods = pods
        self._volumes = volumes
        self._clock = clock
        self._since = clock.now()

    async def __call__(self, of_volumes: bool) -> Mapping[str, Any]:  # noqa: FBT001 - the one thing that is asked
        node = await asyncio.to_thread(self._measured, self._clock.now())
        volumes = list((await self._volumes.current()).values()) if of_volumes else []
        return summary(node, [seen.pod for seen in self._pods.workers()], volumes)

    def _measured(self, now: datetime) -> NodeMeasured:
        room, memory = room_on(self._folder), read_memory()
        return NodeMeasured(
            self._node_name,
            self._since,
            now,
            _amount(room.total_bytes, room.free_bytes),
            _amount(room.total_inodes, room.free_inodes),
            _amount(memory.total_bytes, memory.available_bytes) if memory is not None else None,
        )


def _amount(total: int, available: int) -> Amount:
    return Amount(total, max(0, total - available), available)
