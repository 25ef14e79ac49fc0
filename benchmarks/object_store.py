"""What the embedded API server's object store costs, measured in one run and printed as ratios.

Creates per second with 1, 10 and 100 writers, each of which waits for one create before it begins the next: in memory,
on disk, and beside them bare SQLite in a loop of its own with one commit per write and the same durability. Rounds take
turns and each figure is the median of its rounds, so that a busy machine hurts all alike. Then lists of 10,000
objects, one change told to 100 watches, start-up with 10,000 objects, and memory.

An object is a PersistentVolume of 1.5 KB, as a provisioner writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.store import ObjectStore, memory_store
from onenode.apiserver.store.versions import DecodedObjects, Key, Put, fresh
from onenode.apiserver.store.watches import Watch

VOLUMES = "persistentvolumes"
WRITERS = (1, 10, 100)
MANY = 10_000
WATCHES = 100


def volume(name: str, revision: int) -> dict[str, Any]:
    handle = f"0001-0009-csi.example.com-{name}"
    return {
        "metadata": {
            "name": name,
            "uid": "6355041d-f9c6-4bd6-9335-4a7eebb1d1a2",
            "resourceVersion": str(revision),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"topology.example.com/node": "worker-17", "tier": "hot"},
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "csi.example.com",
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "10Gi"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": f"data-{name}",
                "namespace": "production",
                "uid": "0b0bd2d1-53ad-4b4c-a09b-d95c0a54ff00",
                "resourceVersion": "123456",
            },
            "csi": {
                "driver": "csi.example.com",
                "fsType": "xfs",
                "volumeHandle": handle,
                "volumeAttributes": {
                    "storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-1234-csi.example.com"
                },
            },
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "topology.example.com/node", "operator": "In", "values": ["worker-17"]}
                            ]
                        }
                    ]
                }
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "local-hot",
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:01Z"},
    }


def encoded(name: str, revision: int) -> bytes:
    return msgspec.json.encode(volume(name, revision))


async def create(store: ObjectStore, number: int) -> None:
    name = f"pvc-6355041d-f9c6-4bd6-9335-{number:012d}"
    await store.create(Key(VOLUMES, "", name), lambda revision: encoded(name, revision))


# ---- writers ---------------------------------------------------------------------------------------------------------


async def creates_per_second(store: ObjectStore, writers: int, seconds: float) -> float:
    numbers = itertools.count()
    began = time.perf_counter()

    async def write() -> None:
        while time.perf_counter() - began < seconds:
            await create(store, next(numbers))

    await asyncio.gather(*(write() for _ in range(writers)))
    return next(numbers) / (time.perf_counter() - began)


async def in_memory(_folder: Path, writers: int, seconds: float) -> float:
    async with memory_store() as store:
        return await creates_per_second(store, writers, seconds)


async def on_disk(folder: Path, writers: int, seconds: float) -> float:
    async with durable_store(folder) as store:
        return await creates_per_second(store, writers, seconds)


async def bare_sqlite(folder: Path, _writers: int, seconds: float) -> float:
    with contextlib.closing(sqlite3.connect(folder / "bare.db", isolation_level=None)) as connection:
        connection.executescript("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
        connection.execute("CREATE TABLE bare (revision INTEGER PRIMARY KEY, name TEXT, json BLOB)")
        began = time.perf_counter()
        for number in itertools.count():
            if time.perf_counter() - began >= seconds:
                return number / (time.perf_counter() - began)
            name = f"pvc-6355041d-f9c6-4bd6-9335-{number:012d}"
            connection.execute("INSERT INTO bare VALUES (?, ?, ?)", (number, name, encoded(name, number)))
    raise AssertionError


Load = Callable[[Path, int, float], Awaitable[float]]
LOADS: dict[str, Load] = {"memory": in_memory, "disk": on_disk, "bare SQLite": bare_sqlite}


async def measure_creates(writers: int, rounds: int, seconds: float) -> None:
    figures: dict[str, list[float]] = {name: [] for name in LOADS}
    for _ in range(rounds):
        for name, load in LOADS.items():
            with tempfile.TemporaryDirectory(prefix="o-") as folder:
                figures[name].append(await load(Path(folder), writers, seconds))
    memory, disk, bare = (statistics.median(figures[name]) for name in LOADS)
    print(
        f"creates {writers:4} writers {memory:9.0f}/s memory {disk:9.0f}/s disk {bare:9.0f}/s bare SQLite   "
        f"disk to memory {disk / memory:5.2f}   disk to bare {disk / bare:5.2f}"
    )


# ---- readers ---------------------------------------------------------------------------------------------------------


def seconds_of(act: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def measure_lists(rounds: int) -> None:
    async with memory_store() as store:
        await asyncio.gather(*(create(store, number) for number in range(MANY)))
        first = store.revision
        copying = seconds_of(lambda: b",".join([stored.json for stored in store.list(VOLUMES).items]), rounds)
        listing = seconds_of(lambda: store.list(VOLUMES), rounds)
        decoding = seconds_of(lambda: [fresh(stored) for stored in store.list(VOLUMES).items], rounds)
        key = store.list(VOLUMES).items[0].key
        for _ in range(100):
            await store.update(key, None, lambda current, revision: Put(encoded(current.key.name, revision)))
        past = seconds_of(lambda: store.list(VOLUMES, at=first, limit=500), rounds)
        page = seconds_of(lambda: store.list(VOLUMES, limit=500), rounds)
    print(
        f"list    {MANY} objects {listing * 1e3:.1f} ms; joined into one body {copying * 1e3:.1f} ms; "
        f"decoded as well {decoding * 1e3:.1f} ms ({decoding / listing:.0f} times)"
    )
    print(
        f"page    500 of {MANY} {page * 1e3:.2f} ms; "
        f"as it was 100 changes ago {past * 1e3:.2f} ms ({past / page:.0f} times)"
    )


async def measure_watches(rounds: int, changes: int = 500) -> None:
    alone, many = [], []
    for _ in range(rounds):
        alone.append(await watched_writes(1, changes))
        many.append(await watched_writes(WATCHES, changes))
    one, hundred = statistics.median(alone), statistics.median(many)
    each = (hundred - one) / (WATCHES - 1)
    print(
        f"watch   a create with 1 watch {one * 1e6:.0f} us, with {WATCHES} {hundred * 1e6:.0f} us "
        f"({hundred / one:.1f} times); {each * 1e6:.2f} us for each watch more"
    )


async def watched_writes(watches: int, changes: int) -> float:
    """Seconds for one create until all who watch have read it."""

    async def read(watch: Watch) -> None:
        for _ in range(changes):
            await anext(watch)

    async with memory_store() as store:
        readers = [asyncio.ensure_future(read(store.watch(VOLUMES, after=store.revision))) for _ in range(watches)]
        began = time.perf_counter()
        for number in range(changes):
            await create(store, number)
        await asyncio.gather(*readers)
        return (time.perf_counter() - began) / changes


async def measure_selectors(rounds: int) -> None:
    async with memory_store() as store:
        await create(store, 1)
        (stored,) = store.list(VOLUMES).items
        remembered = DecodedObjects()
        each_for_itself = seconds_of(lambda: [fresh(stored) for _ in range(WATCHES)], rounds)
        shared = seconds_of(lambda: [remembered.of(stored) for _ in range(WATCHES)], rounds)
    print(
        f"decode  one object for {WATCHES} watches {each_for_itself * 1e6:.0f} us, "
        f"remembered {shared * 1e6:.0f} us ({each_for_itself / shared:.0f} times)"
    )


# ---- start-up and memory ---------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def fill(folder: Path) -> None:
    async with durable_store(folder) as store:
        await asyncio.gather(*(create(store, number) for number in range(MANY)))


async def start(folder: Path) -> None:
    """In a process of its own: prints the seconds until it is open, and the growth of its memory."""
    before, began = resident_bytes(), time.perf_counter()
    async with durable_store(folder) as store:
        opened = time.perf_counter() - began
        size = sum(len(stored.json) for stored in store.list(VOLUMES).items)
        print(opened, resident_bytes() - before, size)


async def measure_start(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        await fill(Path(folder))
        runs = []
        for _ in range(rounds):
            command = [sys.executable, __file__, "start", folder]
            printed = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
            runs.append(tuple(map(float, printed.stdout.split())))
    seconds, memory, size = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"start   with {MANY} objects of {size / MANY:.0f} bytes: {seconds:.3f} s")
    print(
        f"memory  {memory / MANY * 1000 / 1e6:.2f} MB per 1,000 objects ({memory / size:.2f} times their bytes), "
        "with their creations in the history"
    )


async def main(options: argparse.Namespace) -> None:
    print(
        f"object_store: Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores, "
        f"objects of {len(encoded('pvc-6355041d-f9c6-4bd6-9335-000000000001', 1000))} bytes"
    )
    for writers in WRITERS:
        await measure_creates(writers, options.rounds, options.seconds)
    await measure_lists(options.rounds)
    await measure_watches(options.rounds)
    await measure_selectors(options.rounds)
    await measure_start(options.rounds)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one round of creates")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per figure")
    return parser.parse_args()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["start", folder]:
            uvloop.run(start(Path(folder)))
        case _:
            uvloop.run(main(parsed()))
