"""What our client of the Kubernetes API costs on top of bare aiohttp, measured in one run and printed as ratios.

The server is a small process of its own that answers every PATCH with the same PersistentVolume, every watch with a
stream of events as fast as they are read, and every list with 10,000 objects. Rounds of ours and of the bare client
take turns, and each figure is the median of its rounds, so that a busy machine hurts both alike. The bare client does
the least a client must: encode, send, read, decode.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import uvloop
from aiohttp import web

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.config.cluster_access import ClusterAccess, FixedCredentials
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName

OBJECTS = 10_000
EVENTS = 20_000
NEWEST = "99999"
PATCH = {"metadata": {"annotations": {"example.com/note": "written by a benchmark"}}}
VOLUMES = "/api/v1/persistentvolumes"


def volume(number: int) -> dict[str, Any]:
    """As a provisioner makes it."""
    name = f"pvc-6355041d-f9c6-4bd6-9335-{number:012d}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "uid": f"4c4e3d62-5f0e-4f5a-8c1c-{number:012d}",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"pv.kubernetes.io/provisioned-by": "csi.example.com"},
            "finalizers": ["kubernetes.io/pv-protection", "external-attacher/csi-example-com"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "10Gi"},
            "claimRef": {"kind": "PersistentVolumeClaim", "name": f"data-{number}", "namespace": "shop", "uid": name},
            "csi": {"driver": "csi.example.com", "volumeHandle": name, "volumeAttributes": {"fs": "xfs"}},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "example.com/node", "operator": "In", "values": ["worker-17"]}]}
                    ]
                }
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Bound"},
    }


# ---- the server ------------------------------------------------------------------------------------------------------


async def serve(path: str) -> None:
    logging.disable()  # aiohttp would tell of every client that leaves in the middle of a watch
    answer = msgspec.json.encode(volume(1))
    everything = msgspec.json.encode(
        {
            "kind": "PersistentVolumeList",
            "metadata": {"resourceVersion": NEWEST},
            "items": list(map(volume, range(OBJECTS))),
        }
    )
    event = msgspec.json.encode({"type": "MODIFIED", "object": volume(1)}) + b"\n"

    async def patched(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/json")

    async def listed(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") != "true":
            return web.Response(body=everything, content_type="application/json")
        stream = web.StreamResponse(headers={"content-type": "application/json"})
        await stream.prepare(request)
        if request.query.get("resourceVersion") == NEWEST:
            await asyncio.Event().wait()
        for _ in range(EVENTS // 10):
            await stream.write(event * 10)
        return stream

    application = web.Application()
    application.router.add_patch(VOLUMES + "/{name}", patched)
    application.router.add_get(VOLUMES, listed)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    await asyncio.Event().wait()


# ---- the two clients -------------------------------------------------------------------------------------------------


class Ours:
    def __init__(self, path: str) -> None:
        access = ClusterAccess("http://localhost", FixedCredentials(), unix_socket=path)
        self.client = KubeClient(
            HttpTransport(access),
            clock=SystemClock(),
            random=Random(1),  # noqa: S311 - spreads retries, guards nothing
            log=silent_log(),
        )
        self._name = ObjectName(None, volume(1)["metadata"]["name"])

    async def patch(self) -> None:
        await self.client.patch(PERSISTENT_VOLUME, self._name, MergePatch(PATCH))

    async def watch(self) -> AsyncIterator[object]:
        async for event in self.client.watch(PERSISTENT_VOLUME, after="1"):
            yield event

    async def close(self) -> None:
        await self.client.close()


class Bare:
    def __init__(self, path: str) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path))
        self._url = f"http://localhost{VOLUMES}/{volume(1)['metadata']['name']}?fieldManager=orlop"

    async def patch(self) -> None:
        headers = {"accept": "application/json", "content-type": "application/merge-patch+json", "user-agent": "orlop"}
        async with self._session.patch(self._url, data=msgspec.json.encode(PATCH), headers=headers) as response:
            msgspec.json.decode(await response.read())

    async def watch(self) -> AsyncIterator[object]:
        async with self._session.get(f"http://localhost{VOLUMES}?watch=true") as response:
            async for line in response.content:
                yield msgspec.json.decode(line)

    async def close(self) -> None:
        await self._session.close()


Client = Ours | Bare


async def cpu_per_patch(client: Client, calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        await client.patch()
    return (time.process_time() - started) / calls


async def cpu_per_event(client: Client, _calls: int) -> float:
    started, count = time.process_time(), 0
    async for _ in client.watch():
        count += 1
    return (time.process_time() - started) / count


# ---- the rounds ------------------------------------------------------------------------------------------------------


async def compare(
    title: str, path: str, measure: Callable[[Client, int], Awaitable[float]], options: argparse.Namespace, most: str
) -> None:
    clients: dict[str, Client] = {"bare": Bare(path), "ours": Ours(path)}
    rounds: dict[str, list[float]] = {name: [] for name in clients}
    for number in range(options.rounds + 1):
        for name, client in clients.items():
            figure = await measure(client, options.calls)
            if number:  # the first connects and fills caches
                rounds[name].append(figure * 1e6)
    for client in clients.values():
        await client.close()
    bare, ours = (statistics.median(rounds[name]) for name in ("bare", "ours"))
    print(f"{title:24} bare {bare:8.1f} us   ours {ours:8.1f} us   ratio {ours / bare:5.2f}   {most}")


def resident() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024


async def sync(path: str, rounds: int) -> None:
    """The time from nothing to a cache of all objects, and what that cache holds in memory."""
    times: list[float] = []
    for _ in range(rounds):
        ours = Ours(path)
        started = time.perf_counter()
        informer = Informer(
            ours.client,
            Watched(PERSISTENT_VOLUME),
            clock=SystemClock(),
            random=Random(1),  # noqa: S311 - as above
            log=silent_log(),
        )
        running = asyncio.get_running_loop().create_task(informer.run())
        await informer.wait_synced()
        times.append(time.perf_counter() - started)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ours.close()
    print(f"sync of {OBJECTS:,} objects   {statistics.median(times):.3f} s")


async def memory(path: str) -> None:
    ours = Ours(path)
    gc.collect()
    before = resident()
    informer = Informer(
        ours.client,
        Watched(PERSISTENT_VOLUME),
        clock=SystemClock(),
        random=Random(1),  # noqa: S311 - as above
        log=silent_log(),
    )
    running = asyncio.get_running_loop().create_task(informer.run())
    await informer.wait_synced()
    gc.collect()
    size = len(msgspec.json.encode([volume(number) for number in range(OBJECTS)]))
    held = resident() - before
    print(f"cache of {OBJECTS:,} objects  {held / 2**20:.1f} MiB, {held / size:.1f} times their JSON")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await ours.close()


async def measure(path: str, options: argparse.Namespace) -> None:
    await compare("CPU per patch", path, cpu_per_patch, options, "(at most 1.3)")
    await compare("CPU per watch event", path, cpu_per_event, options, "")
    await sync(path, options.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds per figure")
    parser.add_argument("--calls", type=int, default=1000, help="calls in a round")
    options = parser.parse_args()
    print(f"kube_client: Python {sys.version.split()[0]}, aiohttp {aiohttp.__version__}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        path = f"{folder}/api.sock"
        server = subprocess.Popen([sys.executable, __file__, "serve", path])
        try:
            while not Path(path).exists():
                time.sleep(0.01)
            uvloop.run(measure(path, options))
            subprocess.run([sys.executable, __file__, "memory", path], check=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", path]:
            uvloop.run(serve(path))
        case ["memory", path]:
            uvloop.run(memory(path))
        case _:
            main()
