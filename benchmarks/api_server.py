"""What the embedded API server does in a second, in memory and on disk, measured in one run.

The server is a process of its own that listens on a unix socket; a bare aiohttp client sends the same requests to both
kinds of it, with 1 and with 50 of them under way. Rounds of both take turns and each figure is the median of its
rounds, so that a busy machine hurts both alike. CPU is the server's. Then a change told to 100 watchers, memory, and
what lists of thousands take: PersistentVolumes beside custom resources that say the same under a schema of their own.

An object is a PersistentVolume, as a provisioner writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import uvloop

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.apiserver.edge.http_listener import Opening, listening
from onenode.apiserver.requests.request_handler import ApiServer
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.store import ObjectStore, memory_store
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.foundation.unix_socket import bind_root_only, claim_socket
from orlop.kube.http.http_messages import HttpRequest, HttpResponse

KINDS = ("memory", "disk")
UNDER_WAY = (1, 50)
VOLUMES = "http://localhost/api/v1/persistentvolumes"
LISTED = 1000
WATCHERS = 100
CHANGES = 100
MERGE_PATCH = {"content-type": "application/merge-patch+json"}


def volume(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {"pv.kubernetes.io/provisioned-by": "csi.example.com"},
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "10Gi"},
            "claimRef": {"kind": "PersistentVolumeClaim", "name": name, "namespace": "shop", "uid": name},
            "csi": {"driver": "csi.example.com", "volumeHandle": name, "volumeAttributes": {"fs": "xfs"}},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
        },
    }


# ---- the server ------------------------------------------------------------------------------------------------------


def store_of(kind: str, folder: Path) -> AbstractAsyncContextManager[ObjectStore]:
    return durable_store(folder) if kind == "disk" else memory_store()


class Everybody:
    """Whoever comes is the admin."""

    def __init__(self, server: ApiServer) -> None:
        self.answer = server.answer

    def admit(self, _head: HttpRequest, *, local: bool) -> User | HttpResponse:  # noqa: ARG002 - as the listener asks it
        return ADMIN


async def serve(kind: str, folder: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    clock, log = SystemClock(), silent_log()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_of(kind, folder))
        random = Random(1)  # noqa: S311 - guards nothing here
        runtime = Runtime(clock=clock, random=random, log=log, metrics=Metrics("bench"))
        server = await stack.enter_async_context(ApiServer(store, Schemas.load(), runtime).running())
        claim = stack.enter_context(claim_socket(folder / "api.sock"))
        opening = Opening(bind_root_only(claim), None)
        await stack.enter_async_context(listening([opening], Everybody(server), runtime))
        await stop.wait()


@dataclass(frozen=True)
class Served:
    kind: str
    path: Path
    pid: int

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextlib.contextmanager
def server(kind: str, folder: str) -> Iterator[Served]:
    own = Path(folder) / kind
    own.mkdir()
    process = subprocess.Popen([sys.executable, __file__, "serve", kind, str(own)])
    try:
        while not (own / "api.sock").exists():
            time.sleep(0.01)
        yield Served(kind, own / "api.sock", process.pid)
    finally:
        process.terminate()
        process.wait()


# ---- the load --------------------------------------------------------------------------------------------------------

names = (f"pvc-6355041d-f9c6-4bd6-9335-{number:012d}" for number in itertools.count())
Request = Callable[[aiohttp.ClientSession], Awaitable[None]]


async def create(session: aiohttp.ClientSession) -> None:
    async with session.post(VOLUMES, data=msgspec.json.encode(volume(next(names)))) as answer:
        await answer.read()
        answer.raise_for_status()


async def get(session: aiohttp.ClientSession) -> None:
    async with session.get(f"{VOLUMES}/listed-1") as answer:
        await answer.read()
        answer.raise_for_status()


async def patch(session: aiohttp.ClientSession) -> None:
    change = {"metadata": {"annotations": {"example.com/note": next(names)}}}
    url = f"{VOLUMES}/listed-{next(turns) % LISTED}"
    async with session.patch(url, data=msgspec.json.encode(change), headers=MERGE_PATCH) as answer:
        await answer.read()
        answer.raise_for_status()


async def list_all(session: aiohttp.ClientSession) -> None:
    async with session.get(VOLUMES, params={"labelSelector": "listed=yes"}) as answer:
        await answer.read()
        answer.raise_for_status()


turns = itertools.count()
REQUESTS: dict[str, Request] = {"create": create, "patch": patch, "get": get, f"list of {LISTED:,}": list_all}


@asynccontextmanager
async def session_to(served: Served) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(served.path), limit=0)
    headers = {"content-type": "application/json", "accept": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield session


async def fill(served: Served) -> None:
    async with session_to(served) as session:
        for number in range(LISTED):
            listed = volume(f"listed-{number}")
            listed["metadata"]["labels"] = {"listed": "yes"}
            async with session.post(VOLUMES, data=msgspec.json.encode(listed)) as answer:
                answer.raise_for_status()


@dataclass(frozen=True)
class Round:
    per_second: float
    cpu: float


async def one_round(served: Served, request: Request, under_way: int, seconds: float) -> Round:
    async with session_to(served) as session:
        await asyncio.gather(*(request(session) for _ in range(under_way)))
        cpu, started, count = served.cpu(), time.perf_counter(), 0

        async def again_and_again() -> None:
            nonlocal count
            while time.perf_counter() - started < seconds:
                await request(session)
                count += 1

        await asyncio.gather(*(again_and_again() for _ in range(under_way)))
        return Round(count / (time.perf_counter() - started), (served.cpu() - cpu) / count * 1e6)


async def compare(title: str, servers: list[Served], under_way: int, options: argparse.Namespace) -> None:
    rounds: dict[str, list[Round]] = {served.kind: [] for served in servers}
    for _ in range(options.rounds):
        for served in servers:
            rounds[served.kind].append(await one_round(served, REQUESTS[title], under_way, options.seconds))
    speed = {kind: statistics.median(r.per_second for r in rounds[kind]) for kind in KINDS}
    cpu = {kind: statistics.median(r.cpu for r in rounds[kind]) for kind in KINDS}
    print(
        f"{title:14} {under_way:3}  {speed['memory']:9.0f} {speed['disk']:9.0f} {speed['disk'] / speed['memory']:6.2f}"
        f"   {cpu['memory']:9.0f} {cpu['disk']:9.0f}"
    )


async def fan_out(served: Served) -> None:
    """Each of 100 watchers is told of each of 100 changes; the time until the last of them knows the last change."""
    async with session_to(served) as session, AsyncExitStack() as stack:
        query = {"watch": "true", "labelSelector": "listed=yes"}
        async with session.get(VOLUMES, params={"limit": "1"}) as answer:
            query["resourceVersion"] = (await answer.json())["metadata"]["resourceVersion"]
        watches = [await stack.enter_async_context(session.get(VOLUMES, params=query)) for _ in range(WATCHERS)]

        async def told(watch: aiohttp.ClientResponse) -> None:
            for _ in range(CHANGES):
                await watch.content.readline()

        cpu, started = served.cpu(), time.perf_counter()
        watching = asyncio.gather(*(told(watch) for watch in watches))
        for _ in range(CHANGES):
            await patch(session)
        await watching
        seconds = time.perf_counter() - started
        each = (served.cpu() - cpu) / CHANGES / WATCHERS * 1e6
    print(
        f"{served.kind:6}  {CHANGES * WATCHERS / seconds:9.0f} events/s to {WATCHERS} watchers, CPU {each:.1f} us each"
    )


async def memory(served: Served) -> None:
    before, count = served.resident(), 10
    async with session_to(served) as session:
        for _ in range(count * 1000):
            await create(session)
    print(f"{served.kind:6}  {(served.resident() - before) / count / 2**20:9.2f} MiB per 1,000 PersistentVolumes")


# ---- a built-in kind beside a custom resource ------------------------------------------------------------------------

CUSTOM = "http://localhost/apis/bench.example.com/v1/volumes"
DEFINITIONS = "http://localhost/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATHS = {"built-in": VOLUMES, "custom": CUSTOM}
MANY = 10_000
TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
INITIAL = {
    "watch": "true",
    "sendInitialEvents": "true",
    "allowWatchBookmarks": "true",
    "resourceVersionMatch": "NotOlderThan",
}


def schema_of(value: Any) -> dict[str, Any]:
    match value:
        case dict():
            return {"type": "object", "properties": {name: schema_of(inner) for name, inner in value.items()}}
        case list():
            return {"type": "array", "items": schema_of(value[0])}
        case _:
            return {"type": "string"}


def definition() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": schema_of(volume("x")["spec"])}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "volumes", "kind": "Volume"}
    spec = {"group": "bench.example.com", "scope": "Cluster", "names": names, "versions": [version]}
    return {"metadata": {"name": "volumes.bench.example.com"}, "spec": spec}


async def fill_both(session: aiohttp.ClientSession) -> None:
    async with session.post(DEFINITIONS, data=msgspec.json.encode(definition())) as answer:
        answer.raise_for_status()
    for path in PATHS.values():
        numbers = iter(range(MANY))

        async def some(path: str = path, numbers: Iterator[int] = numbers) -> None:
            for number in numbers:
                made = volume(f"many-{number:05}")
                if path == CUSTOM:
                    made |= {"apiVersion": "bench.example.com/v1", "kind": "Volume"}
                async with session.post(path, data=msgspec.json.encode(made)) as answer:
                    answer.raise_for_status()

        await asyncio.gather(*(some() for _ in range(50)))


async def whole(session: aiohttp.ClientSession, path: str, query: dict[str, str], headers: dict[str, str]) -> None:
    async with session.get(path, params=query, headers=headers) as answer:
        if "watch" not in query:
            await answer.read()
            return
        end = b""
        async for piece in answer.content.iter_any():
            end = (end + piece)[-400:]
            if b"initial-events-end" in end:
                return


async def patches(session: aiohttp.ClientSession, path: str) -> None:
    for _ in range(100):
        change = {"metadata": {"annotations": {"example.com/note": next(names)}}}
        url = f"{path}/many-{next(turns) % MANY:05}"
        async with session.patch(url, data=msgspec.json.encode(change), headers=MERGE_PATCH) as answer:
            await answer.read()
            answer.raise_for_status()


async def compare_kinds(served: Served, rounds: int) -> None:
    """Milliseconds of the client, and of the server's CPU, for each kind."""
    requests: dict[str, Callable[[aiohttp.ClientSession, str], Awaitable[None]]] = {
        f"list of {MANY:,}": lambda session, path: whole(session, path, {}, {}),
        f"table of {MANY:,}": lambda session, path: whole(session, path, {}, TABLE),
        "page of 500": lambda session, path: whole(session, path, {"limit": "500"}, {}),
        f"watch of {MANY:,}": lambda session, path: whole(session, path, INITIAL, {}),
        "100 patches": patches,
    }
    async with session_to(served) as session:
        await fill_both(session)
        print(f"{'':16} {'built-in ms':>12} {'custom ms':>12} {'ratio':>6}   {'CPU ms':>8} {'CPU ms':>8}")
        for title, request in requests.items():
            took: dict[str, list[float]] = {name: [] for name in PATHS}
            used = dict.fromkeys(PATHS, 0.0)
            for _ in range(rounds):
                for name, path in PATHS.items():
                    cpu, started = served.cpu(), time.perf_counter()
                    await request(session, path)
                    took[name].append((time.perf_counter() - started) * 1e3)
                    used[name] += (served.cpu() - cpu) / rounds * 1e3
            built_in, custom = (statistics.median(took[name]) for name in PATHS)
            print(
                f"{title:16} {built_in:12.1f} {custom:12.1f} {custom / built_in:6.2f}"
                f"   {used['built-in']:8.1f} {used['custom']:8.1f}"
            )


async def measure(servers: list[Served], options: argparse.Namespace) -> None:
    for served in servers:
        await fill(served)
    print(f"{'':14} {'':3}  {'memory/s':>9} {'disk/s':>9} {'ratio':>6}   {'CPU us':>9} {'CPU us':>9}")
    for title in REQUESTS:
        for under_way in UNDER_WAY:
            await compare(title, servers, under_way, options)
    for served in servers:
        await fan_out(served)
    for served in servers:
        await memory(served)
    await compare_kinds(servers[0], options.kind_rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per figure")
    parser.add_argument("--kind-rounds", type=int, default=9, help="rounds per figure of the lists of thousands")
    options = parser.parse_args()
    print(f"api_server: Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="o-") as folder, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(server(kind, folder)) for kind in KINDS]
        uvloop.run(measure(servers, options))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", kind, folder]:
            uvloop.run(serve(kind, Path(folder)))
        case _:
            main()
