"""How many pods a second the scheduler places, over many nodes, with an API server in the same process.

A row for each kind of pod: plain ones, ones with a bound local volume, with a late-binding claim that finds a free
local volume, and with one that is provisioned (a small binder in the process does its part). Pods are created before
the scheduler starts; the time is from its start until the last one has a node. `search` is the part of it that the
search for nodes took; the rest is the API server, watches and writes.

    python benchmarks/scheduler.py [--nodes 500] [--pods 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from random import Random
from typing import Any

import uvloop

from onenode.controllers.scheduler import scheduler
from onenode.controllers.scheduling.node_search import NodeSearch
from onenode.testing.api_server import api_server
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import (
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
)
from orlop.kube.objects import ObjectName, annotations, name, uid
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

HOST = "kubernetes.io/hostname"
SELECTED = "volume.kubernetes.io/selected-node"
ALLOCATABLE = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}
DRIVER = "bench.example.com"
Object = dict[str, Any]
searching = [0.0]


def measured(search: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(search)
    def find(*given: Any) -> Any:
        began = time.perf_counter()
        try:
            return search(*given)
        finally:
            searching[0] += time.perf_counter() - began

    return find


# ---- the objects -----------------------------------------------------------------------------------------------------


async def make_nodes(client: KubeClient, count: int) -> None:
    for number in range(count):
        node = f"n{number}"
        labels = {HOST: node, "topology.kubernetes.io/zone": f"z{number % 3}", "kubernetes.io/os": "linux"}
        await client.create(NODE, {"metadata": {"name": node, "labels": labels}})
        status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": ALLOCATABLE}
        await client.patch(NODE, ObjectName(None, node), MergePatch({"status": status}), subresource="status")
        await client.patch(NODE, ObjectName(None, node), MergePatch({"spec": {"taints": None}}))


async def make_volume(client: KubeClient, volume: str, node: str, **spec: Any) -> None:
    terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}]
    body = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "csi": {"driver": DRIVER, "volumeHandle": volume},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        **spec,
    }
    await client.create(PERSISTENT_VOLUME, {"metadata": {"name": volume}, "spec": body})


async def make_claim(client: KubeClient, claim: str, **more: Any) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "late"}
    metadata = {"name": claim, "annotations": more.pop("annotations", {})}
    return await client.create(
        PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": {**spec, **more}}, namespace="default"
    )


async def make_pod(client: KubeClient, pod: str, claim: str = "") -> None:
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    spec = {"containers": [{"name": "main", "image": "i", "resources": resources}], "volumes": volumes}
    await client.create(POD, {"metadata": {"name": pod}, "spec": spec}, namespace="default")


async def plain(client: KubeClient, number: int, _node: str) -> None:
    await make_pod(client, f"p{number}")


async def bound(client: KubeClient, number: int, node: str) -> None:
    claim, volume = f"c{number}", f"v{number}"
    done = {"pv.kubernetes.io/bind-completed": "yes"}
    made = await make_claim(client, claim, volumeName=volume, annotations=done)
    await make_volume(client, volume, node, claimRef={"namespace": "default", "name": claim, "uid": uid(made)})
    await make_pod(client, f"p{number}", claim)


async def found(client: KubeClient, number: int, node: str) -> None:
    await make_volume(client, f"v{number}", node)
    await client.patch(
        PERSISTENT_VOLUME,
        ObjectName(None, f"v{number}"),
        MergePatch({"status": {"phase": "Available"}}),
        subresource="status",
    )
    await make_claim(client, f"c{number}")
    await make_pod(client, f"p{number}", f"c{number}")


async def provisioned(client: KubeClient, number: int, _node: str) -> None:
    await make_claim(client, f"c{number}")
    await make_pod(client, f"p{number}", f"c{number}")


ROWS: dict[str, Callable[[KubeClient, int, str], Awaitable[None]]] = {
    "plain": plain,
    "bound volume": bound,
    "free local volume": found,
    "provisioned": provisioned,
}


# ---- one run ---------------------------------------------------------------------------------------------------------


class Binder:
    """Binds what the scheduler chose, and makes volumes for claims with a node."""

    def __init__(self, client: KubeClient, claims: Informer, volumes: Informer) -> None:
        self._client, self._claims, self._volumes = client, claims, volumes
        self._todo: asyncio.Queue[ObjectName] = asyncio.Queue()
        claims.add_listener(self._todo.put_nowait)
        volumes.add_listener(self._todo.put_nowait)

    async def run(self) -> None:
        while True:
            changed = await self._todo.get()
            if changed.namespace:
                claim = self._claims.get(changed)
                node = annotations(claim).get(SELECTED) if claim is not None else None
                if claim is not None and node and not claim["spec"].get("volumeName"):
                    await self._bind(changed, f"pvc-{uid(claim)}", node)
            else:
                volume = self._volumes.get(changed)
                reference = (volume or {"spec": {}})["spec"].get("claimRef")
                owner = self._claims.get(ObjectName("default", reference["name"])) if reference else None
                if owner is not None and not owner["spec"].get("volumeName"):
                    await self._bind(ObjectName("default", name(owner)), changed.name, "")

    async def _bind(self, claim: ObjectName, volume: str, node: str) -> None:
        done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        patch = MergePatch({"metadata": done, "spec": {"volumeName": volume}})
        if node:
            await make_volume(self._client, volume, node)
        await self._client.patch(PERSISTENT_VOLUME_CLAIM, claim, patch)


@asynccontextmanager
async def running_scheduler(client: KubeClient, binding: KubeClient) -> AsyncIterator[Informer]:
    clock, log, metrics = SystemClock(), silent_log(), Metrics("bench", of_process=False)
    random = Random(1)  # noqa: S311 - no secret
    events = EventRecorder(client, Reporter("s", "s"), clock=clock, random=random, log=log, metrics=metrics)
    runtime = Runtime(clock=clock, random=random, log=log, metrics=metrics)
    async with (
        Informers(client, clock=clock, random=random, log=log) as informers,
        Informers(binding, clock=clock, random=random, log=log) as of_binder,
        of_binder.using(Watched(PERSISTENT_VOLUME_CLAIM)) as claims,
        of_binder.using(Watched(PERSISTENT_VOLUME)) as volumes,
        of_binder.using(Watched(POD)) as pods,
    ):
        for informer in (claims, volumes, pods):
            await informer.wait_synced()
        tasks = [asyncio.create_task(events.run()), asyncio.create_task(Binder(binding, claims, volumes).run())]
        try:
            async with scheduler(client, informers, runtime, events, WorkqueueMetrics(metrics)):
                yield pods
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def run(row: str, nodes: int, pods: int) -> None:
    async with api_server(SystemClock()) as server:
        client = server.client()
        await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "default"}}, namespace="default")
        late = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
        await client.create(STORAGE_CLASS, {"metadata": {"name": "late"}, **late})
        await make_nodes(client, nodes)
        for number in range(pods):
            await ROWS[row](client, number, f"n{number % nodes}")
        searching[0], began = 0.0, time.perf_counter()
        async with running_scheduler(server.client(), server.client()) as seen:
            # Looked at seldom: counting takes time from what is measured.
            while sum(1 for pod in seen.cache if pod["spec"].get("nodeName")) < pods:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        took = time.perf_counter() - began
        share = 100 * searching[0] / took
        print(
            f"{row:20} {pods / took:9,.0f} pods/s   {1000 * searching[0] / pods:7.2f} ms/search   {share:3.0f}% search"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--row", choices=list(ROWS))
    asked = parser.parse_args()
    NodeSearch.find = measured(NodeSearch.find)  # type: ignore[method-assign]
    print(f"{asked.pods:,} pods over {asked.nodes:,} nodes, API server in the process")
    for row in [asked.row] if asked.row else ROWS:
        uvloop.run(run(row, asked.nodes, asked.pods))


if __name__ == "__main__":
    main()
