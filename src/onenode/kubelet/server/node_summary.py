"""`/stats/summary`, as kubelet writes it: the node's memory and disk, its pods, and volumes as their drivers report.

What is not measured here is not there: clients take a missing member for unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from onenode.host.machine_facts import read_memory
from onenode.kubelet.server.answers import Pods
from onenode.kubelet.volumes.volume_stats import Amount, Measured, VolumeStats
from orlop.foundation.clock import Clock
from orlop.host.kernel.disk_usage import room_on
from orlop.host.threads import Threads
from orlop.kube.objects import time_text

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeMeasured:
    name: str
    since: datetime
    now: datetime
    disk: Amount
    inodes: Amount
    memory: Amount | None


def summary(node: NodeMeasured, pods: Sequence[Mapping[str, Any]], volumes: Sequence[Measured]) -> Object:
    return {"node": _node(node), "pods": [_pod(pod, volumes) for pod in pods]}


def _node(node: NodeMeasured) -> Object:
    document: Object = {"nodeName": node.name, "startTime": time_text(node.since)}
    if node.memory is not None:
        amounts = {"availableBytes": node.memory.available, "workingSetBytes": node.memory.used}
        document["memory"] = {"time": time_text(node.now), **amounts}
    return {**document, "fs": {"time": time_text(node.now), **_bytes(node.disk), **_inodes(node.inodes)}}


def _pod(pod: Mapping[str, Any], volumes: Sequence[Measured]) -> Object:
    metadata, status = pod["metadata"], pod.get("status") or {}
    mine = [one for one in volumes if one.volume.pod_uid == metadata["uid"]]
    document: Object = {"podRef": {key: metadata[key] for key in ("name", "namespace", "uid")}}
    if status.get("startTime"):
        document["startTime"] = status["startTime"]
    document["containers"] = [_container(one) for one in status.get("containerStatuses") or ()]
    stats = [_volume(pod, name, one) for one in mine for name in one.volume.names]
    return {**document, "volume": stats} if stats else document


def _container(status: Mapping[str, Any]) -> Object:
    started = ((status.get("state") or {}).get("running") or {}).get("startedAt")
    return {"name": status["name"], **({"startTime": started} if started else {})}


def _volume(pod: Mapping[str, Any], name: str, measured: Measured) -> Object:
    usage = measured.usage
    document: Object = {"time": time_text(measured.time)}
    if usage.bytes is not None:
        document |= _bytes(usage.bytes)
    if usage.inodes is not None:
        document |= _inodes(usage.inodes)
    document["name"] = name
    if claim := _claim(pod, name):
        document["pvcRef"] = {"name": claim, "namespace": pod["metadata"]["namespace"]}
    if usage.abnormal is not None:
        document["volumeHealthStats"] = {"abnormal": usage.abnormal}
    return document


def _claim(pod: Mapping[str, Any], name: str) -> str | None:
    """Of the volume that the pod calls so; one that the pod had made for itself is named after both."""
    volume: Mapping[str, Any] = next((one for one in pod["spec"].get("volumes") or () if one["name"] == name), {})
    if "ephemeral" in volume:
        return f"{pod['metadata']['name']}-{name}"
    claimed: str | None = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    return claimed


def _bytes(amount: Amount) -> Object:
    return {"availableBytes": amount.available, "capacityBytes": amount.total, "usedBytes": amount.used}


def _inodes(amount: Amount) -> Object:
    return {"inodesFree": amount.available, "inodes": amount.total, "inodesUsed": amount.used}


class NodeSummary:
    """`folder` is a descriptor of the kubelet's folder: the disk it is on is the node's."""

    def __init__(
        self, node_name: str, folder: int, pods: Pods, volumes: VolumeStats, in_thread: Threads, clock: Clock
    ) -> None:
        self._node_name = node_name
        self._folder = folder
        self._pods = pods
        self._volumes = volumes
        self._in_thread = in_thread
        self._clock = clock
        self._since = clock.now()

    async def __call__(self, of_volumes: bool) -> Mapping[str, Any]:  # noqa: FBT001 - the one thing that is asked
        node = await self._in_thread(partial(self._measured, self._clock.now()))
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
